"""`twinbus pipeline`."""

__all__ = ["command"]
