"""A pair of real servers with a backlog of every kind of message, for tests of the Spark syphon.

    stage = Stage(primary, secondary)       two running servers; entities and backlog queues made
    stage.fill(300)                         through a pair that has failed over, by the SDK
    stage.source_options()                  of format("servicebus-syphon")
    stage.broken_promises()                 what has arrived, against what was sent

What has arrived is peeked at, so it can be judged at any time and again.
"""

import datetime as dt
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from azure.servicebus import ServiceBusClient

from tests.crash.pairing_bus import NEWS, ORDERS, PARTS, PLACES, READERS, VISITS
from tests.crash.pairing_ledger import Arrival, Ledger, Sent, judge
from tests.crash.pairing_messages import NAME, SCHEDULED, Plan, Portrait, build, portrait
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.message.plain import decode_message
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace
from twinbus.pipeline.bus import Bus, open_bus
from twinbus.testing.server import ServerProcess

PAIR: Final = "shop"
DRILL: Final = "drill-"  # what names of messages begin with that are judged elsewhere
LIST_COUNT: Final = 50  # messages of one send
SESSIONS: Final = 5
AHEAD: Final = dt.timedelta(seconds=2)
REFERENCE: Final = "reference"
NAMELESS: Final = "name-00-000000"
WAIT_S_MAX: Final = 60.0


def create_entities(primary: ServerProcess) -> None:
    primary.create_queue(ORDERS)
    primary.create_queue(PARTS, enable_partitioning=True)
    primary.create_queue(VISITS, requires_session=True)
    primary.admin.create(TOPIC, (NEWS,), {})
    for reader in READERS:
        primary.admin.create(SUBSCRIPTION, (NEWS, reader), {})


class Stage:
    """Two servers, and what went through the backlog between them."""

    def __init__(
        self, primary: ServerProcess, secondary: ServerProcess, backlog_queue_count: int = 2
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.ledger = Ledger()
        self._backlog_queue_count = backlog_queue_count
        self._chance = random.Random(20_261_116)
        self._lists: dict[str, int] = {}  # in which list a message was sent
        self._number = 0

    def fill(self, count: int, entities: Iterable[str] = (ORDERS, PARTS, NEWS, VISITS)) -> None:
        """So many messages into the backlog, of all kinds, as an application sends them."""
        options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
            self.secondary.connection_string, self._backlog_queue_count, primary_name=PAIR
        )
        text = self.primary.connection_string
        with pair_namespace(ServiceBusClient.from_connection_string(text), options) as pair:
            kinds = list(entities)
            pair.force_failover()
            for at in range(0, count, LIST_COUNT):
                entity = kinds[at // LIST_COUNT % len(kinds)]
                make = pair.get_topic_sender if entity == NEWS else pair.get_queue_sender
                with make(entity) as sender:
                    pair.force_failover(entity)
                    sent, messages = self._draw(entity, min(LIST_COUNT, count - at))
                    self._lists |= {each.name: at for each in sent}
                    self.ledger.begin(sent)
                    sender.send_messages(messages)
                    self.ledger.accept(sent)

    def _draw(self, entity: str, count: int) -> tuple[list[Sent], list[Any]]:
        chance = self._chance
        time_utc = dt.datetime.now(dt.UTC) + AHEAD
        time_utc = time_utc.replace(microsecond=0)
        sent, messages = [], []
        for _ in range(count):
            session = f"session {chance.randrange(SESSIONS)}" if entity == VISITS else ""
            key = f"key {chance.randrange(9)}" if entity == PARTS and chance.random() < 0.5 else ""
            plan = Plan.draw(chance, session, key)
            if session:
                plan = plan.at_once()  # its order is what is tested there
            self._number += 1
            name = f"name-00-{self._number:06d}"
            scheduled = time_utc if plan.is_scheduled else None
            messages.append(build(plan, name, scheduled))
            at_ms = round(time_utc.timestamp() * 1_000) if plan.is_scheduled else None
            sent.append(Sent(name, entity, plan.at_once(), at_ms))
        return sent, messages

    @property
    def backlog(self) -> list[str]:
        queues = self.secondary.admin.list_queues()
        return sorted(each.name for each in queues if each.name.startswith(f"{PAIR}/"))

    def source_options(self, **given: str) -> dict[str, str]:
        """Of `format("servicebus-syphon")`."""
        return {
            "primary": self.primary.connection_string,
            "secondary": self.secondary.connection_string,
            "queues": ",".join(self.backlog),
            "primaryName": PAIR,
            **given,
        }

    def waiting(self) -> int:
        """Messages that are still in the backlog."""
        counts = [self.secondary.admin.get_queue(queue).properties for queue in self.backlog]
        return sum(int(each["ActiveMessageCount"]) for each in counts)

    # --- what has arrived -------------------------------------------------------------------------

    def broken_promises(self) -> dict[str, list[str]]:
        """Waits for what is scheduled; nothing else takes its time any more."""
        with_bus = open_bus(self.primary.connection_string)
        try:
            until(lambda: self._look(with_bus))
        finally:
            with_bus.close()
        direct = self._portraits({sent.plan for sent in self.ledger.sent.values()})
        broken = judge(self.ledger, PLACES, direct.__getitem__)
        disorder = self._disorder()
        return broken | ({"out of order": disorder} if disorder else {})

    def _look(self, bus: Bus) -> bool:
        """Note what is there; whether it is everything."""
        for places in PLACES.values():
            for place in places:
                for data in browse(bus, place):
                    self._note(place, data)
        sent = self.ledger.sent.values()
        wanted = {(each.name, place) for each in sent for place in PLACES[each.entity]}
        arrivals = self.ledger.arrivals
        return wanted <= {(name, at[0]) for name in arrivals for at in arrivals[name]}

    def _note(self, place: str, data: bytes) -> None:
        message = decode_message(data)
        name = message.application_properties.get(NAME, message.properties.message_id)
        if str(name).startswith(DRILL):
            return
        number, scheduled_ms, enqueued_ms = (
            _number(message.annotations.get(mark))
            for mark in ("x-opt-sequence-number", SCHEDULED, "x-opt-enqueued-time")
        )
        arrival = Arrival(place, number or 0, data, scheduled_ms, enqueued_ms or 0)
        self.ledger.receive(str(name), arrival, message.properties.content_type)

    def _disorder(self) -> list[str]:
        """Of each session, by what was sent and what has the lower number now.

        Lists apart: each goes to a backlog queue as a whole, the next one perhaps to another.
        """
        by_session: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for name, sent in self.ledger.sent.items():
            for place, number in self.ledger.arrivals.get(name, {}):
                if place == VISITS:
                    in_list = (sent.plan.session, self._lists[name])
                    by_session[in_list].append((number, name))
        found = {
            session: [name for _, name in sorted(each)] for session, each in by_session.items()
        }
        return [f"{session}: {each}" for session, each in found.items() if each != sorted(each)]

    def _portraits(self, plans: set[Plan]) -> dict[Plan, Portrait]:
        """What a message of each plan is like after a direct send."""
        ordered = sorted(plans, key=repr)
        self.secondary.create_queue(REFERENCE)
        text = self.secondary.connection_string
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_sender(REFERENCE) as sender,
        ):
            for plan in ordered:
                sender.send_messages(build(plan, NAMELESS, None))
        bus = open_bus(text)
        found = list(browse(bus, REFERENCE))
        bus.close()
        self.secondary.admin.delete_queue(REFERENCE)
        pairs = zip(ordered, found, strict=True)
        return {plan: portrait(data, NAMELESS) for plan, data in pairs}


def browse(bus: Bus, path: str) -> Iterable[bytes]:
    """All messages of a queue, subscription or sub-queue."""
    for each in bus.entity(path).partitions:
        for messages in bus.browse(path, each.first, each.next):
            yield from messages


def dead_letters(server: ServerProcess, queue: str) -> dict[str, int]:
    """How many were dead-lettered for which reason."""
    bus = open_bus(server.connection_string)
    counts: dict[str, int] = defaultdict(int)
    for data in browse(bus, f"{queue}/$DeadLetterQueue"):
        counts[str(decode_message(data).application_properties["DeadLetterReason"])] += 1
    bus.close()
    return dict(counts)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes by itself; whether it has is somebody else's business."""
    end_s = time.monotonic() + WAIT_S_MAX
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.2)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None
