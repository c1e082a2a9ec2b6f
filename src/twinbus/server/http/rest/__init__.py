"""Messages over plain HTTP requests."""

__all__ = ["messages", "requests"]
