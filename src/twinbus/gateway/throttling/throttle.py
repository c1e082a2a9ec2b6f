"""Throttling: which requests are refused for now, and why (A-2).

There are two reasons, both answered with ServerBusy and a hint to wait ten seconds:

    pressure   a process runs short of CPU, memory, disk space, or has too many open operations
    credits    a namespace has used up what its tier allows in this second (profile `standard`)

Under pressure the service is shared fairly.  Past a threshold only entities that use more than the
average of all active ones are refused, and none that do next to nothing; past the limit beyond it
all are.  A part is counted by itself, so a partitioned entity has sixteen shares.  What relieves
the server (settling, renewing locks; receiving, where messages fill it) is never refused.

Pure: samples and times are arguments.  Must cost nothing without pressure: then `is_calm` is true
and nothing calls `admit`.
"""

from dataclasses import dataclass
from typing import Final

from twinbus.clock import Now
from twinbus.entities import commands, selections
from twinbus.entities.descriptions import PREFIX_END
from twinbus.errors import ServerBusy
from twinbus.gateway.directory.directory import STORE_SHIFT, Entity, plain_id
from twinbus.limits import (
    CREDITS_MANAGEMENT,
    QUIET_OPERATIONS_MAX,
    THROTTLE_ADVICE_S,
    Limits,
    Thresholds,
)

# What is asked for.
SEND: Final = 0
RECEIVE: Final = 1
MANAGE: Final = 2
SETTLE: Final = 3  # and all else that lets go of something

# What is short.  The words are those of Service Bus's metric, where it has one.
CPU: Final = 0
MEMORY: Final = 1
STORAGE: Final = 2
OPERATIONS: Final = 3
CREDITS: Final = 4
REASONS: Final = ("cpu", "memory", "storage", "operations", "namespace")

# How short.
CALM: Final = 0
PRESSED: Final = 1  # past the threshold: each gets its share
FULL: Final = 2  # past the limit: nobody gets anything

_MEASURES: Final = (CPU, MEMORY, STORAGE, OPERATIONS)
# How many times its threshold is the limit of a measure.  Memory has nothing to spare: its
# threshold is at four fifths already.
_LIMITS: Final = (2.0, 1.1, 2.0, 2.0)
# Receiving and deleting make room in memory and on the disk, so only senders are to wait for it.
_REFUSED: Final = ((SEND, RECEIVE, MANAGE), (SEND,), (SEND,), (SEND, RECEIVE, MANAGE))
_RELIEF: Final = 0.9  # a level ends when the measure is below this part of it,
_RELIEF_SAMPLES: Final = 3  # so many times in a row: else a server at its threshold would flicker
_WINDOW_MS: Final = 1_000

_KINDS: Final[dict[type[commands.Command], int]] = {
    commands.Send: SEND,
    commands.Peek: RECEIVE,
    selections.Browse: RECEIVE,
    selections.ListNumbers: RECEIVE,
    commands.ListPartitions: RECEIVE,
    commands.ReceiveDeferred: RECEIVE,
    commands.ListSessions: RECEIVE,
    commands.AddRule: MANAGE,
    commands.RemoveRule: MANAGE,
    commands.ReplaceRule: MANAGE,
    commands.ListRules: MANAGE,
    selections.DeleteMessages: MANAGE,
    selections.Undefer: MANAGE,
    selections.Resubmit: MANAGE,
}


@dataclass
class Usage:
    """What a process, or the broker of a store, uses at one moment."""

    cpu_share: float = 0.0  # 1.0: one core all the time
    lag_ms: int = 0  # how late the loop gets to what is due
    memory_bytes: int = 0
    disk_free_bytes: int = -1  # -1: not known
    open_count: int = 0  # operations begun and not answered


class _Watch:
    """The levels of one process's measures, with the patience to believe in a relief."""

    __slots__ = ("_calm_samples", "levels")

    def __init__(self) -> None:
        self.levels = [CALM] * len(_MEASURES)
        self._calm_samples = [0] * len(_MEASURES)

    def take(self, measure: int, ratio: float) -> None:
        """A new sample: the measure is so many times its threshold."""
        level = _level(measure, ratio)
        if level >= self.levels[measure]:
            self.levels[measure] = level
            self._calm_samples[measure] = 0
            return
        level = _level(measure, ratio / _RELIEF)
        if level == self.levels[measure]:
            self._calm_samples[measure] = 0
            return
        self._calm_samples[measure] += 1
        if self._calm_samples[measure] == _RELIEF_SAMPLES:
            self.levels[measure] = level
            self._calm_samples[measure] = 0

    def worst(self, kind: int) -> tuple[int, int]:
        """How short is what this kind of request needs most, and what is it?"""
        worst, reason = CALM, CPU
        for measure in _MEASURES:
            if self.levels[measure] > worst and kind in _REFUSED[measure]:
                worst, reason = self.levels[measure], measure
        return worst, reason


def _level(measure: int, ratio: float) -> int:
    if ratio >= _LIMITS[measure]:
        return FULL
    return PRESSED if ratio >= 1.0 else CALM


class Throttle:
    """What the gateway asks before it lets a request through, once it is not calm."""

    def __init__(self, thresholds: Thresholds, limits: Limits) -> None:
        self._thresholds = thresholds
        self._credits_per_second = limits.credits_per_second
        self._credits: dict[str, tuple[int, int]] = {}  # prefix → which second, what is left
        self._own = _Watch()
        self._stores: dict[int, _Watch] = {}
        # Operations of each part in this second, and in the one before.
        self._recent: dict[int, int] = {}
        self._recent_count = 0
        self._last: dict[int, int] = {}
        self._last_count = 0
        self.refused_counts = [0] * len(REASONS)
        self.has_credits = self._credits_per_second > 0
        self.is_pressed = False
        self.is_calm = self._credits_per_second == 0

    # -- counting: only while it is not calm ----------------------------------------------------

    def begin(self, part_id: int, count: int) -> None:
        """So many operations on a part have begun.  `part_id` is `plain_id` of store and number."""
        self._recent[part_id] = self._recent.get(part_id, 0) + count
        self._recent_count += count

    # -- samples: about once a second -----------------------------------------------------------

    def observe(self, usage: Usage) -> None:
        """What this process uses.  A new second begins for the shares."""
        self._last, self._last_count = self._recent, self._recent_count
        self._recent, self._recent_count = {}, 0
        self._take(self._own, usage)
        self._note_calm()

    def observe_store(self, store: int, usage: Usage) -> None:
        """What a store's broker uses, and its disk: pressure there concerns sends to it only."""
        self._take(self._stores.setdefault(store, _Watch()), usage)
        self._note_calm()

    def _take(self, watch: _Watch, usage: Usage) -> None:
        limits = self._thresholds
        # A process may well use all of its core, as long as what is due does not wait.
        is_busy = 0 < limits.cpu_share_max <= usage.cpu_share
        watch.take(CPU, usage.lag_ms / limits.lag_ms_max if is_busy else 0.0)
        if limits.memory_bytes_max:
            watch.take(MEMORY, usage.memory_bytes / limits.memory_bytes_max)
        if usage.disk_free_bytes >= 0:
            watch.take(STORAGE, limits.disk_free_bytes_min / max(1, usage.disk_free_bytes))
        if limits.operations_max:
            watch.take(OPERATIONS, usage.open_count / limits.operations_max)

    def _note_calm(self) -> None:
        self.is_pressed = any(self._own.levels) or any(
            any(watch.levels) for watch in self._stores.values()
        )
        self.is_calm = not self.is_pressed and self._credits_per_second == 0

    def is_store_full(self, store: int) -> bool:
        """Does a store refuse every send?  What needs no particular store evades it."""
        watch = self._stores.get(store)
        return watch is not None and watch.worst(SEND)[0] == FULL

    def shortage(self, store: int, kind: int) -> tuple[int, str]:
        """For reports: how short is what such a request would need, and what is it?"""
        level, reason = self._worst(store, kind)
        return level, REASONS[reason] if level else ""

    def pressures(self) -> list[str]:
        """For reports: everything that is short, where and how much."""
        watches = [("this process", self._own)]
        watches += [(f"store {store}", watch) for store, watch in sorted(self._stores.items())]
        return [
            f"{where}: {REASONS[measure]} is {'full' if level == FULL else 'short'}"
            for where, watch in watches
            for measure, level in enumerate(watch.levels)
            if level
        ]

    # -- asking ---------------------------------------------------------------------------------

    def admit_command(
        self, entity: Entity, part_id: int, command: commands.Command, now: Now
    ) -> ServerBusy | None:
        """May this command go to this part of the entity?  If not, what to answer."""
        kind = _KINDS.get(type(command), SETTLE)
        cost = 0
        if isinstance(command, commands.Send):
            # Each message, and each filter that it is shown to: a subscription has at least one.
            cost = len(command.messages) * (1 + len(entity.subscriptions))
        elif isinstance(command, commands.Peek):
            cost = 1
        elif kind == MANAGE and _is_first(entity, part_id):
            cost = CREDITS_MANAGEMENT  # once, though it goes to all partitions
        return self.admit(prefix_of(entity), part_id, kind, cost, now)

    def admit(self, prefix: str, part_id: int, kind: int, cost: int, now: Now) -> ServerBusy | None:
        """May a request go ahead?  If not, what to answer; then nothing has been counted.

        `prefix` is the namespace's; `part_id` 0 stands for requests about no entity.
        """
        if kind == SETTLE:
            return None
        level, reason = self._worst(part_id >> STORE_SHIFT, kind)
        if level == FULL or (level == PRESSED and self._has_its_share(part_id)):
            return self._refuse(reason)
        if cost and self._credits_per_second and not self._spend(prefix, cost, now):
            return self._refuse(CREDITS)
        return None

    def admit_management(self, prefix: str, now: Now) -> ServerBusy | None:
        """May somebody look at the entities of a namespace, make, change or delete one?"""
        refusal = self.admit(prefix, 0, MANAGE, CREDITS_MANAGEMENT, now)
        if refusal is None:
            self.begin(0, 1)
        return refusal

    def spend(self, prefix: str, count: int, now: Now) -> None:
        """So many messages were handed out: they cost credits, but cannot be refused."""
        if self._credits_per_second:
            second, left = self._balance(prefix, now)
            # Whoever empties a queue shall not keep everybody from sending for minutes.
            self._credits[prefix] = (second, max(left - count, -self._credits_per_second))

    def _worst(self, store: int, kind: int) -> tuple[int, int]:
        worst = self._own.worst(kind)
        if kind == SEND and store in self._stores:
            worst = max(worst, self._stores[store].worst(kind), key=_level_of)
        return worst

    def _has_its_share(self, part_id: int) -> bool:
        used = self._recent.get(part_id, 0) + self._last.get(part_id, 0)
        active_count = max(1, len(self._recent), len(self._last))
        share = (self._recent_count + self._last_count) / active_count
        return used >= max(share, QUIET_OPERATIONS_MAX)

    def _spend(self, prefix: str, cost: int, now: Now) -> bool:
        second, left = self._balance(prefix, now)
        if left <= 0:
            return False
        # A batch may cost more than a second has: it is let through, and the next ones pay.
        self._credits[prefix] = (second, left - cost)
        return True

    def _balance(self, prefix: str, now: Now) -> tuple[int, int]:
        """Credits are given at the start of each second and cannot be saved up; debts can."""
        this = now.mono_ms // _WINDOW_MS
        second, left = self._credits.get(prefix, (this, self._credits_per_second))
        given = (this - second) * self._credits_per_second
        return this, min(self._credits_per_second, left + given)

    def _refuse(self, reason: int) -> ServerBusy:
        self.refused_counts[reason] += 1
        return busy(REASONS[reason])


def busy(reason: str) -> ServerBusy:
    """The refusal, in words that say to a client what Service Bus's own do."""
    what = "namespace" if reason == REASONS[CREDITS] else "entity"
    return ServerBusy(
        f"The request was refused because the {what} is being throttled ({reason}). "
        f"Error code: 50009. Please wait {THROTTLE_ADVICE_S} seconds and try again."
    )


def prefix_of(entity: Entity) -> str:
    """What the names of an entity's namespace begin with."""
    return entity.name[: entity.name.find(PREFIX_END) + 1]


def _is_first(entity: Entity, part_id: int) -> bool:
    first = entity.parts[0]
    return plain_id(first.store, first.entity_id) == part_id


def _level_of(worst: tuple[int, int]) -> int:
    return worst[0]
