"""Who may do what: shared access signatures, web tokens, and what a connection may claim."""

__all__ = ["claims", "shared_access", "web_tokens"]
