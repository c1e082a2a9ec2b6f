"""The shape of every AMQP type, by its constructor byte (OASIS AMQP 1.0 part 1.6)."""

from struct import Struct
from typing import Final

SIZE_8: Final = 0xF0  # a one-byte size follows, then that many bytes
SIZE_32: Final = 0xF1  # a four-byte size follows, then that many bytes
DESCRIBED: Final = 0xF2  # two values follow
INVALID: Final = 0xFF
NARROW: Final = 0xEF  # masks the bit that tells 32-bit sizes from 8-bit ones


def _width_table() -> bytes:
    widths = bytearray([INVALID] * 256)
    widths[0x00] = DESCRIBED
    for codes, width in (
        ((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
        ((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
        ((0x60, 0x61), 2),
        ((0x70, 0x71, 0x72, 0x73, 0x74), 4),
        ((0x80, 0x81, 0x82, 0x83, 0x84), 8),
        ((0x94, 0x98), 16),
        ((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0), SIZE_8),
        ((0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0), SIZE_32),
    ):
        for code in codes:
            widths[code] = width
    return bytes(widths)


WIDTHS: Final[bytes] = _width_table()

U32: Final = Struct(">I")

# How the fixed-width numbers are packed.
NUMBERS: Final[dict[int, Struct]] = {
    0x50: Struct(">B"),
    0x51: Struct(">b"),
    0x52: Struct(">B"),
    0x53: Struct(">B"),
    0x54: Struct(">b"),
    0x55: Struct(">b"),
    0x60: Struct(">H"),
    0x61: Struct(">h"),
    0x70: Struct(">I"),
    0x71: Struct(">i"),
    0x72: Struct(">f"),
    0x80: Struct(">Q"),
    0x81: Struct(">q"),
    0x82: Struct(">d"),
    0x83: Struct(">q"),
}
