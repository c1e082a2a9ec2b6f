"""Messages on their way between stores: forwarding, and the journal of a store that is not well."""

__all__ = ["journal", "relay"]
