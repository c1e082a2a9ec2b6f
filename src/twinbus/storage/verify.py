"""Verify: reads every byte of a store that nobody has open, and reports what is there.

Changes nothing, and does not stop at the first error: each file is checked by itself, so that one
damaged place does not hide another.  Then the store is recovered in memory, exactly as a server
would, to find what no single file shows (missing segments, gaps, a snapshot that fits no log).
"""

from collections import Counter
from dataclasses import dataclass, field

from twinbus.clock import Now
from twinbus.entities.facts import Fact
from twinbus.errors import LogDamaged
from twinbus.limits import SEGMENT_HEADER_BYTES
from twinbus.storage.decoder import Decoder
from twinbus.storage.disk import Disk
from twinbus.storage.log import (
    SEAL,
    SEGMENT_MAGIC,
    SNAPSHOT_MAGIC,
    FrameReader,
    numbered,
    read_header,
    segment_name,
)
from twinbus.storage.recovery import Recovered, recover
from twinbus.storage.snapshot import snapshot_name


@dataclass
class FileReport:
    """What one file holds."""

    name: str
    size: int
    frames: int = 0
    facts: int = 0
    used: int = 0  # bytes up to the end of the last valid frame
    sealed: bool = False

    def __str__(self) -> str:
        end = "sealed" if self.sealed else "open"
        return (
            f"{self.name}  {self.frames:>8} frames  {self.facts:>9} facts  "
            f"{self.used:>11} of {self.size} bytes  {end}"
        )


@dataclass
class EntityReport:
    """What one entity holds."""

    name: str
    kind: str
    active: int
    deferred: int
    scheduled: int
    dead_letter: int
    transfer_dead_letter: int
    size_bytes: int
    rules: int = 0
    ids: int = 0  # that duplicate detection remembers
    session_states: int = 0
    carriers: int = 0  # in other stores, of which it remembers what they have carried over
    producers: int = 0  # that number their messages, of which it remembers what has come

    def __str__(self) -> str:
        text = (
            f"{self.name}  active {self.active}  deferred {self.deferred}  "
            f"scheduled {self.scheduled}  dead-letter {self.dead_letter}  {self.size_bytes} bytes"
        )
        for what, count in (
            ("transfer dead-letter", self.transfer_dead_letter),
            ("rules", self.rules),
            ("remembered ids", self.ids),
            ("session states", self.session_states),
            ("carriers", self.carriers),
            ("producers", self.producers),
        ):
            if count:
                text += f"  {what} {count}"
        return text


@dataclass
class Report:
    """The result; `str()` of it is meant to be printed."""

    files: list[FileReport] = field(default_factory=list)
    entities: list[EntityReport] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # each names the file and the offset

    @property
    def whole(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [str(file) for file in self.files]
        lines += [str(entity) for entity in self.entities]
        lines += [f"DAMAGED  {error}" for error in self.errors]
        if not self.files:
            lines.append("There is no store here.")
        elif self.whole:
            lines.append("Whole: every checksum is right and nothing is missing.")
        else:
            lines.append(
                "A server will not start on this. Nothing was changed; restore the files from a "
                "backup, or ask for help with the lines above."
            )
        return "\n".join(lines)


def verify(disk: Disk) -> Report:
    """Go through the whole store.  DirectoryInUse when a server has it open."""
    disk.lock()
    try:
        return _verify(disk)
    finally:
        disk.close()


def _verify(disk: Disk) -> Report:
    report = Report()
    names = disk.names()
    found: Recovered | None = None
    try:
        found = recover(disk, Now(0, 0))
    except LogDamaged as error:
        report.errors.append(str(error))
    dead = [] if found is None else found.dead_segments
    for number in numbered(names, ".log"):
        if number not in dead:  # holds nothing any more, and is about to be written anew
            _verify_file(disk, segment_name(number), SEGMENT_MAGIC, number, report)
    for number in numbered(names, ".snapshot"):
        _verify_file(disk, snapshot_name(number), SNAPSHOT_MAGIC, number, report)
    if found is not None:
        report.entities = _entities(found)
    return report


def _verify_file(disk: Disk, name: str, magic: bytes, number: int, report: Report) -> None:
    """Every frame from front to back; behind a damaged one, go on at the next valid one."""
    size = disk.size(name)
    file_report = FileReport(name, size, used=SEGMENT_HEADER_BYTES)
    report.files.append(file_report)
    file = disk.open(name)
    try:
        header = read_header(file, name, magic, number)
        reader = FrameReader(file, number, header.salt, size, SEGMENT_HEADER_BYTES)
        while not file_report.sealed:
            frame = reader.next()
            if frame is None:
                later = reader.valid_frame_after(reader.offset)
                if later < 0:
                    break
                reason = f"a frame is damaged; the next valid one is at byte {later}"
                _add_error(report, LogDamaged(name, reader.offset, reason))
                reader.offset = later
                continue
            facts: list[Fact] = Decoder(frame.records, name, frame.offset, number).facts()
            file_report.frames += 1
            file_report.facts += len(facts)
            file_report.used = frame.end
            file_report.sealed = frame.kind == SEAL
    except LogDamaged as error:
        _add_error(report, error)
    finally:
        file.close()


def _add_error(report: Report, error: LogDamaged) -> None:
    """Recovery may have found the same place; once is enough."""
    place = f"{error.path}: damaged at byte {error.offset}:"
    if not any(known.startswith(place) for known in report.errors):
        report.errors.append(str(error))


def _entities(found: Recovered) -> list[EntityReport]:
    rules = Counter(rule.subscription_id for rule in found.entities.rules.values())
    reports = []
    for queue in found.entities.by_id.values():
        counts = queue.counts()
        reports.append(
            EntityReport(
                queue.name,
                queue.kind,
                counts.active,
                counts.deferred,
                counts.scheduled,
                counts.dead_letter,
                counts.transfer_dead_letter,
                counts.size_bytes,
                rules[queue.entity_id],
                0 if queue.history is None else queue.history.count,
                len(queue.session_states()),
                0 if queue.carried is None else len(queue.carried.all()),
                0 if queue.arrivals is None else len(queue.arrivals.producers()),
            )
        )
    return sorted(reports, key=_name_of)


def _name_of(report: EntityReport) -> str:
    return report.name.lower()
