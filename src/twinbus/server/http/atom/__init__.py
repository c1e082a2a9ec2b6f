"""Entity management over HTTP: the Atom documents of the administration clients."""

__all__ = ["entities"]
