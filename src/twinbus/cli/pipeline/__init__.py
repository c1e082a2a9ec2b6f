"""`twinbus pipeline`."""
