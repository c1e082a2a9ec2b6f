"""Look at the dead-letter queue and send its messages again.

eval "$(twinbus env --data data)"
python examples/dead_letters.py orders
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue


def main(queue: str) -> None:
    connection_string = os.environ["TWINBUS_CONNECTION_STRING"]
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(
            queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=5
        ) as dead_letters,
    ):
        for message in dead_letters:
            print(message.sequence_number, message.dead_letter_reason, str(message))
            # Send first, complete second: a crash between the two repeats, never loses.
            sender.send_messages(ServiceBusMessage(b"".join(message.body)))
            dead_letters.complete_message(message)


if __name__ == "__main__":
    main(sys.argv[1])
