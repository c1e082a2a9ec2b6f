"""The paired program on asyncio.

python examples/pairing/paired_async.py "one coffee"
"""

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage

from twinbus.pairing.aio import PairedServiceBusClient

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]
SECONDARY = os.environ["TWINBUS_CONNECTION_STRING_SECONDARY"]


async def main(text: str) -> None:
    async with (
        await PairedServiceBusClient.from_connection_strings(PRIMARY, SECONDARY) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(text))
    print("sent")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
