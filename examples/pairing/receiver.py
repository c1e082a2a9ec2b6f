"""A receiver that also runs the syphon: what waits in the backlog comes home while it works.

python examples/pairing/receiver.py 2
"""

import os
import sys

from twinbus.pairing import PairedServiceBusClient

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]
SECONDARY = os.environ["TWINBUS_CONNECTION_STRING_SECONDARY"]


def main(count: int) -> None:
    with (
        PairedServiceBusClient.from_connection_strings(
            PRIMARY, SECONDARY, enable_syphon=True
        ) as client,
        client.get_queue_receiver("orders", max_wait_time=30) as receiver,
    ):
        for message in receiver:
            print(message)
            receiver.complete_message(message)
            count -= 1
            if count == 0:
                break


if __name__ == "__main__":
    main(int(sys.argv[1]))
