"""Reads the map of an answer and cuts its messages out in place.

An answer may hold thousands of messages: binaries in a list, or maps {`message`: binary}.  Decoding
them value by value would cost more than everything else in the client.  So this recognizes the
usual forms of an element by their first bytes and takes the message as one slice; any other form
goes through the codec.
"""

from typing import Final

from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.shapes import U32
from twinbus.message.sections import Entries, entry_name

_LISTS: Final = (0x45, 0xC0, 0xD0)
_MAPS: Final = (0xC1, 0xD1)
# A map as it is mostly written, large and small: one pair, its key, and the code of a binary.  What
# lies between the map's code and its count is its size, which is not needed.
_KEY_LARGE: Final = b"\x00\x00\x00\x02\xa1\x07message\xb0"
_HEAD_BYTES_MAX: Final = 23
_KEY_SMALL: Final = b"\x02\xa1\x07message\xa0"


def read_map(
    data: bytes, at: int, end: int, apart: bool = False
) -> tuple[dict[str, object], list[bytes]]:
    """The map in at:end by its names, empty if there is none; `messages` beside it if `apart`."""
    read: dict[str, object] = {}
    messages: list[bytes] = []
    if at >= end or data[at] not in _MAPS:
        return read, messages
    entries = Entries(data, at, end)
    at = entries.start
    for _ in range(entries.count >> 1):
        middle = skip_within(data, at, end)
        stop = skip_within(data, middle, end)
        name = entry_name(data, at, middle).decode("utf-8", "replace")
        if apart and name == "messages" and data[middle] in _LISTS:
            messages = _cut_messages(data, middle, stop)
        else:
            read[name], _ = decode_within(data, middle, stop)
        at = stop
    return read, messages


def _cut_messages(data: bytes, at: int, end: int) -> list[bytes]:
    """The messages of a list of maps."""
    entries = Entries(data, at, end)
    at = entries.start
    messages: list[bytes] = []
    size_at = U32.unpack_from
    for _ in range(entries.count):
        # The head of an element is read without a look at the end: near it, the long way is taken.
        code = data[at] if end - at > _HEAD_BYTES_MAX else 0
        if code == 0xB0:
            start = at + 5
            at = start + size_at(data, at + 1)[0]
            message = data[start:at]
        elif code == 0xD1 and data[at + 5 : at + 19] == _KEY_LARGE:
            start = at + 23
            at = start + size_at(data, at + 19)[0]
            message = data[start:at]
        elif code == 0xC1 and data[at + 2 : at + 13] == _KEY_SMALL:
            start = at + 14
            at = start + data[at + 13]
            message = data[start:at]
        else:
            stop = skip_within(data, at, end)
            message = _message_of(data, at, stop)
            at = stop
        if at > end:
            raise decode_error("message longer than the list that holds it")
        messages.append(message)
    return messages


def _message_of(data: bytes, at: int, end: int) -> bytes:
    element, _ = decode_within(data, at, end)
    message = element.get("message") if isinstance(element, dict) else element
    if not isinstance(message, bytes):
        raise decode_error("an answer's messages without their bytes")
    return message
