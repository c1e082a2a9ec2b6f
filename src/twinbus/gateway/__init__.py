"""The gateway: namespaces, access to them, and the route of a command to its partition."""

__all__ = ["gateway", "transactions"]
