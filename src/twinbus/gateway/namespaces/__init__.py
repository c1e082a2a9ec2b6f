"""Namespaces and their entities: created, changed, deleted, reconciled after a crash."""

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
