"""Faults on purpose: which there are, which are in force, and what they do."""

__all__ = ["acting", "faults", "kinds", "link"]
