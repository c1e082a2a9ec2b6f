"""What the application knows of its messages: which were accepted, and which have arrived.

Accepted: a send returned, so the primary or the backlog has the message.  Arrived: a receiver was
handed it.  The same message handed out once more, because the server died before it was completed,
has the same sequence number and is a redelivery; the same id under another number is a duplicate.
Threads write here, so there is a lock; nothing here sends, receives or touches a file.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.drill.plan import ENTITIES, Entity


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was accepted."""

    message_id: str
    entity: str
    session_id: str | None
    number: int  # of its sender
    time_ms: int  # when the send began that was accepted
    body_hash: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as a receiver got it."""

    message_id: str
    place: str  # queue or subscription
    session_id: str | None
    sequence_number: int
    time_ms: int
    body_hash: str


class Legs:
    """The stretches of a sender's way: to the primary, through the backlog, to it again.

    A pair keeps the order of a session's messages that go the same way; what waits in the backlog
    is overtaken by what is sent after the outage.  So order is judged leg by leg.
    """

    def __init__(self) -> None:
        self.leg = 1
        self._is_backlog = False

    def took(self, is_backlog: bool) -> int:
        """The leg of a message that went this way."""
        if is_backlog is not self._is_backlog:
            self._is_backlog = is_backlog
            self.leg += 1
        return self.leg


class Ledger:
    """The two books, and counts of them that may be asked for at any time."""

    def __init__(self, entities: Sequence[Entity] = ENTITIES) -> None:
        self.sent: list[Sent] = []
        self.arrived: list[Arrived] = []
        self.redelivered = 0
        self.raised = 0  # sends that the caller had to repeat
        self._places: Final = {entity.name: entity.places for entity in entities}
        self._sent_by_entity: Counter[str] = Counter()
        self._arrived_by_place: Counter[str] = Counter()
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def accept(self, sent: Sent) -> None:
        with self._lock:
            self.sent.append(sent)
            self._sent_by_entity[sent.entity] += 1

    def refuse(self) -> None:
        with self._lock:
            self.raised += 1

    def receive(self, arrived: Arrived) -> None:
        key = (arrived.place, arrived.sequence_number)
        with self._lock:
            if key in self._seen:
                self.redelivered += 1
                return
            self._seen.add(key)
            self.arrived.append(arrived)
            self._arrived_by_place[arrived.place] += 1

    def sent_count(self, entity: str | None = None) -> int:
        with self._lock:
            return len(self.sent) if entity is None else self._sent_by_entity[entity]

    def arrived_count(self, entity: str | None = None) -> int:
        """At all places of an entity, or of all."""
        with self._lock:
            if entity is None:
                return len(self.arrived)
            return sum(self._arrived_by_place[place] for place in self._places[entity])

    @property
    def expected(self) -> int:
        """Arrivals that there have to be: a topic's message arrives at each subscription."""
        with self._lock:
            counts = self._sent_by_entity.items()
            return sum(count * len(self._places[entity]) for entity, count in counts)

    @property
    def is_complete(self) -> bool:
        """Whether as many have arrived as there have to be; who exactly is the judge's business."""
        return self.arrived_count() >= self.expected

    def sequence_numbers(self, place: str) -> list[int]:
        """Of what has arrived there."""
        with self._lock:
            return [each.sequence_number for each in self.arrived if each.place == place]

    def expectations(self) -> Iterator[tuple[str, Sent]]:
        """Each place where a message has to arrive."""
        for sent in self.sent:
            for place in self._places[sent.entity]:
                yield place, sent

    # As `twinbus pipeline reconcile` reads them.

    def sent_lines(self) -> Iterator[str]:
        for place, sent in self.expectations():
            yield _line(sent, place, number=sent.number)

    def arrived_lines(self) -> Iterator[str]:
        for each in self.arrived:
            yield _line(each, each.place, sequence_number=each.sequence_number)


def _line(each: Sent | Arrived, place: str, **order: int) -> str:
    document = {
        "message_id": each.message_id,
        "entity": place,
        "session_id": each.session_id,
        **order,
        "time": each.time_ms,
        "body_hash": each.body_hash,
    }
    return json.dumps(document) + "\n"
