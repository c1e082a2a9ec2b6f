"""Commands that name messages by sequence number: the number tells the partition.

A command for one partition only (nearly all are) is passed on unchanged.  Over several:

    Settle, RenewLocks   each partition decides on its own; the answers are put in order
    ReceiveDeferred      all or none: if one partition refuses, the others' locks are given back
    CancelScheduled,     all or none as far as can be: first every number is looked for, then all
    Undefer              partitions act; if one fails even so, the error says what was done

A number of no partition is treated as unknown.  Receive-and-delete must never lose a message: what
was removed is handed out, whatever happens to the others.
"""

from typing import Final

from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    CancelScheduled,
    Command,
    Delivered,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Reply,
    Settle,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import DEFERRED, SCHEDULED
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_of
from twinbus.entities.queue import LOCK_LOST
from twinbus.entities.selections import Selected, Undefer
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityDisabled,
    MessageLockLost,
    MessageNotFound,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import Gather, Routes, copies_of, first_error, forward
from twinbus.limits import SEQUENCE_NUMBERS_MAX

_LOCKING: Final = -1  # before any outcome
_NAMED_MAX: Final = 16  # numbers that an error spells out


def is_partition(partition: int) -> bool:
    return 0 <= partition < PARTITION_COUNT


# --- locks ------------------------------------------------------------------------------------


def route_settle(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, Settle)
    if not _is_forwarded(gateway, entity, command, command.locks):
        _Settling(gateway, entity, command).start(command)


def route_renew(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, RenewLocks)
    if not _is_forwarded(gateway, entity, command, command.locks):
        _Renewing(gateway, entity, command).start(command)


def _is_forwarded(gateway: Routes, entity: Entity, command: Command, locks: list[Lock]) -> bool:
    """If all these locks are of one partition, that one answers the command itself."""
    found = partition_of(locks[0][0]) if locks else 0
    for number, _ in locks:
        if partition_of(number) != found:
            return False
    if not is_partition(found):
        return False
    forward(gateway, entity.parts[found], command)
    return True


class _Settling(Gather):
    """Ends locks of several partitions, each independently."""

    __slots__ = ("_errors", "_places")

    def __init__(self, gateway: Routes, entity: Entity, command: Settle) -> None:
        super().__init__(gateway, entity, command)
        self._places: list[list[int]] = []  # for each command, where its locks were
        self._errors: list[ServiceError | None] = [None] * len(command.locks)

    def start(self, command: Settle) -> None:
        for partition, places in _by_partition([number for number, _ in command.locks]).items():
            if not is_partition(partition):
                for place in places:
                    self._errors[place] = MessageLockLost(LOCK_LOST)
                continue
            locks = [command.locks[place] for place in places]
            settle = Settle(0, command.subqueue, locks, command.outcome, command.overlay)
            settle.delay_ms = command.delay_ms
            self._places.append(places)
            self.ask(partition, settle)
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        errors = self._errors
        for places, reply in zip(self._places, replies, strict=True):
            for at, place in enumerate(places):
                if reply.error is not None:
                    errors[place] = reply.error
                elif isinstance(reply.result, list):
                    errors[place] = reply.result[at]
        self.answer(None if errors.count(None) == len(errors) else errors)


class _Renewing(Gather):
    """Renews locks of several partitions.

    If one is lost, the others are renewed all the same, which does no harm.
    """

    __slots__ = ("_places",)

    def __init__(self, gateway: Routes, entity: Entity, command: RenewLocks) -> None:
        super().__init__(gateway, entity, command)
        self._places: list[list[int]] = []

    def start(self, command: RenewLocks) -> None:
        found = _by_partition([number for number, _ in command.locks])
        for partition in found:
            if not is_partition(partition):
                raise MessageLockLost(LOCK_LOST)
        for partition, places in found.items():
            self._places.append(places)
            locks = [command.locks[place] for place in places]
            self.ask(partition, RenewLocks(0, command.subqueue, locks))
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        self.answer_in_order(self._places, replies)


# --- deferred messages ------------------------------------------------------------------------


def route_receive_deferred(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, ReceiveDeferred)
    if command.session_id is not None:
        # A session is in one partition; what is elsewhere is not its own and not found there.
        forward(gateway, entity.parts[hash_key(command.session_id)], command)
        return
    numbers = command.sequence_numbers
    found = _checked(numbers, "deferred")
    if len(found) == 1:
        forward(gateway, entity.parts[next(iter(found))], command)
    else:
        _DeferredReceiving(gateway, entity, command).start(found)


class _DeferredReceiving(Gather):
    """Locks deferred messages in several partitions, then removes them if that was asked for."""

    __slots__ = ("_delivered", "_error", "_outcome", "_partitions")

    def __init__(self, gateway: Routes, entity: Entity, command: ReceiveDeferred) -> None:
        super().__init__(gateway, entity, command)
        self._partitions: list[int] = []
        self._delivered: list[list[Delivered]] = []  # of each partition; empty if it refused
        self._error: ServiceError | None = None
        self._outcome = _LOCKING  # what becomes of the locks in this round

    def start(self, found: dict[int, list[int]]) -> None:
        command = self.command
        assert isinstance(command, ReceiveDeferred)
        for partition, places in found.items():
            numbers = [command.sequence_numbers[place] for place in places]
            self._partitions.append(partition)
            self.ask(partition, ReceiveDeferred(0, command.subqueue, numbers, PEEK_LOCK))
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        if self._outcome == COMPLETE:
            self._removed(replies)
        elif self._outcome == RELEASE:
            self.answer(None, self._error)
        else:
            self._locked(replies)

    def _locked(self, replies: list[Reply]) -> None:
        command = self.command
        assert isinstance(command, ReceiveDeferred)
        for reply in replies:
            delivered: list[Delivered] = []
            if reply.error is None:
                assert isinstance(reply.result, list)
                delivered = copies_of(reply.result)
            self._delivered.append(delivered)
        self._error = first_error(replies)
        if self._error is not None:
            self._settle(RELEASE)
        elif command.receive_mode == RECEIVE_AND_DELETE:
            self._settle(COMPLETE)
        else:
            self._answer_with(self._delivered)

    def _settle(self, outcome: int) -> None:
        command = self.command
        assert isinstance(command, ReceiveDeferred)
        self._outcome = outcome
        is_asking = False
        for partition, delivered in zip(self._partitions, self._delivered, strict=True):
            if delivered:
                is_asking = True
                locks = [(d.message.sequence_number, d.message.grant) for d in delivered]
                self.ask(partition, Settle(0, command.subqueue, locks, outcome))
        if is_asking:
            self.begin()
        else:
            self.answer(None, self._error)

    def _removed(self, replies: list[Reply]) -> None:
        """What is gone from its partition is handed out.  The rest comes back with its lock."""
        kept: list[list[Delivered]] = []
        for delivered, reply in zip(self._delivered, replies, strict=True):
            gone = delivered if reply.error is None else []
            if isinstance(reply.result, list):
                pairs = zip(delivered, reply.result, strict=True)
                gone = [each for each, error in pairs if error is None]
            for each in gone:
                each.message.grant = 0
                each.locked_until_utc_ms = 0
            kept.append(gone)
        error = first_error(replies)
        if error is not None and not any(kept):
            self.answer(None, error)
        else:
            self._answer_with(kept)

    def _answer_with(self, delivered: list[list[Delivered]]) -> None:
        """All of them in the order of the request."""
        command = self.command
        assert isinstance(command, ReceiveDeferred)
        found: dict[int, Delivered] = {}
        for part in delivered:
            for each in part:
                found[each.message.sequence_number] = each
        self.answer([found[number] for number in command.sequence_numbers if number in found])


# --- looked for first -------------------------------------------------------------------------


def route_cancel(gateway: Routes, entity: Entity, command: Command) -> None:
    assert isinstance(command, CancelScheduled)
    found = _checked(command.sequence_numbers, "scheduled")
    if len(found) == 1:
        forward(gateway, entity.parts[next(iter(found))], command)
    else:
        _Cancelling(gateway, entity, command).start(found)


def undefer_numbers(gateway: Routes, entity: Entity, command: Undefer) -> None:
    """Undefer just the messages that the command names."""
    found = _checked(command.sequence_numbers, "deferred")
    if len(found) == 1:
        forward(gateway, entity.parts[next(iter(found))], command)
    else:
        _Undeferring(gateway, entity, command).start(found)


class _Looking(Gather):
    """Base: act on messages by number in several partitions, after all have been seen there."""

    __slots__ = ("_acts", "_numbers", "_partitions", "_word", "state", "subqueue")

    def __init__(
        self, gateway: Routes, entity: Entity, command: Command, subqueue: int, state: int
    ) -> None:
        super().__init__(gateway, entity, command)
        self._partitions: list[int] = []
        self._numbers: list[list[int]] = []  # for each of them
        self._acts = False
        self._word = "scheduled" if state == SCHEDULED else "deferred"
        self.subqueue = subqueue
        self.state = state

    def numbers(self) -> list[int]:
        """Those that the command names."""
        raise NotImplementedError

    def action(self, numbers: list[int]) -> Command:
        """The command to one partition."""
        raise NotImplementedError

    def result(self) -> object:
        """The answer when all went well."""
        raise NotImplementedError

    def start(self, found: dict[int, list[int]]) -> None:
        numbers = self.numbers()
        for partition, places in found.items():
            self._partitions.append(partition)
            self._numbers.append([numbers[place] for place in places])
            for place in places:
                self.ask(partition, Peek(0, self.subqueue, numbers[place], 1))
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        if self._acts:
            self._finish(replies)
            return
        error = self._missing(replies)
        if error is not None:
            self.answer(None, error)
            return
        self._acts = True
        for partition, numbers in zip(self._partitions, self._numbers, strict=True):
            self.ask(partition, self.action(numbers))
        self.begin()

    def _missing(self, replies: list[Reply]) -> ServiceError | None:
        wanted: list[int] = []
        for each in self._numbers:
            wanted += each
        for number, reply in zip(wanted, replies, strict=True):
            if isinstance(reply.error, EntityDisabled):
                continue  # nobody may look, but who asks may act
            if reply.error is not None:
                return reply.error
            seen = reply.result
            assert isinstance(seen, list)
            message = seen[0].message if seen else None
            if message is None or message.sequence_number != number or message.state != self.state:
                return _not_found(number, self._word)
        return None

    def _finish(self, replies: list[Reply]) -> None:
        error = first_error(replies)
        if error is None:
            self.answer(self.result())
            return
        done: list[int] = []
        for numbers, reply in zip(self._numbers, replies, strict=True):
            if reply.error is None:
                done += numbers
        if done:
            named = ", ".join([str(number) for number in done[:_NAMED_MAX]])
            more = f" and {len(done) - _NAMED_MAX} more" if len(done) > _NAMED_MAX else ""
            text = f"{error} It has been done for these sequence numbers: {named}{more}."
            error = Unavailable(text) if isinstance(error, Unavailable) else MessageNotFound(text)
        self.answer(None, error)


class _Cancelling(_Looking):
    __slots__ = ()

    def __init__(self, gateway: Routes, entity: Entity, command: CancelScheduled) -> None:
        super().__init__(gateway, entity, command, MAIN, SCHEDULED)

    def numbers(self) -> list[int]:
        assert isinstance(self.command, CancelScheduled)
        return self.command.sequence_numbers

    def action(self, numbers: list[int]) -> Command:
        return CancelScheduled(0, numbers)

    def result(self) -> object:
        return None


class _Undeferring(_Looking):
    __slots__ = ()

    def __init__(self, gateway: Routes, entity: Entity, command: Undefer) -> None:
        super().__init__(gateway, entity, command, command.subqueue, DEFERRED)

    def numbers(self) -> list[int]:
        assert isinstance(self.command, Undefer)
        return self.command.sequence_numbers

    def action(self, numbers: list[int]) -> Command:
        assert isinstance(self.command, Undefer)
        undefer = Undefer(0, self.subqueue, self.command.selection, self.command.count)
        undefer.sequence_numbers = numbers
        return undefer

    def result(self) -> object:
        selected = Selected()
        selected.count = len(self.numbers())
        return selected


# --- numbers ----------------------------------------------------------------------------------


def _by_partition(numbers: list[int]) -> dict[int, list[int]]:
    """For each partition, the places of its numbers."""
    found: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        found.setdefault(partition_of(number), []).append(place)
    return found


def _checked(numbers: list[int], word: str) -> dict[int, list[int]]:
    """The places of the numbers by partition, or what a plain entity would say to such numbers."""
    if len(numbers) > SEQUENCE_NUMBERS_MAX:
        raise ArgumentOutOfRange(
            f"A request may name {SEQUENCE_NUMBERS_MAX} sequence numbers, not {len(numbers)}."
        )
    if len(set(numbers)) != len(numbers):
        raise ArgumentInvalid("A sequence number is given twice.")
    found = _by_partition(numbers)
    for partition, places in found.items():
        if not is_partition(partition):
            raise _not_found(numbers[places[0]], word)
    if not found:
        found[0] = []  # nothing is asked of anybody; any partition can say so
    return found


def _not_found(number: int, word: str) -> MessageNotFound:
    return MessageNotFound(f"No {word} message has the sequence number {number}.")
