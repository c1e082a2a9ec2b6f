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

_CHARS_MAX: Final = 260  # of an entity's path
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
            LOGGER.warning(
                "strangers-left queue=%s primary=%s count=%d: %s",
                queue,
                one_line(primary) or "unknown",
                count,
                left_because(primary),
            )
        case PairFaulted(reason):
            LOGGER.error("pair-faulted reason=%s", reason)
        case _:
            assert_never(event)


def left_because(primary: str) -> str:
    """Why messages with this mark are left in a backlog queue, and what to do about it."""
    if primary:
        return "they belong to another primary, and wait for its own syphon"
    return (
        "they do not say whose they are, and other primaries may have used this queue; if they "
        "are all of this primary, run `twinbus pair drain --adopt-unmarked`"
    )


def one_line(text: str) -> str:
    """Anybody may have written it: no message breaks out of its line."""
    return text if text.isprintable() and len(text) <= _CHARS_MAX else repr(text[:64])
