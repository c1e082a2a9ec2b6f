"""What a pipeline asks of a namespace, from a real server, in both ways.

The bus that `twinbus` operations make and the one of `standard` operations must give the same.
"""

import itertools
import multiprocessing
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Int, Symbol, Timestamp
from twinbus.certificates import ca_certificate
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.blocking import BlockingConnection
from twinbus.client.connection import BusConnection
from twinbus.client.faults import FaultClient
from twinbus.client.links import ConnectionLost
from twinbus.client.requests import ManagementNode
from twinbus.errors import (
    ConfigError,
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    Unauthorized,
)
from twinbus.message.plain import Properties, data_section, decode_message, encode_message
from twinbus.pipeline.bus import Bus, SendRefused, open_bus
from twinbus.pipeline.bus import line as line_module
from twinbus.pipeline.bus.pool import bus_for, forget
from twinbus.pipeline.bus.standard import StandardBus
from twinbus.pipeline.bus.twinbus import TwinbusBus
from twinbus.testing.server import ServerProcess

END: Final = 1 << 62
COUNTER: Final = itertools.count(1)
KEY: Final = "x-opt-twinbus-producer-key"

pytestmark = [pytest.mark.proves("D-1", "D-2"), pytest.mark.feature("pipeline.source")]


@pytest.fixture(params=["twinbus", "standard"])
def bus(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Bus]:
    opened = open_bus(server.connection_string, request.param)
    yield opened
    opened.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    words = request.node.originalname.removeprefix("test_").split("_")
    return f"{'-'.join(words[:4])}-{next(COUNTER)}"


def encoded(body: str, session_id: str | None = None, partition_key: str | None = None) -> bytes:
    annotations: dict[str, object] = {}
    if partition_key is not None:
        annotations["x-opt-partition-key"] = partition_key
    properties = Properties(message_id=body[:64], group_id=session_id)
    return encode_message(data_section(body.encode()), properties, annotations=annotations)


def keyed(producer: str, number: int, body: bytes) -> bytes:
    section = b"\x00\x53\x71" + encode_value({Symbol(KEY): f"{producer}/{number}"})
    return section + encode_message(data_section(body), Properties(message_id=str(number)))


def bodies(bus: Bus, path: str, first: int = 0, end: int = END) -> list[str]:
    return [body_of(data) for chunk in bus.browse(path, first, end) for data in chunk]


def body_of(data: bytes) -> str:
    body = decode_message(data).body
    assert isinstance(body, bytes)
    return body.decode()


def number_of(data: bytes) -> int:
    number = decode_message(data).annotations["x-opt-sequence-number"]
    assert isinstance(number, int)
    return number


# --- one after the other ------------------------------------------------------------------------


def test_a_queue_is_looked_at_read_and_settled(server: ServerProcess, bus: Bus, name: str) -> None:
    server.create_queue(name)
    empty = bus.entity(name)
    assert [(p.partition, p.is_up, p.count) for p in empty.partitions] == [(0, True, 0)]
    assert not bus.numbers(name, 0, END, 10)
    assert not bodies(bus, name)
    bus.send(name, [encoded(f"m{n}") for n in range(1, 1_201)])
    state = bus.entity(name).partitions[0]
    assert (state.first, state.next, state.count) == (1, 1_201, 1_200)
    assert bodies(bus, name) == [f"m{n}" for n in range(1, 1_201)]
    assert bodies(bus, name, 300, 310) == [f"m{n}" for n in range(300, 310)]
    assert bodies(bus, name, 310, 310) == []
    assert bus.settle(name, [(100, 110), (200, 201), (5_000, 6_000)]) == 11
    assert bus.settle(name, [(100, 110), (200, 201)]) == 0  # as often as one likes
    assert bus.numbers(name, 0, END, 10) == [(1, 100), (110, 200), (201, 1_201)]
    assert bus.numbers(name, 105, 205, 10) == [(110, 200), (201, 205)]
    assert bus.numbers(name, 0, END, 2) == [(1, 100), (110, 200)]
    assert bus.settle(name, [(0, END)]) == 1_189
    after = bus.entity(name).partitions[0]
    assert (after.first, after.next, after.count) == (1_201, 1_201, 0)


def test_dead_letters_have_their_reason_and_keep_their_numbers(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    server.create_queue(name)
    bus.send(name, [encoded(f"m{n}") for n in range(1, 11)])
    assert bus.settle(name, [(3, 5), (9, 10)], "TooOld", "nobody wants it") == 3
    dead = f"{name}/$DeadLetterQueue"
    assert bus.numbers(dead, 0, END, 10) == [(3, 5), (9, 10)]
    chunk = next(iter(bus.browse(dead, 0, END)))
    properties = decode_message(chunk[0]).application_properties
    assert properties["DeadLetterReason"] == "TooOld"
    assert properties["DeadLetterErrorDescription"] == "nobody wants it"
    assert bus.settle(dead, [(4, END)]) == 2
    assert bodies(bus, dead) == ["m3"]
    assert bodies(bus, name) == ["m1", "m2", "m5", "m6", "m7", "m8", "m10"]


def test_a_subscription_is_read_like_a_queue(server: ServerProcess, bus: Bus, name: str) -> None:
    server.admin.create(TOPIC, [name], {})
    server.admin.create(SUBSCRIPTION, [name, "all"], {})
    path = f"{name}/Subscriptions/all"
    bus.send(name, [encoded(f"m{n}") for n in range(1, 21)])
    state = bus.entity(path)
    assert state.path == path
    assert (state.partitions[0].first, state.partitions[0].count) == (1, 20)
    assert bus.settle(path, [(1, 19)]) == 18
    assert bodies(bus, path) == ["m19", "m20"]


def test_partitions_are_told_apart(server: ServerProcess, bus: Bus, name: str) -> None:
    server.create_queue(name, enable_partitioning=True)
    for key in range(30):
        bus.send(name, [encoded(f"{key}.{n}", partition_key=f"k{key}") for n in range(10)])
    state = bus.entity(name)
    used = [each for each in state.partitions if each.first < each.next]
    assert len(used) > 5
    found: list[str] = []
    for each in used:
        assert each.first >> 48 == each.partition
        inside = bodies(bus, name, each.first, each.next)
        assert len(inside) == each.count
        found += inside
    assert sorted(found) == sorted(f"{key}.{n}" for key in range(30) for n in range(10))
    assert sorted(bodies(bus, name)) == sorted(found)
    one = used[2]
    assert bus.settle(name, [(one.first, one.next)]) == one.count
    assert bus.settle(name, [(0, END)]) == 300 - one.count
    assert bus.numbers(name, 0, END, 10) == []


def test_sessions_are_read_and_settled(server: ServerProcess, bus: Bus, name: str) -> None:
    server.create_queue(name, requires_session=True)
    bus.send(name, [encoded(f"m{n}", session_id=f"s{n % 3}") for n in range(1, 31)])
    assert bodies(bus, name) == [f"m{n}" for n in range(1, 31)]
    assert bus.settle(name, [(5, 28)]) == 23
    assert bus.settle(name, [(28, 30)], "Gone", "") == 2
    assert bodies(bus, name) == ["m1", "m2", "m3", "m4", "m30"]
    assert bodies(bus, f"{name}/$DeadLetterQueue") == ["m28", "m29"]


def test_deferred_ones_are_there_and_scheduled_ones_are_not(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    server.create_queue(name)
    bus.send(name, [encoded(f"m{n}") for n in range(1, 9)])

    async def defer_two_and_schedule_one(connection: BusConnection) -> None:
        receiver = await connection.open_receiver(name, credit=2)
        received = [await receiver.receive() for _ in range(2)]
        receiver.set_credit(0)
        for each in received:
            assert each is not None
            await receiver.defer(each)
        node = await ManagementNode.open(connection, name)
        due = Timestamp(int((time.time() + 3_600) * 1_000))
        later = encode_message(
            data_section(b"later"), annotations={"x-opt-scheduled-enqueue-time": due}
        )
        await node.request(
            "com.microsoft:schedule-message", {"messages": [{"message-id": "1", "message": later}]}
        )

    connection = BlockingConnection.open(server.connection_string)
    connection.call(defer_two_and_schedule_one)
    connection.close()
    assert bodies(bus, name) == [f"m{n}" for n in range(1, 9)]
    assert bus.settle(name, [(2, 4)]) == 2
    assert bus.settle(name, [(1, 2)], "Late", "") == 1
    assert bodies(bus, name) == ["m4", "m5", "m6", "m7", "m8"]
    assert bus.settle(name, [(0, END)]) == 5  # and the scheduled one stays
    connection = BlockingConnection.open(server.connection_string)
    peeked = connection.call(lambda each: peek(each, name))
    connection.close()
    assert [body_of(data) for data in peeked] == ["later"]


async def peek(connection: BusConnection, path: str) -> list[bytes]:
    node = await ManagementNode.open(connection, path)
    body: dict[object, object] = {"from-sequence-number": 0, "message-count": Int(10)}
    return (await node.request_messages("com.microsoft:peek-message", body))[0]


def test_what_others_have_locked_is_read_and_stays(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    server.create_queue(name)
    bus.send(name, [encoded(f"m{n}") for n in range(1, 5)])
    other = BlockingConnection.open(server.connection_string)

    async def lock_one(connection: BusConnection) -> None:
        receiver = await connection.open_receiver(name, credit=1)
        assert await receiver.receive() is not None

    other.call(lock_one)
    assert bodies(bus, name) == ["m1", "m2", "m3", "m4"]
    assert bus.settle(name, [(0, END)]) == 3
    assert bus.numbers(name, 0, END, 5) == [(1, 2)]
    other.close()


def test_a_queue_is_emptied_while_it_is_read(server: ServerProcess, bus: Bus, name: str) -> None:
    """The next chunk is under way when the last one is settled; neither disturbs the other."""
    server.create_queue(name)
    bus.send(name, [encoded(f"{n}." + "x" * 2_000) for n in range(2_000)])
    found: list[str] = []
    for chunk in bus.browse(name, 0, END):
        found += [body_of(data).partition(".")[0] for data in chunk]
        assert bus.settle(name, [(number_of(chunk[0]), number_of(chunk[-1]) + 1)]) == len(chunk)
    assert found == [str(n) for n in range(2_000)]
    assert not bus.numbers(name, 0, END, 1)


def test_an_entity_that_is_made_again_is_found_again(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    server.create_queue(name)
    with bus.open_sender(name, retry=True) as sender:
        sender.submit([encoded("first")]).wait()
        assert bodies(bus, name) == ["first"]
        server.admin.delete_queue(name)
        with pytest.raises(SendRefused) as refused:
            sender.submit([encoded("nowhere")]).wait()
        assert isinstance(refused.value.reason, EntityNotFound)
        with pytest.raises(EntityNotFound, match=name):
            bodies(bus, name)
        server.create_queue(name)
        sender.submit([encoded("second")]).wait()
    assert bodies(bus, name) == ["second"]


# --- sending ------------------------------------------------------------------------------------


def test_submissions_are_stored_in_their_order(server: ServerProcess, bus: Bus, name: str) -> None:
    server.create_queue(name)
    with bus.open_sender(name, batch_bytes=20_000) as sender:
        pending = [
            sender.submit([encoded(f"{part}.{n}" + "x" * 200) for n in range(150)])
            for part in range(20)
        ]
        for each in reversed(pending):
            each.wait()
    expected = [f"{part}.{n}" for part in range(20) for n in range(150)]
    assert [body.rstrip("x") for body in bodies(bus, name)] == expected


def test_a_refused_message_is_named_and_those_before_it_are_stored(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    server.create_queue(name)
    large = encode_message(data_section(b"x" * 1_100_000))
    unreadable = b"\x00\x53\x99nothing"
    for place, bad in ((70, large), (33, unreadable)):
        messages = [encoded(f"{place}.{n}") for n in range(100)]
        messages[place] = bad
        with pytest.raises(SendRefused, match=f"'{name}' refused message {place}") as caught:
            bus.send(name, messages)
        assert caught.value.index == place
        stored = [body for body in bodies(bus, name) if body.startswith(f"{place}.")]
        assert stored[:place] == [f"{place}.{n}" for n in range(place)]
    assert not isinstance(caught.value.reason, MessageSizeExceeded)


def test_messages_of_several_partitions_go_through_if_slowly(
    server: ServerProcess, bus: Bus, name: str
) -> None:
    """A batch with two partition keys is refused by the bus; its halves are not."""
    server.create_queue(name, enable_partitioning=True)
    bus.send(name, [encoded(f"m{n}", partition_key=f"k{n}") for n in range(6)])
    assert sorted(bodies(bus, name)) == [f"m{n}" for n in range(6)]


def test_a_busy_bus_is_waited_for(server: ServerProcess, bus: Bus, name: str) -> None:
    """Throttled for a while: everything goes on by itself, and nothing is stored twice."""
    server.create_queue(name)
    faults = FaultClient(server.connection_string)
    with bus.open_sender(name, batch_bytes=5_000) as sender:
        faults.add({"kind": "throttle", "entity": name, "duration_s": 1})
        submitted = [encoded(f"m{n}") for n in range(500)]
        sender.submit(submitted).wait()
        faults.add({"kind": "throttle", "entity": name, "duration_s": 1})
        assert sorted(bodies(bus, name)) == sorted(f"m{n}" for n in range(500))
    faults.add({"kind": "throttle", "entity": name, "duration_s": 1})
    assert bus.settle(name, [(0, END)]) == 500


# --- what goes wrong ----------------------------------------------------------------------------


def test_errors_name_the_entity_and_never_the_key(server: ServerProcess, bus: Bus) -> None:
    asked: list[Callable[[], object]] = [
        lambda: bus.entity("missing"),
        lambda: bus.numbers("missing", 0, 9, 9),
        lambda: list(bus.browse("missing", 0, 9)),
        lambda: bus.send("missing", [b""]),
        lambda: bus.settle("missing", [(0, 9)]),
    ]
    for ask in asked:
        with pytest.raises(EntityNotFound, match="'missing'"):
            ask()


def test_a_namespace_that_cannot_be_reached_says_why(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = server.connection_string
    key = text.partition("SharedAccessKey=")[2].partition(";")[0]
    with pytest.raises(Unauthorized, match="refused the key") as refused:
        open_bus(text.replace(key, key[::-1] + "x"))
    assert key not in str(refused.value)
    with pytest.raises(ConnectionLost, match=r"cannot connect to nowhere\.invalid"):
        open_bus(
            text.replace("127.0.0.1", "nowhere.invalid").replace("localhost", "nowhere.invalid")
        )
    with pytest.raises(ConnectionLost, match=r"over TLS: .*certificate"):
        open_bus(text.replace("UseDevelopmentEmulator=true", ""))
    monkeypatch.setattr(line_module, "FIRST_DURATION_S", 0.1)
    with pytest.raises(ConnectionLost, match=r"cannot connect to .*Connect call failed"):
        open_bus(text.replace(f":{server.port}", ":1"))
    with pytest.raises(ConfigError, match="'magic' is none of auto, twinbus, standard"):
        open_bus(text, "magic")


def test_tls_trusts_what_the_environment_names(
    server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_certificate(server.data_dir)))
    server.create_queue(name)
    bus = open_bus(server.connection_string.replace("UseDevelopmentEmulator=true", ""))
    bus.send(name, [encoded("over TLS")])
    assert bodies(bus, name) == ["over TLS"]
    bus.close()


def test_auto_finds_the_operations_of_twinbus(server: ServerProcess, name: str) -> None:
    server.create_queue(name)
    bus = open_bus(server.connection_string)
    try:
        with pytest.raises(EntityNotFound):
            bus.entity("missing")  # says nothing about the operations
        assert bus.entity(name).created_ms is not None
        server.admin.create(TOPIC, ["only-a-topic"], {})
        with pytest.raises(InvalidOperation):
            bus.entity("only-a-topic")
    finally:
        bus.close()


def kill_and_restart(server: ServerProcess) -> None:
    server.kill()
    server.restart()


@pytest.mark.proves("D-2")
@pytest.mark.parametrize("operations", ["twinbus", "standard"])
def test_a_server_killed_while_it_is_read_and_sent_to(tmp_path: Path, operations: str) -> None:
    """Nothing is lost and nothing comes twice, neither in a browse nor in a keyed send."""
    sent = [f"p/{n}" for n in range(1, 4_001)]
    with ServerProcess(tmp_path / "data") as server:
        server.create_queue("q")
        bus = open_bus(server.connection_string, operations)
        outage = threading.Thread(target=kill_and_restart, args=(server,))
        with bus.open_sender("q", retry=True, batch_bytes=90_000) as sender:
            pending = []
            for first in range(0, len(sent), 400):
                part = range(first + 1, first + 401)
                pending.append(
                    sender.submit([keyed("p", n, f"p/{n}".encode() * 150) for n in part])
                )
                if first == 1_600:
                    outage.start()  # and go on: some are under way, others find nobody
            for each in pending:
                each.wait()
        outage.join()
        chunks = bus.browse("q", 0, END)
        found = next(chunks)
        kill_and_restart(server)
        for chunk in chunks:
            found += chunk
        numbers = [number_of(data) for data in found]
        assert [body_of(data)[: len(text)] for data, text in zip(found, sent, strict=True)] == sent
        assert numbers == sorted(set(numbers))
        kill_and_restart(server)
        assert bus.settle("q", [(0, END)]) == len(sent)
        bus.close()


def test_without_retry_a_lost_answer_is_told(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server.create_queue("q")
        bus = open_bus(server.connection_string, "twinbus")
        with bus.open_sender("q") as sender:
            sender.submit([encoded("before")]).wait()
            kill_and_restart(server)
            sender.submit([encoded("after")]).wait()  # nothing was under way: sent once, for sure
            os.kill(server.pid, signal.SIGSTOP)  # in the middle of things
            pending = sender.submit([encoded("unknown")])
            server.kill()
            with pytest.raises(ConnectionLost, match="outcome unknown"):
                pending.wait()
            server.restart()
        assert bodies(bus, "q")[:2] == ["before", "after"]
        bus.close()


# --- processes ----------------------------------------------------------------------------------


Answers = multiprocessing.Queue  # of (process, count)


def ask_pool(connection_string: str, path: str, answers: "Answers[tuple[int, int]]") -> None:
    bus = bus_for(connection_string)
    assert bus_for(connection_string) is bus
    answers.put((os.getpid(), bus.entity(path).partitions[0].count))


def ask_inherited(bus: Bus, path: str, answers: "Answers[tuple[int, int]]") -> None:
    answers.put((os.getpid(), bus.entity(path).partitions[0].count))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_gets_a_bus_of_its_own(server: ServerProcess, name: str) -> None:
    """Spark's workers are forked; what their parent holds must not break them, nor they it."""
    server.create_queue(name)
    text = server.connection_string
    bus = bus_for(text)
    assert bus_for(text) is bus
    bus.send(name, [encoded("m")])
    forking = multiprocessing.get_context("fork")
    answers: Answers[tuple[int, int]] = forking.Queue()
    children = [
        forking.Process(target=ask_pool, args=(text, name, answers)),
        forking.Process(target=ask_inherited, args=(bus, name, answers)),
    ]
    for child in children:
        child.start()
    told = sorted(answers.get(timeout=30) for _ in children)
    for child in children:
        child.join(30)
    assert told == sorted((child.pid or 0, 1) for child in children)
    assert bus.entity(name).partitions[0].count == 1  # the parent's goes on as if nothing was
    forget(bus)
    again = bus_for(text)
    assert again is not bus
    forget(again)
    assert not [each for each in threading.enumerate() if each.name == "twinbus-client"]


# --- which of the two ---------------------------------------------------------------------------


def test_auto_goes_by_what_the_bus_says_of_itself(server: ServerProcess, name: str) -> None:
    """A bus that does not say it is a twinbus is asked nothing that only a twinbus answers."""
    server.create_queue(name)
    with nameless(server.port) as port:
        plain = server.connection_string.replace(str(server.port), str(port))
        for given, kind in ((server.connection_string, TwinbusBus), (plain, StandardBus)):
            bus = open_bus(given)
            assert type(bus) is kind
            bus.send(name, [encoded(kind.__name__)])
            assert bodies(bus, name) == [kind.__name__]
            bus.settle(name, [(0, END)])
            assert bodies(bus, name) == []
            bus.close()


@contextmanager
def nameless(target_port: int) -> Iterator[int]:
    """The port of a bus that does not tell what it is: the server's, its name overwritten."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target_port)) as far:
                ends = ((self.request, far), (far, self.request))
                threads = [threading.Thread(target=carry, args=each) for each in ends]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(
                    data.replace(b"\x07product\xa1\x07twinbus", b"\x07product\xa1\x07another")
                )
            sink.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield proxy.server_address[1]
        proxy.shutdown()
        thread.join()
