"""The gateway: namespaces, who may use them, and the way of a command to its partition."""

__all__ = ["gateway", "transactions"]
