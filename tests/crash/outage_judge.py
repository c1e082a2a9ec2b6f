"""What was done to a bus, what its clients saw, and whether the two fit together.

    Timeline   from when until when which stores had a reason not to answer
    judge      every promise that is broken by what the clients of that time have seen

Pure, and knows nothing of the bus: the general promises are `twinbus.testing.checkers`'.
"""

import itertools
import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.crash.outage_load import Failure, OutageLoad, now_ms
from twinbus.entities.partitions import hash_key, partition_of
from twinbus.testing.checkers import Operation, Phase, check

log = logging.getLogger(__name__)

SIGHT_MS: Final = 1_000  # so far apart two looks may be on a busy machine


@dataclass
class Outage:
    """A time during which some stores have a reason not to answer."""

    text: str
    stores: set[int]
    began_ms: int
    ended_ms: int | None = None
    broker: int | None = None
    is_whole: bool = False  # there is no server at all

    def overlaps(self, failure: Failure) -> bool:
        has_ended = self.ended_ms is not None and self.ended_ms < failure.began_ms
        return self.began_ms <= failure.ended_ms and not has_ended


@dataclass
class Timeline:
    """All outages; the clients' locks and failures are looked up in it."""

    outages: list[Outage] = field(default_factory=list)
    journalled: list[tuple[int, int]] = field(default_factory=list)  # when, and which store
    _turns_ms: list[int] = field(default_factory=list)

    def begin(self, outage: Outage) -> Outage:
        self.outages.append(outage)
        self._turns_ms.append(outage.began_ms)
        return outage

    def end(self, outage: Outage, after_ms: int = 0) -> None:
        """It is over, or will be."""
        outage.ended_ms = now_ms() + after_ms
        self._turns_ms.append(outage.ended_ms)

    def life_at(self, time_ms: int) -> int:
        """Locks are compared within a life only: a store that is lost may forget some."""
        return sum(turn_ms <= time_ms for turn_ms in self._turns_ms)

    @property
    def open(self) -> list[Outage]:
        return [each for each in self.outages if each.ended_ms is None]

    def explains(self, failure: Failure) -> bool:
        """Was a store in trouble that the attempt depended on?

        That is its own; and, while its sends are journalled, the one where the journal is.
        """
        store = failure.lane.store
        hits = [each for each in self.outages if each.overlaps(failure)]
        is_journalled = any(
            failure.began_ms - SIGHT_MS <= seen_ms <= failure.ended_ms + SIGHT_MS
            for seen_ms, seen in self.journalled
            if seen == store
        )
        return any(
            store is None or store in each.stores or each.is_whole or is_journalled for each in hits
        )

    def excuses(self, failure: Failure) -> bool:
        """Without a server nobody can send anything."""
        return any(each.is_whole and each.overlaps(failure) for each in self.outages)


def judge(load: OutageLoad, timeline: Timeline) -> dict[str, list[str]]:
    """Every broken promise, by name."""
    report = check(load.history, drained=True)
    log.info("%s; %d failed attempts", report, len(load.failures))
    broken = dict(report.violations)
    # Every attempt is a message of its own, so what comes twice was doubled by the bus.
    broken["duplicated"] = report.duplicated
    broken["failed without a reason"] = [
        str(each) for each in load.failures if not timeline.explains(each)
    ]
    broken["without a key, and not sent within a client's retries"] = [
        str(each)
        for each in load.failures
        if each.is_final
        and each.lane.key is None
        and each.lane.store is None
        and not timeline.excuses(each)
    ]
    broken["out of order"] = _out_of_order(load)
    broken["in another partition"] = _misplaced(load)
    return {name: keys for name, keys in broken.items() if keys}


def _out_of_order(load: OutageLoad) -> list[str]:
    """What was acknowledged before the next was sent comes before it, by number and in fact.

    By number: in every lane that has one place to go.  In fact: the first delivery of each message
    of a session.
    """
    lanes = {lane.name: lane for lane in load.lanes if lane.store is not None}
    sent: dict[str, list[str]] = defaultdict(list)  # acknowledged, in order
    numbers: dict[str, int] = {}
    delivered: dict[str, list[str]] = defaultdict(list)
    for event in load.history.events:
        lane = event.key.partition("/")[0]
        if lane not in lanes or event.phase is not Phase.OK:
            continue
        if event.operation is Operation.SEND:
            sent[lane].append(event.key)
        elif event.operation is Operation.RECEIVE and event.key not in numbers:
            numbers[event.key] = event.sequence_number
            delivered[lane].append(event.key)
    wrong: list[str] = []
    for lane, keys in sent.items():
        known = [key for key in keys if key in numbers]
        wrong += [
            f"{after} has {numbers[after]}, {before} has {numbers[before]}"
            for before, after in itertools.pairwise(known)
            if numbers[after] <= numbers[before]
        ]
        if lanes[lane].is_session:
            acknowledged = set(keys)
            first = [key for key in delivered[lane] if key in acknowledged]
            wrong += [
                f"{came} was delivered where {due} was due"
                for came, due in zip(first, known, strict=True)
                if came != due
            ]
    return wrong


def _misplaced(load: OutageLoad) -> list[str]:
    """A key leads to one partition, for ever."""
    partitions = {lane.name: hash_key(lane.key) for lane in load.lanes if lane.key is not None}
    return [
        f"{event.key} is in partition {partition_of(event.sequence_number)}"
        for event in load.history.events
        if event.operation is Operation.RECEIVE
        and (lane := event.key.partition("/")[0]) in partitions
        and partition_of(event.sequence_number) != partitions[lane]
    ]
