"""Encoded messages of the backlog get their form back.

What is the same for messages of the SDK is compared with them in property/test_restoring.py.
"""

import datetime as dt

import pytest

from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Decimal128, Described, Int, Symbol, Timestamp
from twinbus.message.plain import Properties, data_section, decode_message, encode_message
from twinbus.message.scan import scan
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.rules import DAMAGED, NO_PATH
from twinbus.pipeline.syphon.restoring import restore_bytes, sequence_number_of
from twinbus.pipeline.syphon.retyping import retyped

pytestmark = pytest.mark.proves("D-2")

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
TICKS = Symbol("com.microsoft:timespan")


def waiting(
    given: dict[str, object],
    properties: Properties | None = None,
    body: bytes | None = None,
    number: int = 7,
    **annotations: object,
) -> bytes:
    """As it is browsed in a backlog queue."""
    marks: dict[str, object] = {
        "x-opt-sequence-number": number,
        "x-opt-enqueued-time": Timestamp(NOW_MS - HOUR_MS),
        "x-opt-enqueue-sequence-number": 7,
    }
    return encode_message(
        data_section(b"body") if body is None else body,
        properties,
        given,
        marks | {name.replace("_", "-"): value for name, value in annotations.items()},
        durable=True,
        priority=4,
    )


@pytest.mark.proves("P-11", "D-2")
def test_everything_has_its_place_again() -> None:
    data = waiting(
        {
            "mine": Int(5),
            "x-ms-path": "orders",
            "x-ms-sessionid": "s",
            "x-ms-timetolive": Described(TICKS, 5_000 * 10_000),
            "x-ms-scheduledenqueuetimeutc": Timestamp(NOW_MS + 5),
            "x-twinbus-producer-key": "p~3/9",
        },
        Properties(message_id="m", reply_to_group_id="r"),
        x_opt_partition_key="s",
    )
    assert sequence_number_of(data) == 7
    restored = restore_bytes(data, NOW_MS)
    assert (restored.number, restored.path, restored.key) == (7, "orders", "p~3/9")
    assert (restored.session_id, restored.partition_key) == ("s", "s")
    message = decode_message(restored.data)
    assert message.application_properties == {"mine": 5}
    assert type(message.application_properties["mine"]) is Int
    assert message.annotations == {
        "x-opt-partition-key": "s",
        "x-opt-scheduled-enqueue-time": NOW_MS + 5,
    }
    assert message.delivery_annotations == {"x-opt-twinbus-producer-key": "p~3/9"}
    assert (message.ttl_ms, message.durable, message.delivery_count) == (5_000, True, 0)
    properties = message.properties
    assert (properties.message_id, properties.group_id) == ("m", "s")
    assert properties.reply_to_group_id == "r"
    assert (properties.creation_ms, properties.absolute_expiry_ms) == (NOW_MS, NOW_MS + 5_000)
    assert message.body == b"body"


def test_sections_that_need_no_change_are_copied() -> None:
    """Bodies are not looked into: not even one that nobody could read."""
    body = b"\x00\x53\x77" + b"\xb1\x00\x00\x00\x02\xff\xfe"
    own = Properties(message_id="m")
    restored = restore_bytes(waiting({"x-ms-path": "q"}, own, body), NOW_MS)
    assert restored.data.endswith(own.encode() + body)
    assert scan(restored.data).application_properties_at == -1


def test_its_place_in_the_backlog_is_the_key_of_a_message_without_one() -> None:
    data = waiting({"x-ms-path": "q"}, number=(3 << 48) + 12)
    assert restore_bytes(data, NOW_MS, position="bus/q@5#3/").key == "bus/q@5#3/12"
    assert restore_bytes(data, NOW_MS).key is None


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_message_that_is_cut_short(length: int) -> None:
    """Whatever comes, it is told in one way."""
    data = waiting({"x-ms-path": "q"})[: -length or None]
    try:
        restore_bytes(data, NOW_MS)
    except UnrestorableMessageError as error:
        assert error.reason in {DAMAGED, NO_PATH}


def test_decimals_are_decimals_again() -> None:
    """They wait as texts: all other types are right on the wire."""
    ten = encode_value(Decimal128(bytes.fromhex("303c00000000000000000000000003e8")))
    assert retyped(encode_value("10.00"), "DECIMAL128") == ten
    listed = encode_value(["10.00", Int(1), {"a": "10.00"}])
    made = retyped(listed, "LIST DECIMAL128 INT MAP STRING DECIMAL128")
    assert made.count(ten) == 2
    when = encode_value(Timestamp(int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp())))
    assert retyped(when, "TIMESTAMP") == when
