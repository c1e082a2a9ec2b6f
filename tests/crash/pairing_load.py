"""Applications on a pair: two that send, a blocking and an async one, and some that receive.

Each application has one pair and two senders at work on every entity, as fast as they can.  What
they are told stands in the ledger.  Who gets an error keeps the message, and either sends it again
or gives it up: its fate is unknown then, and it may be there once.

Receivers are plain clients of the primary, who know nothing of pairs.
"""

import asyncio
import datetime as dt
import itertools
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from azure.servicebus.exceptions import ServiceBusError

from tests.crash.pairing_bus import ENTITIES, NEWS, PARTS, PLACES, VISITS, Bus
from tests.crash.pairing_client import Pair
from tests.crash.pairing_ledger import Arrival, Ledger, Sent
from tests.crash.pairing_messages import NAME, SCHEDULED, Plan, build
from twinbus.client.connection import BusConnection
from twinbus.client.links import ConnectionLost, Received, Receiver
from twinbus.errors import ServiceError
from twinbus.pairing.errors import BacklogUnavailableError

log = logging.getLogger(__name__)

SENDERS_AN_APPLICATION: Final = 2
TRIES_MAX: Final = 30
AGAIN_S: Final = 0.1  # before a caller sends the same message again
WAITING_MAX: Final = 6_000  # messages that may be on the way before the senders hold their breath
PERSISTENT_SHARE: Final = 0.6  # of callers who send again what was raised
AHEAD_S: Final = (0.5, 2.0)  # of what is scheduled
QUIET_S: Final = 0.5
RECONNECT_S: Final = 0.1


class Parcel:
    """What one call of a sender takes."""

    def __init__(self, entity: str, kind: str, sent: list[Sent], messages: list[Any]) -> None:
        self.entity = entity
        self.kind = kind  # single, list, batch or schedule
        self.sent = sent
        self.messages = messages
        self.time_utc: dt.datetime | None = None
        self.batch: Any = None  # the caller keeps it as well


class Writer:
    """Draws what one sender sends; the same for the same seed."""

    def __init__(self, label: str, seed: int) -> None:
        self.label = label
        self.chance = random.Random(f"{seed} {label}")
        self._numbers = itertools.count()

    def next(self) -> Parcel:
        chance = self.chance
        entity = chance.choice(ENTITIES)
        kind = chance.choices(("single", "list", "batch", "schedule"), (6, 2, 2, 1))[0]
        count = 1 if kind == "single" else chance.randint(1, 6)
        session = f"session {chance.randrange(6)}" if entity == VISITS else ""
        key = f"key {chance.randrange(9)}" if entity == PARTS and chance.random() < 0.5 else ""
        ahead = dt.timedelta(seconds=chance.uniform(*AHEAD_S))
        # Milliseconds are what the wire has.
        time_utc = dt.datetime.now(dt.UTC) + ahead
        time_utc = time_utc.replace(microsecond=time_utc.microsecond // 1_000 * 1_000)
        sent: list[Sent] = []
        messages: list[Any] = []
        for _ in range(count):
            plan = Plan.draw(chance, session, key)
            name = f"{self.label}-{next(self._numbers):06d}"
            is_scheduled = plan.is_scheduled or kind == "schedule"
            scheduled_ms = round(time_utc.timestamp() * 1_000) if is_scheduled else None
            sent.append(Sent(name, entity, plan.at_once(), scheduled_ms))
            messages.append(build(plan, name, time_utc if plan.is_scheduled else None))
        parcel = Parcel(entity, kind, sent, messages)
        parcel.time_utc = time_utc
        return parcel

    def is_persistent(self) -> bool:
        return self.chance.random() < PERSISTENT_SHARE


class Load:
    """Everybody's share in what stands in the ledger."""

    def __init__(self, bus: Bus, ledger: Ledger, seed: int) -> None:
        self.bus = bus
        self.ledger = ledger
        self.seed = seed
        self.received_count = 0
        self.stopping = threading.Event()
        self._seen: set[tuple[str, int]] = set()
        self._receivers: list[asyncio.Task[None]] = []

    # -- senders -----------------------------------------------------------------------------------

    async def keep_sending(self, pair: Pair, label: str) -> None:
        """With either flavour; that of the blocking one sends in a thread."""
        writer = Writer(label, self.seed)
        senders = {
            entity: pair.topic_sender(entity) if entity == NEWS else pair.sender(entity)
            for entity in ENTITIES
        }
        while not self.stopping.is_set():
            parcel = writer.next()
            self.ledger.begin(parcel.sent)
            for _ in range(TRIES_MAX if writer.is_persistent() else 1):
                try:
                    await _hand_over(senders[parcel.entity], parcel)
                except ServiceBusError as error:
                    self._note_failure(parcel, error)
                    await asyncio.sleep(AGAIN_S)
                else:
                    self.ledger.accept(parcel.sent)
                    break
            if self._is_full():
                await asyncio.sleep(AGAIN_S)
        for sender in senders.values():
            await sender.close()

    def _note_failure(self, parcel: Parcel, error: ServiceBusError) -> None:
        self.ledger.fail(parcel.sent, error)
        if isinstance(error, BacklogUnavailableError):
            self.ledger.accept(parcel.sent[: error.accepted])

    def _is_full(self) -> bool:
        """So that receiving all of it does not take longer than the drill."""
        return len(self.ledger.sent) - self.received_count > WAITING_MAX

    # -- receivers ---------------------------------------------------------------------------------

    def start_receiving(self) -> None:
        for place in itertools.chain(*PLACES.values()):
            keep = self._keep_receiving_sessions if place == VISITS else self._keep_receiving
            count = 3 if place == VISITS else 1
            self._receivers += [asyncio.create_task(keep(place)) for _ in range(count)]

    async def stop_receiving(self) -> None:
        for task in self._receivers:
            task.cancel()
        results = await asyncio.gather(*self._receivers, return_exceptions=True)
        self._receivers = []
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _keep_receiving(self, place: str) -> None:
        async def open_receiver(connection: BusConnection) -> Receiver:
            return await connection.open_receiver(place)

        await self._visit(place, open_receiver)

    async def _keep_receiving_sessions(self, place: str) -> None:
        async def open_receiver(connection: BusConnection) -> Receiver:
            return await connection.open_session_receiver(place, wait_s=1)

        await self._visit(place, open_receiver)

    async def _visit(
        self, place: str, open_receiver: Callable[[BusConnection], Awaitable[Receiver]]
    ) -> None:
        """Again and again: the primary comes and goes, sessions end."""
        text = self.bus.primary.connection_string
        while True:
            with suppress(OSError, TimeoutError, ConnectionLost, ServiceError):
                async with await BusConnection.open(text) as connection:
                    receiver = await open_receiver(connection)
                    await self._receive(place, receiver)
            await asyncio.sleep(RECONNECT_S)

    async def _receive(self, place: str, receiver: Receiver) -> None:
        completing: set[asyncio.Future[None]] = set()
        while (received := await receiver.receive(QUIET_S)) is not None or place != VISITS:
            if received is not None:
                self._note(place, received)
                outcome = receiver.complete(received)
                completing.add(outcome)
                outcome.add_done_callback(completing.discard)
                outcome.add_done_callback(_look_at)
        if completing:  # a session is given back when its messages are gone
            await asyncio.wait(completing, timeout=2)

    def _note(self, place: str, received: Received) -> None:
        message = received.message
        properties = message.properties
        name = message.application_properties.get(NAME, properties.message_id)
        if (place, received.sequence_number) in self._seen:
            return  # delivered again: nobody confirmed that it was completed
        self._seen.add((place, received.sequence_number))
        scheduled_ms = message.annotations.get(SCHEDULED)
        enqueued_ms = message.annotations.get("x-opt-enqueued-time")
        arrival = Arrival(
            place,
            received.sequence_number,
            received.data,
            int(scheduled_ms) if isinstance(scheduled_ms, int) else None,
            int(enqueued_ms) if isinstance(enqueued_ms, int) else 0,
        )
        self.ledger.receive(str(name), arrival, properties.content_type)
        if place not in PLACES[NEWS][1:]:
            self.received_count += 1


def _look_at(outcome: "asyncio.Future[None]") -> None:
    """A completion that failed means that the message comes again, which is noted then."""
    if not outcome.cancelled():
        outcome.exception()


async def _hand_over(sender: Any, parcel: Parcel) -> None:
    """One call of the sender; the same objects each time."""
    if parcel.kind == "single":
        await sender.send_messages(parcel.messages[0])
    elif parcel.kind == "list":
        await sender.send_messages(parcel.messages)
    elif parcel.kind == "schedule":
        numbers = await sender.schedule_messages(parcel.messages, parcel.time_utc)
        # What went to the backlog, or had come before, has no number yet: 0.
        assert len(numbers) == len(parcel.messages)
    else:
        if parcel.batch is None:
            parcel.batch = _filled(await sender.create_message_batch(), parcel)
        await sender.send_messages(parcel.batch)


def _filled(batch: Any, parcel: Parcel) -> Any:
    for message in parcel.messages:
        batch.add_message(message)
    return batch
