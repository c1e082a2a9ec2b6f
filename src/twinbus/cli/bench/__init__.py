"""`twinbus bench`."""

__all__ = ["command"]
