"""Faults on purpose: which there are, which are in force, and what they do."""
