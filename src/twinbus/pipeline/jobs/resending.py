"""Messages that were in a bus before and are sent once more: their bytes, their keys, their pace.

Used inside tasks by replay and by the resubmission of dead letters.  The message is the same to the
byte, but for what its last stay has left on it.  Its producer key comes from its old position and
the name of the undertaking, so the same message in the same undertaking is stored once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from twinbus.amqp.decoding import skip_within
from twinbus.amqp.encoding import encode_symbol
from twinbus.entities.arrivals import PASSING
from twinbus.entities.partitions import PARTITION_COUNT, producer_at
from twinbus.message import wire_names
from twinbus.message.scan import Scanned, scan
from twinbus.message.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    encode_map_section,
    map_entries,
    split_entries,
)
from twinbus.pipeline.sink.keys import Outgoing, first_home, run_name

# An entity remembers 1,024 ranges of numbers for each producer, and a selection has gaps: numbers
# of so few can never be more ranges than that.
NUMBERS_PER_PRODUCER: Final = 2_048
# So many old neighbours have one home if nothing leads them to a partition.  They are sent together
# and in their order: what has no partitions gets all of them as they once were.
NUMBERS_PER_HOME: Final = NUMBERS_PER_PRODUCER // PARTITION_COUNT
CHUNK_COUNT_MAX: Final = 2_000
CHUNK_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
# Messages that are due within so little time go together.
GRAIN_MS: Final = 50

_SCHEDULED_NAME: Final = wire_names.SCHEDULED_TIME.encode()
_SCHEDULED: Final = encode_symbol(wire_names.SCHEDULED_TIME)
_DEAD_LETTER_NAMES: Final = (
    wire_names.DEAD_LETTER_REASON.encode(),
    wire_names.DEAD_LETTER_DESCRIPTION.encode(),
)


def resending_key(undertaking: str, position: str, order: str | None) -> str:
    """The producer key of the message at an old position (`<source>/<number>`).

    `order` is its session id or partition key.  Without one it gets a home, as in the sink.
    """
    source, _, digits = position.rpartition("/")
    number = int(digits)
    name, start = _start(undertaking, source)
    producer = f"{name}.{number // NUMBERS_PER_PRODUCER}"
    if order is None:
        home = start + number // NUMBERS_PER_HOME
        producer = producer_at(producer, home % PARTITION_COUNT)
    return f"{producer}/{number % NUMBERS_PER_PRODUCER + 1}"


@lru_cache(maxsize=1_024)
def _start(undertaking: str, source: str) -> tuple[str, int]:
    """How the producers of a source begin, and the home of its first messages.

    A source is a partition of an entity (`<entity>#<partition>`): each begins elsewhere.
    """
    name = f"{PASSING}{run_name(undertaking)}.{run_name(source)}"
    entity, _, partition = source.rpartition("#")
    if not partition.isdecimal():
        return name, first_home(run_name(undertaking, source), 0, 0, 0)
    return name, first_home(run_name(undertaking, entity), 0, int(partition), 0)


def renewed(
    row: int,
    encoded: bytes,
    destination: str,
    undertaking: str,
    position: str,
    scheduled_ms: int | None = None,
) -> Outgoing:
    """The message to send: without the broker's marks, reason of death and old schedule."""
    found = scan(encoded)
    order = found.group_id()
    if order is None:
        partition_key = found.annotation(wire_names.PARTITION_KEY)
        order = partition_key if isinstance(partition_key, str) else None
    data = _header(found) + _annotations(found, scheduled_ms) + _bare(found)
    return Outgoing(row, destination, data, order, resending_key(undertaking, position, order))


def _header(found: Scanned) -> bytes:
    fields = b"\x41" if found.durable else b"\x42"
    fields += bytes((0x50, found.priority))
    if found.ttl_ms >= 0:
        fields += b"\x70" + min(found.ttl_ms, 0xFFFF_FFFF).to_bytes(4, "big")
    else:
        fields += b"\x40"
    return bytes((0x00, 0x53, HEADER, 0xC0, len(fields) + 1, 3)) + fields


def _annotations(found: Scanned, scheduled_ms: int | None) -> bytes:
    raw, count = found.annotations, found.annotation_count
    if _SCHEDULED_NAME in raw:
        entries = split_entries(raw, 0, len(raw), count)
        kept = [entry for name, entry in entries if name != _SCHEDULED_NAME]
        raw, count = b"".join(kept), 2 * len(kept)
    if scheduled_ms is not None:
        raw += _SCHEDULED + b"\x83" + scheduled_ms.to_bytes(8, "big", signed=True)
        count += 2
    return encode_map_section(MESSAGE_ANNOTATIONS, count, raw) if count else b""


def _bare(found: Scanned) -> bytes:
    bare, at = found.bare, found.application_properties_at
    if at < 0 or not any(name in bare for name in _DEAD_LETTER_NAMES):
        return bare
    end = skip_within(bare, at, len(bare))
    entries = map_entries(bare, at + 3, end)
    kept = [entry for name, entry in entries if name not in _DEAD_LETTER_NAMES]
    if len(kept) == len(entries):
        return bare
    section = b""
    if kept:
        section = encode_map_section(APPLICATION_PROPERTIES, 2 * len(kept), b"".join(kept))
    return bare[:at] + section + bare[end:]


# --- pace -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    """How quickly messages go out: as quickly as they can, at a rate, or as they once came.

    `rate` in messages a second, 0 for no limit.  `speed` is how many times quicker than they came,
    0 for regardless of it: what came at `first_ms` goes out at `start_ms`, both in UTC, the others
    in proportion.
    """

    rate: float = 0.0
    speed: float = 0.0
    first_ms: int = 0
    start_ms: int = 0

    def due_ms(self, enqueued_ms: int) -> int:
        """When a message may go out, but for the rate; 0 for at once."""
        return self.shifted_ms(enqueued_ms) if self.speed else 0

    def shifted_ms(self, enqueued_ms: int) -> int:
        """The moment of now that belongs to one of then."""
        return self.start_ms + int((enqueued_ms - self.first_ms) / (self.speed or 1.0))


@dataclass(frozen=True, slots=True)
class Timed:
    """A message and the time at which it was enqueued once."""

    message: Outgoing
    enqueued_ms: int


def paced(
    messages: Iterable[Timed],
    pace: Pace,
    now_ms: Callable[[], int],
    sleep_s: Callable[[float], None],
) -> Iterator[list[Outgoing]]:
    """Chunks of messages, each given when its time has come; their order stays as it is."""
    free_ms = 0.0  # when the rate allows for the next chunk
    for chunk, due_ms in _chunks(messages, pace):
        while (left_ms := max(due_ms, free_ms) - now_ms()) > 0:
            sleep_s(min(left_ms, 1_000) / 1_000)
        free_ms = max(free_ms, float(now_ms()))
        yield chunk
        if pace.rate:
            # Time that was lost is not made up for: a limit is one at every moment.
            free_ms = max(free_ms + len(chunk) * 1_000 / pace.rate, float(now_ms()))


def _chunks(messages: Iterable[Timed], pace: Pace) -> Iterator[tuple[list[Outgoing], int]]:
    """Messages that go out together, and when the first of them is due."""
    count_max = CHUNK_COUNT_MAX
    if pace.rate:
        count_max = max(1, min(count_max, int(pace.rate * GRAIN_MS / 1_000)))
    chunk: list[Outgoing] = []
    chunk_due_ms = size_bytes = 0
    for timed in messages:
        due_ms = pace.due_ms(timed.enqueued_ms)
        is_full = len(chunk) == count_max or size_bytes > CHUNK_SIZE_BYTES_MAX
        if chunk and (is_full or due_ms > chunk_due_ms + GRAIN_MS):
            yield chunk, chunk_due_ms
            chunk, size_bytes = [], 0
        if not chunk:
            chunk_due_ms = due_ms
        chunk.append(timed.message)
        size_bytes += len(timed.message.data)
    if chunk:
        yield chunk, chunk_due_ms
