"""`twinbus doctor`."""
