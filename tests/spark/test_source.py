"""`format("servicebus")` reads what the official SDK has sent, in batches and as a stream."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.dataset as ds
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.pipeline.schema import COLUMNS
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("D-1"), pytest.mark.feature("pipeline.source")]


@pytest.fixture(scope="module")
def client(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(bus.connection_string) as opened:
        yield opened


def send(
    client: ServiceBusClient,
    path: str,
    messages: Sequence[ServiceBusMessage],
    is_topic: bool = False,
) -> None:
    opened = client.get_topic_sender(path) if is_topic else client.get_queue_sender(path)
    with opened as sender:
        for at in range(0, len(messages), 100):
            sender.send_messages(list(messages[at : at + 100]))


def numbered(first: int, end: int) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(f"body {number}", message_id=str(number)) for number in range(first, end)
    ]


def dead_letter(client: ServiceBusClient, path: str, wanted: set[str]) -> None:
    """The messages with these ids; the others are given back."""
    with client.get_queue_receiver(path) as receiver:
        received = receiver.receive_messages(20, max_wait_time=5)
        for message in received:
            if message.message_id in wanted:
                receiver.dead_letter_message(message, reason="tired", error_description="so tired")
            else:
                receiver.abandon_message(message)
    assert wanted <= {message.message_id for message in received}


def left_in(bus: ServerProcess, path: str) -> int:
    return int(bus.admin.get_queue(path).properties["MessageCount"])


class Source:
    """Reads from the bus of the module, and keeps what streams have written."""

    def __init__(self, spark: SparkSession, bus: ServerProcess, place: Path) -> None:
        self.spark = spark
        self.connection_string = bus.connection_string
        self.place = place

    def batch(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("servicebus")
        reader = reader.options(connectionString=self.connection_string, **options)
        return (reader.schema(schema) if schema else reader).load()

    def ids(self, **options: str) -> list[str]:
        return [row.message_id for row in self.batch("message_id string", **options).collect()]

    def drain(self, name: str = "query", **options: str) -> list[dict[str, Any]]:
        """What is there now, in a query that goes on where the last of this name ended."""
        reader = self.spark.readStream.format("servicebus")
        reader = reader.options(connectionString=self.connection_string, **options)
        query = (
            reader.schema("sequence_number bigint, message_id string, delivery_count int")
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.place / name))
            .option("checkpointLocation", str(self.place / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def drained(self, name: str = "query") -> list[str]:
        """The ids that a query has written so far, sorted."""
        found = ds.dataset(self.place / name, format="parquet").to_table(["message_id"])
        return sorted(found["message_id"].to_pylist())


@pytest.fixture
def source(spark: SparkSession, bus: ServerProcess, tmp_path: Path) -> Source:
    return Source(spark, bus, tmp_path)


# --- batch --------------------------------------------------------------------------------------


PROPERTIES: dict[str | bytes, Any] = {
    "text": "Grüße",
    "yes": True,
    "number": -5,
    "large": 1 << 30,
    "half": 0.5,
    "uuid": UUID(int=5),
    "time": datetime(2026, 11, 16, 10, 30, tzinfo=UTC),
}
MESSAGE = ServiceBusMessage(
    b"the body",
    message_id="m-1",
    session_id="s-1",
    partition_key="s-1",
    correlation_id="c-1",
    subject="order",
    to="somewhere",
    reply_to="answers",
    reply_to_session_id="s-2",
    content_type="text/plain",
    time_to_live=timedelta(minutes=5),
    application_properties=PROPERTIES,
)
ROW = {
    "entity_path": "Columns",
    "partition_id": 0,
    "sequence_number": 1,
    "enqueued_sequence_number": 1,
    "message_id": "m-1",
    "session_id": "s-1",
    "partition_key": "s-1",
    "correlation_id": "c-1",
    "subject": "order",
    "to": "somewhere",
    "reply_to": "answers",
    "reply_to_session_id": "s-2",
    "content_type": "text/plain",
    "time_to_live_ms": 300_000,
    "scheduled_enqueue_time": None,
    "delivery_count": 0,
    "state": "active",
    "dead_letter_source": None,
    "dead_letter_reason": None,
    "dead_letter_error_description": None,
    "application_properties": {
        "text": "Grüße",
        "yes": "true",
        "number": "-5",
        "large": "1073741824",
        "half": "0.5",
        "uuid": str(UUID(int=5)),
        "time": "2026-11-16T10:30:00.000Z",
    },
    "body": b"the body",
    "body_type": "data",
    "body_size": 8,
}


def test_every_column_of_what_the_sdk_sent(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    """Through SQL, so that nobody had to register anything."""
    bus.create_queue("columns", requires_session=True)
    send(client, "columns", [MESSAGE])
    source.spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW columns USING servicebus OPTIONS (entityPath 'Columns', "
        f"connectionString '{source.connection_string}')"
    )
    (row,) = source.spark.sql("SELECT * FROM columns").collect()
    found = row.asDict()
    assert list(found) == [column.name for column in COLUMNS]
    authority = f"127.0.0.1:{bus.port}"
    assert found.pop("namespace") == authority
    assert found.pop("expires_at") == found.pop("enqueued_time") + timedelta(minutes=5)
    position = found.pop("position")
    assert position.startswith(f"{authority}/columns@")
    assert position.endswith("#0/1")
    assert found == ROW


def test_every_kind_of_body_and_the_message_itself(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("bodies")
    ids = AmqpMessageProperties
    messages: list[ServiceBusMessage | AmqpAnnotatedMessage] = [
        AmqpAnnotatedMessage(data_body=[b"a", b"b"], properties=ids(message_id=UUID(int=7))),
        AmqpAnnotatedMessage(value_body={"k": [1, None]}, properties=ids(message_id="value")),
        AmqpAnnotatedMessage(value_body="Grüße", properties=ids(message_id="text")),
        AmqpAnnotatedMessage(sequence_body=[[1, "b"]], properties=ids(message_id="sequence")),
        ServiceBusMessage(b"x" * 200_000, message_id="large"),
    ]
    with client.get_queue_sender("bodies") as sender:
        for message in messages:
            sender.send_messages(message)
    found = source.batch(entityPath="bodies", includeAmqp="true", maxBatchBytes="1").collect()
    assert [(row.message_id, row.body_type, row.body) for row in found[:4]] == [
        (str(UUID(int=7)), "data", b"ab"),
        ("value", "value", b'{"k": [1, null]}'),
        ("text", "value", "Grüße".encode()),
        ("sequence", "sequence", b'[1, "b"]'),
    ]
    assert found[4].body == b"x" * 200_000
    assert all(row.amqp.endswith(row.body) for row in (found[2], found[4]))


def test_partitions_of_the_bus_are_partitions_of_spark(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("parts", enable_partitioning=True)
    with client.get_queue_sender("parts") as sender:
        for number in range(100):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=f"key {number}"))
    schema = "partition_id int, sequence_number bigint, body binary"
    frame = source.batch(schema, entityPath="parts")
    assert frame.rdd.getNumPartitions() == 16
    rows = frame.collect()
    assert sorted(int(row.body) for row in rows) == list(range(100))
    assert all(row.partition_id == row.sequence_number >> 48 for row in rows)
    packed = source.batch(schema, entityPath="parts", numTasks="4")
    assert packed.rdd.getNumPartitions() == 4
    assert packed.count() == 100


def test_one_queue_read_by_many_tasks_is_a_stable_snapshot(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("snapshot")
    send(client, "snapshot", numbered(1, 31))
    frame = source.batch("message_id string", entityPath="snapshot", numTasks="3")
    assert frame.rdd.getNumPartitions() == 3
    assert [row.message_id for row in frame.collect()] == [str(each) for each in range(1, 31)]
    send(client, "snapshot", numbered(31, 32))
    assert frame.count() == 30  # planned once

    def some(**options: str) -> list[str]:
        return source.ids(entityPath="snapshot", **options)

    bounds = {"startingOffsets": '{"snapshot/0": 11}', "endingOffsets": '{"snapshot/0": 13}'}
    assert some(**bounds) == ["11", "12"]
    assert some(startingTime="2999-01-01") == []
    assert len(some(endingTime="2999-01-01", startingTime="1999-01-01")) == 31


def test_subscriptions_by_name_and_by_pattern(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.admin.create(TOPIC, ("news",), {})
    for name in ("all", "some"):
        bus.admin.create(SUBSCRIPTION, ("news", name), {})
    bus.create_queue("newsstand")
    send(client, "news", numbered(1, 3), is_topic=True)
    send(client, "newsstand", numbered(3, 4))
    assert source.ids(entityPath="news/subscriptions/all") == ["1", "2"]
    rows = source.batch("entity_path string", entityPattern="NEWS(/.*/(all|some)|stand)").collect()
    assert sorted(row.entity_path for row in rows) == [
        "news/Subscriptions/all",
        "news/Subscriptions/all",
        "news/Subscriptions/some",
        "news/Subscriptions/some",
        "newsstand",
    ]
    assert source.ids(entityPattern="nothing like it") == []


@pytest.mark.parametrize(
    "options, schema, complaint",
    [
        ({"entityPth": "orders"}, None, "there is no option entitypth; did you mean entityPath"),
        ({"entityPath": "nowhere"}, None, "cannot read 'nowhere' of 127.0.0.1:"),
        ({"entityPath": "newsstand"}, "boddy binary", "a message has no column 'boddy'"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_runs(
    source: Source, options: dict[str, str], schema: str | None, complaint: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        source.batch(schema, **options).collect()
    assert complaint in str(raised.value)


# --- streams ------------------------------------------------------------------------------------


def test_available_now_drains_a_queue_in_several_batches(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    """Spark never commits the last batch; nothing is left nevertheless.  What nobody could read
    yet, and what somebody else holds, is not ours to delete."""
    bus.create_queue("drain")
    send(client, "drain", numbered(1, 101))
    with client.get_queue_sender("drain") as sender:
        sender.schedule_messages(
            ServiceBusMessage("later", message_id="scheduled"),
            datetime.now(UTC) + timedelta(hours=1),
        )
    with client.get_queue_receiver("drain") as receiver:
        (held,) = receiver.receive_messages(1, max_wait_time=5)
        progress = source.drain(entityPath="drain", settle="delete", maxOffsetsPerTrigger="40")
        assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [40, 40, 20]
        assert source.drained() == sorted(str(each) for each in range(1, 101))
        assert left_in(bus, "drain") == 2
        receiver.complete_message(held)
    assert left_in(bus, "drain") == 1


def test_a_restart_reads_nothing_twice(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    """Others receive from the queue meanwhile; that is no fault."""
    bus.create_queue("restart")
    send(client, "restart", numbered(1, 6))
    source.drain(entityPath="restart")
    with client.get_queue_receiver("restart") as receiver:
        for message in receiver.receive_messages(3, max_wait_time=5):
            receiver.complete_message(message)
    source.drain(entityPath="restart")
    send(client, "restart", numbered(6, 9))
    progress = source.drain(entityPath="RESTART")
    assert sum(each["numInputRows"] for each in progress) == 3
    assert source.drained() == [str(each) for each in range(1, 9)]
    end = progress[-1]["sources"][0]["endOffset"]
    assert set(end) == {"restart/0", "created"}
    assert end["restart/0"] == 9


def test_dead_letters_come_whatever_their_numbers(
    source: Source, bus: ServerProcess, client: ServiceBusClient
) -> None:
    """They keep their numbers: one that comes later may have a lower one than what was read."""
    bus.create_queue("sick", max_delivery_count=10)
    send(client, "sick", numbered(1, 11))
    dead_letter(client, "sick", {"4", "7", "8"})
    options = {"entityPath": "sick", "subQueue": "deadLetter"}
    rows = source.batch(**options).collect()
    assert [(row.message_id, row.dead_letter_reason) for row in rows] == [
        ("4", "tired"),
        ("7", "tired"),
        ("8", "tired"),
    ]
    assert {row.entity_path for row in rows} == {"sick/$DeadLetterQueue"}
    source.drain(**options)
    dead_letter(client, "sick", {"2", "5", "9"})
    source.drain(**options)
    assert source.drained() == ["2", "4", "5", "7", "8", "9"]
