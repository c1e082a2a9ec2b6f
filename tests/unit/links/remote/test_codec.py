"""What one end of the socket encodes, the other end has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.links.remote.values import (
    COMMANDS,
    all_kinds,
    attributes,
    descriptions,
    inside,
    messages,
    numbers,
    rules,
    texts,
)
from twinbus.entities.commands import (
    Command,
    Delivered,
    Listed,
    ListEntities,
    PartitionState,
    Reply,
    Runtime,
    Send,
)
from twinbus.entities.message import Message, NewMessage, Overlay
from twinbus.entities.selections import Selected
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import (
    DiskFull,
    EntityNotFound,
    MessageLockLost,
    ServerBusy,
    ServiceError,
    SessionLockLost,
)
from twinbus.links.remote.beats import Beat, StoreBeat, decode_beat, encode_beat
from twinbus.links.remote.channel import Channel
from twinbus.links.remote.codec import decode_command, encode_command
from twinbus.links.remote.messages import decode_lock, encode_lock
from twinbus.links.remote.operations import COMMAND_MIN, Operation
from twinbus.links.remote.results import (
    ERROR,
    decode_error,
    decode_result,
    encode_error,
    encode_reply,
)


def through(operation: Operation) -> Operation:
    """As it comes out of the socket."""
    (arrived,) = Channel().receive_data(Channel().encode([operation]))
    return arrived


def test_every_command_is_known() -> None:
    """A new command needs its place in the codec, and here."""
    assert all_kinds() == set(COMMANDS)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_commands(kind: type[Command], data: st.DataObject) -> None:
    command = data.draw(COMMANDS[kind])
    operation = through(encode_command(3, 77, command))
    assert operation[0] >= COMMAND_MIN
    assert operation[1:3] == (3, 77)
    decoded = decode_command(operation)
    assert decoded.context == 77
    assert inside(decoded) == inside(command)


def replied(result: object) -> object:
    form, value = encode_reply(Reply(ListEntities(), result, None))
    assert form != ERROR
    arrived = through((0, 0, form, value))
    return decode_result(arrived[2], arrived[3])


delivered = st.lists(
    st.builds(lambda pair, until: Delivered(pair[0], pair[1], until), messages(), numbers),
    max_size=4,
)


@given(
    st.none()
    | numbers
    | st.binary()
    | st.lists(numbers)
    | st.lists(texts)
    | st.lists(rules)
    | st.lists(st.none() | st.builds(MessageLockLost, texts))
    | delivered
    | st.lists(st.builds(Listed, numbers, texts, texts, descriptions), max_size=3)
    | st.lists(st.builds(PartitionState, numbers, st.booleans(), numbers, numbers, numbers))
)
def test_results(result: object) -> None:
    assert inside(replied(result)) == inside(result)


@given(delivered, numbers, numbers, st.lists(numbers))
def test_selected(found: list[Delivered], count: int, following: int, bounds: list[int]) -> None:
    selected = Selected()
    selected.count = count
    selected.units = 2 * count
    selected.bounds = bounds
    selected.delivered = found
    selected.next_sequence_number = following
    assert inside(replied(selected)) == inside(selected)


def test_runtimes() -> None:
    runtime = Runtime()
    for value, name in enumerate(sorted(attributes(Runtime)), start=5):
        setattr(runtime, name, True if name == "is_busy" else value)
    assert inside(replied([None, runtime])) == inside([None, runtime])
    assert replied([None, None]) == [None, None]


@pytest.mark.parametrize(
    "error", [EntityNotFound("x"), DiskFull("full"), ServerBusy("wait"), SessionLockLost("")]
)
def test_errors(error: ServiceError) -> None:
    form, value = encode_reply(Reply(ListEntities(), None, error))
    assert form == ERROR
    assert inside(decode_error(value)) == inside(error)


def test_an_error_of_a_newer_broker_is_an_error_still() -> None:
    class Unheard(ServiceError):
        """Not known when the codec was loaded."""

    decoded = decode_error(encode_error(Unheard("what?")))
    assert type(decoded) is ServiceError
    assert str(decoded) == "what?"


def test_a_session_lock() -> None:
    lock = SessionLock("s", 1 << 60, 5, 6)
    assert inside(decode_lock(encode_lock(lock))) == inside(lock)


def test_a_beat() -> None:
    beat = Beat(1, 2, 3, [StoreBeat(0, 4, 5, 6, 7, 8, 9, 10, 11, "trouble")], ["a line"])
    assert decode_beat(through(encode_beat(beat))) == beat


def test_what_a_plain_message_costs() -> None:
    """The bytes alone; everything else of it is what every message has."""
    send = Send(7, [NewMessage(b"body")])
    assert encode_command(0, 1, send) == (COMMAND_MIN, 0, 1, 7, [b"body"])


def test_nothing_of_a_message_is_forgotten() -> None:
    """A new slot needs its place in the codec, or in this list of what stays behind."""
    stays = {"body", "position", "length"}  # beside it; of the log; of the body
    sent = {
        "sequence_number",
        "enqueued_ms",
        "expires_ms",
        "delivery_count",
        "state",
        "grant",
        "locked_until_ms",
        "session_id",
        "overlay",
    }
    assert attributes(Message) == stays | sent
    assert len(attributes(Overlay)) == 6
