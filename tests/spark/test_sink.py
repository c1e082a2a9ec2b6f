"""`format("servicebus")` as a sink: a real session, a real server, the official SDK behind it."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from twinbus import pipeline
from twinbus.client.connection_string import ConnectionString
from twinbus.entities.partitions import PARTITION_COUNT, partition_of
from twinbus.pipeline.bus import pool
from twinbus.testing.server import ServerProcess

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)

pytestmark = pytest.mark.feature("pipeline.sink")


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    pipeline.register(spark)


@pytest.fixture(autouse=True, scope="module")
def _no_bus_is_left() -> Iterator[None]:
    yield
    pool.close_all()


def write(rows: DataFrame, bus: ServerProcess, **options: str) -> None:
    writer = rows.write.format("servicebus").option("connectionString", bus.connection_string)
    writer.options(**options).mode("append").save()


def stream(rows: DataFrame, bus: ServerProcess, checkpoint: Path, **options: str) -> StreamingQuery:
    """Run what is there through a sink, to its end."""
    writer = rows.writeStream.format("servicebus").option("checkpointLocation", str(checkpoint))
    writer = writer.option("connectionString", bus.connection_string).options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def source(spark: SparkSession, bus: ServerProcess, path: str) -> DataFrame:
    reader = spark.readStream.format("servicebus").option("entityPath", path)
    return reader.option("connectionString", bus.connection_string).load()


def received(bus: ServerProcess, queue: str, count: int, **options: Any) -> list[Any]:
    """What the official SDK gets from a queue."""
    found: list[ServiceBusReceivedMessage] = []
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver(
            queue, max_wait_time=5, receive_mode="receiveanddelete", **options
        ) as receiver,
    ):
        while len(found) < count:
            more = receiver.receive_messages(max_message_count=count - len(found))
            assert more, f"only {len(found)} of {count} came"
            found += more
    return found


def count_of(bus: ServerProcess, queue: str) -> int:
    partitions = pool.bus_for(bus.connection_string).entity(queue).partitions
    return sum(partition.count for partition in partitions)


@pytest.mark.proves("D-1")
def test_every_column_reaches_a_receiver(spark: SparkSession, bus: ServerProcess) -> None:
    bus.create_queue("columns", requires_session=True)
    columns = {
        "message_id": "m1",
        "session_id": "s1",
        "partition_key": "s1",
        "correlation_id": "c1",
        "subject": "j1",
        "to": "t1",
        "reply_to": "r1",
        "reply_to_session_id": "rs1",
        "content_type": "text/plain",
        "time_to_live_ms": 3_600_000,
        "scheduled_enqueue_time": MOMENT,
        "application_properties": {"colour": "red"},
        "body": "grün",
    }
    kinds = dict.fromkeys(columns, "string") | {
        "time_to_live_ms": "bigint",
        "scheduled_enqueue_time": "timestamp",
        "application_properties": "map<string,string>",
    }
    ddl = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    write(spark.createDataFrame([tuple(columns.values())], ddl), bus, entityPath="columns")
    [found] = received(bus, "columns", 1, session_id="s1")
    assert b"".join(found.body).decode() == "grün"
    assert (found.message_id, found.correlation_id, found.subject) == ("m1", "c1", "j1")
    assert (found.to, found.reply_to, found.reply_to_session_id) == ("t1", "r1", "rs1")
    assert (found.session_id, found.partition_key) == ("s1", "s1")
    assert found.content_type == "text/plain" and found.time_to_live == dt.timedelta(hours=1)
    assert found.scheduled_enqueue_time_utc == MOMENT
    assert found.application_properties == {b"colour": b"red"}


@pytest.mark.proves("D-1")
def test_a_stream_sends_what_it_has_read_and_nothing_again(
    spark: SparkSession, bus: ServerProcess, tmp_path: Path
) -> None:
    """A read row can be written as it is; a batch whose commit was lost is sent once."""
    for queue in ("from", "to"):
        bus.create_queue(queue)
    ids = spark.range(500).selectExpr("cast(id as string) message_id", "'x' body")
    write(ids, bus, entityPath="from")
    stream(source(spark, bus, "from"), bus, tmp_path, entityPath="to")
    assert count_of(bus, "to") == 500
    for commit in (tmp_path / "commits").iterdir():  # as if the driver had died before it
        commit.unlink()
    again = stream(source(spark, bus, "from"), bus, tmp_path, entityPath="to")
    assert again.lastProgress is not None and again.lastProgress.numInputRows == 500
    found = received(bus, "to", 500)
    assert sorted(int(each.message_id) for each in found) == list(range(500))
    assert count_of(bus, "to") == 0


@pytest.mark.proves("D-1", "P-20")
def test_rows_without_a_key_fill_all_partitions_alike_and_come_once(
    spark: SparkSession, bus: ServerProcess, tmp_path: Path
) -> None:
    """A batch that is sent again finds each of its messages where it went at first."""
    bus.create_queue("poured")
    bus.create_queue("spread", enable_partitioning=True)
    write(spark.range(1_600).selectExpr("cast(id as string) body"), bus, entityPath="poured")
    bodies = source(spark, bus, "poured").select("body")
    stream(bodies, bus, tmp_path, entityPath="spread")
    for commit in (tmp_path / "commits").iterdir():  # as if the driver had died before it
        commit.unlink()
    again = stream(bodies, bus, tmp_path, entityPath="spread")
    assert again.lastProgress is not None and again.lastProgress.numInputRows == 1_600
    found = received(bus, "spread", 1_600)
    assert sorted(int(b"".join(each.body)) for each in found) == list(range(1_600))
    places = Counter(partition_of(each.sequence_number) for each in found)
    assert places == dict.fromkeys(range(PARTITION_COUNT), 100)
    assert count_of(bus, "spread") == 0


@pytest.mark.proves("D-1")
def test_rows_with_positions_are_sent_once_by_any_query(
    spark: SparkSession, bus: ServerProcess, tmp_path: Path
) -> None:
    """Even by a query that has lost its checkpoint, and by a batch beside it."""
    for queue in ("positions", "once"):
        bus.create_queue(queue)
    write(spark.range(300).selectExpr("cast(id as string) body"), bus, entityPath="positions")
    options = {"entityPath": "once", "producerKeyColumn": "position"}
    for checkpoint in ("first", "second"):
        stream(source(spark, bus, "positions"), bus, tmp_path / checkpoint, **options)
    reader = spark.read.format("servicebus").option("entityPath", "positions")
    write(reader.option("connectionString", bus.connection_string).load(), bus, **options)
    assert count_of(bus, "once") == 300


@pytest.mark.proves("D-1")
def test_each_row_goes_to_its_destination(spark: SparkSession, bus: ServerProcess) -> None:
    for queue in ("even", "odd"):
        bus.create_queue(queue)
    rows = spark.range(100, numPartitions=2).selectExpr(
        "cast(id as string) body", "if(id % 2 = 0, 'even', 'odd') destination"
    )
    write(rows, bus)
    assert count_of(bus, "even") == count_of(bus, "odd") == 50


@pytest.mark.parametrize(
    ("select", "options", "complaint"),
    [
        (["'x' bdy"], {"entityPath": "errors"}, "no column bdy; did you mean body"),
        (["1 body"], {"entityPath": "errors"}, "the column body is int; a sink takes binary"),
        (["'x' body"], {}, "option entityPath or a column destination"),
        (["'x' body"], {"entityPth": "errors"}, "no option entitypth; did you mean entityPath"),
        (["'x' body"], {"entityPath": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_written_is_said_on_the_driver(
    spark: SparkSession,
    bus: ServerProcess,
    select: list[str],
    options: dict[str, str],
    complaint: str,
) -> None:
    """Bad input: one clear error, before a task starts."""
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(*select), bus, **options)
    text = str(caught.value)
    assert complaint in text and "SparkException: Job aborted" not in text
    assert ConnectionString.parse(bus.connection_string).key not in text


def test_a_row_that_is_refused_ends_the_write(spark: SparkSession, bus: ServerProcess) -> None:
    bus.create_queue("refusing")
    rows = spark.range(1).selectExpr("'x' body", "repeat('m', 200) message_id")
    with pytest.raises(PySparkException, match=r"row 1 of the task to 'refusing': .*128"):
        write(rows, bus, entityPath="refusing")


def test_other_save_modes_are_refused(spark: SparkSession, bus: ServerProcess) -> None:
    bus.create_queue("modes")
    writer = spark.range(1).selectExpr("'x' body").write.format("servicebus")
    writer = writer.option("connectionString", bus.connection_string)
    with pytest.raises(PySparkException, match="append"):
        writer.option("entityPath", "modes").mode("overwrite").save()
