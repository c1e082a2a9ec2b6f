"""What happens, in words: for the screen, the lines of a log, and the report.  Pure."""

from dataclasses import dataclass
from typing import Final

from twinbus.drill.plan import FAILOVER_INTERVAL_S
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    Event,
    PairFaulted,
    PingFailed,
)

GOOD: Final = "good"
BAD: Final = "bad"
PLAIN: Final = "plain"


@dataclass(frozen=True)
class Told:
    """One line."""

    time_s: float
    text: str
    tone: str = PLAIN


def words_of(event: Event, said_pings: set[str]) -> tuple[str, str] | None:
    """Text and tone; None for what is not worth a line, such as the second ping that fails.

    `said_pings` keeps which entities' failed pings were told since they failed over.
    """
    match event:
        case EntityFailing(entity):
            return f"{entity}: a send has failed; failover in {FAILOVER_INTERVAL_S:.0f} s", BAD
        case EntityFailedOver(entity):
            said_pings.discard(entity)
            return f"{entity}: failed over, sends go to the backlog", BAD
        case PingFailed(entity):
            if entity in said_pings:
                return None
            said_pings.add(entity)
            return f"{entity}: ping, no answer from the primary", PLAIN
        case EntityRecovered(entity, _, after_s):
            return f"{entity}: home again after {after_s:.1f} s", GOOD
        case BacklogQueueLost(queue, _, left):
            return f"backlog queue {queue} is lost, {left} are left", BAD
        case PairFaulted(reason):
            return f"the pair has ended: {reason}", BAD
        case _:
            return None
