"""Send through an outage: the interval is 0, so that the first failed send goes to the backlog.

python examples/pairing/outage.py "two teas"
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace

PRIMARY = os.environ["TWINBUS_CONNECTION_STRING_PRIMARY"]
SECONDARY = os.environ["TWINBUS_CONNECTION_STRING_SECONDARY"]


def main(text: str) -> None:
    # Without retries of the SDK: whoever fails over at once does not want to wait for them first.
    primary = ServiceBusClient.from_connection_string(PRIMARY, retry_total=0)
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        SECONDARY, failover_interval=0, ping_primary_interval=10
    )
    with pair_namespace(primary, options) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(text))
        print("sent, and orders is", client.status().entities["orders"].state.value)


if __name__ == "__main__":
    main(sys.argv[1])
