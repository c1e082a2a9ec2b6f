"""What a message of the backlog has to become again: the rules of P-11, for every form of message.

`rewriting.py` applies them to messages of the SDK, the pipeline to encoded ones; neither decides
anything by itself.  Values come here as either has read them: texts as `str` or `bytes`, times as
milliseconds, a time span as `timedelta`.  Knows no message class, reads no clock.
"""

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.value_types import text_of, time_of

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
PRODUCER_KEY: Final = "x-twinbus-producer-key"
EXPIRY: Final = "x-twinbus-expiry"
TYPES: Final = "x-twinbus-types"
RESERVED: Final = frozenset(
    {PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, PRODUCER_KEY, EXPIRY, TYPES}
)

# Of a dead letter.
DAMAGED: Final = "DamagedBacklogMessage"
NO_PATH: Final = "NoDestinationPath"
EXPIRED: Final = "TTLExpiredException"

TIMESPAN: Final = b"com.microsoft:timespan"  # what describes ticks of 100 ns
TICKS_PER_MS: Final = 10_000
NO_TIME_TO_LIVE_MS: Final = 922337203685477  # the SDK's word for "for ever"
_UINT_MAX: Final = 2**32 - 1


class Waiting(NamedTuple):
    """What the backlog says of a message, checked."""

    path: str
    session_id: str | None
    key: str | None
    scheduled_ms: int | None
    types: dict[str, Any]  # notes of value_types.py by place
    time_to_live_ms: int | None
    expiry_ms: int | None


class Lifetime(NamedTuple):
    """How long a restored message lives: what goes into its header and its properties."""

    time_to_live_ms: int | None
    expiry_ms: int | None


def read_waiting(properties: Mapping[str, object]) -> Waiting:
    """From the application properties of a message in a backlog queue; others do not matter.

    Raises UnrestorableMessageError for what is no message of a pair, or damaged.
    """
    path = _text(properties, PATH)
    if not path:
        raise UnrestorableMessageError(
            NO_PATH, f"The message has no {PATH}: no sender of a pair has put it here."
        )
    return Waiting(
        path,
        _text(properties, SESSION_ID),
        _text(properties, PRODUCER_KEY),
        _time(properties, SCHEDULED_TIME),
        _types(properties),
        _time_to_live_ms(properties),
        _time(properties, EXPIRY),
    )


def restored_lifetime(
    waiting: Waiting,
    mode: RestoredTimeToLive,
    enqueued_ms: int | None,
    creation_ms: int | None,
    now_ms: int,
) -> Lifetime:
    """By when it was put into the backlog and what its properties call its creation time.

    `original`: all of its time to live begins anew at the destination; `remaining`: it has what is
    left.  Raises UnrestorableMessageError if nothing is.
    """
    spent_ms = 0
    if mode == "remaining" and enqueued_ms is not None:
        # Time to live counts from the moment at which a scheduled message is enqueued.
        spent_ms = max(0, now_ms - max(enqueued_ms, waiting.scheduled_ms or 0))
    time_to_live_ms, expiry_ms = waiting.time_to_live_ms, waiting.expiry_ms
    if time_to_live_ms is not None:
        left_ms = time_to_live_ms - spent_ms
    elif expiry_ms is not None and creation_ms:
        left_ms = expiry_ms - spent_ms - creation_ms
    else:
        left_ms = 1
    if left_ms <= 0 < spent_ms:
        raise UnrestorableMessageError(
            EXPIRED, f"Its time to live ended {-left_ms / 1000:g} s ago, while it was waiting here."
        )
    return Lifetime(
        # The field's largest value: 49 days.
        None if time_to_live_ms is None else min(left_ms, _UINT_MAX),
        None if expiry_ms is None else expiry_ms - spent_ms,
    )


def is_lasting(time_to_live_ms: int | None) -> bool:
    """Whether this is no time to live at all: the SDK takes 0 for none."""
    return not time_to_live_ms or time_to_live_ms == NO_TIME_TO_LIVE_MS


def time_span(ticks: int) -> dt.timedelta | int:
    """A TimeSpan of Microsoft's clients; a negative one stays what it is, and is refused."""
    return dt.timedelta(milliseconds=ticks // TICKS_PER_MS) if ticks >= 0 else ticks


def notes_of(types: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """The notes of a map, by name; None if they are none."""
    notes = types.get(place, {})
    return notes if isinstance(notes, dict) else None


def does_not_fit(error: Exception) -> UnrestorableMessageError:
    """The notes of types are about another message than this."""
    return UnrestorableMessageError(DAMAGED, f"{TYPES} does not fit: {error}.")


def _text(properties: Mapping[str, object], name: str) -> str | None:
    value = properties.get(name)
    if value is None:
        return None
    text = text_of(value)
    if text is None:
        raise _damaged(name, "a text", value)
    return text


def _time(properties: Mapping[str, object], name: str) -> int | None:
    value = properties.get(name)
    if value is None:
        return None
    milliseconds = time_of(value)
    if milliseconds is None:
        raise _damaged(name, "a time", value)
    return milliseconds


def _time_to_live_ms(properties: Mapping[str, object]) -> int | None:
    """Plain numbers are milliseconds."""
    value = properties.get(TIME_TO_LIVE)
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _damaged(TIME_TO_LIVE, "a time span", value)
    return int(value)


def _types(properties: Mapping[str, object]) -> dict[str, Any]:
    text = _text(properties, TYPES)
    if text is None:
        return {}
    try:
        types = json.loads(text)
    except ValueError:
        types = None
    if not isinstance(types, dict):
        raise _damaged(TYPES, "a JSON object", text)
    return types


def _damaged(name: str, expected: str, value: object) -> UnrestorableMessageError:
    return UnrestorableMessageError(
        DAMAGED, f"{name} must be {expected}, not {type(value).__name__} {value!r:.64}."
    )
