"""What was metered, and the line that it is written as.

    {"v":1,"from":"2026-11-16T07:00:00.000Z","to":"2026-11-16T07:00:01.000Z","namespace":"twinbus",
     "entity":"orders","kind":"receive","operations":3,"units":6,"empty":1,"crc":"1b2c3d4e"}

One line, without the break.  `empty` are those of the operations, receives, that brought no
message.  `crc` is CRC-32 of everything in front of it, so that a line which was
torn or damaged is known as such.  Lines only ever add up: which of them belong together is for
whoever reads them to say.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final
from zlib import crc32

VERSION: Final = 1
UNIT_BYTES: Final = 65_536  # each begun one of a message is a unit

SEND: Final = "send"
RECEIVE: Final = "receive"
PING: Final = "ping"
MANAGEMENT: Final = "management"
KINDS: Final = (SEND, RECEIVE, PING, MANAGEMENT)

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CRC: Final = ',"crc":"'


class Metered:
    """So many operations of one kind, at one entity, between two moments."""

    __slots__ = ("empty", "entity", "from_ms", "kind", "namespace", "operations", "to_ms", "units")

    def __init__(
        self,
        from_ms: int,
        to_ms: int,
        namespace: str,
        entity: str,
        kind: str,
        operations: int,
        units: int,
        empty: int = 0,
    ) -> None:
        self.from_ms = from_ms  # UTC
        self.to_ms = to_ms
        self.namespace = namespace
        self.entity = entity  # "" for the namespace itself
        self.kind = kind
        self.operations = operations
        self.units = units
        self.empty = empty

    @property
    def day(self) -> str:
        """The day it began on: 2026-11-16."""
        return iso(self.from_ms)[:10]

    def include(self, other: "Metered") -> None:
        """This was the same, at another time."""
        self.from_ms = min(self.from_ms, other.from_ms)
        self.to_ms = max(self.to_ms, other.to_ms)
        self.operations += other.operations
        self.units += other.units
        self.empty += other.empty

    def copy(self) -> "Metered":
        return Metered(
            self.from_ms,
            self.to_ms,
            self.namespace,
            self.entity,
            self.kind,
            self.operations,
            self.units,
            self.empty,
        )

    def document(self) -> dict[str, object]:
        """As it is written."""
        return {
            "from": iso(self.from_ms),
            "to": iso(self.to_ms),
            "namespace": self.namespace,
            "entity": self.entity,
            "kind": self.kind,
            "operations": self.operations,
            "units": self.units,
            "empty": self.empty,
        }


def read_document(document: object) -> Metered | None:
    """The other way round; None for what is nothing of ours."""
    if not isinstance(document, dict):
        return None
    try:
        from_ms, to_ms = parse_iso(document["from"]), parse_iso(document["to"])
        texts = [document[key] for key in ("namespace", "entity", "kind")]
        numbers = [document[key] for key in ("operations", "units", "empty")]
    except (KeyError, TypeError, ValueError):
        return None
    if not all(isinstance(text, str) for text in texts) or texts[2] not in KINDS:
        return None
    if not all(type(number) is int and number >= 0 for number in numbers):
        return None
    return Metered(from_ms, to_ms, *texts, *numbers)


def encode_line(metered: Metered) -> bytes:
    text = json.dumps({"v": VERSION, **metered.document()}, separators=(",", ":"))[:-1]
    return f'{text}{_CRC}{crc32(text.encode()):08x}"}}\n'.encode()


def decode_line(line: bytes) -> Metered | None:
    """What a line says, without its end; None when it was torn or damaged."""
    try:
        text, found, crc = line.decode("ascii").rpartition(_CRC)
        if not found or crc != f'{crc32(text.encode()):08x}"}}':
            return None
        document = json.loads(text + "}")
    except ValueError:
        return None
    if document.get("v") != VERSION:
        return None
    return read_document(document)


class Sums:
    """Adds up what was metered: one sum for each entity and kind in each span of time."""

    def __init__(self, span_ms: int = HOUR_MS) -> None:
        self._span_ms = span_ms
        self._sums: dict[tuple[int, str, str, str], Metered] = {}

    def add(self, lines: Iterable[Metered]) -> None:
        for line in lines:
            key = (line.from_ms // self._span_ms, line.namespace, line.entity, line.kind)
            if key in self._sums:
                self._sums[key].include(line)
            else:
                self._sums[key] = line.copy()

    def lines(self) -> list[Metered]:
        """In the order of time, then of names."""
        return [self._sums[key] for key in sorted(self._sums)]


def summed(lines: Iterable[Metered], span_ms: int = HOUR_MS) -> list[Metered]:
    """One sum for each entity and kind in each span of time."""
    sums = Sums(span_ms)
    sums.add(lines)
    return sums.lines()


def iso(utc_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=utc_ms)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def parse_iso(text: str) -> int:
    """A moment, or the beginning of a day; ValueError if it is neither.  UTC unless it says so."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
