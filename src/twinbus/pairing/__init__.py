"""Paired namespaces: keep sending while one is down, with the official SDK (blocking).

    from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace

    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary)
    with pair_namespace(primary, options) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one"))

For asyncio there is `twinbus.pairing.aio` with the same names.
"""

try:
    import azure.servicebus  # noqa: F401 - only whether it is there
except ImportError as error:
    raise ImportError(
        'Paired namespaces need azure-servicebus: pip install "twinbus[pairing]"'
    ) from error

from twinbus.pairing.batch import PairedMessageBatch
from twinbus.pairing.blocking import PairedSender, PairedServiceBusClient, pair_namespace
from twinbus.pairing.errors import (
    BacklogMessageSizeExceededError,
    BacklogUnavailableError,
    PairFaultedError,
    PairingError,
    PingRefusedError,
)
from twinbus.pairing.events import (
    BacklogQueueLost,
    BacklogQueueStatus,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    EntityStatus,
    Event,
    PairFaulted,
    PairingStatus,
    PingFailed,
    State,
    StrangersLeft,
    SyphonProgress,
    SyphonResting,
)
from twinbus.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

__all__ = [
    "BacklogMessageSizeExceededError",
    "BacklogQueueLost",
    "BacklogQueueStatus",
    "BacklogUnavailableError",
    "EntityFailedOver",
    "EntityFailing",
    "EntityRecovered",
    "EntityStatus",
    "Event",
    "PairFaulted",
    "PairFaultedError",
    "PairedMessageBatch",
    "PairedNamespaceOptions",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingError",
    "PairingStatus",
    "PingFailed",
    "PingRefusedError",
    "SendAvailabilityPairedNamespaceOptions",
    "State",
    "StrangersLeft",
    "SyphonProgress",
    "SyphonResting",
    "pair_namespace",
]
