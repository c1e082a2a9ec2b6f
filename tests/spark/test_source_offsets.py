"""Offsets, settling and refusals of the source, against a real server, as Spark would call it.

Spark itself is left out: what is tested here is which calls change what, and a query costs seconds.
"""

import json
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyspark.sql.types import StringType, StructField, StructType

from twinbus.client.admin import TOPIC
from twinbus.client.faults import FaultClient
from twinbus.entities.partitions import hash_key
from twinbus.errors import ConfigError, EntityNotFound, InvalidOperation, Unauthorized
from twinbus.pipeline.bus.pool import close_all
from twinbus.pipeline.source.data_source import ServiceBusDataSource, StreamReader
from twinbus.pipeline.source.offsets import DataLoss
from twinbus.pipeline.source.survey import SourceError
from twinbus.testing.server import ServerProcess

IDS = StructType([StructField("message_id", StringType())])

pytestmark = [pytest.mark.proves("D-1"), pytest.mark.feature("pipeline.source")]


@pytest.fixture(scope="module")
def client(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(bus.connection_string) as opened:
        yield opened
    close_all()  # before the server ends


def send(client: ServiceBusClient, path: str, *ids: int) -> None:
    with client.get_queue_sender(path) as sender:
        sender.send_messages([ServiceBusMessage("x", message_id=str(each)) for each in ids])


def stream(bus: ServerProcess, **options: str) -> StreamReader:
    given = {"connectionString": bus.connection_string, **options}
    return ServiceBusDataSource(given).streamReader(IDS)


def run(
    reader: StreamReader, start: dict[str, object] | None = None
) -> tuple[list[list[int]], dict[str, object]]:
    """What an `availableNow` query reads, batch by batch, and the offset it ends with."""
    batches: list[list[int]] = []
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset() if start is None else start
    while True:
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        assert json.dumps(end) == json.dumps(end, sort_keys=True)
        if json.dumps(end) == json.dumps(offset):
            return batches, offset
        found = [
            int(each)
            for partition in reader.partitions(offset, end)
            for batch in reader.read(partition)
            for each in batch["message_id"].to_pylist()
        ]
        batches.append(sorted(found))
        offset = end


def ids_in(client: ServiceBusClient, path: str, is_dead: bool = False) -> list[str]:
    sub_queue = ServiceBusSubQueue.DEAD_LETTER if is_dead else None
    with client.get_queue_receiver(path, sub_queue=sub_queue) as receiver:
        return [str(message.message_id) for message in receiver.peek_messages(100)]


def dead_letter(client: ServiceBusClient, path: str, *wanted: int) -> None:
    """These ids; the others are given back."""
    with client.get_queue_receiver(path) as receiver:
        received = receiver.receive_messages(20, max_wait_time=5)
        for message in received:
            if int(message.message_id or 0) in wanted:
                receiver.dead_letter_message(message, reason="tired")
            else:
                receiver.abandon_message(message)


def test_what_starting_offsets_leave_out_is_never_deleted(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("begin")
    send(client, "begin", *range(1, 11))
    batches, end = run(
        stream(bus, entityPath="begin", settle="delete", startingOffsets='{"Begin/0": 6}')
    )
    assert batches == [[6, 7, 8, 9, 10]]
    assert ids_in(client, "begin") == ["1", "2", "3", "4", "5"]
    # Started again without the option, the checkpoint still knows where it began.
    send(client, "begin", 11)
    batches, _ = run(stream(bus, entityPath="begin", settle="delete"), end)
    assert batches == [[11]]
    assert ids_in(client, "begin") == ["1", "2", "3", "4", "5"]


def test_of_a_dead_letter_queue_exactly_what_was_read_is_deleted(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("sick")
    send(client, "sick", *range(1, 11))
    dead_letter(client, "sick", 4, 7, 8)
    reader = stream(
        bus, entityPath="sick", subQueue="deadLetter", settle="delete", maxOffsetsPerTrigger="2"
    )
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert first["sick/$deadletterqueue/0"] == [[4, 5], [7, 8]]
    dead_letter(client, "sick", 2, 5, 9)  # some lower than what is read already
    reader.commit(first)
    assert ids_in(client, "sick", is_dead=True) == ["2", "5", "8", "9"]
    batches, _ = run(stream(bus, entityPath="sick", subQueue="deadLetter", settle="delete"), first)
    assert batches == [[2, 5, 8, 9]]
    assert ids_in(client, "sick", is_dead=True) == []


def test_an_entity_made_again_is_not_taken_for_the_old_one(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("again")
    send(client, "again", 1, 2, 3)
    _, end = run(stream(bus, entityPath="again"))
    bus.admin.delete_queue("again")
    bus.create_queue("again")
    send(client, "again", *range(11, 21))
    careful = stream(bus, entityPath="again", settle="delete")
    for call in (
        lambda: careful.latestOffset(end, careful.getDefaultReadLimit()),
        lambda: careful.partitions({}, end),
        lambda: careful.commit(end),
    ):
        with pytest.raises(DataLoss, match="'again' has been deleted and made again"):
            call()
    assert len(ids_in(client, "again")) == 10
    batches, _ = run(stream(bus, entityPath="again", settle="delete", failOnDataLoss="false"), end)
    assert batches == [list(range(11, 21))]
    assert ids_in(client, "again") == []


def test_a_new_entity_that_matches_comes_in_from_its_beginning(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("match-1")
    send(client, "match-1", 1)
    batches, end = run(stream(bus, entityPattern="match-.*"))
    assert batches == [[1]]
    bus.create_queue("match-2")
    send(client, "match-2", 2)
    batches, end = run(stream(bus, entityPattern="match-.*"), end)
    assert batches == [[2]]
    # One that is gone is just not there; its place in the offset stays.
    bus.admin.delete_queue("match-1")
    batches, end = run(stream(bus, entityPattern="match-.*"), end)
    assert batches == []
    assert end["match-1/0"] == 2
    with pytest.raises(DataLoss, match="'match-1' has been deleted before it was read"):
        stream(bus, entityPattern="match-.*").partitions({}, end)


def test_latest_offset_is_reported_without_asking(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    bus.create_queue("report")
    send(client, "report", 1, 2, 3)
    reader = stream(bus, entityPath="report", maxOffsetsPerTrigger="1")
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reported = reader.reportLatestOffset()
    assert (end["report/0"], reported and reported["report/0"]) == (2, 4)


def test_what_is_not_there_is_said_at_load(bus: ServerProcess) -> None:
    """The kind of the error stays: a supervisor decides by it whether to try again."""
    bus.admin.create(TOPIC, ("news",), {})
    for path, kind, complaint in (
        ("nowhere", EntityNotFound, "cannot read 'nowhere' of 127.0.0.1:.* could not be found"),
        ("news", InvalidOperation, "cannot read 'news' of .* ask at its subscriptions"),
        ("news/subscriptions/no", EntityNotFound, "cannot read 'news/Subscriptions/no' of "),
    ):
        given = {"connectionString": bus.connection_string, "entityPath": path}
        with pytest.raises(kind, match=complaint):
            ServiceBusDataSource(given).schema()


@pytest.mark.parametrize("option", [{"entityPath": "begin"}, {"entityPattern": ".*"}])
def test_a_wrong_key_is_said_and_never_shown(bus: ServerProcess, option: dict[str, str]) -> None:
    wrong = bus.connection_string.replace("SharedAccessKey=", "SharedAccessKey=d3Jvbmc")
    with pytest.raises(Unauthorized) as raised:
        ServiceBusDataSource({"connectionString": wrong, **option}).schema()
    assert "127.0.0.1" in str(raised.value)
    assert "d3Jvbmc" not in str(raised.value)


@pytest.mark.parametrize(
    "schema, complaint",
    [
        (StructType([StructField("boddy", StringType())]), "no column 'boddy'"),
        (StructType([StructField("destination", StringType())]), "no column 'destination'"),
        (StructType([StructField("body", StringType())]), "body has the type binary"),
        (StructType([StructField("to", StringType(), nullable=False)]), "to may be null"),
        (StructType([]), "has no columns"),
    ],
)
def test_columns_that_a_message_has_not(
    bus: ServerProcess, schema: StructType, complaint: str
) -> None:
    given = {"connectionString": bus.connection_string, "entityPath": "begin"}
    with pytest.raises(ConfigError, match=complaint):
        ServiceBusDataSource(given).reader(schema)


def test_offsets_of_something_else_are_refused(bus: ServerProcess) -> None:
    bus.create_queue("another")
    given = {"connectionString": bus.connection_string, "entityPath": "another"}
    strange = {"startingOffsets": '{"other/0": 1}'}
    with pytest.raises(ConfigError, match="startingOffsets names 'other/0'"):
        stream(bus, entityPath="another", **strange).initialOffset()
    with pytest.raises(ConfigError, match="startingOffsets names 'other/0'"):
        ServiceBusDataSource({**given, **strange}).reader(IDS).partitions()


@pytest.mark.proves("D-1")
def test_a_partition_that_is_down_is_left_out_of_a_stream_but_not_of_a_batch(
    bus: ServerProcess, client: ServiceBusClient
) -> None:
    """Its messages come when it is back; a batch read, which cannot wait, says so."""
    bus.create_queue("holes", enable_partitioning=True)
    keys = {hash_key(f"key {each}"): f"key {each}" for each in range(100)}
    with client.get_queue_sender("holes") as sender:
        for partition in range(16):
            sender.send_messages(
                ServiceBusMessage("x", message_id=str(partition), partition_key=keys[partition])
            )
    faults = FaultClient(bus.connection_string)
    fault = faults.add({"kind": "partition-down", "entity": "holes", "partition": 5})
    batches, end = run(stream(bus, entityPath="holes"))
    assert batches == [[each for each in range(16) if each != 5]]
    given = {"connectionString": bus.connection_string, "entityPath": "holes"}
    with pytest.raises(SourceError, match="partition 5 of 'holes' is down"):
        ServiceBusDataSource(given).reader(IDS).partitions()
    rest = ServiceBusDataSource({**given, "failOnDataLoss": "false"}).reader(IDS).partitions()
    assert len(rest) == 15
    faults.clear(fault["id"])
    batches, _ = run(stream(bus, entityPath="holes"), end)
    assert batches == [[5]]
