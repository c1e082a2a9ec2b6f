"""The health of stores, brokers, entities and this process."""

__all__ = ["health", "survival", "usage"]
