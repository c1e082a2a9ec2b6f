"""The sections of a message (OASIS AMQP 1.0 part 3.2): where they begin, end, and what they may be.

Everything here works on raw bytes; nothing is decoded that is not asked for.
"""

from typing import Final

from twinbus.amqp.composites import descriptor_code
from twinbus.amqp.decoding import decode_error, decode_within, skip_within
from twinbus.amqp.encoding import encode_compound
from twinbus.amqp.shapes import NARROW, SIZE_8, U32, WIDTHS
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

_LISTS: Final = (0x45, 0xC0, 0xD0)
_MAPS: Final = (0xC1, 0xD1)
_BINARIES: Final = (0xA0, 0xB0)
_WIDE: Final = 0x10  # this bit of a constructor is set where the size has four bytes


def descriptor(code: int) -> bytes:
    """What stands in front of a section's value, in its short form."""
    return bytes((0x00, 0x53, code))


def _usual_constructors() -> bytes:
    usual = bytearray([0xFF] * 256)
    for code in (HEADER, PROPERTIES):
        usual[code] = 0xC0
    for code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER):
        usual[code] = 0xC1
    usual[DATA] = 0xA0
    return bytes(usual)


_USUAL: Final[bytes] = _usual_constructors()  # by section, in the narrow form


def usual_end(data: bytes, at: int) -> int:
    """Where the section at `at` ends, which may be beyond the data; 0 if it has a rare form.

    The usual form is what clients send: a short descriptor, then a list, map or binary.
    """
    left = len(data) - at
    if left < 5 or data[at] or data[at + 1] != 0x53:
        return 0
    constructor = data[at + 3]
    if _USUAL[data[at + 2]] != constructor & NARROW:
        return 0
    if not constructor & _WIDE:
        return at + 5 + data[at + 4]
    if left < 8:
        return 0
    size: int = U32.unpack_from(data, at + 4)[0]
    return at + 8 + size


def binary_start(data: bytes, at: int) -> int:
    """Where the bytes of the binary at `at` begin."""
    return at + (5 if data[at] & _WIDE else 2)


def place_of(code: int) -> int:
    """Where in `Outline.places` a kind of section is."""
    return 2 * (code - HEADER)


class Outline:
    """Where the sections of an encoded message are, in whatever order and form they come.

    `places` has two numbers for each kind of section: where its value begins and where it ends, or
    two zeros.  `body` is the kind of the body's sections, 0 if there are none; a body may have
    several, of which `places` has the first and `more` the others.
    """

    __slots__ = ("_bare_end", "_bare_start", "_is_in_order", "body", "data", "more", "places")

    def __init__(self, data: bytes) -> None:
        self.data = data
        places = [0] * place_of(FOOTER + 1)
        more: list[tuple[int, int]] = []
        bare_start = bare_end = -1
        is_in_order = True
        at = body = previous = 0
        end = len(data)
        while at < end:
            following = usual_end(data, at)
            if following > end:
                raise decode_error("message section longer than the message")
            if following:
                code, start = data[at + 2], at + 3
            else:
                code, start, following = _read_section(data, at)
            if DATA <= code <= VALUE:
                if body not in (0, code):
                    raise decode_error("message with bodies of two kinds")
                body = code
            place = place_of(code)
            if not places[place]:
                places[place], places[place + 1] = start, following
            elif code not in (DATA, SEQUENCE):
                raise decode_error("message section given twice")
            elif len(more) + 1 >= SECTIONS_MAX:
                raise decode_error("too many sections")
            else:
                more.append((start, following))
            if code >= PROPERTIES:
                if bare_end < 0:
                    bare_start = bare_end = at
                if at != bare_end or code < previous or data[at + 1] != 0x53:
                    is_in_order = False
                previous = code
                bare_end = following
            at = following
        self.places = places
        self.body = body
        self.more = more
        self._bare_start = bare_start
        self._bare_end = bare_end
        self._is_in_order = is_in_order

    def borders(self, code: int) -> tuple[int, int]:
        """Where the value of a section begins and ends; zeros if there is none."""
        place = place_of(code)
        return self.places[place], self.places[place + 1]

    def body_borders(self) -> list[tuple[int, int]]:
        """The same for each section of the body."""
        return [self.borders(self.body), *self.more] if self.body else []

    def value(self, code: int) -> bytes:
        """The encoded value of a section; empty if there is none."""
        start, end = self.borders(code)
        return self.data[start:end]

    def decoded(self, code: int) -> object:
        """The value of a section; None if there is none."""
        start, end = self.borders(code)
        return decode_within(self.data, start, end)[0] if start else None

    def bare(self) -> bytes:
        """Properties, application properties, body and footer, in this order and usual form."""
        if self._is_in_order:
            return self.data[max(self._bare_start, 0) : max(self._bare_end, 0)]
        pieces: list[bytes] = []
        for code in range(PROPERTIES, FOOTER + 1):
            if code == self.body:
                for start, end in self.body_borders():
                    pieces += [descriptor(code), self.data[start:end]]
            elif self.places[place_of(code)]:
                pieces += [descriptor(code), self.value(code)]
        return b"".join(pieces)


def _read_section(data: bytes, at: int) -> tuple[int, int, int]:
    """Code, start of the value and end of a section, whatever form its descriptor has."""
    end = len(data)
    if data[at] != 0x00:
        raise decode_error("a message section must be a described value")
    found, start = decode_within(data, at + 1, end)
    code = descriptor_code(found)
    if not HEADER <= code <= FOOTER:
        raise decode_error("unknown message section")
    after = skip_within(data, start, end)
    _check_type(code, data[start])
    return code, start, after


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
    return descriptor(code) + encode_compound(0xC1, count, entries)
