"""Orchestration: turns commands into facts, facts into deliveries."""

__all__ = ["broker", "shell"]
