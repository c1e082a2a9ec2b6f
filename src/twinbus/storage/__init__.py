"""Durability: the log, snapshots, recovery.  Knows records, not AMQP."""

__all__ = [
    "catalog",
    "disk",
    "entity_index",
    "faulty",
    "log",
    "maintenance",
    "meter_log",
    "ring",
    "store",
    "verify",
]
