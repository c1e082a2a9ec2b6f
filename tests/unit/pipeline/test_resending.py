"""Messages that are sent once more: same bytes but for the last stay's marks, keys, and pace."""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from twinbus.amqp.types import Timestamp
from twinbus.entities.arrivals import Arrivals
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.entities.partitions import PARTITION_COUNT, home_of
from twinbus.message.plain import Properties, data_section, decode_message, encode_message
from twinbus.message.producer_keys import read_producer_key
from twinbus.pipeline.jobs.resending import (
    CHUNK_COUNT_MAX,
    NUMBERS_PER_PRODUCER,
    Pace,
    Timed,
    paced,
    renewed,
    resending_key,
)
from twinbus.pipeline.sink.keys import Outgoing, fault_of
from twinbus.pipeline.sink.parts import by_destination


def delivered(application_properties: dict[str, object] | None = None) -> bytes:
    """As a receiver gets a dead letter."""
    return encode_message(
        data_section(b"body"),
        Properties(message_id="m-1", group_id="s-1", content_type="text/plain"),
        {"DeadLetterReason": "why", "DeadLetterErrorDescription": "in words", "n": 7}
        if application_properties is None
        else application_properties,
        {
            "x-opt-sequence-number": 5,
            "x-opt-enqueued-time": Timestamp(1_000),
            "x-opt-deadletter-source": "orders",
            "x-opt-scheduled-enqueue-time": Timestamp(900),
            "x-opt-partition-key": "s-1",
            "x-own": "stays",
        },
        ttl_ms=60_000,
        durable=True,
        priority=7,
    )


def test_what_the_last_stay_has_left_is_gone_and_nothing_else() -> None:
    message = renewed(3, delivered(), "archive", "x", "p/1")
    assert (message.row, message.destination, message.order) == (3, "archive", "s-1")
    assert message.key == resending_key("x", "p/1", "s-1")
    found = decode_message(message.data)
    assert {str(name): value for name, value in found.annotations.items()} == {
        "x-opt-partition-key": "s-1",
        "x-own": "stays",
    }
    assert found.application_properties == {"n": 7}
    assert found.body == b"body"
    assert (found.properties.message_id, found.properties.group_id) == ("m-1", "s-1")
    assert (found.ttl_ms, found.durable, found.priority) == (60_000, True, 7)


def test_a_schedule_is_set_and_an_empty_map_left_out() -> None:
    encoded = delivered({"DeadLetterReason": "why"})
    message = renewed(1, encoded, "archive", "x", "p/1", scheduled_ms=5_000)
    found = decode_message(message.data)
    times = {str(name): value for name, value in found.annotations.items()}
    assert times["x-opt-scheduled-enqueue-time"] == 5_000
    assert found.application_properties == {}


def test_a_message_without_anything_stays_as_it_is() -> None:
    encoded = encode_message(data_section(b"DeadLetterReason"))
    message = renewed(1, encoded, "archive", "x", "p/1")
    assert message.order is None
    assert message.key == resending_key("x", "p/1", None)
    assert decode_message(message.data).body == b"DeadLetterReason"


def test_keys_are_good_and_tell_messages_and_undertakings_apart() -> None:
    positions = [f"{source}/{number}" for source in "ab" for number in (1, 2_047, 2_048, 3 << 48)]
    for order in (None, "s-1"):
        keys = {resending_key(name, each, order) for name in ("x", "y") for each in positions}
        assert len(keys) == 2 * len(positions)
        assert not [key for key in keys if fault_of(key) is not None]
        assert resending_key("x", "a/1", order) == resending_key("x", "a/1", order)


def homes_of(positions: Iterable[str]) -> Counter[int]:
    """Where a partitioned destination stores what was there, without sessions."""
    keys = (resending_key("x", position, None) for position in positions)
    return Counter(home_of(read_producer_key(key)) for key in keys)


@pytest.mark.parametrize(
    ("positions", "most", "least"),
    [
        pytest.param([f"orders#-1/{n}" for n in range(1, 20_480)], 1_280, 1_279, id="all of many"),
        pytest.param([f"orders#-1/{n}" for n in range(5_000, 6_600)], 128, 0, id="some in a row"),
        pytest.param(
            [f"orders#{p}/{n}" for p in range(16) for n in range(1, 101)], 200, 0, id="partitions"
        ),
        pytest.param([f"orders#-1/{n * 1_001}" for n in range(160)], 15, 5, id="few, far apart"),
    ],
)
def test_what_nothing_leads_to_a_partition_is_spread(
    positions: list[str], most: int, least: int
) -> None:
    found = homes_of(positions)
    assert max(found.values()) <= most
    assert min(found[partition] for partition in range(PARTITION_COUNT)) >= least


def test_old_neighbours_are_sent_in_their_order() -> None:
    """Part after part, as a destination without partitions takes them."""
    messages = [
        Outgoing(n, "archive", b"", key=resending_key("x", f"orders/{n}", None))
        for n in range(700, 700 + 3 * CHUNK_COUNT_MAX)
    ]
    sent: list[int] = []
    for first in range(0, len(messages), CHUNK_COUNT_MAX):
        chunk = messages[first : first + CHUNK_COUNT_MAX]
        free, _ = by_destination(chunk, [each.key or "" for each in chunk])
        sent += [each.row for part in free["archive"] for each in part.messages]
    assert sent == [each.row for each in messages]


@pytest.mark.parametrize("order", [None, "s-1"])
def test_a_bus_remembers_a_selection_with_gaps(order: str | None) -> None:
    """Every second of 8,192 numbers would be more ranges of one producer than it remembers."""
    arrivals = Arrivals()

    def messages() -> Iterator[NewMessage]:
        for number in range(0, 4 * NUMBERS_PER_PRODUCER, 2):
            producer, _, digits = resending_key("x", f"orders/{number}", order).rpartition("/")
            message = NewMessage(b"")
            message.producer_key = ProducerKey(producer, int(digits))
            yield message

    first = arrivals.screen(list(messages()))
    assert len(first.fresh) == 2 * NUMBERS_PER_PRODUCER
    for producer, bounds in first.arrived.items():
        arrivals.add(producer, bounds)
    assert arrivals.screen(list(messages())).fresh == []


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def read(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_ms += round(seconds * 1_000)


def sent(pace: Pace, enqueued_ms: list[int]) -> list[tuple[int, int]]:
    """When each message goes out, in milliseconds from the beginning."""
    clock = Clock()
    messages = [Timed(Outgoing(row, "q", b"x"), time) for row, time in enumerate(enqueued_ms)]
    times = [
        (message.row, clock.now_ms - 1_000_000)
        for chunk in paced(messages, pace, clock.read, clock.sleep)
        for message in chunk
    ]
    assert [row for row, _ in times] == list(range(len(enqueued_ms)))
    return times


def test_a_rate_is_never_exceeded_and_is_reached() -> None:
    times = sent(Pace(rate=200), [0] * 1_000)
    for second in range(5):
        count = sum(1 for _, time in times if second * 1_000 <= time < second * 1_000 + 1_000)
        assert 190 <= count <= 210
    assert times[-1][1] < 5_000


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_the_old_spacing_is_kept_in_proportion(speed: float) -> None:
    enqueued = [500, 500, 10_500, 11_000, 60_500]
    pace = Pace(speed=speed, first_ms=500, start_ms=1_000_000)
    for (_, time), then in zip(sent(pace, enqueued), enqueued, strict=True):
        assert (then - 500) / speed - 50 <= time <= (then - 500) / speed + 50


def test_without_a_pace_chunks_are_large() -> None:
    clock = Clock()
    messages = [Timed(Outgoing(row, "q", b"x"), row) for row in range(CHUNK_COUNT_MAX + 1)]
    chunks = list(paced(messages, Pace(), clock.read, clock.sleep))
    assert [len(chunk) for chunk in chunks] == [CHUNK_COUNT_MAX, 1]
    assert clock.now_ms == 1_000_000
