"""Injected faults: their kinds, which are in force, and what they do."""

__all__ = ["acting", "faults", "kinds", "link"]
