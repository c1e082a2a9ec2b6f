"""What is well and what is not: stores, brokers, entities, and this process."""

__all__ = ["health", "usage"]
