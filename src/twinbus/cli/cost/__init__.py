"""`twinbus cost`."""

__all__ = ["command", "price_table", "show"]
