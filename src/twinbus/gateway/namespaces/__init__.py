"""Namespaces and the life of their entities: made, changed, deleted, put right after a crash."""
