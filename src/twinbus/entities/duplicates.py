"""Duplicate detection: which message ids were seen within a window of time.

An id is remembered as a digest of 16 bytes with the time it was seen, from the send that brought it
until the window is over; a duplicate does not prolong it.  The time is UTC, because it has to mean
the same after a restart: while the clock stands back, ids are remembered for longer.

The history is a table of shards that grows by one shard at a time (linear hashing), so that no send
ever waits for the table to be rebuilt.  A shard is a flat run of entries in the order they came,

    ENTRY    | digest:16s | seen_ms:6s |

searched by `bytearray.find`, which takes a fraction of a microsecond for the 64 entries that a
shard has on average: no object for each id, and about 25 bytes for one.  What is over goes from the
front: in the shard that is written, and in one more, in turns.

Entries move only from a shard to a later one, so walking the shards in order meets every entry at
least once, whatever happens in between.  Snapshots rest on that.

This module must never forget an id within its window: a full history refuses instead.
"""

from hashlib import blake2b
from typing import Final

from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import key_of
from twinbus.errors import QuotaExceeded
from twinbus.limits import DUPLICATE_IDS_MAX

DIGEST_SIZE: Final = 16
ENTRY_SIZE: Final = 22
SHARD_ENTRIES: Final = 64  # on average, when the next shard is made
PIECE_BYTES_MAX: Final = 65_536  # of what a snapshot writes at a time
PIECE_SHARDS_MAX: Final = 4_096  # they may all be empty
_SWEEP_WHEN_FULL: Final = 4_096  # shards: a refused send makes so much way for the next


def digest_of(message: NewMessage, partitioned: bool) -> bytes:
    """What stands for a message's id; where partitioned, an id is one of its key only.

    Without a key the id itself leads to the partition, so that its repeats meet there.
    """
    text = message.message_id or ""
    if partitioned:
        key = key_of(message, False)
        text = f"- {text}" if key is None else f"{len(key)} {key}{text}"
    return blake2b(text.encode(), digest_size=DIGEST_SIZE).digest()


class Sifted:
    """A send without its duplicates."""

    __slots__ = ("_places", "_total", "digests", "fresh")

    def __init__(
        self, fresh: list[NewMessage], places: list[int], total: int, digests: bytes
    ) -> None:
        self.fresh = fresh
        self.digests = digests  # of those with an id, one after the other
        self._places = places
        self._total = total

    def spread(self, numbers: list[int]) -> list[int]:
        """The numbers of the fresh ones at their places in the send; 0 for a duplicate."""
        if len(numbers) == self._total:
            return numbers
        found = [0] * self._total
        for place, number in zip(self._places, numbers, strict=True):
            found[place] = number
        return found


class DuplicateHistory:
    """The ids that one entity has seen."""

    __slots__ = ("_ids_max", "_shards", "_swept", "count", "window_ms")

    def __init__(self, window_ms: int, ids_max: int = DUPLICATE_IDS_MAX) -> None:
        self.window_ms = window_ms  # may change at any time; it counts from when an id was seen
        self.count = 0  # entries, those included that are over but have not been swept yet
        self._ids_max = ids_max
        self._shards: list[bytearray] = [bytearray()]
        self._swept = 0  # where sweeping goes on

    # -- sending --------------------------------------------------------------------------------

    def sift(self, messages: list[NewMessage], partitioned: bool, now_ms: int) -> Sifted:
        """Tell new messages from duplicates, also of each other.  Changes nothing.

        A message without an id is nobody's duplicate.
        """
        fresh: list[NewMessage] = []
        places: list[int] = []
        digests: dict[bytes, bool] = {}
        for place, message in enumerate(messages):
            if message.message_id is not None:
                digest = digest_of(message, partitioned)
                if digest in digests or self.seen(digest, now_ms):
                    continue
                digests[digest] = True
            fresh.append(message)
            places.append(place)
        return Sifted(fresh, places, len(messages), b"".join(digests))

    def check_room(self, count: int, now_ms: int) -> None:
        """QuotaExceeded when so many more ids have no room."""
        if self.count + count <= self._ids_max:
            return
        self._make_way(now_ms)
        if self.count + count > self._ids_max:
            raise QuotaExceeded(
                f"The history of duplicate detection is full with {self.count} message ids; "
                "send more slowly or choose a shorter window."
            )

    def seen(self, digest: bytes, now_ms: int) -> bool:
        """Was this id seen within the window?"""
        shard = self._shards[self._place(digest)]
        at = shard.find(digest)
        while at >= 0:
            # Only where an entry begins; the same bytes across two entries are chance.
            if at % ENTRY_SIZE == 0 and now_ms - _time_at(shard, at) < self.window_ms:
                return True
            at = shard.find(digest, at + 1)
        return False

    def add(self, digests: bytes, now_ms: int) -> None:
        """Remember ids that `sift` found to be new."""
        time = _time_bytes(now_ms)
        for at in range(0, len(digests), DIGEST_SIZE):
            digest = digests[at : at + DIGEST_SIZE]
            place = self._place(digest)
            self._sweep(place, now_ms)
            self._append(place, digest + time)
            self._swept += 1
            if self._swept >= len(self._shards):
                self._swept = 0
            self._sweep(self._swept, now_ms)

    # -- rebuilding -----------------------------------------------------------------------------

    def restore(self, digests: bytes, seen_ms: int) -> None:
        """Remember ids as a fact has them.  What is known already stays as it is."""
        time = _time_bytes(seen_ms)
        for at in range(0, len(digests), DIGEST_SIZE):
            self._restore_entry(digests[at : at + DIGEST_SIZE] + time)

    def restore_entries(self, entries: bytes) -> None:
        """Take in a piece that `piece` of this or an earlier history gave."""
        for at in range(0, len(entries), ENTRY_SIZE):
            self._restore_entry(entries[at : at + ENTRY_SIZE])

    def forget_old(self, now_ms: int) -> None:
        """Let go of everything that is over; takes its time, which a restart has."""
        for place in range(len(self._shards)):
            self._sweep(place, now_ms)

    def piece(self, first: int) -> tuple[bytes, int]:
        """Entries of the shards from `first` on, and where to go on; −1 when that was all."""
        shards = self._shards
        parts: list[bytes] = []
        size = 0
        place = first
        stop = min(len(shards), first + PIECE_SHARDS_MAX)
        while place < stop and size < PIECE_BYTES_MAX:
            shard = shards[place]
            if shard:
                parts.append(bytes(shard))
                size += len(shard)
            place += 1
        return b"".join(parts), place if place < len(shards) else -1

    def _restore_entry(self, entry: bytes) -> None:
        place = self._place(entry[:DIGEST_SIZE])
        shard = self._shards[place]
        at = shard.find(entry)
        while at >= 0 and at % ENTRY_SIZE:
            at = shard.find(entry, at + 1)
        if at < 0:
            self._append(place, entry)

    # -- shards ---------------------------------------------------------------------------------

    def _place(self, digest: bytes | bytearray) -> int:
        """Which shard an id belongs to: as many bits of it as there are shards, or one less."""
        count = len(self._shards)
        bits = (count - 1).bit_length()
        place = int.from_bytes(digest[:4], "little") & ((1 << bits) - 1)
        return place if place < count else place - (1 << (bits - 1))

    def _append(self, place: int, entry: bytes) -> None:
        self._shards[place] += entry
        self.count += 1
        if self.count > SHARD_ENTRIES * len(self._shards):
            self._split()

    def _split(self) -> None:
        """One more shard: it takes its part of the one that stood for both."""
        made = len(self._shards)
        old = self._shards[made - (1 << (made.bit_length() - 1))]
        self._shards.append(bytearray())
        kept = bytearray()
        moved = bytearray()
        for at in range(0, len(old), ENTRY_SIZE):
            entry = old[at : at + ENTRY_SIZE]
            if self._place(entry) == made:
                moved += entry
            else:
                kept += entry
        self._shards[made - (1 << (made.bit_length() - 1))] = kept
        self._shards[made] = moved

    def _sweep(self, place: int, now_ms: int) -> None:
        shard = self._shards[place]
        end = 0
        while end < len(shard) and now_ms - _time_at(shard, end) >= self.window_ms:
            end += ENTRY_SIZE
        if end:
            del shard[:end]
            self.count -= end // ENTRY_SIZE

    def _make_way(self, now_ms: int) -> None:
        for _ in range(min(_SWEEP_WHEN_FULL, len(self._shards))):
            self._swept = (self._swept + 1) % len(self._shards)
            self._sweep(self._swept, now_ms)


def _time_at(shard: bytearray, at: int) -> int:
    return int.from_bytes(shard[at + DIGEST_SIZE : at + ENTRY_SIZE], "little")


def _time_bytes(time_ms: int) -> bytes:
    return time_ms.to_bytes(ENTRY_SIZE - DIGEST_SIZE, "little")
