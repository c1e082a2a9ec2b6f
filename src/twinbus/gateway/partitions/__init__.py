"""A partitioned entity as one: where each command goes, and how answers become one."""

__all__ = ["fan_out", "receiver", "routing", "sends", "sessions"]
