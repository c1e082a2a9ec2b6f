"""Namespaces and the life of their entities: made, changed, deleted, put right after a crash."""

__all__ = [
    "auto_delete_rounds",
    "declared",
    "entity_changes",
    "lifetime",
    "namespace",
    "reconcile",
    "registry",
    "views",
]
