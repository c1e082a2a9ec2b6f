"""`twinbus bench`."""
