"""Peeking at a partitioned entity: partition after partition, and past one that does not answer.

Sequence numbers begin with the partition, so walking the partitions in order walks the numbers in
order: asking again from the last number on reaches every message (E-9).

A partition that is down is passed over.  So is one that is late, because its broker hangs: what
answers first comes first.  Its question stays open:

    it answers before the peek does   the walk goes back to it, as if it had answered in time
    the others have messages          they are the answer, and the late ones are not in it
    the others have none              the peek waits for it: "nothing" is only said when all say so

While everybody answers in time, each is asked what it would be asked without all this.
"""

from typing import Final

from twinbus.entities.commands import Command, Delivered, Peek, Reply
from twinbus.entities.partitions import PARTITION_COUNT, first_number, hash_key, partition_of
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import (
    Gather,
    Routes,
    all_down,
    copies_of,
    forward,
    partitions_up,
)
from twinbus.limits import PEEK_COUNT_MAX, PEEK_RESPONSE_BYTES_MAX
from twinbus.links.store_link import DOWN

LATE_TICKS: Final = 2  # the first may come at once, so at least the time between two of them


def route_peek(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, Peek)
    if command.session_id is not None:
        forward(gateway, entity.parts[hash_key(command.session_id)], command)
    elif command.count < 1:
        forward(gateway, entity.parts[partitions_up(gateway, entity)[0]], command)
    else:
        Peeking(gateway, entity, command).start()


class _Question:
    """What a partition was asked, and how far the peek was then."""

    __slots__ = ("found_count", "number", "partition", "size_bytes", "ticks")

    def __init__(self, partition: int, number: int, found_count: int, size_bytes: int) -> None:
        self.partition = partition
        self.number = number  # from which on
        self.found_count = found_count
        self.size_bytes = size_bytes
        self.ticks = 0  # since it was asked


class Peeking(Gather):
    """A peek at all partitions, as much as one peek may give."""

    __slots__ = (
        "_asked",
        "_count",
        "_found",
        "_has_heard",
        "_is_answered",
        "_late",
        "_number",
        "_partition",
        "_peek",
        "_size_bytes",
    )

    def __init__(self, gateway: Routes, entity: Entity, command: Peek) -> None:
        super().__init__(gateway, entity, command)
        self._peek = command
        self._count = min(command.count, PEEK_COUNT_MAX)
        self._partition = max(0, partition_of(command.from_sequence_number))
        self._number = command.from_sequence_number  # where to go on in this partition
        self._found: list[Delivered] = []
        self._size_bytes = 0
        self._asked: _Question | None = None  # whom the walk waits for
        self._late: list[_Question] = []  # whom it has passed, in the order of partitions
        self._has_heard = False  # from a partition that is not down
        self._is_answered = False

    def start(self) -> None:
        if len(self.gateway.links) > 1:  # otherwise nobody else could answer
            self.gateway.ticking.add(self)
        self._walk()

    def _walk(self) -> None:
        """Ask the next partition that can answer."""
        while self._partition < PARTITION_COUNT:
            part = self.entity.parts[self._partition]
            if self.gateway.links[part.store].health != DOWN and not self._is_late(part.store):
                asked = _Question(self._partition, self._number, len(self._found), self._size_bytes)
                self._asked = asked
                command = Peek(
                    part.entity_id,
                    self._peek.subqueue,
                    self._number,
                    self._count - len(self._found),
                )
                command.context = (self, asked)
                self.gateway.links[part.store].submit([command])
                return
            self._move_on()
        if self._found or not self._late:
            self._finish()

    def _is_late(self, store: int) -> bool:
        return store in [self.entity.parts[each.partition].store for each in self._late]

    def _move_on(self) -> None:
        """The next partition, from its first message."""
        self._partition += 1
        self._number = first_number(self._partition)

    def tick(self) -> None:
        """Some time has passed: whoever has not answered by now is not waited for."""
        asked = self._asked
        if asked is None:
            return
        asked.ticks += 1
        if asked.ticks >= LATE_TICKS:
            self._asked = None
            self._late.append(asked)
            self._move_on()
            self._walk()

    def replied(self, reply: Reply, rest: object) -> None:
        """A partition has answered, in time or late."""
        if self._is_answered:
            return
        assert isinstance(rest, _Question)
        if rest is self._asked:
            self._asked = None
        elif rest not in self._late:
            return  # the walk has gone back to somebody before it
        elif isinstance(reply.error, Unavailable):
            self._late.remove(rest)
            if self._asked is None and not self._late:
                self._finish()
            return
        else:
            self._go_back_to(rest)
        if isinstance(reply.error, Unavailable):
            self._move_on()
            self._walk()
            return
        self._has_heard = True
        if reply.error is not None:
            self._end(None, reply.error)
        else:
            self._take(reply.result)

    def _go_back_to(self, question: _Question) -> None:
        """As if nobody had been asked after it: the order of numbers is kept."""
        self._late = self._late[: self._late.index(question)]
        self._asked = None
        self._partition = question.partition
        self._number = question.number
        self._found = self._found[: question.found_count]
        self._size_bytes = question.size_bytes

    def _take(self, result: object) -> None:
        seen: list[Delivered] = []
        if isinstance(result, list):
            seen = copies_of(result)
        for each in seen:
            self._size_bytes += each.message.length
            if self._size_bytes > PEEK_RESPONSE_BYTES_MAX and self._found:
                self._end(self._found)
                return
            self._found.append(each)
        if len(self._found) >= self._count:
            self._end(self._found)
            return
        if seen:
            # Perhaps there was more than a reply may hold.  The next partition comes only when
            # nothing is left in this one, or asking again from the last number would miss it.
            self._number = seen[-1].message.sequence_number + 1
        else:
            self._move_on()
        self._walk()

    def _finish(self) -> None:
        """There is no further partition."""
        begins = partition_of(self._peek.from_sequence_number)
        if not self._has_heard and begins < PARTITION_COUNT:
            self._end(None, all_down(self.entity))
        else:
            self._end(self._found)

    def _end(self, result: object, error: ServiceError | None = None) -> None:
        self._is_answered = True
        self.gateway.ticking.discard(self)
        self.answer(result, error)
