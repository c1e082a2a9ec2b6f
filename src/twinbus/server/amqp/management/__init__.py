"""The $management node of an entity: what the SDKs ask beside sending and receiving."""

__all__ = ["node"]
