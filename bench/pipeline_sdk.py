"""The official SDK doing what Spark does in `bench.pipeline`, in a process of its own.

`python -m bench.pipeline_sdk WHAT COUNT PRIMARY SECONDARY` does it once and prints one line of
JSON.  Written as one would write it who wants it quick: lists where the SDK takes lists, a tuple
for each message, nothing read that is not wanted.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from bench.paired_servers import BACKLOG_QUEUES, QUEUE
from bench.pairing import backlog_queues
from twinbus.testing.server import ServerProcess

PEEK_COUNT = 250  # more than that Azure does not give at once
READS = ("all columns", "body and message id", "nothing")
READ_QUEUE = "few"


def ask_sdk(
    what: str, primary: ServerProcess, secondary: ServerProcess, count: int
) -> tuple[float, float]:
    """Messages a second, and a second of processor time."""
    command = [sys.executable, "-m", "bench.pipeline_sdk", what, str(count)]
    command += [primary.connection_string, secondary.connection_string]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rates = json.loads(done.stdout)
    return rates["wall"], rates["cpu"]


def main() -> None:
    what, count_text, primary, secondary = sys.argv[1:]
    count = int(count_text)
    with (
        ServiceBusClient.from_connection_string(primary) as client,
        ServiceBusClient.from_connection_string(secondary) as other,
    ):
        started, busy = time.perf_counter(), time.process_time()
        if what in READS:
            read(client, what, count)
        elif what == "write":
            write(client, count, plain)
        elif what == "write, ordinary":
            write(client, count, ordinary)
        elif what == "syphon":
            with client.get_queue_sender(QUEUE) as sender:
                for queue in backlog_queues():
                    carry(other, queue, sender, count // BACKLOG_QUEUES, body_of)
        else:
            copy = copy_of if what == "move, ordinary" else body_of
            with client.get_queue_sender("out") as sender:
                carry(client, "in", sender, count, copy)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - busy
    print(json.dumps({"wall": count / wall_s, "cpu": count / cpu_s}))


def read(client: Any, columns: str, count: int) -> None:
    """Peek at everything, and make rows of it with the columns that Spark's have."""
    namespace = client.fully_qualified_namespace
    seen = 0
    with client.get_queue_receiver(READ_QUEUE) as receiver:
        number = 1
        while messages := receiver.peek_messages(PEEK_COUNT, sequence_number=number):
            if columns == "all columns":
                rows = [row_of(namespace, each) for each in messages]
                assert len(rows) == len(messages)
            elif columns == "body and message id":
                pairs = [(each.message_id, b"".join(each.body)) for each in messages]
                assert len(pairs) == len(messages)
            seen += len(messages)
            number = messages[-1].sequence_number + 1
    assert seen == count, seen


def row_of(namespace: str, message: Any) -> tuple[object, ...]:
    """The 28 columns of `pipeline/schema.py`, in their order."""
    number = message.sequence_number
    body = b"".join(message.body)
    ttl = message.time_to_live
    properties = message.application_properties
    return (
        namespace,
        READ_QUEUE,
        number >> 48,
        number,
        message.enqueued_sequence_number,
        message.enqueued_time_utc,
        message.message_id,
        message.session_id,
        message.partition_key,
        message.correlation_id,
        message.subject,
        message.to,
        message.reply_to,
        message.reply_to_session_id,
        message.content_type,
        None if ttl is None else ttl.total_seconds() * 1_000,
        message.expires_at_utc,
        message.scheduled_enqueue_time_utc,
        message.delivery_count,
        message.state.name,
        message.dead_letter_source,
        message.dead_letter_reason,
        message.dead_letter_error_description,
        None
        if properties is None
        else {name.decode(): text_of(value) for name, value in properties.items()},
        body,
        message.body_type.name,
        len(body),
        f"{namespace}/{READ_QUEUE}/{number}",
    )


def text_of(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def write(client: Any, count: int, make: Callable[[int], ServiceBusMessage]) -> None:
    with client.get_queue_sender("out") as sender:
        for first in range(0, count, 100):
            sender.send_messages([make(number) for number in range(first, first + 100)])


def plain(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(bytes(1_024), message_id=str(number))


def ordinary(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        bytes(1_024),
        message_id=f"order-{number:012d}",
        subject="order",
        correlation_id=f"cart-{number // 3}",
        content_type="application/json",
        application_properties={"tenant": "contoso", "number": str(number), "urgent": "false"},
    )


def carry(
    source: Any, queue: str, sender: Any, count: int, copy: Callable[[Any], ServiceBusMessage]
) -> None:
    with source.get_queue_receiver(queue) as receiver:
        while count:
            messages = receiver.receive_messages(100, max_wait_time=5)
            sender.send_messages([copy(each) for each in messages])
            for each in messages:
                receiver.complete_message(each)
            count -= len(messages)


def body_of(message: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"".join(message.body))


def copy_of(message: Any) -> ServiceBusMessage:
    """All that a sender may have said, as Spark's columns carry it."""
    return ServiceBusMessage(
        b"".join(message.body),
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        correlation_id=message.correlation_id,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
        content_type=message.content_type,
        time_to_live=message.time_to_live,
        application_properties=message.application_properties,
    )


if __name__ == "__main__":
    main()
