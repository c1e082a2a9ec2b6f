"""Messages, their overlays, and the locks of sessions ⇄ tuples of plain builtins."""

from typing import Any

from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay, ProducerKey
from twinbus.entities.session_locks import SessionLock
from twinbus.links.remote.operations import Operation


def encode_overlay(overlay: Overlay) -> Operation:
    return (
        overlay.reason,
        overlay.description,
        overlay.source,
        overlay.properties,
        overlay.hop_count,
        overlay.enqueued_sequence_number,
    )


def decode_overlay(fields: Operation) -> Overlay:
    return Overlay(fields[0], fields[1], fields[2], fields[3], fields[4], fields[5])


def encode_new_messages(messages: list[NewMessage]) -> list[Any]:
    """One entry each: the body alone where there is nothing else to say."""
    entries: list[Any] = []
    for message in messages:
        if (
            message.time_to_live_ms == NEVER_MS
            and message.scheduled_ms == 0
            and message.message_id is None
            and message.session_id is None
            and message.partition_key is None
            and message.overlay is None
            and message.producer_key is None
        ):
            entries.append(message.body)
            continue
        entries.append(
            (
                message.body,
                message.time_to_live_ms,
                message.scheduled_ms,
                message.message_id,
                message.session_id,
                message.partition_key,
                None if message.overlay is None else encode_overlay(message.overlay),
                None if message.producer_key is None else _encode_key(message.producer_key),
            )
        )
    return entries


def _encode_key(key: ProducerKey) -> Operation:
    return (key.producer, key.number, key.is_ping)


def decode_new_messages(entries: list[Any]) -> list[NewMessage]:
    messages: list[NewMessage] = []
    for entry in entries:
        if isinstance(entry, bytes):
            messages.append(NewMessage(entry))
            continue
        message = NewMessage(entry[0], entry[1], entry[2], entry[3], entry[4], entry[5])
        if entry[6] is not None:
            message.overlay = decode_overlay(entry[6])
        if entry[7] is not None:
            producer, number, is_ping = entry[7]
            message.producer_key = ProducerKey(producer, number, is_ping)
        messages.append(message)
    return messages


def encode_message(message: Message, body: bytes) -> Operation:
    """A message that is handed out.  Where its body lies in the log is of no use elsewhere."""
    return (
        body,
        message.sequence_number,
        message.enqueued_ms,
        message.expires_ms,
        message.delivery_count,
        message.state,
        message.grant,
        message.locked_until_ms,
        message.session_id,
        None if message.overlay is None else encode_overlay(message.overlay),
    )


def decode_message(fields: Operation) -> Message:
    """The message; its body is `fields[0]`."""
    message = Message(fields[1], None, len(fields[0]), fields[2], fields[3], fields[8], fields[5])
    message.delivery_count = fields[4]
    message.grant = fields[6]
    message.locked_until_ms = fields[7]
    if fields[9] is not None:
        message.overlay = decode_overlay(fields[9])
    return message


def encode_lock(lock: SessionLock) -> Operation:
    return (lock.session_id, lock.grant, lock.locked_until_ms, lock.locked_until_utc_ms)


def decode_lock(fields: Operation) -> SessionLock:
    return SessionLock(fields[0], fields[1], fields[2], fields[3])
