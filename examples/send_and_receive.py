"""Send and receive with the official SDK.

eval "$(twinbus env --data data)"
twinbus queue create orders
python examples/send_and_receive.py
"""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

QUEUE = "orders"


def main() -> None:
    connection_string = os.environ["TWINBUS_CONNECTION_STRING"]
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender(QUEUE) as sender:
            sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(5)])
        with client.get_queue_receiver(QUEUE, max_wait_time=5) as receiver:
            for message in receiver:
                print(message.sequence_number, str(message))
                receiver.complete_message(message)


if __name__ == "__main__":
    main()
