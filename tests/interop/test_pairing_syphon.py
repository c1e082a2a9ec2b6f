"""The syphon: what waits in backlog queues comes home, once, as it was sent.  And what that costs.

Backlogs are filled by a pair that was forced over, and emptied by another that hosts a syphon, of
the same flavour; both are real clients of two real servers.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.crash.pairing_bus import Bus, SyphonProcess, until
from tests.crash.pairing_client import FLAVOURS, Pair, open_pair
from tests.crash.pairing_messages import BODIES, Plan, Portrait, build, portrait
from tests.interop.pairing_stage import QUEUES, Finished, Stage, at_once, finish
from twinbus.client.connection import BusConnection
from twinbus.client.links import Received
from twinbus.client.meter import MeterClient
from twinbus.metered import RECEIVE, SEND
from twinbus.pairing.events import SyphonProgress, SyphonResting
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.feature("pairing.syphon")]

WAIT_S_MAX: Final = 60.0
THREADS: Final = 64  # of all blocking pairs together
KILLED: Final = -9
DEAD_LETTERS: Final = "/$DeadLetterQueue"
RETRIES: Final = {"retry_backoff_factor": 0.03}  # as many as ever, in less time


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bus]:
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # it tells of every retry
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with Bus(tmp_path_factory.mktemp("pair") / "bus") as bus:
        yield bus
    logging.getLogger("azure").setLevel(logging.NOTSET)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(bus: Bus, request: pytest.FixtureRequest) -> Finished:
    return await finish(bus, request)


# --- filling and emptying -------------------------------------------------------------------------


@asynccontextmanager
async def forced_over(
    flavour: str, stage: Stage, *queues: str, **options: Any
) -> AsyncIterator[list[Any]]:
    """Senders that send to the backlog, in the order of the queues."""
    given = stage.options(retries=RETRIES, **options)
    async with open_pair(flavour, stage.bus, **given) as pair:
        senders = [pair.sender(queue) for queue in queues]
        for queue in queues:
            await pair.force_failover(queue)
        yield senders


async def fill(flavour: str, stage: Stage, messages: Sequence[Any], **options: Any) -> None:
    """The backlog, one call for each message."""
    async with forced_over(flavour, stage, stage.queue, **options) as [sender]:
        for message in messages:
            await sender.send_messages(message)


@asynccontextmanager
async def syphon(flavour: str, stage: Stage, **options: Any) -> AsyncIterator[Pair]:
    given = stage.options(enable_syphon=True, retries=RETRIES, **options)
    async with open_pair(flavour, stage.bus, **given) as pair:
        assert pair.status().syphon_running
        yield pair


async def emptied(stage: Stage) -> None:
    assert await until(lambda: stage.waiting() == 0, WAIT_S_MAX), stage.waiting()


async def of_each_flavour(stage: Stage, play: Callable[[str, Stage], Any]) -> None:
    """One after the other, on one stage."""
    for flavour in FLAVOURS:
        await play(flavour, stage)


def texts(*words: str, **given: Any) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(word, **given) for word in words]


# --- there and back -------------------------------------------------------------------------------


@pytest.mark.proves("P-11")
@at_once()
async def test_what_comes_back_is_what_a_direct_send_gives(stage: Stage) -> None:
    """Every property of every kind, every body to the byte, in the order of the backlog."""
    plans = [
        Plan(body, is_annotated, is_bare, session="a session", has_ttl=has_ttl)
        for body in BODIES
        for is_annotated in (False, True)
        for is_bare in (False, True)
        for has_ttl in (False, True)
        if is_annotated or body not in {"sections", "value", "sequence"}
    ]

    async def come_back(flavour: str, stage: Stage) -> None:
        async with open_pair(flavour, stage.bus, **stage.options()) as pair:
            sender = pair.sender(stage.queue)
            for plan in plans:
                await sender.send_messages(build(plan, "a name", None))
        direct = _portraits(await stage.arrived())
        await fill(flavour, stage, [build(plan, "a name", None) for plan in plans])
        async with syphon(flavour, stage) as host:
            await emptied(stage)
            assert sum(each.moved for each in host.events_of(SyphonProgress)) == len(plans)
        restored = _portraits(await stage.arrived())
        for plan, one, other in zip(plans, direct, restored, strict=True):
            assert one == other, f"{plan}: {other.differences(one)}"

    await of_each_flavour(stage, come_back)


def _portraits(arrived: list[Received]) -> list[Portrait]:
    for received in arrived:  # the producer key is of the hop
        assert received.message.delivery_annotations.keys() <= {"x-opt-lock-token"}
    return [portrait(received.data, "a name") for received in arrived]


@pytest.mark.proves("P-14")
@at_once()
async def test_a_long_poll_brings_messages_home_as_they_come(stage: Stage) -> None:
    """The syphon waits at the queues; nobody has to start it again."""

    async def come_home(flavour: str, stage: Stage) -> None:
        async with (
            syphon(flavour, stage) as host,
            forced_over(flavour, stage, stage.queue) as [sender],
        ):
            for word in ("first", "second"):
                await sender.send_messages(ServiceBusMessage(word))
                await emptied(stage)
                assert await stage.texts() == [word]
            moved = [each.moved for each in host.status().backlog_queues.values()]
            assert sum(moved) == 2

    await of_each_flavour(stage, come_home)


@pytest.mark.proves("P-14")
@at_once(enable_partitioning=True)
async def test_messages_of_many_keys_come_home_to_a_partitioned_queue(stage: Stage) -> None:
    """They may not be sent together there, and none of them is blamed for it."""

    async def spread(flavour: str, stage: Stage) -> None:
        keys = [f"key {number % 4}" for number in range(12)]
        await fill(flavour, stage, [ServiceBusMessage(key, partition_key=key) for key in keys])
        await fill(flavour, stage, texts("without"))
        async with syphon(flavour, stage) as host:
            await emptied(stage)
            assert host.events_of(SyphonResting) == []
        assert sorted(await stage.texts()) == sorted([*keys, "without"])
        assert await stage.take_backlog(DEAD_LETTERS) == []

    await of_each_flavour(stage, spread)


# --- what can never be delivered ------------------------------------------------------------------


@pytest.mark.proves("P-14")
@at_once()
async def test_what_can_never_be_delivered_is_dead_lettered_with_a_reason(stage: Stage) -> None:
    """Foreign, damaged or without destination; those beside it arrive."""
    path: dict[Any, Any] = {"x-ms-path": stage.queue}
    bad: dict[str, dict[Any, Any]] = {
        "foreign": {},
        "foreign with properties": {"colour": "red"},
        "damaged path": {"x-ms-path": 5},
        "damaged session": {**path, "x-ms-sessionid": 5},
        "damaged time to live": {**path, "x-ms-timetolive": "soon"},
        "damaged time": {**path, "x-ms-scheduledenqueuetimeutc": "soon"},
        "destination gone": {"x-ms-path": "no-such-queue"},
    }

    async def be_refused(flavour: str, stage: Stage) -> None:
        messages = [
            ServiceBusMessage(word, application_properties=given)
            for word, given in {**bad, "good": path}.items()
        ]
        await asyncio.to_thread(_put_into_backlog, stage, messages)
        await fill(flavour, stage, texts("one", "two"))
        async with syphon(flavour, stage) as host:
            await emptied(stage)
            found = host.status().backlog_queues.values()
            assert sum(each.dead_lettered for each in found) == len(bad)
        assert sorted(await stage.texts()) == ["good", "one", "two"]
        dead = {each.body.decode(): each.message for each in await stage.take_backlog(DEAD_LETTERS)}
        assert dead.keys() == bad.keys()
        for message in dead.values():
            assert message.application_properties["DeadLetterReason"]
            assert message.application_properties["DeadLetterErrorDescription"]
        gone = dead["destination gone"].application_properties["DeadLetterErrorDescription"]
        assert "no-such-queue" in str(gone)

    await of_each_flavour(stage, be_refused)


def _put_into_backlog(stage: Stage, messages: list[ServiceBusMessage]) -> None:
    """As anybody can who may send to it."""
    text = stage.bus.secondary.connection_string
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(stage.backlog_queue(0)) as sender,
    ):
        sender.send_messages(messages)


# --- a destination that is down -------------------------------------------------------------------


@pytest.mark.proves("P-14")
@at_once()
async def test_a_destination_that_is_down_is_tried_again_in_order(stage: Stage) -> None:
    """Its messages stay, in the order of their sessions; others are not held up."""
    other = await stage.another_queue("other")

    async def be_down(flavour: str, stage: Stage) -> None:
        await stage.refuse()
        async with syphon(flavour, stage) as host:
            async with forced_over(flavour, stage, stage.queue, other) as [sender, beside]:
                for number in range(4):
                    for name in "ab":
                        message = ServiceBusMessage(f"{name}{number}", session_id=name)
                        await sender.send_messages(message)
                    await beside.send_messages(ServiceBusMessage(f"{number}"))
            assert await until(lambda: stage.waiting() == 8, WAIT_S_MAX), stage.waiting()
            assert await stage.texts(other) == ["0", "1", "2", "3"]
            assert await until(lambda: bool(host.events_of(SyphonResting)), WAIT_S_MAX)
            assert {each.path for each in host.events_of(SyphonResting)} == {stage.queue}
            await stage.clear()
            await emptied(stage)
        came = await stage.texts()
        for name in "ab":
            assert [each for each in came if each[0] == name] == [f"{name}{n}" for n in range(4)]
        assert await stage.take_backlog(DEAD_LETTERS) == []

    await of_each_flavour(stage, be_down)


# --- several syphons ------------------------------------------------------------------------------


@pytest.mark.proves("P-15")
@at_once()
async def test_two_syphons_side_by_side_lose_and_double_nothing(stage: Stage) -> None:
    words = [f"{number}" for number in range(300)]
    async with forced_over("async", stage, *[stage.queue] * 6) as senders:
        for start, sender in zip(range(0, 300, 50), senders, strict=True):  # to several queues
            await sender.send_messages(texts(*words[start : start + 50]))
    async with syphon("sync", stage) as one, syphon("async", stage) as two:
        await emptied(stage)
        moved = [event.moved for each in (one, two) for event in each.events_of(SyphonProgress)]
        assert sum(moved) == 300
    assert sorted(await stage.texts()) == sorted(words)
    assert await stage.take_backlog(DEAD_LETTERS) == []


@pytest.mark.proves("P-14")
@at_once()
async def test_killed_between_send_and_complete_makes_no_copy(stage: Stage) -> None:
    """The backlog gives it out again, and the primary knows its producer key."""

    async def be_killed(flavour: str, stage: Stage) -> None:
        await fill(flavour, stage, texts("a", "b", "c"))
        await die_after_send(flavour, stage)
        assert await stage.texts() == ["a", "b", "c"]
        assert stage.waiting() == 3
        async with syphon(flavour, stage):
            await emptied(stage)
        assert await stage.texts() == []

    await of_each_flavour(stage, be_killed)


@at_once()
async def test_without_producer_keys_only_duplicate_detection_drops_copies(stage: Stage) -> None:
    """Design §3: what holds on Azure, where nobody knows producer keys: at least once."""
    guarded = await stage.another_queue("guarded", requires_duplicate_detection=True)
    queues = (stage.queue, guarded)
    for queue in queues:
        async with forced_over("sync", stage, queue, producer_keys=False) as [sender]:
            await sender.send_messages(ServiceBusMessage("twice"))
        await die_after_send("sync", stage)
        async with syphon("sync", stage):
            await emptied(stage)
    assert [await stage.texts(queue) for queue in queues] == [["twice", "twice"], ["twice"]]


async def die_after_send(flavour: str, stage: Stage) -> None:
    """A syphon that is killed at the one moment that makes a copy."""
    log = Path(stage.bus.primary.log_path).with_name(f"{stage.queue}.log")
    options = stage.options(**{"die-after-send": True})
    doomed = SyphonProcess(stage.bus, log, flavour, **options)
    assert await asyncio.to_thread(doomed.run_until_it_dies) == KILLED


# --- time to live ---------------------------------------------------------------------------------


@pytest.mark.proves("P-11", "P-14")
@at_once()
async def test_the_restored_time_to_live_is_the_original_or_what_remains(stage: Stage) -> None:
    """An option says from when it counts; meanwhile nothing expires in the backlog."""
    ttl = dt.timedelta(hours=1)

    async def expire(flavour: str, stage: Stage) -> None:
        found: list[int | None] = []
        for kind in ("original", "remaining"):
            await fill(flavour, stage, texts(kind, time_to_live=ttl))
            await asyncio.sleep(0.5)
            async with syphon(flavour, stage, restored_time_to_live=kind):
                await emptied(stage)
            found += [received.message.ttl_ms for received in await stage.arrived()]
        [original_ms, remaining_ms] = found
        assert original_ms == 3_600_000
        assert remaining_ms is not None
        assert 3_300_000 < remaining_ms <= 3_599_500

    await of_each_flavour(stage, expire)


# --- promises and their edge ----------------------------------------------------------------------


@pytest.mark.proves("P-16")
@at_once(requires_session=True)
async def test_new_messages_may_overtake_the_backlog_and_sessions_live_in_the_primary(
    stage: Stage,
) -> None:
    """Order may change across a failover, in a session too; its state is the primary's."""

    async def overtake(flavour: str, stage: Stage) -> None:
        [first, second, third] = texts("first", "second", "third", session_id=flavour)
        async with open_pair(flavour, stage.bus, **stage.options()) as pair:
            sender = pair.sender(stage.queue)
            await sender.send_messages(first)
            assert await asyncio.to_thread(_mark, stage, flavour, b"so far") is None
            await pair.force_failover(stage.queue)
            await sender.send_messages(second)
            await pair.force_failback(stage.queue)
            await sender.send_messages(third)  # nobody waits for the backlog
        async with syphon(flavour, stage):
            await emptied(stage)
        async with await BusConnection.open(stage.bus.primary.connection_string) as connection:
            receiver = await connection.open_session_receiver(stage.queue, flavour, wait_s=5)
            came = [await receiver.receive(5) for _ in range(3)]
            assert [each.body for each in came if each] == [b"first", b"third", b"second"]
        assert await asyncio.to_thread(_mark, stage, flavour, None) == b"so far"

    await of_each_flavour(stage, overtake)


def _mark(stage: Stage, session: str, state: bytes | None) -> bytes | None:
    """Set the state of a session, if one is given; what it was before."""
    text = stage.bus.primary.connection_string
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_receiver(stage.queue, session_id=session) as receiver,
    ):
        before: bytes | None = receiver.session.get_state()
        if state is not None:
            receiver.session.set_state(state)
        return before


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.proves("P-18", "C-2")
@at_once()
async def test_a_message_by_way_of_the_backlog_costs_four_operations(stage: Stage) -> None:
    """Sent to the backlog, received from it, sent to the primary, received from it."""
    bus, count = stage.bus, 0
    for flavour in FLAVOURS:
        await fill(flavour, stage, texts(*"abcde"))
        async with syphon(flavour, stage):
            await emptied(stage)
        count += len(await stage.arrived())
    backlog = [stage.backlog_queue(index) for index in range(QUEUES)]
    costs = [
        await asyncio.to_thread(_metered, server, entities, kind)
        for server, entities in ((bus.secondary, backlog), (bus.primary, [stage.queue]))
        for kind in (SEND, RECEIVE)
    ]
    assert costs == [count] * 4
    assert count == 10


def _metered(server: ServerProcess, entities: Sequence[str], kind: str) -> int:
    """Units of operations with messages: receives that brought none are the price of waiting."""
    lines = MeterClient(server.connection_string).read()
    return sum(
        line.units - line.empty
        for line in lines
        if line.kind == kind and line.entity.lower() in {entity.lower() for entity in entities}
    )
