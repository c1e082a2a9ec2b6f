"""Paired namespaces: keep sending while one is down, with the official SDK (asyncio).

    from twinbus.pairing.aio import SendAvailabilityPairedNamespaceOptions, pair_namespace

    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary)
    async with await pair_namespace(primary, options) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))

Names are those of `twinbus.pairing`, whose events, statuses, errors and options these are.
"""

from twinbus.pairing.aio._client import PairedServiceBusClient, pair_namespace
from twinbus.pairing.aio._sender import PairedSender
from twinbus.pairing.batch import PairedMessageBatch
from twinbus.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

__all__ = [
    "PairedMessageBatch",
    "PairedNamespaceOptions",
    "PairedSender",
    "PairedServiceBusClient",
    "SendAvailabilityPairedNamespaceOptions",
    "pair_namespace",
]
