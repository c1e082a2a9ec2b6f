"""Injected faults: what goes wrong, where, for how long and how likely (A-1, A-6).

    Wanted ─ add ─▶ Fault ─ begin ─▶ the code that acts for it (gateway/faults/acting.py)
                      │
                      └─ refusal, down_partitions, disk_plan, …: callers ask before they act

The registry knows which faults are in force and what they hit; it does nothing itself.  Time and
chance are arguments.  Faults are not durable: a restart ends them all.  Only clients' requests are
refused, never what the bus itself carries from one entity to another.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from twinbus.clock import Now
from twinbus.entities import commands, selections
from twinbus.entities.descriptions import PREFIX_END, SUBSCRIPTIONS
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.kinds import (
    CUT_NAMESPACE,
    DELAY_CONNECTIONS,
    FAIL_STORE,
    FULL_STORE,
    KINDS,
    MANAGEMENT,
    PARTITION_DOWN,
    RECEIVES,
    REFUSE_CONNECTIONS,
    SENDS,
    SLOW_STORE,
    THROTTLE,
    Kind,
)

FAULTS_MAX: Final = 100  # in force at a time: every one is asked before every operation
DURATION_MS_MAX: Final = 7 * 24 * 3_600_000
DELAY_MS_MAX: Final = 600_000  # longer than any client waits

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()
_ALL_PARTITIONS: Final = frozenset(range(PARTITION_COUNT))
_BELOW: Final = SUBSCRIPTIONS.lower()
# Everything that is not here is management.
_ROLES: Final[dict[type[commands.Command], int]] = {
    commands.Send: SENDS,
    commands.CancelScheduled: SENDS,
    commands.Settle: RECEIVES,
    commands.RenewLocks: RECEIVES,
    commands.Peek: RECEIVES,
    commands.ReceiveDeferred: RECEIVES,
    commands.RenewSession: RECEIVES,
    commands.GetSessionState: RECEIVES,
    commands.SetSessionState: RECEIVES,
    commands.ListSessions: RECEIVES,
    selections.DeleteMessages: RECEIVES,
    selections.Browse: RECEIVES,
    selections.ListNumbers: RECEIVES,
    commands.ListPartitions: RECEIVES,
    selections.SettleRanges: RECEIVES,
    selections.Undefer: RECEIVES,
    selections.Resubmit: RECEIVES,
}


@dataclass(frozen=True)
class Wanted:
    """A fault as requested, unchecked."""

    kind: str
    namespace: str | None = None
    entity: str | None = None  # its name in the namespace
    partitions: tuple[int, ...] = ()
    store: int | None = None
    broker: int | None = None
    duration_ms: int | None = None  # None: until it is cleared
    probability: float | None = None
    delay_ms: int | None = None

    def scope(self) -> set[str]:
        """The parts of the scope that are given."""
        given = {
            "namespace": self.namespace,
            "entity": self.entity,
            "partition": self.partitions or None,
            "store": self.store,
            "broker": self.broker,
        }
        return {key for key, value in given.items() if value is not None}


class DiskPlan(NamedTuple):
    """What happens to the disk of one store; all zeros: nothing (storage/faulty.py)."""

    slow_ms: int
    slow_probability: float
    fail_probability: float
    full_probability: float


class Known(Protocol):
    """What a fault can be about."""

    @property
    def store_count(self) -> int: ...

    @property
    def broker_count(self) -> int:
        """Broker processes; 0 when the stores are run in the gateway's own."""

    def prefix(self, namespace: str) -> str | None:
        """What the names of its entities begin with; None when there is no such namespace."""

    def find(self, name: str) -> Entity | None:
        """An entity by its name with that prefix."""


class Fault:
    """One injected fault."""

    def __init__(
        self, fault_id: str, kind: Kind, wanted: Wanted, prefix: str | None, begun_ms: int
    ) -> None:
        self.fault_id = fault_id
        self.kind = kind
        self.namespace = None if wanted.namespace is None else wanted.namespace.lower()
        self.entity = wanted.entity
        self.partitions = frozenset(wanted.partitions)
        self.store = wanted.store
        self.broker = wanted.broker
        self.begun_ms = begun_ms  # monotonic, as all times here
        self.ends_ms = None if wanted.duration_ms is None else begun_ms + wanted.duration_ms
        self.probability = 1.0 if wanted.probability is None else wanted.probability
        self.delay_ms = wanted.delay_ms or 0
        self.acted = 0  # how often it has hit somebody
        self._prefix = prefix  # None: every namespace's
        self._name = ((prefix or "") + (wanted.entity or "")).lower()

    def covers_name(self, name: str) -> bool:
        """Whether it is about this entity; one on a topic is about its subscriptions too."""
        name = name.lower()
        if self.entity is not None:
            return name == self._name or name.startswith(self._name + _BELOW)
        if self._prefix is None:
            return True
        return name.startswith(self._prefix) if self._prefix else PREFIX_END not in name

    def covers(self, entity: Entity, partition: int) -> bool:
        """Whether it is about this part of an entity."""
        return self.covers_name(entity.name) and (
            not self.partitions or (entity.is_partitioned and partition in self.partitions)
        )

    @property
    def is_about_parts(self) -> bool:
        """Whether it is about partitions, so that a receiver goes on at the others."""
        return bool(self.partitions) or self.kind is PARTITION_DOWN

    def covers_namespace(self, namespace: str | None) -> bool:
        """Whether it is about connections to this one; None: nobody knows yet whose it is."""
        return self.namespace is None or namespace == self.namespace

    def covers_store(self, store: int) -> bool:
        return self.store is None or self.store == store

    def error(self) -> ServiceError:
        """What those are told who are refused because of it."""
        on_purpose = f"Fault {self.fault_id} ({self.kind.name}) is in force."
        if self.kind is THROTTLE:
            return ServerBusy(f"The server is busy. Wait 10 seconds and try again. {on_purpose}")
        return Unavailable(f"The service is unavailable; try again later. {on_purpose}")


class Observer(Protocol):
    """Acts for faults that do more than refuse a request."""

    def begin(self, fault: Fault) -> None: ...

    def end(self, fault: Fault) -> None: ...


class Faults:
    """All faults in force."""

    def __init__(self, known: Known, chance: Callable[[], float]) -> None:
        self._known = known
        self._chance = chance  # between 0 and 1, 1 excluded
        self.observer: Observer | None = None
        self.active = False  # the gateway has to ask before it does anything
        self.connections_active = False  # the listener has to
        self._all: dict[str, Fault] = {}
        self._refusing: list[Fault] = []
        self._down: list[Fault] = []
        self._count = 0

    # -- what is in force --------------------------------------------------------------------

    def add(self, wanted: Wanted, now: Now) -> Fault:
        """A new fault, in force at once; or the exact error, and nothing has changed."""
        kind = KINDS.get(wanted.kind)
        if kind is None:
            names = ", ".join(KINDS)
            raise ArgumentInvalid(f"There is no fault '{wanted.kind[:64]}'; there are {names}.")
        _check_numbers(kind, wanted)
        prefix = self._check_scope(kind, wanted)
        if len(self._all) >= FAULTS_MAX:
            raise QuotaExceeded(f"{FAULTS_MAX} faults are in force; clear some first.")
        self._count += 1
        fault = Fault(str(self._count), kind, wanted, prefix, now.mono_ms)
        if not kind.is_once:
            self._all[fault.fault_id] = fault
            self._changed()
        if self.observer is not None:
            self.observer.begin(fault)
        return fault

    def all(self) -> list[Fault]:
        return list(self._all.values())

    def get(self, fault_id: str) -> Fault:
        fault = self._all.get(fault_id)
        if fault is None:
            raise EntityNotFound(f"No fault {fault_id[:64]} is in force.")
        return fault

    def clear(self, fault: Fault) -> None:
        if self._all.pop(fault.fault_id, None) is None:
            return
        self._changed()
        if self.observer is not None:
            self.observer.end(fault)

    def expire(self, now: Now) -> None:
        """End what has lasted as long as it should."""
        for fault in self.all():
            if fault.ends_ms is not None and fault.ends_ms <= now.mono_ms:
                self.clear(fault)

    def next_end_ms(self) -> int | None:
        """When `expire` is due next, by the monotonic clock."""
        return min((f.ends_ms for f in self._all.values() if f.ends_ms is not None), default=None)

    def _changed(self) -> None:
        every = self._all.values()
        self._refusing = [fault for fault in every if fault.kind.roles]
        self._down = [fault for fault in every if fault.kind is PARTITION_DOWN]
        self.active = bool(self._refusing or self._down)
        self.connections_active = any(
            fault.kind in (CUT_NAMESPACE, REFUSE_CONNECTIONS, DELAY_CONNECTIONS) for fault in every
        )

    # -- checks ------------------------------------------------------------------------------

    def _check_scope(self, kind: Kind, wanted: Wanted) -> str | None:
        """The prefix of the names that are meant; raises when the scope makes no sense."""
        for key in sorted(wanted.scope() - kind.scope):
            takes = ", ".join(sorted(kind.scope))
            raise ArgumentInvalid(f"A {kind.name} fault has no {key}; it takes {takes}.")
        if kind.needs and kind.needs not in wanted.scope():
            article = "an" if kind.needs == "entity" else "a"
            raise ArgumentInvalid(f"A {kind.name} fault needs {article} {kind.needs}.")
        prefix: str | None = None
        if wanted.namespace is not None:
            prefix = self._known.prefix(wanted.namespace)
            if prefix is None:
                raise EntityNotFound(f"There is no namespace '{wanted.namespace[:64]}'.")
        if wanted.entity is not None or wanted.partitions:
            self._check_entity(kind, wanted, prefix or "")
        if wanted.store is not None and not 0 <= wanted.store < self._known.store_count:
            last = self._known.store_count - 1
            raise ArgumentOutOfRange(f"There is no store {wanted.store}; the last one is {last}.")
        if wanted.broker is not None:
            self._check_broker(wanted.broker)
        return prefix

    def _check_entity(self, kind: Kind, wanted: Wanted, prefix: str) -> None:
        if wanted.entity is None:
            raise ArgumentInvalid("A partition needs the entity whose it is.")
        entity = self._known.find(prefix + wanted.entity)
        if entity is None or PREFIX_END in wanted.entity:
            raise EntityNotFound(f"There is no entity '{wanted.entity[:64]}'.")
        if (kind is PARTITION_DOWN or wanted.partitions) and not entity.is_partitioned:
            raise InvalidOperation(f"'{wanted.entity[:64]}' is not partitioned.")
        for partition in wanted.partitions:
            if not 0 <= partition < PARTITION_COUNT:
                raise ArgumentOutOfRange(
                    f"There is no partition {partition}; they are 0 to {PARTITION_COUNT - 1}."
                )

    def _check_broker(self, broker: int) -> None:
        count = self._known.broker_count
        if count == 0:
            raise InvalidOperation(
                "This server runs its broker in its own process; start it with --brokers 2 to "
                "have broker processes that can hang or be killed."
            )
        if not 0 <= broker < count:
            raise ArgumentOutOfRange(f"There is no broker {broker}; the last one is {count - 1}.")

    # -- what the gateway asks ---------------------------------------------------------------

    def refusal(
        self, command: commands.Command, entity: Entity, partition: int
    ) -> ServiceError | None:
        """Whether this must not be done, at this part of an entity (0 of a plain one)."""
        if isinstance(command, commands.Send) and command.carrier:
            return None  # the bus carries these itself
        return self._refusal(_ROLES.get(type(command), MANAGEMENT), entity, partition)

    def receiver_refusal(self, entity: Entity, partition: int) -> ServiceError | None:
        """The same for opening a receiver, or waiting for a session."""
        return self._refusal(RECEIVES, entity, partition)

    def management_refusal(self, name: str) -> ServiceError | None:
        """The same for what is done about a name, whether or not there is such an entity."""
        for fault in self._refusing:
            is_meant = fault.kind.roles & MANAGEMENT and not fault.partitions
            if is_meant and fault.covers_name(name) and self.hits(fault):
                return fault.error()
        return None

    def down_partitions(self, entity: Entity) -> frozenset[int]:
        """The partitions of an entity that cannot be reached."""
        down = _NO_PARTITIONS
        for fault in self._down:
            if fault.covers_name(entity.name):
                down |= fault.partitions or _ALL_PARTITIONS
        return down

    def _refusal(self, role: int, entity: Entity, partition: int) -> ServiceError | None:
        for fault in self._down:
            if entity.is_partitioned and fault.covers(entity, partition):
                fault.acted += 1
                return fault.error()
        for fault in self._refusing:
            if fault.kind.roles & role and fault.covers(entity, partition) and self.hits(fault):
                return fault.error()
        return None

    # -- what the shells ask -----------------------------------------------------------------

    def disk_plan(self, store: int) -> DiskPlan:
        """Of several faults of a kind on one store the worst counts."""
        on_store = [fault for fault in self._all.values() if fault.covers_store(store)]
        slow = [fault for fault in on_store if fault.kind is SLOW_STORE]
        slowest = max(slow, key=lambda fault: fault.delay_ms, default=None)
        return DiskPlan(
            0 if slowest is None else slowest.delay_ms,
            0.0 if slowest is None else slowest.probability,
            _worst(fault for fault in on_store if fault.kind is FAIL_STORE),
            _worst(fault for fault in on_store if fault.kind is FULL_STORE),
        )

    def refuses_connection(self, namespace: str | None) -> bool:
        """Whether a new connection is reset; asked once for each."""
        for fault in self._all.values():
            is_meant = fault.kind in (CUT_NAMESPACE, REFUSE_CONNECTIONS)
            if is_meant and fault.covers_namespace(namespace) and self.hits(fault):
                return True
        return False

    def connection_delay_ms(self, namespace: str | None) -> int:
        """How late the next bytes of a connection are."""
        delay_ms = 0
        for fault in self._all.values():
            is_meant = fault.kind is DELAY_CONNECTIONS and fault.covers_namespace(namespace)
            if is_meant and self.hits(fault):
                delay_ms = max(delay_ms, fault.delay_ms)
        return delay_ms

    def hits(self, fault: Fault) -> bool:
        """Throw the dice for one fault, and count what it hits."""
        if fault.probability < 1.0 and self._chance() >= fault.probability:
            return False
        fault.acted += 1
        return True


def _worst(faults: Iterable[Fault]) -> float:
    return max((fault.probability for fault in faults), default=0.0)


def _check_numbers(kind: Kind, wanted: Wanted) -> None:
    duration_ms, delay_ms = wanted.duration_ms, wanted.delay_ms
    probability = wanted.probability
    if duration_ms is not None:
        if kind.is_once:
            raise ArgumentInvalid(f"A {kind.name} fault has no duration; it happens once.")
        if not 0 < duration_ms <= DURATION_MS_MAX:
            raise ArgumentOutOfRange("A duration is more than 0 and at most 7 days.")
    if probability is not None:
        if not kind.is_likely:
            raise ArgumentInvalid(f"A {kind.name} fault has no probability; it acts always.")
        if not 0.0 < probability <= 1.0:  # false for what is no number, too
            raise ArgumentOutOfRange("A probability is more than 0 and at most 1.")
    if kind.has_delay and delay_ms is None:
        raise ArgumentInvalid(f"A {kind.name} fault needs a delay.")
    if delay_ms is not None:
        if not kind.has_delay:
            raise ArgumentInvalid(f"A {kind.name} fault has no delay.")
        if not 0 < delay_ms <= DELAY_MS_MAX:
            raise ArgumentOutOfRange("A delay is more than 0 and at most 10 minutes.")
