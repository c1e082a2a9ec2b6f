"""Send and receive with the official SDK on asyncio.

eval "$(twinbus env --data data)"
twinbus queue create orders
python examples/send_and_receive_async.py
"""

import asyncio
import os

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

QUEUE = "orders"


async def main() -> None:
    connection_string = os.environ["TWINBUS_CONNECTION_STRING"]
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("order 1"))
        async with client.get_queue_receiver(QUEUE, max_wait_time=5) as receiver:
            async for message in receiver:
                print(message.sequence_number, str(message))
                await receiver.complete_message(message)


if __name__ == "__main__":
    asyncio.run(main())
