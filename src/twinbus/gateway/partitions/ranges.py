"""Requests about ranges of a partitioned entity's numbers: every partition is asked at once.

    ListPartitions   how far each one has come, or that it is down
    SettleRanges     each range goes to its partition, cut where it reaches into the next

A settlement is done as far as possible.  If one partition could not do its part and others could,
the answer counts what was done and says from which number on to ask again; once only that part is
left, the client gets the reason.
"""

from twinbus.entities.commands import Command, ListPartitions, PartitionState, Reply
from twinbus.entities.partitions import PARTITION_COUNT, first_number
from twinbus.entities.selections import Selected, SettleRanges
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import Gather, Routes, first_error, partition_down
from twinbus.links.store_link import DOWN


def route_list_partitions(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, ListPartitions)
    _Listing(gateway, entity, command).start()


class _Listing(Gather):
    """The states of all partitions; those that are down are not waited for."""

    __slots__ = ("_partitions", "_subqueue")

    def __init__(self, gateway: Routes, entity: Entity, command: ListPartitions) -> None:
        super().__init__(gateway, entity, command)
        self._subqueue = command.subqueue
        self._partitions: list[int] = []  # who is asked

    def start(self) -> None:
        for part in self.entity.parts:
            if self.gateway.links[part.store].health != DOWN:
                self._partitions.append(part.partition)
                self.ask(part.partition, ListPartitions(0, self._subqueue))
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        states = [PartitionState(each, False, 0, 0, 0) for each in range(PARTITION_COUNT)]
        for partition, reply in zip(self._partitions, replies, strict=True):
            if isinstance(reply.error, Unavailable):
                continue
            if reply.error is not None:
                self.answer(None, reply.error)
                return
            assert isinstance(reply.result, list)
            states[partition] = reply.result[0]
        self.answer(states)


def route_settle_ranges(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, SettleRanges)
    _RangeSettling(gateway, entity, command).start()


class _RangeSettling(Gather):
    """Settles ranges of several partitions, each independently."""

    __slots__ = ("_error", "_firsts", "_request", "_selected")

    def __init__(self, gateway: Routes, entity: Entity, command: SettleRanges) -> None:
        super().__init__(gateway, entity, command)
        self._request = command
        self._selected = Selected()
        self._firsts: list[int] = []  # of each partition that is asked, its first bound
        self._error: ServiceError | None = None  # of a partition that is down

    def start(self) -> None:
        request = self._request
        for part in self.entity.parts:
            bounds = bounds_within(request.bounds, part.partition)
            if not bounds:
                continue
            if self.gateway.links[part.store].health == DOWN:
                self._error = self._error or partition_down(self.entity, part.partition)
                self._undone_from(bounds[0])
                continue
            settle = SettleRanges(0, request.subqueue, request.selection, request.count)
            settle.bounds = bounds
            settle.overlay = request.overlay
            self._firsts.append(bounds[0])
            self.ask(part.partition, settle)
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        selected = self._selected
        for first, reply in zip(self._firsts, replies, strict=True):
            done = reply.result
            if not isinstance(done, Selected):
                self._undone_from(first)
                continue
            selected.count += done.count
            selected.units += done.units
            if done.next_sequence_number:
                self._undone_from(done.next_sequence_number)
        error = first_error(replies) or self._error
        if error is not None and selected.count == 0:
            self.answer(None, error)
        else:
            self.answer(selected)

    def _undone_from(self, number: int) -> None:
        """From this number on there is something left to do."""
        number = max(1, number)
        known = self._selected.next_sequence_number
        self._selected.next_sequence_number = min(known, number) if known else number


def bounds_within(bounds: list[int], partition: int) -> list[int]:
    """What of these ranges is in a partition."""
    start, end = first_number(partition), first_number(partition + 1)
    found: list[int] = []
    for at in range(0, len(bounds), 2):
        first, last = max(bounds[at], start), min(bounds[at + 1], end)
        if first < last:
            found += (first, last)
    return found
