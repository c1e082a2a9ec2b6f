"""Entries of a journal: a message with the address it was sent to, as bytes.

An entry is the body of a message in a journal's queue; all numbers are little-endian.

    ENTRY    | version:B | present:B | name_length:H | id_length:H | session_length:H |
             | key_length:H | created_ms:q | accepted_ms:q | time_to_live_ms:q |
             | name | message id | session id | partition key | body, to the end |

    NUMBERED in version 2, between that head and the texts: the message is numbered by its producer
             | number:q | producer_length:H |           and the producer is the last of the texts

`name` is that of the entity in its store, with namespace and partition, and `created_ms` tells it
from one that is made anew under the same name.  `present` says which of
message id, session id and partition key there are (bits 0 to 2): an empty one is not none.  Texts
are UTF-8.  There is no checksum, because the log that holds the entry has one.
"""

import struct
from dataclasses import dataclass
from typing import Final

from twinbus.entities.message import NewMessage, ProducerKey

ENTRY: Final = struct.Struct("<BBHHHHqqq")
NUMBERED: Final = struct.Struct("<qH")
VERSION: Final = 1
VERSION_NUMBERED: Final = 2


@dataclass(slots=True)
class Entry:
    """One message on its way to a store that is not well."""

    name: str
    created_ms: int  # UTC; of the entity
    accepted_ms: int  # UTC; its life began then
    time_to_live_ms: int
    keys: tuple[str | None, str | None, str | None]  # message id, session id, partition key
    body: bytes
    producer_key: ProducerKey | None


def encode_entry(name: str, created_ms: int, accepted_ms: int, message: NewMessage) -> bytes:
    """A message as the journal keeps it."""
    keys = (message.message_id, message.session_id, message.partition_key)
    present = 0
    texts = [name.encode()]
    for bit, key in enumerate(keys):
        texts.append(b"" if key is None else key.encode())
        if key is not None:
            present |= 1 << bit
    lengths = [len(text) for text in texts]
    times = (created_ms, accepted_ms, message.time_to_live_ms)
    producer_key = message.producer_key
    if producer_key is None:
        head = ENTRY.pack(VERSION, present, *lengths, *times)
    else:
        producer = producer_key.producer.encode()
        texts.append(producer)
        head = ENTRY.pack(VERSION_NUMBERED, present, *lengths, *times)
        head += NUMBERED.pack(producer_key.number, len(producer))
    return b"".join([head, *texts, message.body])


def decode_entry(data: bytes) -> Entry:
    """The way back.  ValueError if no journal has written this."""
    if len(data) < ENTRY.size or data[0] not in (VERSION, VERSION_NUMBERED):
        raise ValueError("not an entry of a journal")
    version, present, *lengths, created_ms, accepted_ms, time_to_live_ms = ENTRY.unpack_from(data)
    at = ENTRY.size
    number = 0
    if version == VERSION_NUMBERED:
        if at + NUMBERED.size > len(data):
            raise ValueError("an entry of a journal that is cut short")
        number, length = NUMBERED.unpack_from(data, at)
        lengths.append(length)
        at += NUMBERED.size
    if at + sum(lengths) > len(data):
        raise ValueError("an entry of a journal that is cut short")
    texts: list[str] = []
    for length in lengths:
        texts.append(data[at : at + length].decode())
        at += length
    message_id, session_id, partition_key = (
        text if present >> bit & 1 else None for bit, text in enumerate(texts[1:4])
    )
    keys = (message_id, session_id, partition_key)
    producer_key = ProducerKey(texts[4], number) if version == VERSION_NUMBERED else None
    return Entry(texts[0], created_ms, accepted_ms, time_to_live_ms, keys, data[at:], producer_key)
