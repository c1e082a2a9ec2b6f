"""Histories and their checker: what clients saw, and which promises were broken.

The clients of a system under test write a history in the order they saw things: they `invoke` an
operation and later learn that it went `ok`, was refused (`fail`), or never learn its outcome
(`info`: the connection died).  An unknown outcome is never assumed to be either.  `check` reads a
finished history and names every message that proves a broken promise.  It is pure and knows nothing
about the server, so a bug there cannot hide here.

The first rules are those of Jepsen's total-queue checker; the rest follow from what Service Bus
promises about locks, sequence numbers and delivery counts.
"""

import hashlib
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from twinbus.clock import Clock, SystemClock


class Operation(Enum):
    """What a client does.  `RECEIVE` has no invocation of its own: a delivery simply arrives."""

    SEND = "send"
    RECEIVE = "receive"
    COMPLETE = "complete"
    ABANDON = "abandon"


class Phase(Enum):
    """How far an operation has got."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"  # refused: certainly without effect
    INFO = "info"  # unknown: may have happened, may still happen


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history.  `key` is the message's own name, unique among all that were sent."""

    time_ms: int
    life: int  # how often the server had been killed or restarted by then
    process: str
    queue: str
    key: str
    operation: Operation
    phase: Phase
    digest: str = ""
    sequence_number: int = 0
    delivery_count: int = 0
    locked_from_ms: int = 0  # UTC; when the server granted the lock
    locked_until_ms: int = 0  # UTC; 0 = received and deleted


def digest(body: bytes) -> str:
    """A short name for exactly these bytes."""
    return hashlib.blake2b(body, digest_size=12).hexdigest()


class History:
    """What the clients of one run saw, in order."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.events: list[Event] = []
        self.life = 0
        self._clock: Clock = SystemClock() if clock is None else clock

    def server_ended(self) -> None:
        """The server was killed or stopped: from here on another one answers."""
        self.life += 1

    def note(
        self,
        process: str,
        queue: str,
        key: str,
        operation: Operation,
        phase: Phase,
        *,
        body: bytes | None = None,
    ) -> None:
        """Writes down an invocation or how it ended; a send's invocation carries the body."""
        self.events.append(
            Event(
                self._clock.now().utc_ms,
                self.life,
                process,
                queue,
                key,
                operation,
                phase,
                digest="" if body is None else digest(body),
            )
        )

    def delivered(
        self,
        process: str,
        queue: str,
        key: str,
        *,
        body: bytes,
        sequence_number: int,
        delivery_count: int,
        locked_from_ms: int = 0,
        locked_until_ms: int = 0,
        life: int | None = None,
    ) -> None:
        """Writes down a delivery; `locked_until_ms` 0 means received and deleted.

        `life` is the server's life in which the connection was made: bytes of a dead server may
        still be read when the next one is already there.
        """
        self.events.append(
            Event(
                self._clock.now().utc_ms,
                self.life if life is None else life,
                process,
                queue,
                key,
                Operation.RECEIVE,
                Phase.OK,
                digest(body),
                sequence_number,
                delivery_count,
                locked_from_ms,
                locked_until_ms,
            )
        )


@dataclass
class Report:
    """The verdict.  Each list names messages; the first seven lists are broken promises."""

    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    resurrected: list[str] = field(default_factory=list)
    double_locked: list[str] = field(default_factory=list)
    mutated: list[str] = field(default_factory=list)
    reused_sequence: list[str] = field(default_factory=list)
    count_decreased: list[str] = field(default_factory=list)
    # No promise is broken by these: at-least-once delivery allows them.
    duplicated: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    acknowledged_count: int = 0
    completed_count: int = 0

    @property
    def violations(self) -> dict[str, list[str]]:
        """The broken promises, empty when all were kept."""
        broken = {
            "lost": self.lost,
            "unexpected": self.unexpected,
            "resurrected": self.resurrected,
            "double_locked": self.double_locked,
            "mutated": self.mutated,
            "reused_sequence": self.reused_sequence,
            "count_decreased": self.count_decreased,
        }
        return {name: keys for name, keys in broken.items() if keys}

    def __str__(self) -> str:
        counts = [
            f"{self.acknowledged_count} acknowledged",
            f"{self.completed_count} completed",
            f"{len(self.recovered)} recovered",
            f"{len(self.duplicated)} duplicated",
        ]
        counts += [f"{len(keys)} {name} (e.g. {keys[0]})" for name, keys in self.violations.items()]
        return ", ".join(counts)


class _MessageStory:
    """Everything a history says about one message."""

    __slots__ = ("events", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.events: list[Event] = []

    def phases(self, operation: Operation) -> set[Phase]:
        return {event.phase for event in self.events if event.operation is operation}

    def deliveries(self) -> list[Event]:
        """In the order the server granted them, which is not always that of their arrival."""
        found = [event for event in self.events if event.operation is Operation.RECEIVE]
        return sorted(found, key=_began_ms)


def _began_ms(delivery: Event) -> int:
    return delivery.locked_from_ms or delivery.time_ms


def check(history: History, *, drained: bool) -> Report:
    """Check a finished history.

    `drained` says that everything was received in the end, until nothing more came.  Otherwise a
    message that was never seen again may just be waiting, and nothing counts as lost.
    """
    report = Report()
    stories: dict[str, _MessageStory] = {}
    for event in history.events:
        story = stories.get(event.key)
        if story is None:
            story = stories[event.key] = _MessageStory(event.key)
        story.events.append(event)
    for story in stories.values():
        _check_existence(story, report, drained)
        _check_settlement(story, report)
        _check_locks(story, report)
        _check_delivery_counts(story, report)
    _check_sequence_numbers(history, report)
    return report


def _check_existence(story: _MessageStory, report: Report, drained: bool) -> None:
    """Nothing acknowledged is lost, nothing is invented, no byte changes."""
    sent = story.phases(Operation.SEND)
    deliveries = story.deliveries()
    if Phase.OK in sent:
        report.acknowledged_count += 1
        if drained and not _may_be_gone(story, deliveries):
            report.lost.append(story.key)
    if deliveries:
        if Phase.INVOKE not in sent or Phase.FAIL in sent:
            report.unexpected.append(story.key)
        elif Phase.OK not in sent:
            report.recovered.append(story.key)
        if len({delivery.sequence_number for delivery in deliveries}) > 1:
            report.duplicated.append(story.key)
    digests = {
        event.digest for event in story.events if event.operation is Operation.SEND and event.digest
    }
    if any(delivery.digest not in digests for delivery in deliveries if digests):
        report.mutated.append(story.key)


def _may_be_gone(story: _MessageStory, deliveries: list[Event]) -> bool:
    """Somebody took it for good, or asked to and never learnt whether that worked.

    Having been delivered is not enough: a delivery that nobody completed must come again.
    """
    completed = story.phases(Operation.COMPLETE)
    if Phase.OK in completed or Phase.INFO in completed:
        return True
    return any(delivery.locked_until_ms == 0 for delivery in deliveries)


def _check_settlement(story: _MessageStory, report: Report) -> None:
    """After a confirmed complete the message is never delivered again."""
    completed_ms = [
        event.time_ms
        for event in story.events
        if event.operation is Operation.COMPLETE and event.phase is Phase.OK
    ]
    if not completed_ms:
        return
    report.completed_count += 1
    # A delivery that began before the confirmation may still have been on its way.
    if any(_began_ms(delivery) > min(completed_ms) for delivery in story.deliveries()):
        report.resurrected.append(story.key)


def _check_locks(story: _MessageStory, report: Report) -> None:
    """While a lock certainly holds, nobody else gets the message.

    It certainly holds until its stated end, unless its owner asked to settle it (whatever came of
    that) or the server went away: grants are not waited for, so a crash may forget one.
    """
    deliveries = story.deliveries()
    for first, second in itertools.pairwise(deliveries):
        if first.locked_until_ms == 0 or first.life != second.life:
            continue
        began_ms = _began_ms(second)
        let_go = any(
            event.phase is Phase.INVOKE
            and event.process == first.process
            and first.time_ms <= event.time_ms <= began_ms
            and event.operation in (Operation.COMPLETE, Operation.ABANDON)
            for event in story.events
        )
        if began_ms < first.locked_until_ms and not let_go:
            report.double_locked.append(story.key)
            return


def _check_delivery_counts(story: _MessageStory, report: Report) -> None:
    """The delivery count never goes down, nor below the number of confirmed abandons.

    Counts that rose by an expired lock are not waited for, so they are only compared within one
    life of the server.
    """
    abandoned_ms = [
        event.time_ms
        for event in story.events
        if event.operation is Operation.ABANDON and event.phase is Phase.OK
    ]
    highest: dict[tuple[int, int], int] = {}
    for delivery in story.deliveries():
        life = (delivery.life, delivery.sequence_number)
        abandons = sum(time_ms < _began_ms(delivery) for time_ms in abandoned_ms)
        if delivery.delivery_count < max(highest.get(life, 0), abandons):
            report.count_decreased.append(story.key)
            return
        highest[life] = delivery.delivery_count


def _check_sequence_numbers(history: History, report: Report) -> None:
    """A sequence number of a queue belongs to one message for ever."""
    owners: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in history.events:
        if event.operation is Operation.RECEIVE:
            owners[event.queue, event.sequence_number].add(event.key)
    for (queue, sequence_number), keys in owners.items():
        if len(keys) > 1:
            names = " and ".join(sorted(keys))
            report.reused_sequence.append(f"{queue} {sequence_number}: {names}")
