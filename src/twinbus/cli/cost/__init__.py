"""`twinbus cost`."""
