"""Requests about many messages at once: the SDKs' batch delete, and operations of our own.

Ours are named `twinbus:…`, so that no client meets them by accident.  Most of them take the same
selection; docs/reference/management-operations.md has the maps.
"""

from typing import Final

from twinbus.entities.commands import Command, ListPartitions
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, Overlay
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selection,
    SettleRanges,
    Undefer,
)
from twinbus.errors import ArgumentInvalid, InvalidOperation
from twinbus.limits import (
    BROWSE_BYTES_MAX,
    BROWSE_COUNT_MAX,
    DELETE_COUNT_MAX,
    PEEK_COUNT_MAX,
    RANGES_MAX,
)
from twinbus.server.amqp.management.entity import ManagedEntity
from twinbus.server.amqp.management.fields import (
    Body,
    counted,
    dead_letter_text,
    elements,
    optional_text,
    optional_whole,
    ranges,
    sequence_numbers,
)

# More than any entity holds, and still an AMQP int, as the count of the answer is.
ALL: Final = (1 << 31) - 1

_COUNT: Final = "message-count"
_MAXIMUM_BYTES: Final = "maximum-bytes"
_SELECTION: Final = (
    "states",
    "filter",
    "session-id",
    "enqueued-time-utc",
    "from-sequence-number",
    "to-sequence-number",
)
_STATES: Final = {"active": ACTIVE, "deferred": DEFERRED, "scheduled": SCHEDULED}


def read_batch_delete(managed: ManagedEntity, body: Body) -> Command:
    """As the service documents it: the oldest active messages that nobody has locked."""
    selection = Selection()
    selection.states = [ACTIVE]
    selection.before_ms = optional_whole(body, "enqueued-time-utc", NEVER_MS)
    selection.session_id = optional_text(body, "session-id")
    count = counted(body, _COUNT, 0, DELETE_COUNT_MAX)
    return DeleteMessages(managed.entity_id, managed.subqueue, selection, count)


def read_browse(managed: ManagedEntity, body: Body) -> Command:
    most = PEEK_COUNT_MAX if body.get(_MAXIMUM_BYTES) is None else BROWSE_COUNT_MAX
    count = counted(body, _COUNT, most, most)
    browse = Browse(managed.entity_id, managed.subqueue, _selection(body), count)
    if body.get(_MAXIMUM_BYTES) is not None:
        browse.maximum_bytes = counted(body, _MAXIMUM_BYTES, BROWSE_BYTES_MAX, BROWSE_BYTES_MAX)
        browse.is_range = True
    return browse


def read_partitions(managed: ManagedEntity, body: Body) -> Command:
    managed.refuse_topic()
    return ListPartitions(managed.entity_id, managed.subqueue)


def read_numbers(managed: ManagedEntity, body: Body) -> Command:
    managed.refuse_topic()
    count = counted(body, _COUNT, ALL, ALL)
    return ListNumbers(managed.entity_id, managed.subqueue, _selection(body), count)


def read_settle(managed: ManagedEntity, body: Body) -> Command:
    managed.refuse_topic()
    bounds = ranges(body, "bounds", RANGES_MAX)
    selection = Selection()
    selection.states = [ACTIVE, DEFERRED]
    settle = SettleRanges(managed.entity_id, managed.subqueue, selection, ALL)
    settle.bounds = bounds
    reason = dead_letter_text(body, "deadletter-reason")
    description = dead_letter_text(body, "deadletter-description")
    if reason is not None:
        settle.overlay = Overlay(reason, description)
    elif description is not None:
        raise ArgumentInvalid("'deadletter-description' needs a 'deadletter-reason'.")
    return settle


def read_purge(managed: ManagedEntity, body: Body) -> Command:
    count = counted(body, _COUNT, ALL, ALL)
    return DeleteMessages(managed.entity_id, managed.subqueue, _selection(body), count)


def read_undefer(managed: ManagedEntity, body: Body) -> Command:
    count = counted(body, _COUNT, ALL, ALL)
    undefer = Undefer(managed.entity_id, managed.subqueue, _selection(body), count)
    if body.get("sequence-numbers") is not None:
        if any(body.get(key) is not None for key in (*_SELECTION, _COUNT)):
            raise ArgumentInvalid("Give either 'sequence-numbers' or a selection, not both.")
        undefer.sequence_numbers = sequence_numbers(body)
    return undefer


def read_resubmit(managed: ManagedEntity, body: Body) -> Command:
    if not managed.subqueue:
        raise InvalidOperation(
            "Only dead letters can be resubmitted; ask at the dead-letter queue's $management."
        )
    count = counted(body, _COUNT, ALL, ALL)
    return Resubmit(managed.entity_id, managed.subqueue, _selection(body), count)


def _selection(body: Body) -> Selection:
    selection = Selection()
    selection.from_sequence_number = optional_whole(body, "from-sequence-number", 0)
    selection.to_sequence_number = optional_whole(body, "to-sequence-number", NUMBERS_END)
    selection.before_ms = optional_whole(body, "enqueued-time-utc", NEVER_MS)
    selection.session_id = optional_text(body, "session-id")
    selection.expression = optional_text(body, "filter") or ""
    if body.get("states") is not None:
        selection.states = [_state(value) for value in elements(body, "states")]
    return selection


def _state(value: object) -> int:
    state = _STATES.get(value) if isinstance(value, str) else None
    if state is None:
        raise ArgumentInvalid("'states' must hold some of " + ", ".join(_STATES) + ".")
    return state
