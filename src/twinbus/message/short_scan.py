"""The short way of a plain message from the wire to its stored form.

Plain is what nearly all senders send: a header or none, then properties, application properties and
data, in this order, each at most once and in its usual form, then perhaps a producer key alone, and
nothing else that anybody has to look into.  Everything else goes the long way (`new_message`),
which also says what is wrong with a message.  Both ways store the same bytes; only the short one
makes nothing in between.
"""

from typing import Final

from twinbus.amqp.encoding import encode_symbol
from twinbus.amqp.shapes import NARROW, U32
from twinbus.entities.message import NEVER_MS, NewMessage, ProducerKey
from twinbus.limits import PING_SIZE_BYTES_MAX, PRODUCER_KEY_CHARS_MAX, PROPERTY_SIZE_BYTES_MAX
from twinbus.message import wire_names
from twinbus.message.limits import IDS_CHARS_MAX
from twinbus.message.message_id import MessageIds, only_message_id
from twinbus.message.producer_keys import NUMBER_DIGITS_MAX, read_producer_key
from twinbus.message.scan import KINDS, WIDE, scan
from twinbus.message.sections import DATA, DELIVERY_ANNOTATIONS, HEADER, PROPERTIES

PING_BYTES: Final = wire_names.PING_TYPE.encode()
_LIST8: Final = 0xC0
_NULL: Final = 0x40
_TIMESTAMP: Final = 0x83
_SECTION_BYTES_MIN: Final = 8  # of those that are looked at here
_HEADER_START: Final = bytes((0x00, 0x53, HEADER, _LIST8))
# Descriptor and constructor, size, count, name, constructor of the key, its size; then the key.
_KEY_START: Final = bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xC1))
_KEY_NAME: Final = b"\x02" + encode_symbol(wire_names.PRODUCER_KEY) + b"\xa1"
_NAME_AT: Final = 5
_KEY_AT: Final = _NAME_AT + len(_KEY_NAME) + 1
_HEADS_MAX: Final = 64  # of one link: senders have one or two

_Head = tuple[bytes, int]  # the head of the stored form, and the time to live


class PlainSends:
    """The short way of one link."""

    __slots__ = ("_heads", "_ids", "_producer", "_producer_start", "_ttl_ms_max")

    def __init__(self, ids: MessageIds, ttl_ms_max: int) -> None:
        self._ids = ids
        self._ttl_ms_max = ttl_ms_max  # of the entity
        self._heads: dict[bytes, _Head] = {}  # by the bytes of the header section
        self._producer = ""  # who has numbered the last message; mostly the next one, too
        self._producer_start = b""  # how its keys begin, with the slash

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
        start = 5 + data[4] if data[2] == HEADER else 0
        header = data[:start]
        head = self._heads.get(header)
        if head is None:
            if header and not header.startswith(_HEADER_START):
                return None
            head = self._learn(header)
        at = start
        previous = HEADER
        while end - at >= _SECTION_BYTES_MIN:
            section = data[at + 2]
            code = data[at + 3]
            if section == DELIVERY_ANNOTATIONS and previous == DATA:
                return self._numbered(data, start, at, head)
            if data[at] or data[at + 1] != 0x53 or not previous < section <= DATA:
                return None
            if section < PROPERTIES or KINDS[section] != code & NARROW:
                return None
            if code & WIDE:
                size: int = U32.unpack_from(data, at + 4)[0]
                following = at + 8 + size
            else:
                following = at + 5 + data[at + 4]
            if section == PROPERTIES and (
                code != _LIST8
                or data[at + 4] > IDS_CHARS_MAX  # an id in it may be too long
                or data[at + 5] == 0
                or data[at + 6] == _NULL  # it has no id
                or data.find(_TIMESTAMP, at, following) >= 0  # it may say when it expires
            ):
                return None
            previous = section
            at = following
        if at != end or previous == HEADER:
            return None
        return self._message(data, start, end, head)

    def _message(self, data: bytes, start: int, end: int, head: _Head) -> NewMessage:
        if data[start + 2] == PROPERTIES:
            return NewMessage(head[0] + data[start:end], head[1])
        return NewMessage(head[0] + only_message_id(self._ids.next()) + data[start:end], head[1])

    def _numbered(self, data: bytes, start: int, at: int, head: _Head) -> NewMessage | None:
        """The bare message ends at `at`, and a key follows as producers write it."""
        key_at = at + _KEY_AT
        if (
            not data.startswith(_KEY_START, at)
            or len(data) <= key_at
            or not data.startswith(_KEY_NAME, at + _NAME_AT)
            or key_at + data[key_at - 1] != len(data)
            or data[at + 4] != len(data) - at - 5
        ):
            return None
        key = data[key_at:]
        if not key.isascii():
            return None
        producer_key = self._next_of_the_same(key) or self._of_another(key)
        message = self._message(data, start, at, head)
        message.producer_key = producer_key
        return message

    def _next_of_the_same(self, key: bytes) -> ProducerKey | None:
        """The name is known then, and its hash: only the number has to be read."""
        beginning = self._producer_start
        if not beginning or not key.startswith(beginning) or len(key) > PRODUCER_KEY_CHARS_MAX:
            return None
        digits = key[len(beginning) :]
        if not digits.isdigit() or len(digits) > NUMBER_DIGITS_MAX:
            return None
        number = int(digits)
        return ProducerKey(self._producer, number) if number else None

    def _of_another(self, key: bytes) -> ProducerKey:
        producer_key = read_producer_key(key.decode())
        self._producer = producer_key.producer
        self._producer_start = producer_key.producer.encode() + b"/"
        return producer_key

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
