"""`twinbus doctor`."""

__all__ = ["command"]
