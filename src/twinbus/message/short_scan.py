"""The short way of a plain message from the wire to its stored form.

Plain is what nearly all senders send: a header or none, then properties, application properties and
data, in this order, each at most once and in its usual form, then perhaps a producer key alone, and
nothing else that anybody has to look into.  Everything else goes the long way (`new_message`),
which also says what is wrong with a message.  Both ways store the same bytes
(tests/property/test_plain_sends.py); only the short one makes nothing in between.
"""

from typing import Final

from twinbus.amqp.shapes import U32
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.limits import PING_SIZE_BYTES_MAX, PROPERTY_SIZE_BYTES_MAX
from twinbus.message import wire_names
from twinbus.message.limits import IDS_CHARS_MAX
from twinbus.message.message_id import MessageIds, only_message_id
from twinbus.message.producer_keys import KeysOfLink, lone_key
from twinbus.message.scan import scan
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    PROPERTIES,
    descriptor,
)

PING_BYTES: Final = wire_names.PING_TYPE.encode()
_LIST8: Final = 0xC0
_NULL: Final = 0x40
_TIMESTAMP: Final = 0x83
_HEADER_START: Final = descriptor(HEADER) + bytes((_LIST8,))
_HEADER_START_BYTES: Final = 5  # with its size
_PROPERTIES: Final = descriptor(PROPERTIES)
_KEYED: Final = descriptor(DELIVERY_ANNOTATIONS)
# The sections of a plain message in their order: how they begin, and the type of their value.
_PLAIN: Final = (
    (_PROPERTIES, _LIST8),
    (descriptor(APPLICATION_PROPERTIES), 0xC1),
    (descriptor(DATA), 0xA0),
)
_WIDE: Final = 0x10  # this bit of a constructor is set where the size has four bytes
_SECTION_BYTES_MIN: Final = 8  # a smaller one is not worth a short way
_HEADS_MAX: Final = 64  # of one link: senders have one or two

_Head = tuple[bytes, int]  # the head of the stored form, and the time to live


class PlainSends:
    """The short way of one link."""

    __slots__ = ("_heads", "_ids", "_keys", "_ttl_ms_max")

    def __init__(self, ids: MessageIds, ttl_ms_max: int) -> None:
        self._ids = ids
        self._ttl_ms_max = ttl_ms_max  # of the entity
        self._heads: dict[bytes, _Head] = {}  # by the bytes of the header section
        self._keys = KeysOfLink()

    def limit(self, ttl_ms_max: int) -> None:
        """The entity's description may have changed."""
        if ttl_ms_max != self._ttl_ms_max:
            self._ttl_ms_max = ttl_ms_max
            self._heads.clear()

    def take(self, data: bytes) -> NewMessage | None:
        """The message as the broker takes it; None: it has to go the long way."""
        end = len(data)
        if end <= PING_SIZE_BYTES_MAX:
            if end < _SECTION_BYTES_MIN or PING_BYTES in data:
                return None
        elif end > PROPERTY_SIZE_BYTES_MAX:
            return None
        start = _HEADER_START_BYTES + data[4] if data[2] == HEADER else 0
        header = data[:start]
        head = self._heads.get(header)
        if head is None:
            if header and not header.startswith(_HEADER_START):
                return None
            head = self._learn(header)
        at = start
        for mark, constructor in _PLAIN:
            if end - at < _SECTION_BYTES_MIN or not data.startswith(mark, at):
                continue
            following = at + 5 + data[at + 4]
            if data[at + 3] == constructor | _WIDE:
                size: int = U32.unpack_from(data, at + 4)[0]
                following = at + 8 + size
            elif data[at + 3] != constructor:
                return None
            if mark is _PROPERTIES and (
                data[at + 3] != _LIST8
                or data[at + 4] > IDS_CHARS_MAX  # an id in it may be too long
                or data[at + 5] == 0
                or data[at + 6] == _NULL  # it has no id
                or data.find(_TIMESTAMP, at, following) >= 0  # it may say when it expires
            ):
                return None
            at = following
        if at == start or at > end:
            return None
        if at < end:
            return self._numbered(data, start, at, head)
        return self._message(data, start, end, head)

    def _message(self, data: bytes, start: int, end: int, head: _Head) -> NewMessage:
        if data[start + 2] == PROPERTIES:
            return NewMessage(head[0] + data[start:end], head[1])
        return NewMessage(head[0] + only_message_id(self._ids.next()) + data[start:end], head[1])

    def _numbered(self, data: bytes, start: int, at: int, head: _Head) -> NewMessage | None:
        """The bare message ends at `at`, and a key follows as producers write it."""
        key = lone_key(data, at + len(_KEYED)) if data.startswith(_KEYED, at) else b""
        if not key or not key.isascii():
            return None
        producer_key = self._keys.read(key)
        message = self._message(data, start, at, head)
        message.producer_key = producer_key
        return message

    def _learn(self, header: bytes) -> _Head:
        """What becomes of a header, as the long way does it."""
        scanned = scan(header)
        if self._ttl_ms_max != NEVER_MS and not 0 <= scanned.ttl_ms <= self._ttl_ms_max:
            scanned.ttl_ms = self._ttl_ms_max
        head = (scanned.stored(), scanned.ttl_ms if scanned.ttl_ms >= 0 else NEVER_MS)
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        self._heads[header] = head
        return head
