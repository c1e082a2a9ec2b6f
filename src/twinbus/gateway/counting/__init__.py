"""Counting: metrics under Azure Monitor's names, and operations that Azure would bill."""

__all__ = ["counters", "meter", "meter_writer"]
