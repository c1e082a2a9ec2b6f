"""What a pipeline asks of a namespace, blocking: look, read, send, settle.

    bus = open_bus(connection_string)
    state = bus.entity("orders")
    for messages in bus.browse("orders", 0, state.partitions[0].next): ...
    bus.send("archive", messages)

Two ways stand behind it: the operations that twinbus offers to pipelines (`twinbus.py`), and
the ones that every Service Bus has (`standard.py`).  A caller never sees which one it has.
"""

from typing import Final

from twinbus import PRODUCT_NAME
from twinbus.errors import ConfigError
from twinbus.pipeline.bus.line import NamespaceConnection
from twinbus.pipeline.bus.protocol import (
    SEND_BATCH_BYTES,
    Bus,
    BusSender,
    EntityState,
    PartitionState,
    Pending,
    SendRefused,
)
from twinbus.pipeline.bus.standard import StandardBus
from twinbus.pipeline.bus.twinbus import TwinbusBus

__all__ = [
    "OPERATIONS",
    "SEND_BATCH_BYTES",
    "Bus",
    "BusSender",
    "EntityState",
    "PartitionState",
    "Pending",
    "SendRefused",
    "open_bus",
]

OPERATIONS: Final = ("auto", "twinbus", "standard")


def open_bus(connection_string: str, operations: str = "auto") -> Bus:
    """Connect.  `auto` goes by what the bus says of itself: a twinbus has operations of its own."""
    if operations not in OPERATIONS:
        raise ConfigError(f"operations: '{operations[:64]}' is none of {', '.join(OPERATIONS)}")
    line = NamespaceConnection(connection_string)
    line.open()
    if operations == "auto":
        operations = "twinbus" if line.product() == PRODUCT_NAME else "standard"
    return TwinbusBus(line) if operations == "twinbus" else StandardBus(line)
