"""AMQP 1.0 without I/O, both roles.

`connection.Connection` turns bytes into events and answers into bytes; `message` reads and writes
what travels inside deliveries.  This room never imports asyncio, sockets, clocks or files.
"""

__all__ = [
    "composites",
    "connection",
    "decoding",
    "egress",
    "encoding",
    "endpoints",
    "events",
    "fields",
    "frames",
    "ingress",
    "performatives",
    "places",
    "sasl",
    "session",
    "settings",
    "shapes",
    "states",
    "types",
]
