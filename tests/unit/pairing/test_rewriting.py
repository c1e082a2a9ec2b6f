"""What moves where in a backlog message, and what of it cannot be brought back."""

import datetime as dt
import decimal
import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from twinbus.pairing.errors import PairingError, UnrestorableMessageError
from twinbus.pairing.rewriting import restore, rewrite
from twinbus.pairing.rules import DAMAGED, EXPIRED, NO_PATH, RESERVED
from twinbus.pairing.value_types import TypesError, recover, time_of, types_of

pytestmark = pytest.mark.proves("P-11")

NOW = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
HOUR_MS = 3_600_000


def read(message: AmqpAnnotatedMessage, enqueued_ms: int | None = None) -> AmqpAnnotatedMessage:
    """As a receiver of the backlog queue gets it, through the SDK's encoder and decoder."""
    if enqueued_ms is not None:
        marks: dict[str | bytes, Any] = {
            b"x-opt-enqueued-time": enqueued_ms,
            "x-opt-sequence-number": {"TYPE": "LONG", "VALUE": 7},
            b"x-opt-locked-until": enqueued_ms + 60_000,
            "x-opt-message-state": 0,
        }
        message.annotations = (message.annotations or {}) | marks
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    encoded = bytes(encode_payload(bytearray(), outgoing))
    return ServiceBusReceivedMessage.from_bytes(encoded).raw_amqp_message


def amqp(**settings: Any) -> AmqpAnnotatedMessage:
    message: AmqpAnnotatedMessage = ServiceBusMessage("body", **settings).raw_amqp_message
    return message


def through(message: AmqpAnnotatedMessage, mode: Any = "original", **age: float) -> Any:
    """Rewritten, in the backlog for that long, and restored."""
    enqueued_ms = NOW_MS - int(dt.timedelta(**age).total_seconds() * 1000)
    return restore(read(rewrite(message, "orders", "p/1"), enqueued_ms), NOW, mode)


@pytest.mark.proves("P-11")
def test_each_property_has_its_place() -> None:
    """Names and types of the old client."""
    message = amqp(
        session_id="s", time_to_live=dt.timedelta(hours=1), scheduled_enqueue_time_utc=NOW
    )
    rewritten = rewrite(message, "orders", "producer/17")
    found = read(rewritten).application_properties
    assert found is not None
    assert found == {
        b"x-ms-path": b"orders",
        b"x-ms-sessionid": b"s",
        b"x-ms-timetolive": HOUR_MS * 10_000,
        b"x-ms-scheduledenqueuetimeutc": NOW_MS,
        b"x-twinbus-producer-key": b"producer/17",
    }
    assert found[b"x-ms-timetolive"].descriptor == b"com.microsoft:timespan"
    assert rewritten.header is not None
    assert rewritten.header.time_to_live is None
    assert rewritten.properties is not None
    assert rewritten.properties.group_id is None
    assert rewritten.properties.absolute_expiry_time is None


def test_a_plain_message_gets_its_path_only() -> None:
    rewritten = rewrite(amqp(), "orders")
    assert rewritten.application_properties == {"x-ms-path": "orders"}


@pytest.mark.proves("P-11")
def test_and_back() -> None:
    scheduled = NOW + dt.timedelta(days=1)
    restored = through(
        amqp(
            session_id="s",
            partition_key="s",
            time_to_live=dt.timedelta(hours=1),
            scheduled_enqueue_time_utc=scheduled,
            application_properties={"mine": 1},
        )
    )
    assert (restored.path, restored.session_id, restored.key) == ("orders", "s", "p/1")
    assert restored.partition_key == "s"
    message = restored.message
    assert message.application_properties == {"mine": 1}
    assert message.header.time_to_live == HOUR_MS
    assert message.properties.group_id == "s"
    assert message.annotations == {
        "x-opt-partition-key": "s",
        "x-opt-scheduled-enqueue-time": scheduled,
    }
    assert message.delivery_annotations == {"x-opt-twinbus-producer-key": "p/1"}


def test_a_received_message_that_is_sent_on() -> None:
    """The marks of the queue it came from stay behind, as on a direct send."""
    received = read(amqp(session_id="s", application_properties={"a": "b"}), NOW_MS)
    restored = through(received)
    assert restored.session_id == "s"
    assert restored.message.annotations is None
    assert restored.message.application_properties == {"a": "b"}


def test_deliveries_from_the_backlog_do_not_count() -> None:
    message = AmqpAnnotatedMessage(
        data_body=b"x", header=AmqpMessageHeader(delivery_count=3, priority=9, durable=True)
    )
    header = through(message).message.header
    assert (header.delivery_count, header.priority, header.durable) == (None, 9, True)


@pytest.mark.parametrize("name", sorted(RESERVED))
@pytest.mark.parametrize("encoding", [str, str.encode])
def test_reserved_names_are_refused(name: str, encoding: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is reserved for paired namespaces"):
        rewrite(amqp(application_properties={encoding(name): 1}), "orders")


def test_a_scheduled_time_that_is_none() -> None:
    message = amqp()
    message.annotations = {"x-opt-scheduled-enqueue-time": "tomorrow"}
    with pytest.raises(ValueError, match="'tomorrow' is not a time"):
        rewrite(message, "orders")


def test_time_to_live_begins_anew() -> None:
    message = amqp(time_to_live=dt.timedelta(hours=1))
    assert through(message, hours=5).message.header.time_to_live == HOUR_MS


def test_time_to_live_that_remains() -> None:
    message = amqp(time_to_live=dt.timedelta(hours=1))
    restored = through(message, "remaining", minutes=45)
    assert restored.message.header.time_to_live == HOUR_MS / 4
    with pytest.raises(UnrestorableMessageError, match="240 s ago") as refused:
        through(message, "remaining", minutes=64)
    assert refused.value.reason == EXPIRED
    assert isinstance(refused.value, PairingError)


def test_the_clock_of_the_secondary_is_ahead() -> None:
    message = amqp(time_to_live=dt.timedelta(hours=1))
    restored = through(message, "remaining", minutes=-5)
    assert restored.message.header.time_to_live == HOUR_MS


def test_time_to_live_of_a_scheduled_message_counts_from_then() -> None:
    half_an_hour_ago = NOW - dt.timedelta(minutes=30)
    message = amqp(time_to_live=dt.timedelta(hours=1), scheduled_enqueue_time_utc=half_an_hour_ago)
    restored = through(message, "remaining", hours=10)
    assert restored.message.header.time_to_live == HOUR_MS / 2


def test_expiry_without_a_time_to_live() -> None:
    """How clients state a time to live beyond 49 days."""
    expiry_ms = NOW_MS + 100 * 24 * HOUR_MS
    properties = AmqpMessageProperties(creation_time=NOW_MS, absolute_expiry_time=expiry_ms)
    message = AmqpAnnotatedMessage(data_body=b"x", properties=properties)
    waiting = rewrite(message, "orders").properties
    assert waiting is not None
    assert waiting.absolute_expiry_time is None
    back = through(message, hours=1).message.properties
    assert (back.creation_time, back.absolute_expiry_time) == (NOW_MS, expiry_ms)
    back = through(message, "remaining", hours=1).message.properties
    assert back.absolute_expiry_time == expiry_ms - HOUR_MS
    with pytest.raises(UnrestorableMessageError, match=EXPIRED):
        through(message, "remaining", days=101)


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (5_000, 5_000),  # plain numbers are milliseconds
        (({"TYPE": "SYMBOL", "VALUE": "com.microsoft:timespan"}, 50_000_000), 5_000),
        ({"TYPE": "LONG", "VALUE": 2**50}, 2**32 - 1),  # the longest there is
    ],
)
def test_forms_of_a_time_to_live(value: Any, milliseconds: int) -> None:
    message = amqp(application_properties={"x-ms-path": "q", "x-ms-timetolive": value})
    header = restore(read(message), NOW).message.header
    assert header is not None
    assert header.time_to_live == milliseconds


@pytest.mark.proves("P-14")
def test_a_foreign_message() -> None:
    """It has no path, so nobody knows where it should go."""
    with pytest.raises(UnrestorableMessageError, match="no sender of a pair") as refused:
        restore(read(amqp(application_properties={"other": 1})), NOW)
    assert refused.value.reason == NO_PATH
    with pytest.raises(UnrestorableMessageError, match=NO_PATH):
        restore(read(AmqpAnnotatedMessage(value_body="x")), NOW)


@pytest.mark.proves("P-14")
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("x-ms-path", 7, "x-ms-path must be a text, not int 7"),
        ("x-ms-sessionid", 1.5, "x-ms-sessionid must be a text"),
        ("x-ms-timetolive", "1:00", "x-ms-timetolive must be a time span"),
        ("x-ms-timetolive", -1, "x-ms-timetolive must be a time span"),
        ("x-ms-timetolive", True, "x-ms-timetolive must be a time span"),
        ("x-ms-scheduledenqueuetimeutc", "noon", "must be a time"),
        ("x-twinbus-producer-key", True, "must be a text"),
        ("x-twinbus-expiry", "noon", "must be a time"),
        ("x-twinbus-types", "{", "must be a JSON object"),
        ("x-twinbus-types", "[]", "must be a JSON object"),
        ("x-twinbus-types", '{"annotations": 1}', "annotations must be an object"),
        ("x-twinbus-types", '{"application_properties": {"mine": "3*INT"}}', "more types"),
        ("x-twinbus-types", '{"application_properties": {"mine": "STRING"}}', "should be a text"),
        ("x-twinbus-types", '{"application_properties": {"mine": "NONSENSE"}}', "no type"),
    ],
)
def test_damaged(name: str, value: Any, text: str) -> None:
    """Told in one way, whatever is wrong."""
    properties: dict[str | bytes, Any] = {"x-ms-path": "q", "mine": 1, name: value}
    with pytest.raises(UnrestorableMessageError, match=text) as refused:
        restore(read(amqp(application_properties=properties)), NOW)
    assert refused.value.reason == DAMAGED


def test_descriptions_of_damage_are_short() -> None:
    properties: dict[str | bytes, Any] = {"x-ms-path": "q", "x-ms-timetolive": "9" * 5000}
    with pytest.raises(UnrestorableMessageError) as refused:
        restore(read(amqp(application_properties=properties)), NOW)
    assert len(refused.value.description) < 200


def test_types_are_noted_only_where_the_sdk_loses_them() -> None:
    message = amqp(application_properties={"text": "a", "int": 1, "time": NOW, "bytes": b"a"})
    found = rewrite(message, "q").application_properties
    assert found is not None
    noted = json.loads(found["x-twinbus-types"])
    assert noted == {"application_properties": {"time": "TIMESTAMP"}}


def test_types_of_values() -> None:
    assert types_of({"a": [1, 2.5, None, "text"]}) == ""
    assert types_of([b"a", b"b", "c"]) == "LIST 2*BINARY STRING"
    assert types_of({"TYPE": "ARRAY", "VALUE": [1, 2]}) == "ARRAY 2*INT"
    assert types_of(({"TYPE": "SYMBOL", "VALUE": "d"}, 1)) == "DESCRIBED INT"
    assert types_of({"TYPE": "LONG", "VALUE": 1}) == "LONG"
    assert types_of({"TYPE": "LONG", "VALUE": 1}, top=True) == ""  # a value body is no type
    assert types_of(object()) == ""  # the SDK has words for that


def test_recovering_values() -> None:
    assert recover([b"a", b"b"], "LIST STRING BINARY") == ["a", b"b"]
    assert recover(b"12.50", "DECIMAL128") == decimal.Decimal("12.50")
    assert recover(2**40) == {"TYPE": "LONG", "VALUE": 2**40}
    assert recover(2**63) == {"TYPE": "ULONG", "VALUE": 2**63}
    assert recover(b"\xff") == b"\xff"
    assert recover({b"TYPE": b"x"}) == {"TYPE": "x"}
    assert recover(NOW_MS, "TIMESTAMP") == NOW
    assert recover(2**62, "TIMESTAMP") == {"TYPE": "TIMESTAMP", "VALUE": 2**62}


@pytest.mark.parametrize(
    ("value", "types"),
    [
        ([1], "LIST"),
        (1, "INT INT"),
        (1, "x*INT"),
        (b"many", "DECIMAL128"),
        (b"\xff", "STRING"),
        ({b"a": 1}, "LIST STRING INT"),
    ],
)
def test_notes_that_do_not_fit(value: object, types: str) -> None:
    with pytest.raises(TypesError):
        recover(value, types)


def test_times_in_every_form() -> None:
    assert time_of(NOW) == NOW_MS
    assert time_of(NOW.replace(tzinfo=None)) == NOW_MS  # the SDK takes it as UTC, too
    assert time_of({"TYPE": "TIMESTAMP", "VALUE": NOW_MS}) == NOW_MS
    assert time_of("noon") is None
    assert time_of(True) is None
