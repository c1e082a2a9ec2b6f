"""Fail over and back by hand, and watch: nothing has to break for it.

python examples/pairing/rehearsal.py
"""

import os

from azure.servicebus import ServiceBusMessage

from twinbus.pairing import PairedServiceBusClient

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]
SECONDARY = os.environ["TWINBUS_CONNECTION_STRING_SECONDARY"]


def main() -> None:
    with PairedServiceBusClient.from_connection_strings(PRIMARY, SECONDARY) as client:
        client.on_event(lambda event: print("event:", type(event).__name__))
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("to the primary"))
            client.force_failover("orders")
            sender.send_messages(ServiceBusMessage("to the backlog"))
            client.force_failback("orders")
            sender.send_messages(ServiceBusMessage("to the primary again"))
        orders = client.status().entities["orders"]
        print(orders.state.value, orders.sent_to_primary, orders.sent_to_backlog)


if __name__ == "__main__":
    main()
