"""The judge of outages finds what it is there to find."""

import pytest

from tests.crash.outage_judge import Outage, Timeline, judge
from tests.crash.outage_load import Failure, Lane, OutageLoad, now_ms
from twinbus.entities.partitions import PARTITION_COUNT, hash_key
from twinbus.testing.checkers import History, Operation, Phase

pytestmark = pytest.mark.asyncio

UNKEYED = Lane("unkeyed-0", "orders")
KEYED = Lane("keyed-0", "orders", "customer", store=1)
SESSION = Lane("session-0", "visits", "visit", is_session=True, store=1)
GAVE_UP = "without a key, and not sent within a client's retries"


class Story:
    """A history that is written by hand."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        lanes = [UNKEYED, KEYED, SESSION]
        self.load = OutageLoad("", lanes, History(), self.timeline.life_at)
        self.broken = judge(self.load, self.timeline)
        assert self.broken == {}

    def sent(self, lane: Lane, *numbers: int) -> None:
        for number in numbers:
            key = f"{lane.name}/{number}.0"
            note = self.load.history.note
            note(lane.name, lane.queue, key, Operation.SEND, Phase.INVOKE, body=body_of(key))
            note(lane.name, lane.queue, key, Operation.SEND, Phase.OK)

    def received(self, lane: Lane, number: int, sequence_number: int, beside: int = 0) -> None:
        """`beside`: so many partitions from where it belongs."""
        key = f"{lane.name}/{number}.0"
        top = (hash_key(lane.key or "") + beside) % PARTITION_COUNT << 48
        note = self.load.history.note
        self.load.note_delivery("r", lane.queue, body_of(key), top | sequence_number, 0, 0)
        note("r", lane.queue, key, Operation.COMPLETE, Phase.INVOKE)
        note("r", lane.queue, key, Operation.COMPLETE, Phase.OK)

    def failed(self, lane: Lane, is_final: bool = False) -> None:
        at_ms = now_ms()
        failure = Failure(lane, f"{lane.name}/0.0", at_ms, at_ms, "Unavailable", is_final)
        self.load.failures.append(failure)

    def outage(self, *stores: int, is_whole: bool = False) -> None:
        self.timeline.begin(Outage("kill", set(stores), 0, is_whole=is_whole))

    def verdict(self) -> list[str]:
        return sorted(judge(self.load, self.timeline))


def body_of(key: str) -> bytes:
    return key.encode() + b"\n"


async def test_what_was_lost_and_what_came_twice() -> None:
    story = Story()
    story.sent(UNKEYED, 0, 1)
    story.received(UNKEYED, 0, 1)
    assert story.verdict() == ["lost"]
    story.received(UNKEYED, 1, 2)
    assert story.verdict() == []
    story.received(UNKEYED, 1, 3)
    assert "duplicated" in story.verdict()


async def test_order_by_number() -> None:
    story = Story()
    story.sent(KEYED, 0, 1)
    story.received(KEYED, 1, 5)
    story.received(KEYED, 0, 4)
    assert story.verdict() == []  # who received it first does not matter without a session
    story.sent(KEYED, 2)
    story.received(KEYED, 2, 3)
    assert story.verdict() == ["out of order"]


async def test_order_of_delivery_in_a_session() -> None:
    story = Story()
    story.sent(SESSION, 0, 1)
    story.received(SESSION, 1, 5)
    story.received(SESSION, 0, 4)
    assert story.verdict() == ["out of order"]


async def test_a_key_in_another_partition() -> None:
    story = Story()
    story.sent(KEYED, 0)
    story.received(KEYED, 0, 1, beside=1)
    assert story.verdict() == ["in another partition"]


async def test_failures_need_a_reason() -> None:
    story = Story()
    story.failed(KEYED)
    assert story.verdict() == ["failed without a reason"]
    story.outage(0)
    story.failed(KEYED)
    assert story.verdict() == ["failed without a reason"]
    story.outage(1)
    story.load.failures.clear()
    story.failed(KEYED)
    assert story.verdict() == []


async def test_a_journal_may_be_where_the_outage_is() -> None:
    story = Story()
    story.outage(0)
    story.timeline.journalled.append((now_ms(), 1))
    story.failed(KEYED)
    assert story.verdict() == []


async def test_who_sends_without_a_key_never_has_to_give_up() -> None:
    story = Story()
    story.outage(0)
    story.failed(UNKEYED)
    assert story.verdict() == []
    story.failed(UNKEYED, is_final=True)
    assert story.verdict() == [GAVE_UP]
    story.outage(is_whole=True)
    assert story.verdict() == []
