"""Requests about messages and sessions, as the SDKs send them: maps that become commands."""

from typing import Final

from twinbus.entities import commands
from twinbus.entities.commands import Command
from twinbus.entities.message import NewMessage, Overlay
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    RemoteProtocolError,
)
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.message.incoming import new_message
from twinbus.server.amqp.management.entity import ManagedEntity
from twinbus.server.amqp.management.fields import (
    Body,
    dead_letter_text,
    flag,
    lock_tokens,
    optional_text,
    required_text,
    sequence_numbers,
    whole,
)
from twinbus.server.amqp.settlement import encode_changes, read_delay

_DISPOSITIONS: Final = {
    "completed": commands.COMPLETE,
    "abandoned": commands.ABANDON,
    "defered": commands.DEFER,  # sic, on the wire
    "suspended": commands.DEAD_LETTER,
}


def read_peek(managed: ManagedEntity, body: Body) -> Command:
    from_number = whole(body, "from-sequence-number")
    count = whole(body, "message-count")
    if count < 0:
        raise ArgumentOutOfRange("message-count must not be negative.")
    peek = commands.Peek(managed.entity_id, managed.subqueue, max(0, from_number), count)
    peek.session_id = _session_id(managed, body)
    omits_body(body)  # a matter of the answer, but a wrong type is refused before
    return peek


def omits_body(body: Body) -> bool:
    """Whether the client of a peek does without the bodies."""
    return flag(body, "omit-message-body")


def read_receive_deferred(managed: ManagedEntity, body: Body) -> Command:
    numbers = sequence_numbers(body)
    mode = whole(body, "receiver-settle-mode")
    if mode not in (0, 1):
        raise ArgumentOutOfRange("receiver-settle-mode is 0 (receive and delete) or 1 (peek-lock).")
    receive_mode = commands.PEEK_LOCK if mode == 1 else commands.RECEIVE_AND_DELETE
    receive = commands.ReceiveDeferred(managed.entity_id, managed.subqueue, numbers, receive_mode)
    receive.session_id = _session_id(managed, body)
    if receive.session_id is not None:
        receive.session_grant = managed.session_grant(receive.session_id)
    return receive


def read_update_disposition(managed: ManagedEntity, body: Body) -> Command:
    status = body.get("disposition-status")
    outcome = _DISPOSITIONS.get(status) if isinstance(status, str) else None
    if outcome is None:
        raise ArgumentInvalid("disposition-status must be one of " + ", ".join(_DISPOSITIONS))
    settle = commands.Settle(managed.entity_id, managed.subqueue, lock_tokens(body), outcome)
    changes = body.get("properties-to-modify")
    if outcome != commands.COMPLETE:
        properties = None
        if isinstance(changes, dict) and changes:
            settle.delay_ms = read_delay(changes, outcome)
            properties = encode_changes(changes)
        settle.overlay = Overlay(
            reason=dead_letter_text(body, "deadletter-reason"),
            description=dead_letter_text(body, "deadletter-description"),
            properties=properties,
        )
    _session_id(managed, body)  # which session it is, the locks say
    return settle


def _session_id(managed: ManagedEntity, body: Body) -> str | None:
    """The session that a request is limited to; where there are none, the field means nothing."""
    session_id = optional_text(body, "session-id")
    return session_id if managed.has_sessions else None


def read_renew_lock(managed: ManagedEntity, body: Body) -> Command:
    return commands.RenewLocks(managed.entity_id, managed.subqueue, lock_tokens(body))


def read_schedule(managed: ManagedEntity, body: Body) -> Command:
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise ArgumentInvalid("'messages' must be a list with at least one message.")
    if managed.subqueue:
        raise InvalidOperation("Nothing can be scheduled on a dead-letter queue.")
    return commands.Send(
        managed.entity_id, [_scheduled_message(managed, entry) for entry in entries]
    )


def _scheduled_message(managed: ManagedEntity, entry: object) -> NewMessage:
    encoded = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(encoded, bytes):
        raise ArgumentInvalid("Each of 'messages' needs its encoded 'message' as binary.")
    if len(encoded) > MESSAGE_SIZE_BYTES_MAX:
        raise ArgumentOutOfRange(f"A message has at most {MESSAGE_SIZE_BYTES_MAX} bytes.")
    try:
        message = new_message(
            encoded,
            managed.message_ids,
            managed.entity.description.default_time_to_live_ms,
            managed.entity.needs_keys,
        )
    except RemoteProtocolError as error:
        raise ArgumentInvalid(f"The message cannot be read: {error}") from None
    if not message.scheduled_ms:
        raise ArgumentInvalid("A scheduled message needs x-opt-scheduled-enqueue-time.")
    return message


def read_cancel(managed: ManagedEntity, body: Body) -> Command:
    return commands.CancelScheduled(managed.entity_id, sequence_numbers(body))


def read_renew_session(managed: ManagedEntity, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    return commands.RenewSession(managed.entity_id, session_id, managed.session_grant(session_id))


def read_get_session_state(managed: ManagedEntity, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    return commands.GetSessionState(
        managed.entity_id, session_id, managed.session_grant(session_id)
    )


def read_set_session_state(managed: ManagedEntity, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    state = body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("'session-state' must be binary, or null to clear the state.")
    grant = managed.session_grant(session_id)
    return commands.SetSessionState(managed.entity_id, session_id, grant, state)


def read_list_sessions(managed: ManagedEntity, body: Body) -> Command:
    managed.require_sessions()
    since_ms = whole(body, "last-updated-time")
    skip, top = whole(body, "skip"), whole(body, "top")
    return commands.ListSessions(managed.entity_id, since_ms, skip, top)
