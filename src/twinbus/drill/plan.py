"""What is rehearsed: the entities, the scenes and how long each takes.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

Fault = Literal["kill", "hang", "cut"]

DURATION_S_DEFAULT: Final = 60.0
DURATION_S_MAX: Final = 3_600.0
RATE_DEFAULT: Final = 120.0
RATE_MIN: Final = 5.0  # every sender has to notice what goes on
RATE_MAX: Final = 1_000.0

# Far below the defaults (a minute each), so that nobody has to wait: a drill is short.
FAILOVER_INTERVAL_S: Final = 3.0
PING_INTERVAL_S: Final = 1.0
SEND_TIMEOUT_S: Final = 4.0
BACKLOG_QUEUES: Final = 4

# Of the partitioned queue, besides the outage: messages without a key evade it, and what belongs
# there waits in the backlog while the syphon brings home everything else.
DOWN_PARTITION: Final = 5
STILL_S: Final = 2.0  # so long a backlog stands still that has nothing but what belongs there
STILL_S_MAX: Final = 30.0  # and so long one that has had nothing else from the beginning

# Shares of the time in which the application sends.
_WELL: Final = 0.25
_FAILS: Final = 0.45
WELL_WHOLE: Final = 0.6  # of the time in which all is well: before the partition goes down


class Act(Enum):
    """The parts of the story, in their order."""

    STAGE = "Set the stage"
    WELL = "All is well"
    FAILS = "The data centre fails"
    RETURNS = "It returns"
    BILL = "The bill"

    @property
    def number(self) -> int:
        return list(Act).index(self) + 1


# Of one outage with what is before and after: it has to be noticed, and of those who hang that
# takes a send that runs out of time.
DURATION_S_MIN: Final[dict[Fault, float]] = {"kill": 15.0, "hang": 22.0, "cut": 15.0}
FAULTS: Final[dict[Fault, str]] = {
    "kill": "kill -9 for every process of the primary",
    "hang": "every process of the primary is stopped: connections stay, nobody answers",
    "cut": "the line is cut: connections break, and no new one comes about",
}
MENDED: Final[dict[Fault, str]] = {
    "kill": "the primary is started again, on the same data and port",
    "hang": "the primary's processes go on",
    "cut": "the line is mended",
}


@dataclass(frozen=True)
class Entity:
    """What the application sends to, and where its messages are received."""

    name: str
    kind: str
    places: tuple[str, ...]
    senders: int
    share: float  # of all messages
    sessions: int = 0
    is_topic: bool = False


ORDERS: Final = Entity("orders", "partitioned queue", ("orders",), 2, 0.4)
PAYMENTS: Final = Entity("payments", "queue", ("payments",), 1, 0.2)
CARTS: Final = Entity("carts", "queue with sessions", ("carts",), 1, 0.2, sessions=4)
SUBSCRIPTIONS: Final = ("audit", "search")
NEWS: Final = Entity(
    "news",
    "topic, 2 subscriptions",
    tuple(f"news/Subscriptions/{name}" for name in SUBSCRIPTIONS),
    1,
    0.2,
    is_topic=True,
)
ENTITIES: Final = (ORDERS, PAYMENTS, CARTS, NEWS)


@dataclass(frozen=True)
class Scene:
    """A part of an act's time; `fault` is the outage that it is about."""

    act: Act
    duration_s: float  # at least
    fault: Fault


def scenes(duration_s: float, faults: Sequence[Fault]) -> list[Scene]:
    """While the application sends: for each fault a time before it, in it and after it."""
    least_s = shortest_s(faults)
    found = []
    for fault in faults:
        each_s = duration_s * DURATION_S_MIN[fault] / least_s
        found += [
            Scene(Act.WELL, each_s * _WELL, fault),
            Scene(Act.FAILS, each_s * _FAILS, fault),
            Scene(Act.RETURNS, each_s * (1 - _WELL - _FAILS), fault),
        ]
    return found


def shortest_s(faults: Sequence[Fault]) -> float:
    """A drill of these takes at least so long."""
    return sum(DURATION_S_MIN[fault] for fault in faults)


def pause_s(entity: Entity, rate: float) -> float:
    """Between two messages of one of an entity's senders."""
    return entity.senders / (rate * entity.share)
