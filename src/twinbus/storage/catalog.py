"""The catalog file: which entities exist, and the stores of their parts.

A single store knows everything itself, and has no catalog.  With several stores, this file records
what no store can: that an entity exists although its store is down, and which changes across stores
were in progress when the gateway ended.

Every change appends one record, durable when the call returns.  Changes are few and small, so the
caller's thread writes them at once.  The directory has a single file, `entities`:

    HEADER   | magic:8s | version:I | checksum:I |                          then zeros
    RECORD   | magic:4s | checksum:I | length:I | number:I |
             then `length` bytes of JSON in ASCII, then zeros

Both begin at multiples of 512, so a torn write never touches what was durable before.  `number`
counts from 1 without gaps; `checksum` is CRC-32 over everything after itself, begun with the place
in the file.  At most one record is ever on its way: the first invalid one was torn and is the end,
unless a valid one follows.  Then it is damage: LogDamaged, and nothing is changed.  Where the very
last record is damaged that does not show, and the stores' own lists put it right.

The file is written anew (`entities.new`, synced, then renamed) when it is opened, because what was
read may be in the cache of a machine whose last process was killed, and not on its disk; when most
of it has been superseded; and after a failed write, which is never repeated in the same place.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final
from zlib import crc32

from twinbus.entities.catalog_entry import MAKING, REMOVED, REMOVING, THERE, CatalogEntry
from twinbus.entities.partitions import shown_name
from twinbus.errors import LogDamaged, StorageError, Unavailable
from twinbus.storage.disk import Disk, File
from twinbus.storage.log import SECTOR_SIZE, aligned

FORMAT_VERSION: Final = 1
FILE_NAME: Final = "entities"
NEW_FILE_NAME: Final = "entities.new"
CATALOG_MAGIC: Final = b"TWINCAT\x00"
RECORD_MAGIC: Final = b"\xf1TwC"  # no ASCII: it is never found inside a record's JSON

HEADER: Final = struct.Struct("<8sII")
RECORD: Final = struct.Struct("<4sIII")
CHECKSUM: Final = struct.Struct("<I")
PLACE: Final = struct.Struct("<Q")
CHECKED_FROM: Final = 8  # where in a record the bytes begin that the checksum covers
SUPERSEDED_BYTES_MAX: Final = 1 << 20  # beyond that, and the size it had when it was written anew


class CatalogFile:
    """The catalog on its disk, and in memory as far as it is durable."""

    def __init__(self, disk: Disk) -> None:
        """Read what is there; LogDamaged, and nothing is changed, if it cannot be trusted."""
        disk.lock()
        self._disk = disk
        self.entries: dict[str, CatalogEntry] = {}  # by lower-cased name
        self._file: File | None = None  # None: what the disk has is not known for sure
        self._end = 0
        self._number = 0
        self._written_size = 0  # of the file when it was written anew
        if FILE_NAME in disk.names():
            self._read()
        try:
            self._write_anew()
        except OSError as error:
            raise StorageError(f"the catalog cannot be written: {error}") from error

    # -- what the gateway does ---------------------------------------------------------------------

    def making(self, kind: str, name: str, description: str, stores: list[int]) -> None:
        """An entity is about to be made in these stores."""
        before = self.entries.get(name.lower())
        if before is not None and before.state != THERE:
            raise Unavailable(
                f"Something is left of an earlier '{shown_name(name)[:64]}' in a store that is "
                "down; it can be created when that store is back."
            )
        self._append(CatalogEntry(kind, name, description, stores, MAKING))

    def there(self, name: str, description: str, entity_ids: Sequence[int] = ()) -> None:
        """An entity is whole, or has a new description in all of its stores."""
        entry = self.entries[name.lower()]
        self._append(entry.changed(THERE, description, entity_ids))

    def removing(self, name: str) -> None:
        """An entity is about to go from its stores."""
        entry = self.entries.get(name.lower())
        if entry is not None:
            self._append(entry.changed(REMOVING))

    def removed(self, name: str) -> None:
        """Nothing of an entity is left in any store."""
        entry = self.entries.get(name.lower())
        if entry is not None:
            self._append(entry.changed(REMOVED))

    def put_right(self, changed: Iterable[CatalogEntry], gone: Iterable[str]) -> None:
        """Many changes at once: the file is written anew, with all of them or with none."""
        before = self.entries
        self.entries = dict(before)
        for entry in changed:
            self.entries[entry.name.lower()] = entry
        for name in gone:
            self.entries.pop(name.lower(), None)
        try:
            self._write_anew()
        except OSError as error:
            self.entries = before
            raise _unknown(error) from error

    def close(self) -> None:
        self._let_go()
        self._disk.close()

    # -- writing -----------------------------------------------------------------------------------

    def _append(self, entry: CatalogEntry) -> None:
        """Durable when this returns.  If it raises, the disk may have it or not; memory has not."""
        try:
            if self._file is None or self._end > 2 * self._written_size + SUPERSEDED_BYTES_MAX:
                self._write_anew()
            assert self._file is not None
            record = _record(entry, self._number + 1, self._end)
            self._file.write([record], self._end)
            self._file.sync()
        except OSError as error:
            self._let_go()
            raise _unknown(error) from error
        self._end += len(record)
        self._number += 1
        self._apply(entry)

    def _apply(self, entry: CatalogEntry) -> None:
        if entry.state == REMOVED:
            self.entries.pop(entry.name.lower(), None)
        else:
            self.entries[entry.name.lower()] = entry

    def _write_anew(self) -> None:
        """A file with what memory has takes the place of the old one, if there is any."""
        parts = [_header()]
        end = SECTOR_SIZE
        for number, entry in enumerate(self.entries.values(), 1):
            parts.append(_record(entry, number, end))
            end += len(parts[-1])
        self._let_go()
        self._file = self._disk.create(NEW_FILE_NAME)
        try:
            self._file.write([b"".join(parts)], 0)
            self._file.sync()
            self._disk.rename(NEW_FILE_NAME, FILE_NAME)
            self._disk.sync_directory()
        except OSError:
            self._let_go()
            raise
        self._end = self._written_size = end
        self._number = len(self.entries)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- reading -----------------------------------------------------------------------------------

    def _read(self) -> None:
        with closing(self._disk.open(FILE_NAME)) as file:
            data = file.read(self._disk.size(FILE_NAME), 0)
        _check_header(data)
        place = SECTOR_SIZE
        number = 1
        while True:
            body = _body(data, place, number)
            if body is None:
                break
            self._apply(_decode(body))
            place += aligned(RECORD.size + len(body))
            number += 1
        # A record that was torn is the last: nothing was written before it was known to be there.
        for behind in range(place + SECTOR_SIZE, len(data), SECTOR_SIZE):
            if data.startswith(RECORD_MAGIC, behind) and _body(data, behind, 0) is not None:
                raise LogDamaged(FILE_NAME, place, "there are valid records behind this place")


# --- bytes ----------------------------------------------------------------------------------------


def _encode(entry: CatalogEntry) -> bytes:
    fields: dict[str, object] = {"name": entry.name, "state": entry.state}
    if entry.state != REMOVED:
        fields["kind"] = entry.kind
        fields["description"] = entry.description
        fields["stores"] = entry.stores
        fields["entity_ids"] = entry.entity_ids
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(data: bytes) -> CatalogEntry:
    fields = json.loads(data)
    return CatalogEntry(
        fields.get("kind", ""),
        fields["name"],
        fields.get("description", ""),
        fields.get("stores", []),
        fields["state"],
        fields.get("entity_ids", []),
    )


def _unknown(error: OSError) -> Unavailable:
    return Unavailable(
        f"The catalog could not be written ({error.strerror}); whether this has happened will show "
        "when it can."
    )


def _header() -> bytes:
    fields = HEADER.pack(CATALOG_MAGIC, FORMAT_VERSION, 0)[: -CHECKSUM.size]
    return (fields + CHECKSUM.pack(crc32(fields))).ljust(SECTOR_SIZE, b"\x00")


def _check_header(data: bytes) -> None:
    if len(data) < SECTOR_SIZE:
        raise LogDamaged(FILE_NAME, len(data), "the file is too short for its header")
    magic, version, checksum = HEADER.unpack_from(data)
    if crc32(data[: HEADER.size - CHECKSUM.size]) != checksum or magic != CATALOG_MAGIC:
        raise LogDamaged(FILE_NAME, 0, "this is not the header of a catalog")
    if version != FORMAT_VERSION:
        raise LogDamaged(FILE_NAME, 0, f"format version {version} is not known to this twinbus")


def _checksum(fields: bytes, place: int) -> int:
    return crc32(fields, crc32(PLACE.pack(place)))


def _record(entry: CatalogEntry, number: int, place: int) -> bytes:
    """An entry as a record for exactly this place."""
    body = _encode(entry)
    fields = RECORD.pack(RECORD_MAGIC, 0, len(body), number)[CHECKED_FROM:] + body
    record = RECORD_MAGIC + CHECKSUM.pack(_checksum(fields, place)) + fields
    return record.ljust(aligned(len(record)), b"\x00")


def _body(data: bytes, place: int, expected: int) -> bytes | None:
    """What the record at this place says, if it is valid; `expected` is its number, 0 for any."""
    if not data.startswith(RECORD_MAGIC, place) or len(data) < place + RECORD.size:
        return None
    _, checksum, length, number = RECORD.unpack_from(data, place)
    end = place + RECORD.size + length
    if end > len(data) or expected not in (0, number):
        return None
    if _checksum(data[place + CHECKED_FROM : end], place) != checksum:
        return None
    return data[place + RECORD.size : end]
