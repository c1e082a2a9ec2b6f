"""Requests that go through a partitioned entity, partition after partition; peeking.py has peeks.

Sequence numbers begin with the partition, so walking the partitions in order walks the numbers in
order: asking again from the last number on reaches every message (E-9).

A partition that is down is skipped.  A request that only looks gets what the others have.  One that
changes something is sent back to it (`next_sequence_number`) while there is work elsewhere, and
fails because it is down when nothing else is left.  A request that reads a range to the last
message, or lists the existing numbers, never skips a partition: its messages would seem to be
gone.
"""

from twinbus.entities.commands import Command, Delivered, ListSessions, Reply
from twinbus.entities.partitions import PARTITION_COUNT, first_number, hash_key, partition_of
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selected,
    Selection,
    SelectionCommand,
    Undefer,
)
from twinbus.errors import Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.by_number import undefer_numbers
from twinbus.gateway.partitions.fan_out import (
    Gather,
    Routes,
    all_down,
    forward,
    partition_down,
    partitions_up,
)
from twinbus.limits import PAGE_COUNT_MAX, PEEK_RESPONSE_BYTES_MAX, RUNS_MAX
from twinbus.links.store_link import DOWN


class _Walking(Gather):
    """Base: asks one partition at a time."""

    __slots__ = ("asked_count", "number", "partition", "partition_end")

    def __init__(
        self, gateway: Routes, entity: Entity, command: Command, number: int, end: int = NUMBERS_END
    ) -> None:
        super().__init__(gateway, entity, command)
        self.partition = max(0, partition_of(number))
        # The first one without any number below `end`.
        self.partition_end = max(0, min(PARTITION_COUNT, partition_of(end - 1) + 1))
        self.number = number  # where to go on in this partition
        self.asked_count = 0  # how often somebody has answered

    def walk(self) -> None:
        """Ask the partition; the next one if it is down."""
        while self.partition < self.partition_end:
            part = self.entity.parts[self.partition]
            if self.gateway.links[part.store].health != DOWN:
                self.ask(self.partition, self.question(self.number))
                self.begin()
                return
            if not self.passed_over():
                return
            self.move_on()
        self.finish()

    def move_on(self) -> None:
        """The next partition, from its first message."""
        self.partition += 1
        self.number = first_number(self.partition)

    def gathered(self, replies: list[Reply]) -> None:
        reply = replies[0]
        if isinstance(reply.error, Unavailable):
            if self.passed_over():
                self.move_on()
                self.walk()
        else:
            self.asked_count += 1
            self.came(reply)

    def question(self, number: int) -> Command:
        """What to ask of a partition."""
        raise NotImplementedError

    def came(self, reply: Reply) -> None:
        """A partition has answered."""
        raise NotImplementedError

    def passed_over(self) -> bool:
        """This partition is down.  False: nobody is led past it, and the answer is given."""
        return True

    def finish(self) -> None:
        """There is no further partition."""
        raise NotImplementedError


# --- by a selection ---------------------------------------------------------------------------


def route_selection(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, SelectionCommand)
    if isinstance(command, Undefer) and command.sequence_numbers:
        undefer_numbers(gateway, entity, command)
    elif command.selection.session_id is not None:
        forward(gateway, entity.parts[hash_key(command.selection.session_id)], command)
    else:
        _Selecting(gateway, entity, command).walk()


class _Selecting(_Walking):
    """A request about many messages in all partitions."""

    __slots__ = (
        "_is_browsing",
        "_is_strict",
        "_left",
        "_maximum_bytes",
        "_request",
        "_selected",
        "_size_bytes",
        "_skipped",
    )

    def __init__(self, gateway: Routes, entity: Entity, command: SelectionCommand) -> None:
        selection = command.selection
        start, end = selection.from_sequence_number, selection.to_sequence_number
        super().__init__(gateway, entity, command, start, end)
        self._request = command
        self._is_browsing = isinstance(command, Browse)
        self._is_strict = isinstance(command, ListNumbers)  # no partition may be left out
        self._maximum_bytes = PEEK_RESPONSE_BYTES_MAX
        if isinstance(command, Browse):
            self._is_strict = command.is_range
            self._maximum_bytes = command.maximum_bytes
        self._left = command.count
        self._selected = Selected()
        self._size_bytes = 0
        self._skipped = -1  # the first partition that was passed over

    def question(self, number: int) -> Command:
        narrowed = _narrowed(self._request, number, self._left)
        if isinstance(narrowed, Browse):
            narrowed.maximum_bytes = max(1, self._maximum_bytes - self._size_bytes)
        return narrowed

    def passed_over(self) -> bool:
        if self._skipped < 0:
            self._skipped = self.partition
        if not self._is_strict:
            return True
        if self._selected.count == 0:
            self.answer(None, partition_down(self.entity, self.partition))
        else:
            self._answer(self.number)
        return False

    def came(self, reply: Reply) -> None:
        if reply.error is not None:
            # What was done before stays done and is reported; who asks again hears the reason.
            if self._selected.count == 0:
                self.answer(None, reply.error)
            else:
                self._answer(max(1, self.number))
            return
        selected = reply.result
        assert isinstance(selected, Selected)
        next_number = self._browsed(selected.delivered) if self._is_browsing else 0
        if not self._is_browsing:
            self._selected.count += selected.count
            self._left -= selected.count
            self._selected.bounds += selected.bounds
        if next_number == 0:
            next_number = selected.next_sequence_number
        is_full = self._left <= 0 or self._size_bytes >= self._maximum_bytes
        is_full = is_full or len(self._selected.bounds) >= 2 * RUNS_MAX
        if next_number != 0:
            self._answer(next_number)
            return
        self.move_on()
        if is_full and self.partition < self.partition_end:
            self._answer(self.number)
        else:
            self.walk()

    def _browsed(self, delivered: list[Delivered]) -> int:
        """Take in what was browsed; the number of the first one that had no room, or 0."""
        selected = self._selected
        for each in delivered:
            self._size_bytes += each.message.length
            if self._size_bytes > self._maximum_bytes and selected.delivered:
                return each.message.sequence_number
            selected.delivered.append(each)
            selected.count += 1
            self._left -= 1
        return 0

    def finish(self) -> None:
        if self._skipped >= 0 and self._selected.count == 0 and not self._is_browsing:
            self.answer(None, partition_down(self.entity, self._skipped))
        elif self.asked_count == 0 and self._skipped >= 0:
            self.answer(None, all_down(self.entity))
        else:
            self._answer(0)

    def _answer(self, next_number: int) -> None:
        if self._skipped >= 0 and not self._is_browsing:
            next_number = max(1, first_number(self._skipped))
        self._selected.next_sequence_number = next_number
        self.answer(self._selected)


def _narrowed(command: SelectionCommand, number: int, count: int) -> SelectionCommand:
    """The same request, from this number on and for so many."""
    asked = command.selection
    selection = Selection()
    selection.from_sequence_number = number
    selection.to_sequence_number = asked.to_sequence_number
    selection.before_ms = asked.before_ms
    selection.states = asked.states
    selection.expression = asked.expression
    if isinstance(command, Browse):
        return Browse(0, command.subqueue, selection, count)
    if isinstance(command, DeleteMessages):
        return DeleteMessages(0, command.subqueue, selection, count)
    if isinstance(command, ListNumbers):
        return ListNumbers(0, command.subqueue, selection, count)
    if isinstance(command, Resubmit):
        return Resubmit(0, command.subqueue, selection, count)
    return Undefer(0, command.subqueue, selection, count)


# --- sessions ---------------------------------------------------------------------------------


def route_list_sessions(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, ListSessions)
    partitions = partitions_up(gateway, entity)
    if command.skip < 0 or command.top < 0:
        forward(gateway, entity.parts[partitions[0]], command)  # any will say what is wrong
    else:
        _SessionListing(gateway, entity, command).start(partitions)


class _SessionListing(Gather):
    """A page of the session ids of all partitions.

    Each partition gives its first ones, page by page, as many as might be wanted of it.
    """

    __slots__ = ("_found", "_listing", "_partitions", "_tops", "_wanted")

    def __init__(self, gateway: Routes, entity: Entity, command: ListSessions) -> None:
        super().__init__(gateway, entity, command)
        self._listing = command
        self._wanted = command.skip + min(command.top, PAGE_COUNT_MAX)
        self._found: dict[int, list[str]] = {}  # by partition
        self._partitions: list[int] = []  # who is asked in this round
        self._tops: list[int] = []  # and for how many

    def start(self, partitions: list[int]) -> None:
        self._partitions = partitions
        self._tops = []
        for partition in partitions:
            skip = len(self._found.setdefault(partition, []))
            top = min(PAGE_COUNT_MAX, self._wanted - skip)
            self._tops.append(top)
            self.ask(partition, ListSessions(0, self._listing.updated_since_ms, skip, top))
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        unfinished: list[int] = []
        for partition, top, reply in zip(self._partitions, self._tops, replies, strict=True):
            found = self._found[partition]
            if isinstance(reply.error, Unavailable):
                continue
            if reply.error is not None:
                self.answer(None, reply.error)
                return
            assert isinstance(reply.result, list)
            found += reply.result
            if len(reply.result) == top and len(found) < self._wanted:
                unfinished.append(partition)
        if unfinished:
            self.start(unfinished)
            return
        merged: list[str] = []
        for found in self._found.values():
            merged += found
        merged.sort()
        self.answer(merged[self._listing.skip : self._wanted])
