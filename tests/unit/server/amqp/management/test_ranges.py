"""Ranges of sequence numbers over $management: long answers, and transactions."""

import asyncio

import pytest
import pytest_asyncio

from tests.unit.server.amqp.management.test_bulk import BROWSE, Bench
from tests.unit.server.wired import Scene
from twinbus.amqp.types import Array, Int
from twinbus.entities.commands import Command, ListPartitions
from twinbus.entities.facts import MAIN
from twinbus.entities.selections import ListNumbers, Selection, SettleRanges
from twinbus.message.plain import decode_message, encode_message, listing_parts, value_section
from twinbus.server.amqp.coordinator import is_enlisted
from twinbus.server.amqp.management.ranges import SLICE_COUNT_MAX

pytestmark = pytest.mark.asyncio

NUMBERS = "twinbus:numbers"
PARTITIONS = "twinbus:partitions"
SETTLE = "twinbus:settle"


@pytest_asyncio.fixture
async def bench() -> Bench:
    scene = Scene()
    scene.harness.create_queue("orders")
    return Bench(scene)


async def test_a_long_answer_lets_others_have_their_turn(bench: Bench) -> None:
    """What is asked while it is being put together is answered first."""
    count = 2 * SLICE_COUNT_MAX + 1
    for start in range(0, count, 500):
        bench.send(*[b"%d" % n for n in range(start, min(count, start + 500))])
    bench.asking.send(BROWSE, {"maximum-bytes": Int(1 << 22)})
    assert bench.asking.answers() == []
    assert bench.asking.ask("no such operation", {}).status == 501
    await asyncio.sleep(0)
    assert bench.asking.answers() == []
    await asyncio.sleep(0)
    [answer] = bench.asking.answers()
    assert (answer.status, answer.body["message-count"]) == (200, count)
    messages = [decode_message(encoded) for encoded in answer.body["messages"]]
    assert [message.body for message in messages] == [b"%d" % n for n in range(count)]


async def test_ranges_from_end_to_end(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    created = bench.asking.ask(PARTITIONS, {}).body["created"]
    assert created == bench.queue.description.created_utc_ms
    some = {"from-sequence-number": 2, "to-sequence-number": 3, "maximum-bytes": Int(100)}
    [encoded] = bench.asking.ask(BROWSE, some).body["messages"]
    assert decode_message(encoded).body == b"b"
    nothing = {"from-sequence-number": 9, "maximum-bytes": Int(100)}
    assert bench.asking.ask(BROWSE, nothing).status == 204
    assert bench.asking.ask(NUMBERS, {}).body == {"message-count": 3, "bounds": [1, 4]}
    bounds = Array([1, 2, 3, 9])
    assert bench.asking.ask(SETTLE, {"bounds": bounds}).body == {"message-count": 2}
    assert bench.asking.ask(SETTLE, {"bounds": bounds}).status == 204
    reason = {"bounds": Array([0, 9]), "deadletter-reason": "odd"}
    assert bench.asking.ask(SETTLE, reason).body == {"message-count": 1}
    assert bench.dead.ask(SETTLE, reason).status == 400
    assert bench.dead.ask(NUMBERS, {}).body == {"message-count": 1, "bounds": [2, 3]}


@pytest.mark.parametrize(
    "command, enlisted",
    [
        (ListPartitions(1, MAIN), False),
        (ListNumbers(1, MAIN, Selection(), 1), False),
        (SettleRanges(1, MAIN, Selection(), 1), True),
    ],
)
async def test_only_reading_goes_past_a_transaction(command: Command, enlisted: bool) -> None:
    assert is_enlisted(command) is enlisted


@pytest.mark.parametrize("entries", [[], [b""], [b"a", bytes(300)], [b"x" * 70_000] * 3])
async def test_a_listing_says_what_a_value_would(entries: list[bytes]) -> None:
    values: dict[str, object] = {"message-count": Int(3), "next-sequence-number": 1 << 50}
    whole = encode_message(value_section({**values, "messages": entries}))
    put_together = b"".join(listing_parts(values, "messages", entries))
    assert decode_message(put_together).body == decode_message(whole).body
