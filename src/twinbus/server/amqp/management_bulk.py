"""Requests about many messages at once: the SDKs' batch delete, and operations of our own.

Ours are named `twinbus:…`, so that no client meets them by accident.  Most of them take the same
selection; docs/reference/management-operations.md has the maps.
"""

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.entities.commands import Command, ListPartitions, PartitionState
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, SCHEDULED, Overlay
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selected,
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
from twinbus.server.amqp.request_fields import (
    Body,
    counted,
    dead_letter_text,
    elements,
    optional_text,
    optional_whole,
    ranges,
    sequence_numbers,
)

if TYPE_CHECKING:
    from twinbus.server.amqp.management import ManagementNode

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


# --- reading --------------------------------------------------------------------------------------


def read_batch_delete(node: "ManagementNode", body: Body) -> Command:
    """As the service documents it: the oldest active messages that nobody has locked."""
    selection = Selection()
    selection.states = [ACTIVE]
    selection.before_ms = optional_whole(body, "enqueued-time-utc", NEVER_MS)
    selection.session_id = optional_text(body, "session-id")
    count = counted(body, _COUNT, 0, DELETE_COUNT_MAX)
    return DeleteMessages(node.entity_id, node.subqueue, selection, count)


def read_browse(node: "ManagementNode", body: Body) -> Command:
    most = PEEK_COUNT_MAX if body.get(_MAXIMUM_BYTES) is None else BROWSE_COUNT_MAX
    count = counted(body, _COUNT, most, most)
    browse = Browse(node.entity_id, node.subqueue, _selection(body), count)
    if body.get(_MAXIMUM_BYTES) is not None:
        browse.maximum_bytes = counted(body, _MAXIMUM_BYTES, BROWSE_BYTES_MAX, BROWSE_BYTES_MAX)
        browse.is_range = True
    return browse


def read_partitions(node: "ManagementNode", body: Body) -> Command:
    _refuse_topic(node)
    return ListPartitions(node.entity_id, node.subqueue)


def read_numbers(node: "ManagementNode", body: Body) -> Command:
    _refuse_topic(node)
    count = counted(body, _COUNT, ALL, ALL)
    return ListNumbers(node.entity_id, node.subqueue, _selection(body), count)


def read_settle(node: "ManagementNode", body: Body) -> Command:
    _refuse_topic(node)
    bounds = ranges(body, "bounds", RANGES_MAX)
    selection = Selection()
    selection.states = [ACTIVE, DEFERRED]
    settle = SettleRanges(node.entity_id, node.subqueue, selection, ALL)
    settle.bounds = bounds
    reason = dead_letter_text(body, "deadletter-reason")
    description = dead_letter_text(body, "deadletter-description")
    if reason is not None:
        settle.overlay = Overlay(reason, description)
    elif description is not None:
        raise ArgumentInvalid("'deadletter-description' needs a 'deadletter-reason'.")
    return settle


def read_purge(node: "ManagementNode", body: Body) -> Command:
    count = counted(body, _COUNT, ALL, ALL)
    return DeleteMessages(node.entity_id, node.subqueue, _selection(body), count)


def read_undefer(node: "ManagementNode", body: Body) -> Command:
    count = counted(body, _COUNT, ALL, ALL)
    undefer = Undefer(node.entity_id, node.subqueue, _selection(body), count)
    if body.get("sequence-numbers") is not None:
        if any(body.get(key) is not None for key in (*_SELECTION, _COUNT)):
            raise ArgumentInvalid("Give either 'sequence-numbers' or a selection, not both.")
        undefer.sequence_numbers = sequence_numbers(body)
    return undefer


def read_resubmit(node: "ManagementNode", body: Body) -> Command:
    if not node.subqueue:
        raise InvalidOperation(
            "Only dead letters can be resubmitted; ask at the dead-letter queue's $management."
        )
    count = counted(body, _COUNT, ALL, ALL)
    return Resubmit(node.entity_id, node.subqueue, _selection(body), count)


def _refuse_topic(node: "ManagementNode") -> None:
    if node.entity.kind == "topic":
        raise InvalidOperation("A topic has no messages of its own; ask at its subscriptions.")


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


# --- writing --------------------------------------------------------------------------------------


def answer_selected(selected: Selected) -> tuple[int, Body]:
    """How many it were, and where to go on if it was not all."""
    if not selected.count:
        return 204, {}
    body: Body = {_COUNT: Int(selected.count)}
    if selected.bounds:
        body["bounds"] = Array(selected.bounds)
    if selected.next_sequence_number:
        body["next-sequence-number"] = selected.next_sequence_number
    return 200, body


def answer_partitions(created_ms: int, states: list[PartitionState]) -> tuple[int, Body]:
    """How far each partition has come; `created_ms` tells an entity from one with its name."""
    entries: list[Body] = [
        {
            "partition": Int(state.partition),
            "is-up": state.is_up,
            "first-sequence-number": state.first,
            "next-sequence-number": state.next,
            _COUNT: state.count,
        }
        for state in states
    ]
    return 200, {"created": Timestamp(created_ms), "partitions": entries}
