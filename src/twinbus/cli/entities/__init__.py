"""`twinbus queue`, `topic`, `subscription` and `rule`."""
