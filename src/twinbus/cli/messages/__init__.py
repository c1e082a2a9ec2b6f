"""`twinbus send`, `receive`, `peek` and what works on many messages."""
