"""The two ways to restore a message of the backlog come to the same.

Each message is rewritten and encoded by the SDK, as it waits in a backlog queue.  One way reads it
with the SDK, restores it and encodes it again; the other works on the bytes.  Compared is every
value with its AMQP type, section by section: of every kind of message that has a name, and of
whatever hypothesis thinks of.  What the SDK's way must come to is in unit/pairing.
"""

import copy
import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.message_sections import sections_of
from tests.property.message_kinds import FOREIGN, HOUR_MS, KINDS, NOW, NOW_MS, REFUSED, message
from tests.property.test_rewriting import encoded, messages, symbols
from twinbus.amqp.decoding import decode_whole, skip_within
from twinbus.amqp.types import Array
from twinbus.message.sections import DELIVERY_ANNOTATIONS, HEADER, PROPERTIES, Entries
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.rewriting import marks_of, restore, rewrite
from twinbus.pairing.rules import (
    BODY,
    EXPIRED,
    NOTED_FIELDS,
    NOTED_MAPS,
    RESERVED,
    SCHEDULED_TIME,
    TYPES,
)
from twinbus.pipeline.syphon.restoring import marks_in, restore_bytes

pytestmark = pytest.mark.proves("P-11", "D-2")

_LISTS, _MAPS, _ARRAYS = (0x45, 0xC0, 0xD0), (0xC1, 0xD1), (0xE0, 0xF0)
DAMAGE: Any = [
    *[None, 7, -7, True, 1.5, "", "noon"],
    *["{", "[]", '{"annotations": 1}', '{"footer": []}', '{"body": "INT INT"}'],
    *['{"body": "NONSENSE"}', '{"message_id": "NONSENSE"}', '{"body": "DECIMAL128"}'],
    {"TYPE": "TIMESTAMP", "VALUE": 5},
    {"TYPE": "BINARY", "VALUE": b"\xff"},
]
EXPIRES = AmqpMessageProperties(absolute_expiry_time=1)  # when it has waited for 1 ms: at 0
modes = st.sampled_from(["original", "remaining"])
# Clocks that differ, a moment, a minute, and longer than some live.
WAITS_MS = (-300_000, 0, 60_000, HOUR_MS, 2 * HOUR_MS, 102 * 24 * HOUR_MS)


@pytest.mark.proves("P-11", "D-2")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key", "primary"), [(None, None), ("p~3/9", "bus.example.com-5671")])
def test_both_ways_come_to_the_same_for_every_kind(
    kind: str, key: str | None, primary: str | None
) -> None:
    """Of messages that a pair has rewritten."""
    rewritten = rewrite(copy.deepcopy(KINDS[kind]), "some/path", key, primary)
    assert compare_everywhen(rewritten)


@pytest.mark.proves("P-11", "D-2")
@pytest.mark.parametrize("kind", FOREIGN)
def test_both_ways_come_to_the_same_for_messages_of_others(kind: str) -> None:
    """Another client's, or somebody's who has put them there by hand."""
    given: dict[str, Any] = {"x-ms-path": "q", "mine": 1, **FOREIGN[kind]}
    own = AmqpMessageProperties(message_id="m", group_id="own", creation_time=NOW_MS)
    # Its own scheduled time gives way to the marker's; the SDK would lose its type otherwise.
    marks = {"x-opt-scheduled-enqueue-time": NOW} if SCHEDULED_TIME in given else None
    assert compare_everywhen(message(application_properties=given))
    assert compare_everywhen(
        message(application_properties=given, properties=own, annotations=marks)
    )


@pytest.mark.proves("P-14", "D-2")
@pytest.mark.parametrize("kind", REFUSED)
def test_both_ways_refuse_the_same(kind: str) -> None:
    """For the same reason."""
    damage, reason = REFUSED[kind]
    given: dict[str, Any] = {"x-ms-path": "q", "mine": 1, **damage}
    own = AmqpMessageProperties(message_id="m", correlation_id="c")
    waiting = AmqpAnnotatedMessage(value_body=1, application_properties=given, properties=own)
    assert compare(in_the_backlog(waiting, NOW_MS - HOUR_MS), "remaining") == reason


def test_every_rule_has_a_kind() -> None:
    """So a new row of the table needs a message that shows it."""
    seen: set[str] = set()
    for kind in KINDS.values():
        rewritten = rewrite(copy.deepcopy(kind), "q", "p~3/9", "one", "its id")
        given = rewritten.application_properties or {}
        seen |= {str(name) for name in given}
        seen |= json.loads(given.get(TYPES, "{}")).keys()
    assert seen >= {*RESERVED, *NOTED_FIELDS, *NOTED_MAPS, BODY}


@pytest.mark.proves("P-11", "D-2")
@settings(max_examples=150, deadline=None)
@given(
    message=messages(),
    key=st.none() | symbols,
    mode=modes,
    ttl_ms=st.none() | st.integers(0, 2**33),
    waited_ms=st.integers(-1_000, 10_000_000),
)
@example(AmqpAnnotatedMessage(value_body={"a": [1.5, b"x"]}), "p/1", "original", 5, 0)
@example(AmqpAnnotatedMessage(data_body=b"", properties=EXPIRES), None, "remaining", None, 1)
def test_both_ways_come_to_the_same(
    message: AmqpAnnotatedMessage, key: str | None, mode: Any, ttl_ms: int | None, waited_ms: int
) -> None:
    """Path, session, keys, and every section of the message."""
    if ttl_ms is not None:
        header = message.header or AmqpMessageHeader()
        message.header = AmqpMessageHeader(
            durable=header.durable, priority=header.priority, time_to_live=ttl_ms
        )
    compare(in_the_backlog(rewrite(message, "some/path", key), NOW_MS - waited_ms), mode)


@pytest.mark.proves("P-14", "D-2")
@settings(max_examples=150, deadline=None)
@given(message=messages(), name=st.sampled_from(sorted(RESERVED)), value=st.sampled_from(DAMAGE))
def test_what_is_damaged_is_refused_for_the_same_reason(
    message: AmqpAnnotatedMessage, name: str, value: Any
) -> None:
    """Whatever has happened to what the pair has put there."""
    rewritten = rewrite(message, "some/path", "p/1")
    assert rewritten.application_properties is not None
    rewritten.application_properties[name] = value
    # Without the right notes the SDK's way loses types, the other one does not.
    compare(in_the_backlog(rewritten, NOW_MS - 60_000), "remaining", are_notes_right=name != TYPES)


def compare_everywhen(message: AmqpAnnotatedMessage) -> bool:
    """In both modes, after every wait; whether it could be restored at least once."""
    outcomes = set()
    for waited_ms in WAITS_MS:
        waiting = in_the_backlog(message, NOW_MS - waited_ms)
        outcomes |= {compare(waiting, mode) for mode in ("original", "remaining")}
    assert outcomes <= {"", EXPIRED}
    return "" in outcomes


def compare(waiting: bytes, mode: Any, *, are_notes_right: bool = True) -> str:
    """By the SDK and by the bytes; the reason if both refuse it."""
    read = ServiceBusReceivedMessage.from_bytes(waiting).raw_amqp_message
    assert marks_of(read) == marks_in(waiting)
    try:
        slow = restore(read, NOW, mode)
    except UnrestorableMessageError as error:
        with pytest.raises(UnrestorableMessageError) as refused:
            restore_bytes(waiting, NOW_MS, mode)
        assert refused.value.reason == error.reason
        if error.reason == EXPIRED:  # of damage each tells what it has read
            assert refused.value.description == error.description
        return str(error.reason)
    fast = restore_bytes(waiting, NOW_MS, mode)
    assert (fast.number, fast.path, fast.key) == (7, slow.path, slow.key)
    assert (fast.primary, fast.namespace) == (slow.primary, slow.namespace) == marks_of(read)
    assert (fast.session_id, fast.partition_key) == (slow.session_id, slow.partition_key)
    if are_notes_right:
        assert portrait(fast.data) == portrait(encoded(slow.message))
    return ""


def in_the_backlog(message: AmqpAnnotatedMessage, enqueued_ms: int) -> bytes:
    """As a receiver of the queue gets it."""
    message.annotations = dict(message.annotations or {}) | {
        "x-opt-sequence-number": {"TYPE": "LONG", "VALUE": 7},
        "x-opt-enqueued-time": {"TYPE": "TIMESTAMP", "VALUE": enqueued_ms},
        "x-opt-enqueue-sequence-number": {"TYPE": "LONG", "VALUE": 7},
    }
    return encoded(message)


def portrait(data: bytes) -> list[Any]:
    """The sections with every value and its type, without the moment of the send."""
    sections: list[Any] = []
    lives = False
    for code, encoded_value in sections_of(data):
        value = _typed(encoded_value)
        if code in (HEADER, PROPERTIES):
            fields = list(value[1])
            while fields and fields[-1] == ("NoneType", "None"):
                del fields[-1]
            value = fields
        if code == HEADER:
            lives = len(value) > 2 and int(value[2][1]) > 0
        if code == PROPERTIES and lives:  # the SDK looks at the clock
            (kind, expiry), (other_kind, creation) = value[8:10]
            value[8:10] = [kind, other_kind, int(expiry) - int(creation)]
        if code == DELIVERY_ANNOTATIONS:  # the SDK writes these last
            sections.insert(0, (code, value))
        else:
            sections.append((code, value))
    return sorted(sections, key=lambda each: each[0])


def _typed(raw: bytes) -> Any:
    end = len(raw)
    if raw[0] == 0x00:
        middle = skip_within(raw, 1, end)
        return "described", _typed(raw[1:middle]), _typed(raw[middle:])
    if raw[0] not in _LISTS + _MAPS + _ARRAYS:
        value = decode_whole(raw)
        return type(value).__name__, repr(value)
    if raw[0] in _ARRAYS:
        array = decode_whole(raw)
        assert isinstance(array, Array)
        return "array", [(type(each).__name__, repr(each)) for each in array]
    entries = Entries(raw, 0, end)
    elements = []
    at = entries.start
    for _ in range(entries.count):
        after = skip_within(raw, at, end)
        elements.append(_typed(raw[at:after]))
        at = after
    if raw[0] in _LISTS:
        return "list", elements
    pairs = zip(elements[::2], elements[1::2], strict=True)
    return "map", sorted(pairs, key=repr)
