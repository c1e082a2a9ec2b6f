"""What both halves of `bench.pairing` share: the queue, its messages, how servers are paired."""

from typing import Any

from twinbus.certificates import ca_certificate
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.testing.server import ServerProcess

BODY = bytes(1_024)
QUEUE = "bench"
NAME = "bench"  # of the primary, in the names of the backlog queues
BACKLOG_QUEUES = 10
LIST = 100


def options_of(secondary: ServerProcess, **more: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions.from_connection_string(
        secondary.connection_string,
        BACKLOG_QUEUES,
        manager_options={"connection_verify": str(ca_certificate(secondary.data_dir))},
        primary_name=NAME,
        **more,
    )


def create_queue(server: ServerProcess) -> None:
    server.create_queue(QUEUE, max_size_in_megabytes=5_120)


def empty(server: ServerProcess) -> None:
    server.admin.delete_queue(QUEUE)
    create_queue(server)
