"""A message that somebody sends: what the broker must know of it is read, and the rest stored."""

from typing import Final

from twinbus.entities.message import NEVER_MS, NewMessage, ProducerKey
from twinbus.errors import ArgumentOutOfRange
from twinbus.limits import PING_SIZE_BYTES_MAX, PROPERTY_SIZE_BYTES_MAX, SCHEDULED_MS_MAX
from twinbus.message import wire_names
from twinbus.message.limits import (
    IDS_CHARS_MAX,
    check_ids,
    check_partition_key,
    check_properties_size,
)
from twinbus.message.message_id import MessageIds, has_message_id, only_message_id, with_message_id
from twinbus.message.producer_keys import find_producer_key
from twinbus.message.scan import Scanned, scan
from twinbus.message.short_scan import PING_BYTES

_LIST8: Final = 0xC0
_PING: Final = ProducerKey("", 0, True)


def new_message(
    data: bytes, ids: MessageIds, ttl_ms_max: int, needs_keys: bool = False
) -> NewMessage:
    """An encoded message as the broker takes it; RemoteProtocolError or ServiceError if not.

    `needs_keys` is the entity's: then message id, session id and partition key are read too.
    """
    scanned = scan(data)
    if ttl_ms_max != NEVER_MS and not 0 <= scanned.ttl_ms <= ttl_ms_max:
        scanned.ttl_ms = ttl_ms_max  # receivers are to see the time that it really has
    new_id = b""
    if scanned.properties_at < 0:
        new_id = ids.next()
        stored = scanned.stored(only_message_id(new_id))
    else:
        bare = scanned.bare
        # Where all properties together are shorter than the limit, no id is longer.
        if bare[3] != _LIST8 or bare[4] > IDS_CHARS_MAX:
            check_ids(scanned)
        if not has_message_id(bare):
            new_id = ids.next()
            scanned.bare = with_message_id(bare, new_id)
        stored = scanned.stored()
    message = NewMessage(stored)
    if scanned.ttl_ms >= 0:
        message.time_to_live_ms = scanned.ttl_ms
    if scanned.annotation_count:
        _read_annotations(scanned, message)
    if needs_keys:
        message.message_id = new_id.decode() or _id_text(scanned.message_id())
        message.session_id = scanned.group_id()
    if scanned.delivery_annotations:
        message.producer_key = find_producer_key(scanned.delivery_annotations)
    if len(data) <= PING_SIZE_BYTES_MAX:
        if PING_BYTES in data and scanned.content_type() == wire_names.PING_TYPE:
            message.producer_key = _PING
    elif len(data) > PROPERTY_SIZE_BYTES_MAX:
        check_properties_size(scanned)
    return message


def _read_annotations(scanned: Scanned, message: NewMessage) -> None:
    scheduled = scanned.annotation(wire_names.SCHEDULED_TIME)
    if isinstance(scheduled, int):
        if scheduled > SCHEDULED_MS_MAX:
            raise ArgumentOutOfRange("The scheduled enqueue time is later than the year 9999.")
        message.scheduled_ms = max(0, int(scheduled))
    partition_key = scanned.annotation(wire_names.PARTITION_KEY)
    if isinstance(partition_key, str):
        check_partition_key(scanned, partition_key)
        message.partition_key = str(partition_key)


def _id_text(message_id: object) -> str:
    """A message id as text; it may also be a uuid, a number or binary."""
    return message_id.hex() if isinstance(message_id, bytes) else str(message_id)
