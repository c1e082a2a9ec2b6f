"""What a message of the backlog has to become again: the rules of P-11, for every form of message.

In a backlog queue messages of many entities wait together, so what the broker itself would act
on leaves its place and waits in an application property, its marker; everything else stays as it
is.  `RULES` is the table.  `rewriting.py` applies it to messages of the SDK, the pipeline to
encoded ones; neither decides anything by itself.

Values come here as either has read them: texts as `str` or `bytes`, times as milliseconds, a time
span as `timedelta`.  Knows no message class, reads no clock.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from twinbus.message import wire_names
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.value_types import TypesError, text_of, time_of

# Markers.  Those that begin with x-ms are what the old .NET client wrote, name and type.
PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
EXPIRY: Final = "x-twinbus-expiry"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
PRODUCER_KEY: Final = "x-twinbus-producer-key"
TYPES: Final = "x-twinbus-types"
PRIMARY: Final = "x-twinbus-primary"
NAMESPACE: Final = "x-twinbus-namespace"

# What a marker holds.
TEXT: Final = "a text"
TIME: Final = "a time"  # a timestamp
SPAN: Final = "a time span"  # TIMESPAN with ticks; plain numbers are milliseconds
NOTES: Final = "a JSON object"  # AMQP types that the SDK would lose, see value_types.py

# Sections of a message.
HEADER: Final = "header"
DELIVERY_ANNOTATIONS: Final = "delivery_annotations"
ANNOTATIONS: Final = "annotations"
PROPERTIES: Final = "properties"
APPLICATION_PROPERTIES: Final = "application_properties"
FOOTER: Final = "footer"

# Why a message is dead-lettered in the backlog; operators filter by these texts.
DAMAGED: Final = "DamagedBacklogMessage"
NO_PATH: Final = "NoDestinationPath"
EXPIRED: Final = "TTLExpiredException"
DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
TOO_LARGE: Final = "MessageSizeExceeded"
REFUSED: Final = "DestinationRefused"
DESCRIPTION_LENGTH_MAX: Final = 1024

TIMESPAN: Final = b"com.microsoft:timespan"  # describes ticks of 100 ns, as Microsoft's clients do
TICKS_PER_MS: Final = 10_000
_FOR_EVER_MS: Final = (0, 922337203685477)  # the SDK's words for no time to live
_UINT_MAX: Final = 2**32 - 1  # as a time to live 49 days


class Rule(NamedTuple):
    """One row: which marker holds what, and which field that goes back into.

    Without the marker the field stays as it is.  If the marker holds anything else, the message is
    refused as damaged.
    """

    marker: str
    form: str
    section: str = ""  # empty: it goes back nowhere
    field: str = ""
    nothing: tuple[int, ...] = ()  # values that mean "none"
    is_needed: bool = False  # without it, the message is no pair's
    is_spent: bool = False  # the time in the backlog is taken off in the mode `remaining`
    most: int = 2**63 - 1  # what the field can hold


# In the order in which markers are written and checked.
RULES: Final = (
    Rule(PATH, TEXT, is_needed=True),
    Rule(PRIMARY, TEXT),  # whose it is; syphons compare it, see primary.py
    Rule(NAMESPACE, TEXT),  # the same, where the primary has told its id
    Rule(SESSION_ID, TEXT, PROPERTIES, "group_id"),
    Rule(TIME_TO_LIVE, SPAN, HEADER, "time_to_live", _FOR_EVER_MS, is_spent=True, most=_UINT_MAX),
    # Where no time to live was given: together with a creation time this is one as well.
    Rule(EXPIRY, TIME, PROPERTIES, "absolute_expiry_time", (0,), is_spent=True),
    Rule(SCHEDULED_TIME, TIME, ANNOTATIONS, wire_names.SCHEDULED_TIME),
    Rule(PRODUCER_KEY, TEXT, DELIVERY_ANNOTATIONS, wire_names.PRODUCER_KEY),
    Rule(TYPES, NOTES),
)
RESERVED: Final = frozenset(rule.marker for rule in RULES)
SECTIONS: Final = (HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES)  # that rules may name
_BY_MARKER: Final = {rule.marker: rule for rule in RULES}
# All that stays of a header: the backlog's delivery count means nothing elsewhere.
HEADER_STAYS: Final = ("durable", "priority")
# Where notes of types belong: fields of the properties, sections that are maps, and the body.
NOTED_FIELDS: Final = ("message_id", "correlation_id")
NOTED_MAPS: Final = (ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER)
BODY: Final = "body"


class Restoration(NamedTuple):
    """What a message of the backlog becomes."""

    path: str
    session_id: str | None
    key: str | None
    types: dict[str, Any]  # notes of value_types.py by place
    changes: list[tuple[str, str, str, Any]]  # section, field, form; texts and milliseconds
    primary: str | None  # the mark of the primary that it belongs to
    namespace: str | None  # that primary's id, if it has told one


def restoration(
    properties: Mapping[str, object],
    mode: RestoredTimeToLive,
    now_ms: int,
    enqueued_ms: int | None,
    created_ms: Callable[[], int | None],
    key: str | None = None,
) -> Restoration:
    """From the application properties of a message in a backlog queue; others do not matter.

    `original`: all of its time to live begins anew at the destination; `remaining`: it has what is
    left since `enqueued_ms`, when it was put into the backlog.  `created_ms` is what its
    properties call its creation time, `key` the producer key of a message without one.

    Raises UnrestorableMessageError for what is no message of a pair, damaged or expired.
    """
    waiting = _read(properties)
    spent_ms = 0
    if mode == "remaining" and enqueued_ms is not None:
        # Time to live counts from the moment at which a scheduled message is enqueued.
        spent_ms = max(0, now_ms - max(enqueued_ms, waiting.get(SCHEDULED_TIME, 0)))
    if spent_ms:
        _check_left(waiting, spent_ms, created_ms)
    if not waiting.get(PRODUCER_KEY):
        waiting[PRODUCER_KEY] = key
    changes: list[tuple[str, str, str, Any]] = []
    for marker, value in waiting.items():
        _, form, section, field, _, _, is_spent, most = _BY_MARKER[marker]
        if section and value is not None:
            left = min(value - spent_ms, most) if is_spent else value
            changes.append((section, field, form, left))
    session_id, types = waiting.get(SESSION_ID), waiting.get(TYPES, {})
    key, primary = waiting[PRODUCER_KEY], waiting.get(PRIMARY)
    namespace = waiting.get(NAMESPACE)
    return Restoration(waiting[PATH], session_id, key, types, changes, primary, namespace)


def is_lasting(time_to_live_ms: int | None) -> bool:
    """Whether this is no time to live at all."""
    return time_to_live_ms is None or time_to_live_ms in _FOR_EVER_MS


def time_span(ticks: int) -> dt.timedelta | int:
    """A TimeSpan of Microsoft's clients; a negative one stays what it is, and is refused."""
    return dt.timedelta(milliseconds=ticks // TICKS_PER_MS) if ticks >= 0 else ticks


def note_of(types: Mapping[str, Any], place: str) -> str:
    """The note of a single value; empty if there is none."""
    return str(types.get(place, ""))


def notes_of(types: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The notes of a map, by name."""
    notes = types.get(place, {})
    if not isinstance(notes, dict):
        raise TypesError(f"{place} must be an object")
    return notes


def does_not_fit(error: Exception) -> UnrestorableMessageError:
    """The notes of types are about another message than this."""
    return UnrestorableMessageError(DAMAGED, f"{TYPES} does not fit: {error}.")


def _read(properties: Mapping[str, object]) -> dict[str, Any]:
    """What the markers hold, checked."""
    waiting: dict[str, Any] = {}
    for marker, form, _, _, _, is_needed, _, _ in RULES:
        value = properties.get(marker)
        if value is not None:
            waiting[marker] = _READERS[form](marker, value)
        if is_needed and not waiting.get(marker):
            raise UnrestorableMessageError(
                NO_PATH, f"The message has no {marker}: no sender of a pair has put it here."
            )
    return waiting


def _check_left(
    waiting: Mapping[str, Any], spent_ms: int, created_ms: Callable[[], int | None]
) -> None:
    time_to_live_ms, expiry_ms = waiting.get(TIME_TO_LIVE), waiting.get(EXPIRY)
    if time_to_live_ms is None and expiry_ms is not None:
        created = created_ms()
        time_to_live_ms = expiry_ms - created if created else None
    if time_to_live_ms is not None and time_to_live_ms <= spent_ms:
        ago_ms = spent_ms - time_to_live_ms
        raise UnrestorableMessageError(
            EXPIRED, f"Its time to live ended {ago_ms / 1000:g} s ago, while it was waiting here."
        )


def _text(marker: str, value: object) -> str:
    text = text_of(value)
    if text is None:
        raise _damaged(marker, TEXT, value)
    return text


def _time(marker: str, value: object) -> int:
    milliseconds = time_of(value)
    if milliseconds is None:
        raise _damaged(marker, TIME, value)
    return milliseconds


def _span(marker: str, value: object) -> int:
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _damaged(marker, SPAN, value)
    return int(value)


def _notes(marker: str, value: object) -> dict[str, Any]:
    text = _text(marker, value)
    try:
        notes = json.loads(text)
    except ValueError:
        notes = None
    if not isinstance(notes, dict):
        raise _damaged(marker, NOTES, text)
    return notes


_READERS: Final[dict[str, Callable[[str, object], Any]]] = {
    TEXT: _text,
    TIME: _time,
    SPAN: _span,
    NOTES: _notes,
}


def _damaged(marker: str, expected: str, value: object) -> UnrestorableMessageError:
    return UnrestorableMessageError(
        DAMAGED, f"{marker} must be {expected}, not {type(value).__name__} {value!r:.64}."
    )
