"""Clients of a bus: connection strings and entity administration.

Never imports the server's side; speaks to twinbus and to Azure by what stands on the wire.
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
