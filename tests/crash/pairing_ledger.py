"""What senders of a pair were told, what receivers of its primary saw, and whether the two fit.

    Ledger   written by threads and tasks alike while the drill runs
    judge    every promise that is broken by what stands in it

Pure: knows nothing of servers.  What a message would be like after a direct send is told by who
has sent one.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.crash.pairing_messages import Plan, Portrait, portrait

PING = "application/vnd.ms-servicebus-ping"


@dataclass
class Sent:
    """One message that was handed to a paired sender."""

    name: str
    entity: str
    plan: Plan
    scheduled_ms: int | None
    is_accepted: bool = False
    error: str = ""  # of the last try, if all have failed


@dataclass(frozen=True)
class Arrival:
    """One message of one queue or subscription, however often it was delivered."""

    place: str
    sequence_number: int
    data: bytes
    scheduled_ms: int | None
    enqueued_ms: int


@dataclass
class Ledger:
    """All that was sent and received; safe for threads."""

    sent: dict[str, Sent] = field(default_factory=dict)
    arrivals: dict[str, dict[tuple[str, int], Arrival]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    pings: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, messages: Sequence[Sent]) -> None:
        with self._lock:
            for message in messages:
                assert message.name not in self.sent
                self.sent[message.name] = message

    def accept(self, messages: Sequence[Sent]) -> None:
        with self._lock:
            for message in messages:
                message.is_accepted = True

    def fail(self, messages: Sequence[Sent], error: BaseException) -> None:
        """They may or may not have arrived."""
        with self._lock:
            self.errors[f"{type(error).__name__}: {str(error)[:120]}"] += 1
            for message in messages:
                message.error = f"{type(error).__name__}: {error}"

    def receive(self, name: str, arrival: Arrival, content_type: str | None) -> None:
        with self._lock:
            if content_type == PING:
                self.pings.append(f"{arrival.place} {arrival.sequence_number}")
            else:
                self.arrivals[name][arrival.place, arrival.sequence_number] = arrival

    @property
    def accepted_count(self) -> int:
        with self._lock:
            return sum(sent.is_accepted for sent in self.sent.values())


def judge(
    ledger: Ledger, places: Mapping[str, Sequence[str]], direct: Callable[[Plan], Portrait]
) -> dict[str, list[str]]:
    """Every broken promise, by name.

    `places` says from where the messages of an entity are received; `direct` what a message is like
    that went there by the SDK alone.
    """
    broken: dict[str, list[str]] = defaultdict(list)
    broken["pings delivered"] = list(ledger.pings)
    for name, found in ledger.arrivals.items():
        if name not in ledger.sent:
            broken["never sent"] += [f"{name!r} in {place} {number}" for place, number in found]
    for sent in ledger.sent.values():
        found = ledger.arrivals.get(sent.name, {})
        for place in places[sent.entity]:
            _judge_count(sent, place, [at for at in found if at[0] == place], broken)
        broken["in the wrong place"] += [
            f"{sent.name} for {sent.entity} in {at[0]}"
            for at in found
            if at[0] not in places[sent.entity]
        ]
        for arrival in found.values():
            _judge_likeness(sent, arrival, direct(sent.plan), broken)
    return {name: texts for name, texts in broken.items() if texts}


def _judge_count(
    sent: Sent, place: str, found: list[tuple[str, int]], broken: dict[str, list[str]]
) -> None:
    what = f"{sent.name} in {place}"
    if sent.is_accepted and not found:
        broken["accepted and lost"].append(f"{what} ({sent.plan})")
    if len(found) > 1:
        broken["there twice"].append(f"{what}: {sorted(found)} {sent.plan} {sent.error}")


def _judge_likeness(
    sent: Sent, arrival: Arrival, wanted: Portrait, broken: dict[str, list[str]]
) -> None:
    seen = portrait(arrival.data, sent.name)
    what = f"{sent.name} in {arrival.place}"
    if seen != wanted:
        broken["changed on the way"].append(f"{what}: {seen.differences(wanted)}")
    if arrival.scheduled_ms != sent.scheduled_ms:
        broken["changed on the way"].append(
            f"{what}: scheduled for {arrival.scheduled_ms} instead of {sent.scheduled_ms}"
        )
    if sent.scheduled_ms is not None and arrival.enqueued_ms < sent.scheduled_ms:
        early_ms = sent.scheduled_ms - arrival.enqueued_ms
        broken["there before its time"].append(f"{what}: {early_ms} ms early")
