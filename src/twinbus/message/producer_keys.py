"""Producer keys: the number that a producer gives a message, so that a copy of it is recognized.

On the wire a key is a delivery annotation, "<producer>/<number>".  Producers put it last, alone in
its section.  A producer whose name ends with "@<partition>" has chosen that partition for its
messages without a session id or partition key.

A number with a zero in front asks (`ProducerKey.is_asking`).  It is the same number, also to a
server that has never heard of asking.
"""

from typing import Final

from twinbus.amqp.decoding import decode_within, skip_within
from twinbus.amqp.encoding import encode_string, encode_symbol
from twinbus.entities.message import ProducerKey
from twinbus.errors import ArgumentInvalid
from twinbus.limits import PRODUCER_KEY_CHARS_MAX
from twinbus.message import wire_names
from twinbus.message.sections import (
    DELIVERY_ANNOTATIONS,
    descriptor,
    encode_map_section,
    map_entries,
)

NUMBER_DIGITS_MAX: Final = 18  # more would not fit into 63 bits
_ZERO: Final = ord("0")

_START: Final = descriptor(DELIVERY_ANNOTATIONS)
_NAME: Final = encode_symbol(wire_names.PRODUCER_KEY)
# A map that holds nothing but a key, up to the key itself, by the key's length.
_LONE_HEADS: Final = [
    bytes((0xC1, 1 + len(_NAME) + 2 + size, 2)) + _NAME + bytes((0xA1, size))
    for size in range(PRODUCER_KEY_CHARS_MAX + 1)
]
_LONE_HEAD_BYTES: Final = len(_LONE_HEADS[0])


def key_section(key: str) -> bytes:
    """The section that carries a key."""
    raw = key.encode()
    size = len(raw)
    if size > PRODUCER_KEY_CHARS_MAX:  # beyond ASCII; any other key fits into a short map
        return encode_map_section(DELIVERY_ANNOTATIONS, 2, _NAME + encode_string(key))
    return b"".join([_START, _LONE_HEADS[size], raw])


def lone_key(data: bytes, at: int) -> bytes:
    """The key in the map that reaches from `at` to the end; empty if there is anything else."""
    size = len(data) - at - _LONE_HEAD_BYTES
    if 0 < size <= PRODUCER_KEY_CHARS_MAX and data.startswith(_LONE_HEADS[size], at):
        return data[at + _LONE_HEAD_BYTES :]
    return b""


def find_producer_key(annotations: bytes) -> ProducerKey | None:
    """The key among these delivery annotations, an encoded map."""
    lone = lone_key(annotations, 0)
    if lone.isascii() and lone:
        return read_producer_key(lone.decode())
    name = wire_names.PRODUCER_KEY.encode()
    if name in annotations:
        for found, entry in map_entries(annotations, 0, len(annotations)):
            if found == name:
                key, _ = decode_within(entry, skip_within(entry, 0, len(entry)), len(entry))
                return None if key is None else read_producer_key(key)
    return None


def read_producer_key(key: object) -> ProducerKey:
    """What the annotation says; ArgumentInvalid if that is not a key."""
    fault = key_fault(key)
    if fault or not isinstance(key, str):
        raise ArgumentInvalid(f"The producer key {fault}.")
    producer, _, digits = key.rpartition("/")
    return ProducerKey(producer, int(digits), is_asking=digits[0] == "0")


def key_fault(key: object) -> str:
    """What is wrong with a key, in words that follow "The producer key"; empty if nothing is."""
    if not isinstance(key, str):
        return "must be a text: '<producer>/<number>'"
    if len(key) > PRODUCER_KEY_CHARS_MAX:
        return f"has {len(key)} characters; {PRODUCER_KEY_CHARS_MAX} are allowed"
    producer, _, digits = key.rpartition("/")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= NUMBER_DIGITS_MAX
    if not producer or not is_number or int(digits) == 0:
        return f"'{key[:64]}' is not of the form '<producer>/<number>' with a number from 1 on"
    return ""


class KeysOfLink:
    """Reads the keys of one link, whose messages mostly have the same producer."""

    __slots__ = ("_producer", "_start")

    def __init__(self) -> None:
        self._producer = ""  # of the last message
        self._start = b""  # how that producer's keys begin, with the slash

    def read(self, key: bytes) -> ProducerKey:
        """An ASCII key; ArgumentInvalid if it is none.  Often only the number has to be read."""
        start = self._start
        if start and key.startswith(start) and len(key) <= PRODUCER_KEY_CHARS_MAX:
            digits = key[len(start) :]
            if digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX:
                number = int(digits)
                if number:
                    return ProducerKey(self._producer, number, False, digits[0] == _ZERO)
        producer_key = read_producer_key(key.decode())
        self._producer = producer_key.producer
        self._start = producer_key.producer.encode() + b"/"
        return producer_key
