"""`twinbus send`, `receive`, `peek` and what works on many messages."""

__all__ = ["bulk", "receive", "send"]
