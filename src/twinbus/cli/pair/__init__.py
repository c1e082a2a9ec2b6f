"""`twinbus pair`."""
