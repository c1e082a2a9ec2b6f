"""`twinbus queue`, `topic`, `subscription` and `rule`."""

__all__ = ["queue", "rule", "subscription", "topic"]
