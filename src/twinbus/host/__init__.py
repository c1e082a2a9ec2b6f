"""The server as a whole: puts the parts together, starts them and ends them."""

__all__ = ["app"]
