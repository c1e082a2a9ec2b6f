"""Pairs live through real outages: when they fail over, when not, and how they come back.

Both flavours go through every outage side by side.  The SDK's own retries are on, as an application
has them; a time limit of one try keeps the tests short.
"""

import asyncio
import datetime as dt
import functools
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import AccessRights, AuthorizationRule

from tests.crash.pairing_bus import NOWHERE, Bus, backlog_queue, take, until
from tests.crash.pairing_client import FLAVOURS, Pair, open_pair, open_pairs
from tests.interop.administration import connect, connection_string_of
from tests.interop.pairing_stage import QUEUES, Finished, Stage, all_pairs_are, at_once, finish
from twinbus.pairing.errors import BacklogUnavailableError, PingRefusedError
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    PingFailed,
    State,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

RETRIES: Final = {"retry_backoff_factor": 0.03}  # as many as ever, in less time
# Long enough for the SDK to tell what it has met when its own retries are used up.
AT_ONCE: Final = {"failover_interval": 0, "send_timeout": 20, "retries": RETRIES}
# Where nothing answers, somebody has to wait for the end of it.
SILENT: Final = {**AT_ONCE, "send_timeout": 3}
LEGACY: Final = {**AT_ONCE, "policy": "legacy"}
WAIT_S_MAX: Final = 30.0
SECONDS_OF_BUSY: Final = 10.0
THREADS: Final = 64  # of all blocking pairs together


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bus]:
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # it tells of every retry
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with Bus(tmp_path_factory.mktemp("pair") / "bus", backlog_queue_count=3) as bus:
        yield bus
    logging.getLogger("azure").setLevel(logging.NOTSET)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pairs(bus: Bus) -> AsyncIterator[list[Pair]]:
    """Of both flavours, for all tests that want an interval of zero."""
    async with open_pairs(bus, **SILENT) as pairs:
        yield pairs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(bus: Bus, request: pytest.FixtureRequest) -> Finished:
    return await finish(bus, request)


@pytest.fixture
def queue(bus: Bus, request: pytest.FixtureRequest) -> str:
    """A fresh queue of the primary, named after the test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    bus.primary.create_queue(name)
    return name


# --- outages --------------------------------------------------------------------------------------


async def kill(bus: Bus, queue: str) -> None:
    await asyncio.to_thread(bus.primary.kill)


async def restart(bus: Bus, queue: str) -> None:
    await asyncio.to_thread(bus.primary.restart)


async def stop(bus: Bus, queue: str) -> None:
    os.kill(bus.primary.pid, signal.SIGSTOP)


async def go_on(bus: Bus, queue: str) -> None:
    os.kill(bus.primary.pid, signal.SIGCONT)


async def cut(bus: Bus, queue: str) -> None:
    bus.network.target_port = NOWHERE
    bus.network.cut()


async def mend(bus: Bus, queue: str) -> None:
    bus.network.target_port = bus.primary.port


async def stall(bus: Bus, queue: str) -> None:
    bus.network.stall()


async def flow(bus: Bus, queue: str) -> None:
    bus.network.flow()


async def fail_store(bus: Bus, queue: str) -> None:
    """The disk is gone; a server that has no other ends itself when it is written to."""
    await asyncio.to_thread(bus.primary_faults.add, {"kind": "fail-store", "store": 0})


async def replace_store(bus: Bus, queue: str) -> None:
    assert await asyncio.to_thread(bus.primary.wait) == 3
    await restart(bus, queue)


async def refuse(bus: Bus, queue: str) -> None:
    await asyncio.to_thread(bus.primary_faults.add, {"kind": "refuse-sends", "entity": queue})


async def clear(bus: Bus, queue: str) -> None:
    """What others have put in force stays."""
    faults = bus.primary_faults
    for fault in await asyncio.to_thread(faults.list):
        if fault.get("entity") == queue:
            await asyncio.to_thread(faults.clear, fault["id"])


async def disable(bus: Bus, queue: str) -> None:
    await asyncio.to_thread(_set_status, bus, queue, "SendDisabled")


async def enable(bus: Bus, queue: str) -> None:
    await asyncio.to_thread(_set_status, bus, queue, "Active")


def _set_status(bus: Bus, queue: str, status: str) -> None:
    with connect(bus.primary) as admin:
        properties = admin.get_queue(queue)
        properties.status = status
        admin.update_queue(properties)


Deed = Callable[[Bus, str], Awaitable[None]]
OUTAGES: Final[dict[str, tuple[Deed, Deed]]] = {
    "kill -9": (kill, restart),
    "SIGSTOP": (stop, go_on),
    "cut network": (cut, mend),
    "silent network": (stall, flow),
    "store down": (fail_store, replace_store),
}
OUTAGES_OF_AN_ENTITY: Final[dict[str, tuple[Deed, Deed]]] = {
    "refused": (refuse, clear),
    "disabled": (disable, enable),
}


# --- what tests look at ---------------------------------------------------------------------------


async def arrived(bus: Bus, queue: str) -> list[str]:
    """What has arrived at the primary, in order, taken out."""
    return [received.body.decode() for received in await take(bus.primary, queue)]


async def take_backlog(bus: Bus) -> dict[str, list[str]]:
    """What is in the backlog queues, taken out, in alphabetical order for each destination."""
    found: dict[str, list[str]] = {}
    queues = [backlog_queue(index) for index in range(bus.backlog_queue_count)]
    for taken in await asyncio.gather(*(take(bus.secondary, queue) for queue in queues)):
        for received in taken:
            path = str(received.message.application_properties["x-ms-path"])
            found.setdefault(path, []).append(received.body.decode())
    return {path: sorted(texts) for path, texts in found.items()}


async def send(pair: Pair, sender: Any, text: str) -> None:
    await sender.send_messages(ServiceBusMessage(f"{pair.flavour} {text}"))


async def send_all(pairs: list[Pair], senders: list[Any], *texts: str) -> None:
    """All pairs at once, each one text after the other."""

    async def send_each(pair: Pair, sender: Any) -> None:
        for text in texts:
            await send(pair, sender, text)

    await asyncio.gather(*map(send_each, pairs, senders))


async def all_recovered(pairs: list[Pair], queue: str) -> None:
    await come_true(pairs, lambda pair: pair.state(queue) is State.RECOVERING)


async def come_true(pairs: list[Pair], condition: Callable[[Pair], bool]) -> None:
    """Wait until it holds for each of them."""
    for pair in pairs:
        assert await until(functools.partial(condition, pair), WAIT_S_MAX), pair.status()


def of_both(*texts: str) -> list[str]:
    """These texts of both flavours, in alphabetical order."""
    return sorted(f"{flavour} {text}" for flavour in FLAVOURS for text in texts)


# --- fail over and come back ----------------------------------------------------------------------


@pytest.mark.proves("P-6")
@pytest.mark.feature("pairing.send")
async def test_a_healthy_primary_is_all_there_is(bus: Bus, pairs: list[Pair], queue: str) -> None:
    for pair in pairs:
        sender = pair.sender(queue)
        await send(pair, sender, "a")
        await sender.send_messages([ServiceBusMessage(f"{pair.flavour} {text}") for text in "bc"])
        status = pair.entity(queue)
        assert (status.state, status.sent_to_primary) == (State.HEALTHY, 3)
        assert pair.events_of(EntityFailing, queue) == pair.events_of(EntityFailedOver, queue) == []
    assert await arrived(bus, queue) == [f"{each} {text}" for each in FLAVOURS for text in "abc"]
    assert await take_backlog(bus) == {}


@pytest.mark.proves("P-7", "P-9", "P-13")
@pytest.mark.parametrize("outage", OUTAGES)
async def test_the_send_that_meets_an_outage_goes_to_the_backlog(
    bus: Bus, pairs: list[Pair], queue: str, outage: str
) -> None:
    """P-7 with an interval of zero, P-9, P-13: the ping brings everybody back, and stops."""
    await live_through(bus, pairs, queue, *OUTAGES[outage])
    assert await take_backlog(bus) == {queue: of_both("during", "during, too")}
    # What a silent network held up arrives when it speaks again, and is in the backlog as well;
    # what the syphon brings is dropped then for its producer key.
    assert sorted(set(await arrived(bus, queue)) - set(of_both("during"))) == of_both(
        "after", "before"
    )


@pytest.mark.proves("P-7", "P-9", "P-13")
@at_once()
async def test_the_outage_of_an_entity_is_one(stage: Stage) -> None:
    """Sends are refused, or the entity is disabled."""
    async with open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs:
        for name, outage in OUTAGES_OF_AN_ENTITY.items():
            queue = await stage.another_queue(name)
            await live_through(stage.bus, pairs, queue, *outage)
            assert sorted(await stage.texts(queue)) == of_both("after", "before")
            assert await stage.backlog_texts() == of_both("during", "during, too")


async def live_through(bus: Bus, pairs: list[Pair], queue: str, begin: Deed, end: Deed) -> None:
    senders = [pair.sender(queue) for pair in pairs]
    await send_all(pairs, senders, "before")
    await begin(bus, queue)
    await send_all(pairs, senders, "during", "during, too")
    for pair in pairs:
        status = pair.entity(queue)
        assert (status.state, status.sent_to_backlog) == (State.FAILED_OVER, 2)
    await end(bus, queue)
    await all_recovered(pairs, queue)
    await send_all(pairs, senders, "after")
    for pair in pairs:
        status = pair.entity(queue)
        assert (status.state, status.sent_to_primary) == (State.HEALTHY, 2)
        assert status.pings >= 1 and status.next_ping_in_s is None
        assert len(pair.events_of(EntityFailedOver, queue)) == 1
        assert len(pair.events_of(EntityRecovered, queue)) == 1


async def test_a_lost_answer_makes_no_copy(bus: Bus, pairs: list[Pair], queue: str) -> None:
    """Design §3: the primary has the messages, the backlog too, and they are delivered once."""
    queues = {kind: f"{queue}-{kind}" for kind in ("single", "list", "batch", "schedule")}
    for name in queues.values():
        bus.primary.create_queue(name)
    senders = [(pair, kind, pair.sender(name)) for pair in pairs for kind, name in queues.items()]
    await asyncio.gather(*(send(pair, sender, "before") for pair, _, sender in senders))
    bus.network.mute()
    await asyncio.gather(*(hand_over(*each) for each in senders))
    bus.network.cut()
    bus.network.flow()
    for pair, kind, _ in senders:
        assert pair.state(queues[kind]) is State.FAILED_OVER
        assert pair.entity(queues[kind]).sent_to_backlog == 3
    async with open_pair("async", bus, enable_syphon=True, retries=RETRIES):
        assert await until(lambda: not backlog_count(bus), WAIT_S_MAX)
    for name in queues.values():
        assert sorted(await arrived(bus, name)) == of_both("a", "b", "before", "c")


async def hand_over(pair: Pair, kind: str, sender: Any) -> None:
    """Three messages, in this kind of call."""
    messages = [ServiceBusMessage(f"{pair.flavour} {text}") for text in "abc"]
    if kind == "single":
        for message in messages:
            await sender.send_messages(message)
    elif kind == "list":
        await sender.send_messages(messages)
    elif kind == "batch":
        batch = await sender.create_message_batch()
        for message in messages:
            batch.add_message(message)
        await sender.send_messages(batch)
    else:
        time_utc = dt.datetime.now(dt.UTC)
        assert await sender.schedule_messages(messages, time_utc) == [0, 0, 0]


def backlog_count(bus: Bus) -> int:
    return sum(map(bus.backlog_count, range(bus.backlog_queue_count)))


@pytest.mark.proves("P-7")
@at_once()
async def test_until_the_interval_has_passed_callers_see_the_error(stage: Stage) -> None:
    """A success stops the timer; then time alone fails the entity over."""
    queue = stage.queue
    options = stage.options(failover_interval=20, send_timeout=20, retries=RETRIES)
    async with open_pairs(stage.bus, **options) as pairs:
        senders = [pair.sender(queue) for pair in pairs]

        async def refused(pair: Pair, sender: Any) -> None:
            with pytest.raises(ServiceBusError, match="refuse-sends"):
                await send(pair, sender, "refused")

        await send_all(pairs, senders, "before")
        await stage.refuse()
        await asyncio.gather(*map(refused, pairs, senders))
        await stage.clear()
        await send_all(pairs, senders, "success")  # within the interval
        for pair in pairs:
            assert pair.state(queue) is State.HEALTHY
            assert len(pair.events_of(EntityFailing)) == 1
        await stage.refuse()
        await asyncio.gather(*map(refused, pairs, senders))
        # Nobody sends meanwhile.
        await come_true(pairs, lambda pair: pair.state(queue) is State.FAILED_OVER)
        await send_all(pairs, senders, "in the backlog")
        await stage.clear()
        await all_recovered(pairs, queue)
    assert sorted(await stage.texts()) == of_both("before", "success")
    assert await stage.backlog_texts() == of_both("in the backlog")


@pytest.mark.proves("P-7")
@at_once()
async def test_one_entity_fails_over_and_the_other_goes_on(stage: Stage) -> None:
    """Per entity; and it is all of its senders that go to the backlog then."""
    queue, other = stage.queue, await stage.another_queue("other")
    async with open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs:
        await stage.refuse()
        await send_all(pairs, [pair.sender(queue) for pair in pairs], "a")
        await send_all(pairs, [pair.sender(other) for pair in pairs], "b")
        await send_all(pairs, [pair.sender(queue) for pair in pairs], "c")
        for pair in pairs:
            assert pair.state(queue) is State.FAILED_OVER
            assert pair.state(other) is State.HEALTHY
            assert pair.entity(queue).sent_to_primary == 0
        await stage.clear()
        await all_recovered(pairs, queue)
    assert sorted(await stage.texts(other)) == of_both("b")
    assert await stage.backlog_texts() == of_both("a", "c")


# --- what never fails over ------------------------------------------------------------------------


@pytest.mark.proves("P-8")
@at_once()
async def test_mistakes_are_raised_and_nothing_fails_over(stage: Stage) -> None:
    """Unauthorized, not found, too large."""
    queue, options = stage.queue, stage.options(**AT_ONCE)
    listen_only = await asyncio.to_thread(_listen_only, stage.bus, queue)
    async with (
        open_pairs(stage.bus, **options) as pairs,
        open_pairs(stage.bus, primary=listen_only, **options) as unauthorized,
    ):
        for pair in pairs:
            with pytest.raises(MessagingEntityNotFoundError):
                await pair.sender("no-such-queue").send_messages(ServiceBusMessage("a"))
            with pytest.raises(MessageSizeExceededError):
                await pair.sender(queue).send_messages(ServiceBusMessage(b"x" * 2_000_000))
            assert pair.state("no-such-queue") is pair.state(queue) is State.HEALTHY
        for pair in unauthorized:
            with pytest.raises(ServiceBusAuthorizationError):
                await pair.sender(queue).send_messages(ServiceBusMessage("a"))
            assert pair.state(queue) is State.HEALTHY
        assert [pair.events for pair in (*pairs, *unauthorized)] == [[], [], [], []]
    assert await stage.backlog_texts() == []
    assert await stage.texts() == []


def _listen_only(bus: Bus, queue: str) -> str:
    """A connection string that may not send to the queue."""
    key = "A" * 43 + "="
    rule = AuthorizationRule(
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.LISTEN],
        key_name="listen",
        primary_key=key,
        secondary_key=key,
    )
    with connect(bus.primary) as admin:
        properties = admin.get_queue(queue)
        properties.authorization_rules = [rule]
        admin.update_queue(properties)
    return connection_string_of(bus.primary, "listen", key) + ";UseDevelopmentEmulator=true"


@pytest.mark.proves("P-8")
@at_once()
async def test_a_busy_server_is_given_ten_seconds_or_counts_as_down(stage: Stage) -> None:
    """`documented` waits and sends again; `legacy` fails over, as the old client did."""
    queue = stage.queue
    async with (
        open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs,
        open_pairs(stage.bus, **stage.options(**LEGACY)) as legacy,
    ):
        await stage.refuse(kind="throttle", duration_s=SECONDS_OF_BUSY - 2)
        began_s = time.monotonic()
        senders = [pair.sender(queue) for pair in pairs]
        waiting = asyncio.create_task(send_all(pairs, senders, "patient"))
        await send_all(legacy, [pair.sender(queue) for pair in legacy], "legacy")
        assert all_pairs_are(legacy, queue, State.FAILED_OVER)
        await waiting
        assert time.monotonic() - began_s > SECONDS_OF_BUSY
        assert all_pairs_are(pairs, queue, State.HEALTHY)
        assert [pair.events for pair in pairs] == [[], []]
        await all_recovered(legacy, queue)
    assert sorted(await stage.texts()) == of_both("patient")
    assert await stage.backlog_texts() == of_both("legacy")


@at_once()
async def test_legacy_raises_what_waiting_does_not_mend(stage: Stage) -> None:
    """Facts §2.9: a disabled entity is no outage; a ping that is refused is told to senders."""
    queue = stage.queue
    async with open_pairs(stage.bus, **stage.options(**LEGACY)) as pairs:
        senders = [pair.sender(queue) for pair in pairs]
        await disable(stage.bus, queue)
        for pair, sender in zip(pairs, senders, strict=True):
            with pytest.raises(MessagingEntityDisabledError):
                await send(pair, sender, "a")
            assert pair.state(queue) is State.HEALTHY
        await enable(stage.bus, queue)
        await stage.refuse()
        await send_all(pairs, senders, "b")
        assert all_pairs_are(pairs, queue, State.FAILED_OVER)
        await disable(stage.bus, queue)
        await stage.clear()
        await come_true(pairs, lambda pair: _is_refused(pair, queue))
        for pair, sender in zip(pairs, senders, strict=True):
            with pytest.raises(PingRefusedError):
                await send(pair, sender, "c")
        await enable(stage.bus, queue)
        await all_recovered(pairs, queue)
        await send_all(pairs, senders, "d")
    assert sorted(await stage.texts()) == of_both("d")
    assert await stage.backlog_texts() == of_both("b")


def _is_refused(pair: Pair, queue: str) -> bool:
    return isinstance(pair.entity(queue).last_ping_error, MessagingEntityDisabledError)


# --- backlog queues -------------------------------------------------------------------------------


@pytest.mark.proves("P-10")
@at_once()
async def test_a_lost_backlog_queue_is_known_to_all_senders(stage: Stage) -> None:
    """Whoever meets it tells the others; nobody goes there any more."""
    sent = 0
    await stage.refuse_backlog(1)
    async with open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs:
        for pair in pairs:
            await pair.force_failover(stage.queue)
            senders = [pair.sender(stage.queue)]
            await send(pair, senders[0], "a")
            while not pair.events_of(BacklogQueueLost):  # each picks its queue at random
                senders.append(pair.sender(stage.queue))
                await send(pair, senders[-1], "a")
            senders += [pair.sender(stage.queue) for _ in range(3)]
            await asyncio.gather(*(send(pair, sender, "b") for sender in senders))
            sent += 2 * len(senders) - 3
            rotation = pair.status().backlog_queues
            assert {name: each.in_rotation for name, each in rotation.items()} == {
                stage.backlog_queue(index): index != 1 for index in range(QUEUES)
            }
            # Told once: nobody has met it after that.
            [event] = pair.events_of(BacklogQueueLost)
            assert (event.queue, event.left) == (stage.backlog_queue(1), QUEUES - 1)
    await stage.clear()
    assert await take(stage.bus.secondary, stage.backlog_queue(1)) == []
    assert len(await stage.backlog_texts()) == sent


@pytest.mark.proves("P-10")
@at_once()
async def test_without_a_backlog_queue_the_caller_keeps_the_message(stage: Stage) -> None:
    """An error that says so, nothing stored anywhere; a primary that works is still used."""
    queue = stage.queue
    await stage.refuse()
    for index in range(QUEUES):
        await stage.refuse_backlog(index)
    async with open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs:

        async def keep(pair: Pair) -> None:
            sender = pair.sender(queue)
            message = ServiceBusMessage(f"{pair.flavour} kept")
            for _ in range(2):
                with pytest.raises(BacklogUnavailableError, match="backlog") as caught:
                    await sender.send_messages(message)
                assert caught.value.accepted == 0
            assert len(pair.events_of(BacklogQueueLost)) == QUEUES

        await asyncio.gather(*map(keep, pairs))
        await stage.clear()
        await all_recovered(pairs, queue)
        await send_all(pairs, [pair.sender(queue) for pair in pairs], "sent")
    assert await stage.backlog_texts() == []
    assert sorted(await stage.texts()) == of_both("sent")


# --- pings ----------------------------------------------------------------------------------------


@pytest.mark.proves("P-13")
@at_once()
async def test_pings_go_out_each_interval_until_one_gets_through(stage: Stage) -> None:
    """The first one interval after the failover; nobody ever receives one."""
    queue = stage.queue
    async with open_pairs(stage.bus, **stage.options(**AT_ONCE)) as pairs:
        await stage.refuse()
        await send_all(pairs, [pair.sender(queue) for pair in pairs], "a")
        await come_true(pairs, lambda pair: len(pair.events_of(PingFailed)) >= 2)
        assert all_pairs_are(pairs, queue, State.FAILED_OVER)
        await stage.clear()
        await all_recovered(pairs, queue)
        pings = [pair.entity(queue).pings for pair in pairs]
        await asyncio.sleep(1.2)  # longer than the interval
        assert [pair.entity(queue).pings for pair in pairs] == pings
        for pair in pairs:
            [event] = pair.events_of(EntityRecovered)
            assert event.after_s >= 3.0 and not event.forced  # the third one, at the earliest
    assert await stage.texts() == []
    assert await stage.backlog_texts() == of_both("a")
