"""Ids for messages that come without one.

Service Bus gives such a message an id, and clients rely on it: the Node SDK cannot settle a message
that has none.  This works on the bare message (properties, application properties, body, footer)
as raw bytes; nothing else in it changes.
"""

from typing import Final

from twinbus.amqp.decoding import skip_within
from twinbus.amqp.shapes import U32
from twinbus.message.sections import PROPERTIES, Entries, descriptor

_PROPERTIES: Final = descriptor(PROPERTIES)
_NO_ID: Final = (b"", b"\x40")  # nothing there, or null
_LIST8: Final = 0xC0
_LIST32: Final = 0xD0
_ID_SIZE: Final = 32
_ONLY_ID: Final = _PROPERTIES + bytes((_LIST8, _ID_SIZE + 3, 1, 0xA1, _ID_SIZE))
# Where the first element stands, behind descriptor, constructor, size and count.
_FIRST_8: Final = 6
_FIRST_32: Final = 12


_HEX: Final = [b"%02x" % number for number in range(256)]


class MessageIds:
    """Makes ids that nobody else makes: a prefix of one's own, and a count; 32 digits in all."""

    __slots__ = ("_count", "_prefix", "_start")

    def __init__(self, prefix: int) -> None:
        self._prefix = prefix  # 64 random bits
        self._count = 0
        self._start = b""  # all but the last two digits, which change 256 times before it does
        self._renew()

    def _renew(self) -> None:
        self._start = b"%016x%014x" % (self._prefix, self._count >> 8)

    def next(self) -> bytes:
        self._count += 1
        low = self._count & 0xFF
        if low == 0:
            self._renew()
        return self._start + _HEX[low]


def has_message_id(bare: bytes) -> bool:
    """Does the message begin with properties that begin with an id?"""
    if not bare.startswith(_PROPERTIES):
        return False
    code = bare[3]
    if code == _LIST8:
        return bare[5:6] not in (b"", b"\0") and bare[_FIRST_8 : _FIRST_8 + 1] not in _NO_ID
    if code == _LIST32:
        return bare[8:12] != b"\0\0\0\0" and bare[_FIRST_32 : _FIRST_32 + 1] not in _NO_ID
    return False


def only_message_id(message_id: bytes) -> bytes:
    """Properties that hold nothing but this id, to go in front of a message without properties."""
    size = len(message_id)
    if size == _ID_SIZE:
        return _ONLY_ID + message_id
    return _PROPERTIES + bytes((_LIST8, size + 3, 1, 0xA1, size)) + message_id


def with_message_id(bare: bytes, message_id: bytes) -> bytes:
    """`bare` with this id (ASCII, at most 252 characters) as its message id."""
    if not bare.startswith(_PROPERTIES):
        return only_message_id(message_id) + bare
    elements = bytes((0xA1, len(message_id))) + message_id
    count = 1
    end = skip_within(bare, 0, len(bare))
    entries = Entries(bare, len(_PROPERTIES), end)
    if entries.count:
        count = entries.count
        elements += bare[skip_within(bare, entries.start, end) : end]
    head = _PROPERTIES + bytes((_LIST32,)) + U32.pack(len(elements) + 4) + U32.pack(count)
    return head + elements + bare[end:]
