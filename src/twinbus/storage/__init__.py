"""Durability: the log, snapshots, recovery.  Knows records, not AMQP."""
