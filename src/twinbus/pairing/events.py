"""What a pair reports: events as they happen, and its status on request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias


class State(Enum):
    """The state of one entity as its senders see it; failover.py has the transitions."""

    HEALTHY = "healthy"
    FAILING = "failing"
    FAILED_OVER = "failed over"
    RECOVERING = "recovering"


@dataclass(frozen=True, slots=True)
class EntityFailing:
    """A send failed in a way that counts; the failover interval has started."""

    entity: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class EntityFailedOver:
    entity: str
    error: BaseException | None  # none when it was forced
    forced: bool


@dataclass(frozen=True, slots=True)
class EntityRecovered:
    """Every sender of the entity is back on the primary."""

    entity: str
    forced: bool
    after_s: float  # since the failover


@dataclass(frozen=True, slots=True)
class PingFailed:
    entity: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class BacklogQueueLost:
    """The queue did not accept a message and has left the rotation."""

    queue: str
    error: BaseException
    left: int  # queues that are still in the rotation


@dataclass(frozen=True, slots=True)
class SyphonProgress:
    """Reported after each cycle that moved or dead-lettered a message."""

    queue: str
    moved: int  # in this cycle
    dead_lettered: int
    held: int  # waiting for destinations that are down
    moved_total: int  # of this queue, since the start


@dataclass(frozen=True, slots=True)
class SyphonResting:
    """A destination accepts no messages, or a backlog queue fails: it rests for `rest_s`."""

    path: str  # of the destination or of the backlog queue
    error: BaseException
    rest_s: float


@dataclass(frozen=True, slots=True)
class StrangersLeft:
    """A backlog queue has messages that are not this primary's, or may not be; they are left there.

    Reported once for each queue and primary.
    """

    queue: str
    primary: str  # the mark on them; empty: they have none
    count: int  # when they were first met


@dataclass(frozen=True, slots=True)
class PairFaulted:
    reason: str


Event: TypeAlias = (
    EntityFailing
    | EntityFailedOver
    | EntityRecovered
    | PingFailed
    | BacklogQueueLost
    | SyphonProgress
    | SyphonResting
    | StrangersLeft
    | PairFaulted
)
Callback: TypeAlias = Callable[[Event], Any]

# A pair in a long outage has a few events a minute; who lags by more has stopped reading.
UNREAD_COUNT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class EntityStatus:
    entity: str
    state: State
    forced: bool
    failing_for_s: float | None  # since the first failure that counts
    failed_over_for_s: float | None
    next_ping_in_s: float | None
    last_error: BaseException | None
    last_ping_error: BaseException | None
    sent_to_primary: int  # messages accepted
    sent_to_backlog: int
    pings: int


class SyphonCounts(NamedTuple):
    """What this process's syphon has done with one backlog queue, in messages."""

    moved: int = 0
    dead_lettered: int = 0
    held: int = 0
    strangers: int = 0
    strangers_of: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BacklogQueueStatus:
    queue: str
    in_rotation: bool
    last_error: BaseException | None
    moved: int  # by this process's syphon
    dead_lettered: int
    held: int
    strangers: int = 0  # another primary's, or perhaps so: left, when it was last looked at
    strangers_of: Mapping[str, int] = field(default_factory=dict)  # by their mark; empty: none


@dataclass(frozen=True, slots=True)
class PairingStatus:
    primary: str  # fully qualified namespace
    secondary: str
    entities: dict[str, EntityStatus] = field(default_factory=dict)
    backlog_queues: dict[str, BacklogQueueStatus] = field(default_factory=dict)
    syphon_running: bool = False
    fault: str = ""
