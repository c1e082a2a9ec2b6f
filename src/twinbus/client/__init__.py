"""Clients of a bus: connection strings and entity administration.

Never imports server code; talks to twinbus and Azure only over the wire.
"""

__all__ = [
    "admin",
    "blocking",
    "connection",
    "connection_string",
    "faults",
    "http",
    "links",
    "meter",
    "namespaces",
    "requests",
    "rules",
]
