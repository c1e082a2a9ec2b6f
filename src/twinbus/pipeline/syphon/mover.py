"""What one task of the syphon does: bring messages of one backlog partition home (D-2).

    browse a chunk ─▶ restore ─▶ send to their destinations ─▶ delete what was acknowledged

The same promises as `pairing/syphon.py`, and the same reasons on dead letters:

    sent                                            deleted from the backlog
    damaged, expired, too large, refused,
    destination gone                                dead-lettered, each for its own fault only
    destination down, busy or full, wrong key       held: left where it is, for a later round
    another primary's, or perhaps so                left where it is, for its own syphon

The backlog itself is the state.  Whoever dies between send and delete leaves a message that is sent
once more, with the same producer key, which a twinbus destination knows.

Must never delete what was not acknowledged, never touch another primary's message, and never send a
message of a session past one that is held.  A round begins at the lowest number that is there, so
that it meets every held message before those that came after it; nothing about sessions has to be
remembered between rounds.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from twinbus.client.blocking import CannotConnect
from twinbus.clock import Now
from twinbus.errors import (
    EntityNotFound,
    MessageSizeExceeded,
    NotSupported,
    PartitionRefused,
    ServerBusy,
    TwinbusError,
)
from twinbus.pairing import rules
from twinbus.pairing.errors import UnrestorableMessageError
from twinbus.pairing.held import SentBefore
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.primary import Owner
from twinbus.pairing.producer_keys import block_of, place_of
from twinbus.pairing.rests import Rests
from twinbus.pipeline.bus.protocol import (
    OF_ONE_MESSAGE,
    SENDERS_MAX,
    Bus,
    BusSender,
    Pending,
    SendRefused,
)
from twinbus.pipeline.source.runs import Run, merge
from twinbus.pipeline.syphon.restoring import (
    RestoredBytes,
    marks_in,
    restore_bytes,
    sequence_number_of,
)

MOVED: Final = "moved"
DEAD_LETTERED: Final = "dead_lettered"
HELD: Final = "held"
LEFT: Final = "left"
# What a row says of messages that are left; a mark follows the first one.
LEFT_TO: Final = "belongs to "
LEFT_UNMARKED: Final = "does not say whose it is"
_MARKS_MAX: Final = 100  # of other primaries that are told apart
_MARK_CHARS_MAX: Final = 260

# A part is one batch, which is stored as a whole or not at all; it fits into one of any tier.
PART_BYTES: Final = 192 * 1024
PART_COUNT_MAX: Final = 1_000
_OF_THE_MESSAGE: Final = (*OF_ONE_MESSAGE, NotSupported)


@dataclass(slots=True)
class Tally:
    """What became of the messages of one destination."""

    count: int = 0
    size_bytes: int = 0
    first: int = 0
    last: int = 0

    def add(self, number: int, size_bytes: int) -> None:
        self.first = min(self.first, number) if self.count else number
        self.last = max(self.last, number)
        self.count += 1
        self.size_bytes += size_bytes


@dataclass(slots=True)
class Memory:
    """What a process remembers between its tasks, of one pair.

    Forgetting it all costs a few sends that fail, or copies that the destination drops.
    """

    rests: Rests = field(default_factory=Rests)
    sent: dict[str, SentBefore] = field(default_factory=dict)  # by backlog queue
    # Destinations that take only messages of one key together: those that have partitions.
    by_key: set[str] = field(default_factory=set)


class Mover:
    """Moves messages of one backlog queue.  `primary` may not be there: it is asked for late."""

    def __init__(
        self,
        backlog: Bus,
        primary: Callable[[], Bus],
        queue: str,
        owner: Owner,
        memory: Memory,
        now: Callable[[], Now],
        *,
        time_to_live: RestoredTimeToLive = "original",
        position: str | None = None,
    ) -> None:
        """`owner` says whose messages may be moved.

        `position` begins the producer key of messages that have none; their number ends it.
        """
        self._backlog = backlog
        self._primary = primary
        self._queue = queue
        self._owner = owner
        self._memory = memory
        self._sent = memory.sent.setdefault(queue, SentBefore())
        self._now = now
        self._time_to_live: RestoredTimeToLive = time_to_live
        self._position = position
        self._senders: dict[str, BusSender] = {}
        self._waiting: set[tuple[str, str | None]] = (
            set()
        )  # path and session of messages that are held
        self._moved: list[RestoredBytes] = []  # acknowledged and not yet deleted
        self._dead: dict[tuple[str, str], list[int]] = {}  # by reason and description
        self.tallies: dict[tuple[str, str, str], Tally] = {}  # destination, outcome, reason

    def move(self, first: int, end: int, count_max: int) -> None:
        """All that is there in the range of numbers; about `count_max`, not counting held ones."""
        chunks = self._backlog.browse(self._queue, first, end)
        try:
            messages = next(chunks, None)
            restored = self._restored(messages or [])
            while messages is not None:
                lines = self._lines(restored)
                under_way = self._submit(lines)
                # Meanwhile what the destinations have is deleted, and the next ones are prepared.
                self._settle()
                messages = next(chunks, None) if self._settled_count < count_max else None
                restored = self._restored(messages or [])
                while under_way:
                    self._finish(under_way)
                    under_way = self._submit(lines)
            self._settle()
        finally:
            self._close()

    # --- taking -----------------------------------------------------------------------------------

    def _restored(self, messages: list[bytes]) -> list[RestoredBytes]:
        """This primary's, in the order of the backlog; dead-letters what cannot be restored."""
        restored: list[RestoredBytes] = []
        now_ms = self._now().utc_ms
        for data in messages:
            try:
                message = restore_bytes(data, now_ms, self._time_to_live, self._position)
            except UnrestorableMessageError as error:
                self._give_up(data, error.reason, error.description)
            except Exception as error:  # noqa: BLE001 - no message may stop the ones behind it
                self._give_up(data, rules.DAMAGED, f"{error!r}")
            else:
                if self._owner.owns(message.primary):
                    restored.append(message)
                else:
                    self._leave((message.primary, None), message.number, len(data))
        return restored

    def _give_up(self, data: bytes, reason: str, description: str) -> None:
        """It cannot be restored.  Another primary's is not ours to dead-letter either."""
        mark, _ = marks_in(data)
        if self._owner.owns(mark):
            self._dead_letter(data, reason, description)
        else:
            self._leave((mark, None), _number_in(data), len(data))

    def _leave(self, marks: tuple[str | None, str | None], number: int, size_bytes: int) -> None:
        whose = self._owner.whose(*marks)
        reason = f"{LEFT_TO}{whose[:_MARK_CHARS_MAX]}" if whose else LEFT_UNMARKED
        key = ("", LEFT, reason)
        if key not in self.tallies and len(self.tallies) >= _MARKS_MAX:
            key = ("", LEFT, f"{LEFT_TO}others")
        self.tallies.setdefault(key, Tally()).add(number, size_bytes)

    def _lines(self, restored: list[RestoredBytes]) -> list["_Line"]:
        """What is to be sent, by destination; what has to wait is held."""
        by_path: dict[str, list[RestoredBytes]] = {}
        for message in restored:
            if (message.number, message.enqueued_ms) in self._sent:
                self._moved.append(message)
            else:
                by_path.setdefault(message.path, []).append(message)
        lines: list[_Line] = []
        for path, messages in by_path.items():
            free = []
            for message in messages:
                if (path, message.session_id) in self._waiting:
                    self._hold([message])
                else:
                    free.append(message)
            if self._is_resting(path):
                self._hold(free)
            else:
                lines += lines_of(path, free, path in self._memory.by_key)
        return lines

    # --- sending ----------------------------------------------------------------------------------

    def _submit(self, lines: list["_Line"]) -> list["_UnderWay"]:
        """The first part of every line."""
        under_way: list[_UnderWay] = []
        for line in lines:
            if not line.parts:
                continue
            if self._is_resting(line.path) or self._is_resting(line.place):
                self._hold_line(line)
                continue
            part = line.parts[0]
            try:
                sender = self._sender(line.path)
                part = self._next_part(line, sender.namespace_id)
                if not part:
                    continue
                pending = sender.submit([message.data for message in part])
            except TwinbusError as error:
                if line.parts and part is line.parts[0]:
                    line.parts.popleft()
                self._failed(line, part, error)
            else:
                under_way.append(_UnderWay(line, part, pending))
        return under_way

    def _next_part(self, line: "_Line", here: str | None) -> list[RestoredBytes]:
        """Of what is for the namespace that the primary says it is; the rest is left.

        Empty only if nothing of the line is for it.
        """
        part: list[RestoredBytes] = []
        while line.parts and not part:
            for message in line.parts.popleft():
                if self._owner.owns(message.primary, message.namespace, here):
                    part.append(message)
                else:
                    marks = (message.primary, message.namespace)
                    self._leave(marks, message.number, len(message.data))
        return part

    def _finish(self, under_way: list["_UnderWay"]) -> None:
        for each in under_way:
            try:
                each.pending.wait()
            except TwinbusError as error:
                self._failed(each.line, each.part, error)
            else:
                self._memory.rests.end(each.line.path)
                self._memory.rests.end(each.line.place)
                self._moved += each.part

    def _failed(self, line: "_Line", part: list[RestoredBytes], error: TwinbusError) -> None:
        """Whatever is not certain to be at its destination is held, or sent again."""
        reason: Exception = error.reason if isinstance(error, SendRefused) else error
        if isinstance(reason, EntityNotFound):
            for message in (*part, *line.rest()):
                self._refuse(message, reason)
            line.parts.clear()
        elif isinstance(reason, PartitionRefused) and line.place == line.path and len(part) > 1:
            line.parts.extendleft(reversed(self._split(line.path, part, reason)))
        elif not isinstance(reason, _OF_THE_MESSAGE):
            is_part = isinstance(reason, PartitionRefused)
            self._rest(line.place if is_part else line.path, reason)
            self._drop_sender(line.path)
            self._hold(part)
            self._hold_line(line)
        elif len(part) == 1:
            self._refuse(part[0], reason)
        else:
            line.parts.extendleft(reversed(self._split(line.path, part, reason)))

    def _split(
        self, path: str, part: list[RestoredBytes], reason: Exception
    ) -> list[list[RestoredBytes]]:
        """Smaller parts of one that was refused, until the message that is at fault is alone."""
        by_key: dict[str | None, list[RestoredBytes]] = {}
        for message in part:
            by_key.setdefault(message.session_id or message.partition_key, []).append(message)
        if len(by_key) > 1 and not isinstance(reason, MessageSizeExceeded):
            self._memory.by_key.add(path)
            return list(by_key.values())
        middle = len(part) // 2
        return [part[:middle], part[middle:]]

    def _sender(self, path: str) -> BusSender:
        sender = self._senders.get(path)
        if sender is None:
            if len(self._senders) >= SENDERS_MAX:
                self._close()
            sender = self._primary().open_sender(path, halves=False, pinned=True)
            self._senders[path] = sender
        return sender

    def _drop_sender(self, path: str) -> None:
        sender = self._senders.pop(path, None)
        if sender is not None:
            sender.close()

    def _close(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.close()

    def _rest(self, path: str, error: Exception) -> None:
        where = "" if isinstance(error, CannotConnect) else path
        is_busy = isinstance(error, ServerBusy)
        self._memory.rests.begin(where, error, self._now_s(), is_busy=is_busy)

    def _is_resting(self, path: str) -> bool:
        return self._memory.rests.is_resting(path, self._now_s())

    def _now_s(self) -> float:
        return self._now().mono_ms / 1_000

    # --- what becomes of them ---------------------------------------------------------------------

    @property
    def _settled_count(self) -> int:
        return sum(tally.count for key, tally in self.tallies.items() if key[1] not in (HELD, LEFT))

    def _hold_line(self, line: "_Line") -> None:
        self._hold(line.rest())
        line.parts.clear()

    def _hold(self, messages: Iterable[RestoredBytes]) -> None:
        for message in messages:
            if message.session_id is not None:
                self._waiting.add((message.path, message.session_id))
            place = place_of(message.path, [message.key])
            reason = self._memory.rests.reason(message.path) or self._memory.rests.reason(place)
            self._count(message.path, HELD, reason, message)

    def _refuse(self, message: RestoredBytes, error: Exception) -> None:
        if isinstance(error, EntityNotFound):
            reason = rules.DESTINATION_NOT_FOUND
        elif isinstance(error, MessageSizeExceeded):
            reason = rules.TOO_LARGE
        else:
            reason = rules.REFUSED
        self._dead.setdefault((reason, f"{message.path}: {error}"), []).append(message.number)
        self._count(message.path, DEAD_LETTERED, reason, message)

    def _dead_letter(self, data: bytes, reason: str, description: str) -> None:
        number = sequence_number_of(data)
        self._dead.setdefault((reason, description), []).append(number)
        tally = self.tallies.setdefault(("", DEAD_LETTERED, reason), Tally())
        tally.add(number, len(data))

    def _settle(self) -> None:
        """Delete what was acknowledged, dead-letter what can never be delivered."""
        dead, self._dead = self._dead, {}
        for (reason, description), numbers in dead.items():
            text = description[: rules.DESCRIPTION_LENGTH_MAX]
            self._backlog.settle(self._queue, runs_of(numbers), reason, text)
        self._delete_moved()

    def _delete_moved(self) -> None:
        """A message that somebody else has locked stays, and is only deleted when it is met again.

        Noted first: whatever becomes of the request, these are at their destinations.
        """
        moved, self._moved = self._moved, []
        if not moved:
            return
        for message in moved:
            self._sent.add(message.number, message.enqueued_ms)
            self._count(message.path, MOVED, "", message)
        if self._backlog.settle(self._queue, runs_of(message.number for message in moved)) >= len(
            moved
        ):
            for message in moved:
                self._sent.discard(message.number, message.enqueued_ms)

    def _count(self, path: str, outcome: str, reason: str, message: RestoredBytes) -> None:
        tally = self.tallies.setdefault((path, outcome, reason), Tally())
        tally.add(message.number, len(message.data))


def _number_in(data: bytes) -> int:
    """Only to be told; 0 if nobody can read it."""
    try:
        return sequence_number_of(data)
    except (TwinbusError, IndexError):
        return 0


@dataclass(frozen=True, slots=True)
class _Line:
    """Parts for one destination of which each waits for the one before."""

    path: str
    parts: deque[list[RestoredBytes]]
    place: str = ""  # what can rest by itself: a partition, if all are of one

    def rest(self) -> list[RestoredBytes]:
        return [message for part in self.parts for message in part]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    line: _Line
    part: list[RestoredBytes]
    pending: Pending


def lines_of(path: str, messages: list[RestoredBytes], is_by_key: bool) -> list[_Line]:
    """What may be sent together: copies of it must end up in the same partition again.

    Messages without a key go where the number of the first one leads, so they are sent with those
    of their producer and block, part beside part.  Messages with keys may be mixed until the
    destination says otherwise; they keep their order, part after part.
    """
    free: dict[tuple[str, int], list[RestoredBytes]] = {}
    keyed: dict[str, list[RestoredBytes]] = {}
    for message in messages:
        key = message.session_id or message.partition_key
        if key is not None:
            keyed.setdefault(key if is_by_key else "", []).append(message)
        else:
            free.setdefault(block_of(message.key), []).append(message)
    lines: list[_Line] = []
    for each in free.values():
        place = place_of(path, [message.key for message in each])
        lines += [_Line(path, deque([part]), place) for part in parts_of(each)]
    for each in keyed.values():
        place = place_of(path, [message.key for message in each])
        lines.append(_Line(path, parts_of(each), place))
    return lines


def parts_of(messages: list[RestoredBytes]) -> deque[list[RestoredBytes]]:
    """Parts that go as one batch each, so that none of them can be overtaken by its own end."""
    parts: deque[list[RestoredBytes]] = deque()
    size_bytes = 0
    for message in messages:
        size_bytes += len(message.data)
        if not parts or size_bytes > PART_BYTES or len(parts[-1]) >= PART_COUNT_MAX:
            parts.append([])
            size_bytes = len(message.data)
        parts[-1].append(message)
    return parts


def runs_of(numbers: Iterable[int]) -> list[Run]:
    """These numbers and no others."""
    return list(merge((number, number + 1) for number in numbers))
