"""What both halves of `bench.pairing` share: the queue, its messages, how servers are paired."""

from typing import Any

from twinbus.certificates import ca_certificate
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.testing.server import ServerProcess

BODY = bytes(1_024)
QUEUE = "bench"
WIDE = "bench-wide"  # partitioned
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


def create_queue(server: ServerProcess, queue: str = QUEUE) -> None:
    server.create_queue(queue, max_size_in_megabytes=5_120, enable_partitioning=queue == WIDE)


def empty(server: ServerProcess, queue: str = QUEUE) -> None:
    server.admin.delete_queue(queue)
    create_queue(server, queue)
