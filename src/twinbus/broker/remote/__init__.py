"""The stores of a broker process: the other end of `links/remote`."""

__all__ = ["stores"]
