"""Writing: rows as messages, their producer keys, and the sends of a task."""

__all__ = ["keys", "sends", "writers"]
