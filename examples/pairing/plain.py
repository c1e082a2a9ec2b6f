"""A plain program of the official SDK: what it sends during an outage is lost, or it stops.

python examples/pairing/plain.py "one coffee"
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]


def main(text: str) -> None:
    with (
        ServiceBusClient.from_connection_string(PRIMARY) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))
    print("sent")


if __name__ == "__main__":
    main(sys.argv[1])
