"""The sections of a message (OASIS AMQP 1.0 part 3.2): where they begin, end, and what they may be.

Everything here works on raw bytes; nothing is decoded that is not asked for.
"""

from typing import Final

from twinbus.amqp.composites import descriptor_code
from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.encoding import encode_compound
from twinbus.amqp.shapes import SIZE_8, U32, WIDTHS
from twinbus.limits import ELEMENTS_MAX, SECTIONS_MAX

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

# A whole message may have its six single sections besides the body.
_SECTION_COUNT_MAX: Final = SECTIONS_MAX + 6

_LISTS: Final = (0x45, 0xC0, 0xD0)
_MAPS: Final = (0xC1, 0xD1)
_BINARIES: Final = (0xA0, 0xB0)


class Section:
    """One section: what it is, where its value begins, and where it ends."""

    __slots__ = ("code", "end", "start")

    def __init__(self, code: int, start: int, end: int) -> None:
        self.code = code
        self.start = start
        self.end = end


def read_section(data: bytes, at: int) -> Section:
    """The section at `at`, whatever form its descriptor has."""
    end = len(data)
    if data[at] != 0x00:
        raise decode_error("a message section must be a described value")
    descriptor, start = decode_within(data, at + 1, end)
    code = descriptor_code(descriptor)
    if not HEADER <= code <= FOOTER:
        raise decode_error("unknown message section")
    after = skip_within(data, start, end)
    _check_type(code, data[start])
    return Section(code, start, after)


def read_sections(data: bytes) -> list[Section]:
    """All sections in the order they come."""
    sections: list[Section] = []
    at = 0
    while at < len(data):
        if len(sections) >= _SECTION_COUNT_MAX:
            raise decode_error("too many sections")
        section = read_section(data, at)
        sections.append(section)
        at = section.end
    return sections


def _check_type(code: int, constructor: int) -> None:
    if code in (HEADER, PROPERTIES, SEQUENCE):
        fits = constructor in _LISTS
    elif code == DATA:
        fits = constructor in _BINARIES
    elif code == VALUE:
        fits = True
    else:
        fits = constructor in _MAPS
    if not fits:
        raise decode_error(f"section 0x{code:02x} holds a value of the wrong type")


class Entries:
    """The entries of an encoded map or list, found but not decoded."""

    __slots__ = ("count", "start")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        width = WIDTHS[data[at]]
        if width == 0:
            self.start = at + 1
            self.count = 0
        elif width == SIZE_8:
            self.start = at + 3
            self.count = data[at + 2] if at + 2 < end else -1
        else:
            self.start = at + 9
            self.count = U32.unpack_from(data, at + 5)[0] if at + 9 <= end else -1
        if not 0 <= self.count <= min(end - self.start, ELEMENTS_MAX):
            raise decode_error("more elements than bytes")


def entry_name(data: bytes, at: int, end: int) -> bytes:
    """The text of a map key, string or symbol; for any other key its raw bytes."""
    code = data[at]
    if code in (0xA1, 0xA3):
        return data[at + 2 : end]
    if code in (0xB1, 0xB3):
        return data[at + 5 : end]
    return data[at:end]


def map_entries(data: bytes, at: int, end: int) -> list[tuple[bytes, bytes]]:
    """Name and raw bytes (key and value) of each entry of the map that fills at:end."""
    entries = Entries(data, at, end)
    return split_entries(data, entries.start, end, entries.count)


def split_entries(data: bytes, at: int, end: int, count: int) -> list[tuple[bytes, bytes]]:
    """As map_entries, for `count` keys and values without the map's own head."""
    if count & 1:
        raise decode_error("map with half a pair")
    found: list[tuple[bytes, bytes]] = []
    for _ in range(count >> 1):
        middle = skip_within(data, at, end)
        stop = skip_within(data, middle, end)
        found.append((entry_name(data, at, middle), data[at:stop]))
        at = stop
    if at != end:
        raise decode_error("map ends before its size says")
    return found


def encode_map_section(code: int, count: int, entries: bytes) -> bytes:
    """A section whose value is a map of `count` keys and values."""
    return b"\x00\x53" + bytes((code,)) + encode_compound(0xC1, count, entries)
