"""The tasks of the sink without Spark: real servers, real sends, the official SDK to look."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql.types import StructField, StructType

from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection_string import ConnectionString
from twinbus.client.faults import FaultClient
from twinbus.errors import EntityDisabled, EntityNotFound, Unauthorized
from twinbus.message.plain import DecodedMessage, decode_message
from twinbus.pipeline.bus import pool
from twinbus.pipeline.schema import BY_NAME, arrow_schema
from twinbus.pipeline.sink.options import SinkOptions
from twinbus.pipeline.sink.refused import RowRefused
from twinbus.pipeline.sink.writers import SinkTask, batch_writer
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("pipeline.sink")


@pytest.fixture(autouse=True, scope="module")
def _no_bus_is_left() -> Iterator[None]:
    yield
    pool.close_all()


def schema_of(names: Sequence[str]) -> StructType:
    return StructType([StructField(name, BY_NAME[name].spark) for name in names])


def write(
    server: ServerProcess,
    columns: dict[str, list[Any]],
    *,
    piece: int = 1_000,
    run: str = "run",
    **options: str,
) -> dict[str, int]:
    """What one try of a task does; gives how many messages went where."""
    given = SinkOptions.parse({"connectionString": server.connection_string, **options})
    schema = schema_of(list(columns))
    given.check_columns(schema)
    batch = pa.record_batch(
        [
            pa.array(values, kind.type)
            for values, kind in zip(columns.values(), arrow_schema(list(columns)), strict=True)
        ],
        names=list(columns),
    )
    pieces = (batch.slice(first, piece) for first in range(0, batch.num_rows, piece))
    return SinkTask(given, schema, run, 0, 0).write(pieces).messages


def stored(server: ServerProcess, path: str) -> list[DecodedMessage]:
    """What is there, partition by partition, in order."""
    bus = pool.bus_for(server.connection_string)
    found = []
    for partition in bus.entity(path).partitions:
        for messages in bus.browse(path, partition.first, partition.next):
            found += [decode_message(each) for each in messages]
    return found


def body_of(message: DecodedMessage) -> bytes:
    assert isinstance(message.body, bytes)
    return message.body


def numbered(count: int, sessions: int = 0) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"body": [f"{row:06}".encode() * 20 for row in range(count)]}
    if sessions:
        columns["session_id"] = [f"s{row * row % sessions}" for row in range(count)]
    return columns


@pytest.mark.proves("D-1")
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("sessions", [0, 1, 40])
def test_a_task_that_is_tried_again_stores_each_row_once(
    server: ServerProcess, partitioned: bool, sessions: int
) -> None:
    """Also when Spark cuts the rows in another way, and each session stays in order."""
    queue = f"again-{partitioned}-{sessions}"
    server.create_queue(queue, enable_partitioning=partitioned, requires_session=sessions > 0)
    columns = numbered(5_000, sessions)
    for piece in (1_000, 700):
        options: dict[str, Any] = {"entityPath": queue, "sendBatchBytes": "65536"}
        assert write(server, columns, piece=piece, **options) == {queue: 5_000}
    messages = stored(server, queue)
    assert sorted(map(body_of, messages)) == columns["body"]
    by_session = defaultdict(list)
    for message in messages:
        by_session[message.properties.group_id].append(body_of(message))
    if sessions or not partitioned:
        assert all(bodies == sorted(bodies) for bodies in by_session.values())
    assert len(by_session) <= max(1, sessions)


@pytest.mark.proves("D-1")
@pytest.mark.parametrize("partitioned", [False, True])
def test_order_and_number_hold_while_the_bus_is_busy_and_hangs_up(
    server: ServerProcess, partitioned: bool
) -> None:
    """A batch that is refused for a while is not overtaken by the next of its session."""
    queue = f"busy-{partitioned}"
    server.create_queue(queue, enable_partitioning=partitioned, requires_session=True)
    columns = numbered(2_000, 12)
    faults = FaultClient(server.connection_string)
    throttle = faults.add({"kind": "throttle", "entity": queue, "probability": 0.3})
    hang_ups = threading.Event()

    def hang_up() -> None:
        while not hang_ups.wait(0.2):
            faults.add({"kind": "drop-connections"})

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        write(server, columns, entityPath=queue, sendBatchBytes="8192")
    finally:
        hang_ups.set()
        thread.join()
        [found] = [each for each in faults.list() if each["id"] == throttle["id"]]
        faults.clear_all()
    assert found["acted"] > 5
    messages = stored(server, queue)
    assert sorted(map(body_of, messages)) == columns["body"]
    by_session = defaultdict(list)
    for message in messages:
        by_session[message.properties.group_id].append(body_of(message))
    assert all(bodies == sorted(bodies) for bodies in by_session.values())


def test_other_rows_are_stored_whatever_came_before(server: ServerProcess) -> None:
    server.create_queue("others")
    first, second = numbered(50), numbered(60)
    write(server, first, entityPath="others")
    write(server, second, entityPath="others")
    assert len(stored(server, "others")) == 110


@pytest.mark.proves("D-1")
@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_with_keys_of_their_own_are_stored_once_for_ever(
    server: ServerProcess, partitioned: bool
) -> None:
    """Whatever batch, order and query they come in."""
    queue = f"own-{partitioned}"
    server.create_queue(queue, enable_partitioning=partitioned)
    rows = range(4_000, 4_200)  # over a border of 4,096
    columns: dict[str, list[Any]] = {
        "body": [b"%d" % row for row in rows],
        "position": [f"src#0/{row}" for row in rows],
    }
    turned = {name: values[::-1] for name, values in columns.items()}
    options: dict[str, Any] = {"entityPath": queue, "producerKeyColumn": "position"}
    write(server, {name: values[:150] for name, values in columns.items()}, run="a", **options)
    write(server, columns, run="b", **options)
    write(server, turned, run="c", **options)
    assert sorted(map(body_of, stored(server, queue))) == sorted(columns["body"])


def test_a_key_of_two_rows_is_refused(server: ServerProcess) -> None:
    server.create_queue("twice")
    columns: dict[str, list[Any]] = {"body": [b"a", b"b"], "position": ["p/1", "p/1"]}
    with pytest.raises(RowRefused, match="row 2 of the task to 'twice': its producer key 'p/1'"):
        write(server, columns, entityPath="twice", producerKeyColumn="position")
    assert stored(server, "twice") == []


@pytest.mark.proves("D-1")
def test_each_row_may_have_its_destination(server: ServerProcess) -> None:
    server.create_queue("left")
    server.create_queue("right")
    server.admin.create(TOPIC, ["both"], {})
    server.admin.create(SUBSCRIPTION, ["both", "all"], {})
    columns: dict[str, list[Any]] = {
        "destination": ["left", "right", "both"] * 10,
        "body": [b"x"] * 30,
    }
    assert write(server, columns) == {"left": 10, "right": 10, "both": 10}
    found = [len(stored(server, path)) for path in ("left", "right", "both/Subscriptions/all")]
    assert found == [10, 10, 10]


def test_more_destinations_than_links(server: ServerProcess) -> None:
    queues = [f"many-{number}" for number in range(120)]
    for queue in queues:
        server.create_queue(queue)
    columns: dict[str, list[Any]] = {"destination": queues * 2, "body": [b"x"] * 240}
    assert write(server, columns) == dict.fromkeys(queues, 2)
    assert len(stored(server, "many-0")) == len(stored(server, "many-119")) == 2


@pytest.mark.parametrize("mixed", [False, True])
def test_the_row_that_is_refused_is_named(server: ServerProcess, mixed: bool) -> None:
    """Bad input: number, destination and reason."""
    queue = f"refusing-{mixed}"
    server.create_queue(queue)
    ids = [f"m{row}" for row in range(500)]
    ids[321] = "m" * 200
    columns: dict[str, list[Any]] = {"body": [b"x"] * 500, "message_id": ids}
    if mixed:
        columns["session_id"] = [f"s{row % 7}" for row in range(500)]
    with pytest.raises(RowRefused, match=rf"row 322 of the task to '{queue}': .*128"):
        write(server, columns, entityPath=queue)
    assert all(each.properties.message_id != "m" * 200 for each in stored(server, queue))


def test_a_row_without_a_session_is_named(server: ServerProcess) -> None:
    server.create_queue("needs-session", requires_session=True)
    columns: dict[str, list[Any]] = {"body": [b"a", b"b", b"c"], "session_id": ["s", None, "t"]}
    with pytest.raises(RowRefused, match=r"row 2 of the task to 'needs-session': .*[Ss]ession"):
        write(server, columns, entityPath="needs-session")


def test_a_destination_that_is_not_there(server: ServerProcess) -> None:
    columns: dict[str, list[Any]] = {"destination": ["nowhere"], "body": [b""]}
    with pytest.raises(RowRefused, match="row 1 of the task to 'nowhere'"):
        write(server, columns)
    options = {"connectionString": server.connection_string, "entityPath": "nowhere"}
    with pytest.raises(EntityNotFound, match="nowhere"):  # known on the driver
        batch_writer(schema_of(["body"]), options, overwrite=False)


def test_a_wrong_key_is_said_on_the_driver(server: ServerProcess) -> None:
    server.create_queue("guarded")
    target = ConnectionString.parse(server.connection_string)
    options = {
        "connectionString": server.connection_string.replace(target.key, "d3Jvbmc="),
        "entityPath": "guarded",
    }
    with pytest.raises(Unauthorized):
        batch_writer(schema_of(["body"]), options, overwrite=False)


def test_a_queue_that_is_disabled_may_mend(server: ServerProcess) -> None:
    """Not the row's fault: the error keeps its kind, which a supervisor tries again."""
    server.create_queue("disabled", status="SendDisabled")
    with pytest.raises(EntityDisabled, match="row 1 of the task to 'disabled'"):
        write(server, {"body": [b""]}, entityPath="disabled")


def test_no_rows_need_no_bus(server: ServerProcess) -> None:
    assert write(server, {"body": []}, entityPath="nowhere") == {}


@pytest.mark.proves("D-1")
def test_an_exact_copy_is_a_new_message_for_receivers(server: ServerProcess) -> None:
    """What the official SDK has sent, copied by `amqp`, is what it receives."""
    server.create_queue("original")
    server.create_queue("copies")
    sent = ServiceBusMessage(
        b"body", message_id="m1", session_id="s1", application_properties={"n": 5, "t": True}
    )
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender("original") as sender:
            sender.send_messages(sent)
        bus = pool.bus_for(server.connection_string)
        [encoded] = next(bus.browse("original", 0, 100))
        write(server, {"amqp": [encoded]}, entityPath="copies")
        with client.get_queue_receiver("copies", max_wait_time=5) as receiver:
            [found] = receiver.receive_messages()
            receiver.complete_message(found)
    assert b"".join(found.body) == b"body" and found.message_id == "m1"
    assert found.session_id == "s1" and found.application_properties == {b"n": 5, b"t": True}
    assert found.delivery_count == 0 and found.sequence_number == 1
