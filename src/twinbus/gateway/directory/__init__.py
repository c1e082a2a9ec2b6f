"""Addresses, entities and the stores of their parts."""

__all__ = ["addresses", "directory", "placement"]
