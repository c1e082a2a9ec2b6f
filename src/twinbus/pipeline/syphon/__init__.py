"""Bringing a large backlog home: what a task does with it, and in which rounds."""

__all__ = ["mover", "source"]
