"""The same program with a pair of namespaces: one line is different (and its import).

python examples/pairing/paired.py "one coffee"
"""

import os
import sys

from azure.servicebus import ServiceBusMessage

from twinbus.pairing import PairedServiceBusClient

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]
SECONDARY = os.environ["TWINBUS_CONNECTION_STRING_SECONDARY"]


def main(text: str) -> None:
    with (
        PairedServiceBusClient.from_connection_strings(PRIMARY, SECONDARY) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))
    print("sent")


if __name__ == "__main__":
    main(sys.argv[1])
