"""Records: every fact survives the way to bytes and back; bad bytes are LogDamaged, no more."""

import ast
import re
import struct
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twinbus.storage.log as log_module
import twinbus.storage.records as records_module
from twinbus.entities.facts import (
    DEAD_LETTER,
    Activated,
    Arrived,
    Carried,
    DeadLettered,
    EntityCreated,
    EntityDeleted,
    Fact,
    FannedOut,
    IdsSeen,
    LastNumber,
    Locked,
    Removed,
    Rescheduled,
    SessionStateSet,
    Stored,
    Together,
    Unlocked,
)
from twinbus.entities.message import ACTIVE, GONE, NEVER_MS, Message, Overlay
from twinbus.errors import LogDamaged
from twinbus.storage.decoder import Decoder
from twinbus.storage.records import Counters, IdsKept, encode, encode_placed

BASE = 4_128
SEGMENT = 7
POSITION = (SEGMENT << 32) + BASE

numbers = st.integers(0, 2**64 - 1)
times = st.integers(-(2**40), NEVER_MS)
counts = st.integers(0, 2**32 - 1)
ids = st.integers(0, 2**32 - 1)
subqueues = st.integers(0, 2)
states = st.integers(0, 2)
short_text = st.text(max_size=20)
overlays = st.builds(
    Overlay,
    st.none() | short_text,
    st.none() | short_text,
    st.none() | short_text,
    st.none() | st.binary(max_size=20),
    st.integers(0, 5),
    st.just(0) | numbers,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body = draw(st.binary(max_size=60))
    session_id = draw(st.none() | short_text)
    expires_ms = draw(st.just(NEVER_MS) | times)
    number, time, state = draw(numbers), draw(times), draw(states)
    message = Message(number, body, len(body), time, expires_ms, session_id, state)
    message.delivery_count = draw(counts)
    message.grant = draw(numbers)
    message.overlay = draw(st.none() | overlays)
    return message


@st.composite
def fanned_out(draw: st.DrawFn) -> FannedOut:
    """Messages of several subscriptions, all with the body of the first."""
    copies = draw(st.lists(messages(), min_size=1, max_size=5))
    for copy in copies:
        copy.body = copies[0].body
        copy.length = copies[0].length
    places = draw(st.lists(ids, min_size=len(copies), max_size=len(copies)))
    return FannedOut(draw(ids), draw(numbers), places, copies)


digests = st.integers(1, 5).flatmap(
    lambda count: st.binary(min_size=16 * count, max_size=16 * count)
)
entries = st.integers(1, 5).flatmap(
    lambda count: st.binary(min_size=22 * count, max_size=22 * count)
)
some_numbers = st.lists(numbers, min_size=1, max_size=9)
some_bounds = st.lists(numbers, min_size=2, max_size=8, unique=True).map(
    lambda found: sorted(found)[: len(found) // 2 * 2]
)
some_messages = st.lists(messages(), min_size=1, max_size=5)
facts = st.one_of(
    st.builds(Stored, ids, subqueues, some_messages),
    st.builds(Removed, ids, subqueues, some_numbers),
    st.builds(Locked, ids, subqueues, numbers, some_numbers),
    st.builds(Unlocked, ids, subqueues, numbers, counts, states, st.none() | overlays),
    st.builds(DeadLettered, ids, numbers, counts, overlays, st.integers(1, 2)),
    st.builds(Activated, ids, numbers, numbers, times, times),
    st.builds(EntityCreated, ids, short_text, short_text, short_text),
    st.builds(EntityDeleted, ids),
    st.builds(LastNumber, ids, numbers),
    st.builds(Counters, numbers, numbers),
    st.builds(SessionStateSet, ids, short_text, st.none() | st.binary(max_size=40), times),
    st.builds(IdsSeen, ids, times, digests),
    st.builds(IdsKept, ids, entries),
    st.builds(Rescheduled, ids, numbers, counts, times, st.none() | overlays),
    st.builds(Carried, ids, short_text, some_numbers),
    st.builds(Arrived, ids, short_text, some_bounds),
    fanned_out(),
)


def plain(value: object) -> object:
    """Facts, messages and overlays as something that compares by value."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, Fact | Message | Overlay):
        return value
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return type(value).__name__, {
        name: plain(getattr(value, name)) for name in names if name not in ("body", "position")
    }


def encoded(stated: list[Fact]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for fact in stated:
        size += encode(fact, parts, POSITION + size)
    data = b"".join(parts)
    assert len(data) == size
    return data


def decoded(data: bytes) -> list[Fact]:
    return Decoder(data, "x.log", BASE, SEGMENT).facts()


@given(st.lists(facts, max_size=6))
def test_round_trip(stated: list[Fact]) -> None:
    data = encoded(stated)
    found = decoded(data)
    assert plain(found) == plain(stated)
    for before, after in zip(stated, found, strict=True):
        if isinstance(before, Stored | FannedOut) and isinstance(after, Stored | FannedOut):
            for sent, read in zip(before.messages, after.messages, strict=True):
                start = read.position - POSITION
                assert data[start : start + read.length] == sent.body
                assert read.position == sent.position
                assert read.body is None, "replaying must not fill the memory with bodies"


@given(ids, subqueues, some_messages, st.integers(1, 2**62))
def test_placed_messages_come_back_as_stored(
    entity_id: int, subqueue: int, placed: list[Message], position: int
) -> None:
    for index, message in enumerate(placed):
        message.position = position + index
    parts: list[bytes] = []
    size = encode_placed(entity_id, subqueue, placed, parts)
    data = b"".join(parts)
    assert len(data) == size
    (found,) = decoded(data)
    assert isinstance(found, Stored)
    assert plain(found) == plain(Stored(entity_id, subqueue, placed))
    assert [m.position for m in found.messages] == [m.position for m in placed]


@given(st.lists(facts, min_size=1, max_size=3), st.data())
def test_any_bytes_are_facts_or_damage(stated: list[Fact], data: st.DataObject) -> None:
    good = bytearray(encoded(stated))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for bad in (bytes(good), bytes(good[:cut])):
        try:
            found = decoded(bad)
        except LogDamaged as error:
            assert BASE <= error.offset <= BASE + len(bad)
        else:
            assert encoded_size(found) <= len(bad)


def encoded_size(found: list[Fact]) -> int:
    """A bound on what decoding may have made of so few bytes."""
    return sum(
        len(fact.sequence_numbers) * 8 if isinstance(fact, Removed | Locked) else 0
        for fact in found
    )


@given(st.binary(max_size=200))
def test_noise_is_damage(noise: bytes) -> None:
    try:
        decoded(noise)
    except LogDamaged:
        pass


COUNTED = [
    records_module.STORED,
    records_module.REMOVED,
    records_module.LOCKED,
    records_module.IDS_SEEN,
    records_module.FANNED_OUT,
    records_module.IDS_KEPT,
]


@pytest.mark.parametrize("count", [0xFFFF_FFFF, 1_000])
def test_a_count_is_not_believed_without_its_bytes(count: int) -> None:
    for kind in COUNTED:
        head = records_module.RECORD.pack(kind, 1, 0, 0, 1, count)
        with pytest.raises(LogDamaged):
            decoded(head + bytes(64))


def test_unknown_kinds_and_versions_are_refused() -> None:
    for kind in (0, 15, 31, 36, 255):
        with pytest.raises(LogDamaged, match="kind"):
            decoded(records_module.RECORD.pack(kind, 1, 0, 0, 1, 1))
    with pytest.raises(LogDamaged, match="head"):
        decoded(records_module.RECORD.pack(records_module.ENTITY_DELETED, 2, 0, 0, 1, 1))


def test_a_message_that_ended_before_it_was_written_is_stored_alive() -> None:
    """The fact that ends it follows in the log; GONE itself is never on disk."""
    message = Message(5, b"abc", 3, 1_000)
    message.state = GONE
    (found,) = decoded(encoded([Stored(1, 0, [message])]))
    assert isinstance(found, Stored)
    assert found.messages[0].state == ACTIVE


@given(fanned_out())
def test_a_shared_body_is_written_once(fact: FannedOut) -> None:
    body = b"shared by all of them"
    for message in fact.messages:
        message.body, message.length = body, len(body)
    data = encoded([fact])
    assert data.count(body) == 1
    assert {message.position for message in fact.messages} == {POSITION + data.index(body)}


def test_a_shared_body_has_the_length_of_all_its_messages() -> None:
    one, other = Message(1, b"abc", 3, 0), Message(1, b"abcd", 4, 0)
    with pytest.raises(ValueError, match="share"):
        encode(FannedOut(1, 1, [2, 3], [one, other]), [], POSITION)
    data = bytearray(encoded([FannedOut(1, 1, [2], [one])]))
    length_at = data.index(b"abc") + 3 + 4 + 32
    assert data[length_at] == 3
    data[length_at] = 2
    with pytest.raises(LogDamaged, match="shared body"):
        decoded(bytes(data))


@given(st.lists(facts, max_size=4))
def test_together_adds_nothing(stated: list[Fact]) -> None:
    """One inside another neither: what makes them one is the frame."""
    plainly = encoded(stated)
    assert encoded([Together(stated)]) == plainly
    assert encoded([Together([Together(stated[:2]), *stated[2:]])]) == plainly


def test_a_dead_letter_of_an_older_log_is_in_the_dead_letter_queue() -> None:
    data = bytearray(encoded([DeadLettered(1, 5, 2, Overlay("old"))]))
    data[2] = 0  # the subqueue, which the first versions left alone
    (found,) = decoded(bytes(data))
    assert isinstance(found, DeadLettered)
    assert found.subqueue == DEAD_LETTER


def test_a_body_is_needed_and_of_its_length() -> None:
    for body in (None, b"too long"):
        with pytest.raises(ValueError, match="body"):
            encode(Stored(1, 0, [Message(1, body, 3, 0)]), [], POSITION)
        with pytest.raises(ValueError, match="body"):
            encode(FannedOut(1, 1, [2], [Message(1, body, 3, 0)]), [], POSITION)


DRAWN = {
    records_module: [
        "RECORD",
        "MESSAGE",
        "UNLOCK",
        "DEATH",
        "ACTIVATION",
        "ENTITY",
        "STATE",
        "FAN",
        "DELAY",
        "OVERLAY",
    ],
    log_module: ["HEADER", "FRAME", "NOTE"],
}


@pytest.mark.parametrize(
    "module, name", [(module, name) for module, names in DRAWN.items() for name in names]
)
def test_the_drawing_is_the_layout(module: ModuleType, name: str) -> None:
    """The fields drawn in the docstring are those of the struct, in that order."""
    # From the source: a compiled module has no docstring.
    source = Path(module.__file__ or "").parent / (module.__name__.rpartition(".")[2] + ".py")
    text = ast.get_docstring(ast.parse(source.read_text()), clean=False) or ""
    drawn = re.search(rf"^    {name} +(.*(?:\n +[|0-9].*)*)", text, re.MULTILINE)
    assert drawn is not None
    formats = re.findall(r"\w+:(\w+)", drawn.group(1).partition("then")[0])
    layout: struct.Struct = getattr(module, name)
    assert "<" + "".join(formats) == layout.format
