"""The $management node of an entity: the SDKs' requests besides sending and receiving."""

__all__ = ["node"]
