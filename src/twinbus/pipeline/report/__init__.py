"""Reports: one HTML file each, with its charts inside, that opens anywhere and asks nobody."""

__all__ = ["bill", "dead_letters", "page", "reconciliation", "svg"]
