"""Where things are: addresses, entities and the stores of their parts."""

__all__ = ["addresses", "directory", "placement"]
