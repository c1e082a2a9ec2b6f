"""The log of a pair: one line for each event, `name key=value …`, by the logger `twinbus.pairing`.

Never a message's body or a credential: only names, counts, times and the text of errors.
"""

import logging
from typing import Final, assert_never

from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    Event,
    PairFaulted,
    PingFailed,
    StrangersLeft,
    SyphonProgress,
    SyphonResting,
)
from twinbus.pairing.primary import one_line, strangers_told

LOGGER: Final = logging.getLogger("twinbus.pairing")


def log(event: Event) -> None:
    """Something is lost or at risk: warning or error; it goes its way: info."""
    match event:
        case EntityFailing(entity, error):
            LOGGER.warning("entity-failing entity=%s error=%r", entity, error)
        case EntityFailedOver(entity, error, forced):
            LOGGER.warning("entity-failed-over entity=%s forced=%s error=%r", entity, forced, error)
        case EntityRecovered(entity, forced, after_s):
            LOGGER.info(
                "entity-recovered entity=%s forced=%s after_s=%.1f", entity, forced, after_s
            )
        case PingFailed(entity, error):
            LOGGER.info("ping-failed entity=%s error=%r", entity, error)
        case BacklogQueueLost(queue, error, left):
            LOGGER.error("backlog-queue-lost queue=%s left=%d error=%r", queue, left, error)
        case SyphonProgress():
            LOGGER.info(
                "syphon-progress queue=%s moved=%d dead_lettered=%d held=%d moved_total=%d",
                event.queue,
                event.moved,
                event.dead_lettered,
                event.held,
                event.moved_total,
            )
        case SyphonResting(path, error, rest_s):
            LOGGER.warning("syphon-resting path=%s rest_s=%.1f error=%r", path, rest_s, error)
        case StrangersLeft(queue, primary, count):
            whose = one_line(primary) or "unknown"
            told = strangers_told(queue, primary, count)
            LOGGER.warning(
                "strangers-left queue=%s primary=%s count=%d: %s", queue, whose, count, told
            )
        case PairFaulted(reason):
            LOGGER.error("pair-faulted reason=%s", reason)
        case _:
            assert_never(event)
