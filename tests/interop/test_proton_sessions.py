"""The session filters in every form that clients write them, by Apache Qpid Proton.

The Python and Node SDKs write a bare string; Go and others a described one; the newest .NET SDK
asks for a session that another receiver may take over.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from proton import Described, Message, symbol, uint, ulong
from proton.reactor import ReceiverOption
from proton.utils import BlockingConnection, LinkDetached

from twinbus.client.connection_string import ConnectionString
from twinbus.testing.server import ServerProcess

pytestmark = [
    pytest.mark.proves("M-4"),
    pytest.mark.queue(requires_session=True, lock_duration="PT5S"),
]

EXCLUSIVE = symbol("com.microsoft:session-filter")
NON_EXCLUSIVE = symbol("com.microsoft:non-exclusive-session-filter:list")
LOCKED_UNTIL = symbol("com.microsoft:locked-until-utc")
EXCLUSIVE_CODE = ulong(0x137000000C)
NON_EXCLUSIVE_CODE = ulong(0x137000000E)
TICKS_TO_1970 = 621_355_968_000_000_000


class Ask(ReceiverOption):
    """Attach with this filter, and for at most so long."""

    def __init__(self, name: symbol, value: object, timeout_ms: int = 5_000) -> None:
        self.filter = {name: value}
        self.properties = {symbol("com.microsoft:timeout"): uint(timeout_ms)}

    def apply(self, receiver: Any) -> None:
        receiver.source.filter.put_dict(self.filter)
        receiver.properties = self.properties


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[[], Any]]:
    """Opens connections."""
    target = ConnectionString.parse(server.connection_string)
    options: dict[str, Any] = {
        "allowed_mechs": "PLAIN",
        "user": target.key_name,
        "password": target.key,
    }
    with ExitStack() as connections:

        def make() -> Any:
            opened = BlockingConnection(f"amqp://localhost:{server.port}", timeout=10, **options)
            connections.enter_context(closing(opened))
            return opened

        yield make


@pytest.fixture
def connection(connect: Callable[[], Any]) -> Any:
    return connect()


def some_list(*values: Any) -> Any:
    """A list as an AMQP value; Proton takes uuids too, though its annotations do not say so."""
    return list(values)


def send(connection: Any, queue: str, session_id: str, body: str) -> None:
    sender = connection.create_sender(queue, name=f"s-{uuid.uuid4()}")
    sender.send(Message(body=body, group_id=session_id))


def accept(connection: Any, queue: str, *ask: Any) -> tuple[Any, Any]:
    """Attach; gives the receiver and the filter's value in the server's answer."""
    name = f"r-{uuid.uuid4()}"
    receiver = connection.create_receiver(queue, credit=5, name=name, options=Ask(*ask))
    data = receiver.link.remote_source.filter
    data.rewind()
    assert data.next()
    [value] = data.get_dict().values()
    return receiver, value


@pytest.mark.feature("session.accept")
def test_a_described_filter_is_answered_described(connection: Any, queue: str) -> None:
    send(connection, queue, "s", "x")
    for asked in ("s", None):
        described = Described(EXCLUSIVE_CODE, asked)
        receiver, granted = accept(connection, queue, EXCLUSIVE, described)
        assert granted == Described(EXCLUSIVE_CODE, "s")
        ticks = receiver.link.remote_properties[LOCKED_UNTIL]
        left_s = (ticks - TICKS_TO_1970) / 10_000_000 - time.time()
        assert 2 < left_s < 10
        receiver.close()


@pytest.mark.feature("session.accept")
def test_no_session_in_time_is_a_time_out(connection: Any, queue: str) -> None:
    with pytest.raises(LinkDetached, match=r"com\.microsoft:timeout"):
        accept(connection, queue, EXCLUSIVE, None, 300)


@pytest.mark.feature("session.accept")
def test_a_filter_that_makes_no_sense_is_refused(connection: Any, queue: str) -> None:
    for name, value in (
        (EXCLUSIVE, 7),
        (NON_EXCLUSIVE, Described(NON_EXCLUSIVE_CODE, ["s", "no uuid"])),
        (NON_EXCLUSIVE, Described(NON_EXCLUSIVE_CODE, some_list(None, uuid.uuid4()))),
    ):
        with pytest.raises(LinkDetached, match=r"com\.microsoft:argument-error"):
            accept(connection, queue, name, value)
    with pytest.raises(LinkDetached, match="amqp:not-allowed"):
        accept(connection, f"{queue}/$DeadLetterQueue", EXCLUSIVE, "s")


@pytest.mark.feature("session.take-over")
def test_another_receiver_takes_the_session_over(
    connection: Any, connect: Callable[[], Any], queue: str
) -> None:
    other = connect()
    send(connection, queue, "s", "1")
    ask = Described(NON_EXCLUSIVE_CODE, ["s"])
    first, granted = accept(connection, queue, NON_EXCLUSIVE, ask)
    session_id, token = granted.value
    assert session_id == "s"
    assert isinstance(token, uuid.UUID)
    assert first.receive(timeout=5).body == "1"

    stale = Described(NON_EXCLUSIVE_CODE, some_list("s", uuid.uuid4()))
    with pytest.raises(LinkDetached, match=r"com\.microsoft:session-lock-lost"):
        accept(other, queue, NON_EXCLUSIVE, stale)
    with pytest.raises(LinkDetached, match=r"com\.microsoft:session-cannot-be-locked"):
        accept(other, queue, EXCLUSIVE, "s")

    ask = Described(NON_EXCLUSIVE_CODE, some_list("s", token))
    second, granted = accept(other, queue, NON_EXCLUSIVE, ask)
    assert granted.value == ["s", token], "the same lock in other hands"
    with pytest.raises(LinkDetached, match="amqp:link:stolen"):
        first.receive(timeout=5)
    send(other, queue, "s", "2")
    assert second.receive(timeout=5).body == "2"


@pytest.mark.feature("session.renew")
def test_a_lock_that_runs_out_detaches_the_link(connection: Any, queue: str) -> None:
    receiver, _ = accept(connection, queue, EXCLUSIVE, "s")
    with pytest.raises(LinkDetached, match=r"com\.microsoft:session-lock-lost"):
        receiver.receive(timeout=20)


@pytest.mark.feature("session.accept")
def test_who_gave_up_waiting_does_not_get_a_session(connection: Any, queue: str) -> None:
    """Its link is gone: the session goes to the next who asks."""
    link = connection.container.create_receiver(
        connection.conn, queue, name="gives-up", options=Ask(EXCLUSIVE, None)
    )
    connection.create_sender(queue, name="after it")  # so that the server has seen the attach
    link.close()
    send(connection, queue, "s", "x")
    receiver, granted = accept(connection, queue, EXCLUSIVE, None)
    assert granted == "s"
    assert receiver.receive(timeout=5).body == "x"
