"""`twinbus pair`."""

__all__ = ["backlog", "command"]
