"""A store that a broker process runs, as the gateway has it: implements `links.StoreLink`.

    attach(sender) ─▶ opening ── opened ─▶ open ── hold, close ─▶ closing ── closed ─▶ attach ...
                         └──────── lost(reason): down ◀─┘

The store stays the same while brokers come and go.  Receivers and waits for sessions are kept and
asked for again where it comes up.  A command is answered exactly once: by the broker; or, when that
is lost first, with Unavailable, which says that it may have happened; or with Unavailable at once
while the store is down.  While it moves as planned, commands wait their turn.

This module must never say of a command that it has not happened when it may have.
"""

from collections.abc import Callable
from typing import Final

from twinbus.clock import Clock, Now
from twinbus.entities.commands import Command, Listed, Reply, Send
from twinbus.entities.sessions import SessionLock
from twinbus.errors import OperationTimeout, ServiceError, Unavailable
from twinbus.links.remote.codec import encode_command
from twinbus.links.remote.messages import decode_lock, encode_lock
from twinbus.links.remote.operations import (
    ACCEPTED,
    ANY,
    BEAT,
    CANCEL_ACCEPT,
    CLOSE_RECEIVER,
    CLOSE_STORE,
    CLOSED,
    COMMIT,
    COMMITTED,
    DELIVERIES,
    DRAINED,
    DURABLE,
    ENTITY_GONE,
    LOST,
    MESSAGE_OVERHEAD_BYTES,
    OPEN_STORE,
    OPENED,
    RELEASE_SESSION,
    REMOVED,
    REPLY,
    STORE_FAILED,
    Operation,
    Sender,
)
from twinbus.links.remote.receivers import RemoteReceiver, RemoteWaiter
from twinbus.links.remote.results import ERROR, decode_error, decode_listed, decode_result
from twinbus.links.remote.transactions import RemoteTransactions
from twinbus.links.sink import Sink
from twinbus.links.store_link import DOWN, SLOW, UP, Answer, ReceiverDescription
from twinbus.links.transactions import Then

SLOW_AFTER_MS: Final = 1_000
# What waits while a store moves; beyond either, Unavailable.
HELD_COUNT_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 33_554_432

_ABSENT: Final = 0  # no broker has it
_OPENING: Final = 1
_OPEN: Final = 2
_CLOSING: Final = 3  # as planned

_NOT_DONE: Final = "The store of this entity is not available; nothing has been done. Try again."
_UNKNOWN: Final = (
    "The broker of this entity was lost before it answered: this may have happened or not."
)


class RemoteStore:
    """One store, wherever it is run."""

    def __init__(
        self, number: int, path: str, clock: Clock, on_replies: Callable[[list[Reply]], None]
    ) -> None:
        self.number = number
        self.path = path
        self.health = DOWN
        self.pending_bytes = 0
        self.transaction_bytes = 0  # of what waits in open transactions (transactions.py)
        self.slow_after_ms = SLOW_AFTER_MS
        self.first_grant = 0
        # Who wants to know: opened with these entities, failed with this text and log, closed as
        # planned, an entity deleted for being idle.
        self.on_opened: Callable[[list[Listed]], None] = _ignore_listed
        self.on_failed: Callable[[str, list[str]], None] = _ignore_failure
        self.on_closed: Callable[[], None] = _ignore
        self.on_entity_gone: Callable[[int], None] = _ignore_number
        self._clock = clock
        self._on_replies = on_replies
        self._sender: Sender | None = None
        self._phase = _ABSENT
        self._client: object = None
        self._taken = 0  # numbers given so far
        self._commands: dict[int, Command] = {}  # asked and not answered
        self._replies: list[Reply] = []  # of the frame that is being read
        self._durable: dict[int, Callable[[], None]] = {}
        self._commits: dict[int, Then] = {}
        self._is_held = False
        self._held: list[Operation] = []
        self._held_bytes = 0
        self._held_from = 0  # numbers from here on have not been sent
        self._receivers: dict[RemoteReceiver, None] = {}
        self._open_receivers: dict[int, RemoteReceiver] = {}
        self._closed_receivers: dict[int, RemoteReceiver] = {}  # and not confirmed yet
        self._waiters: dict[RemoteWaiter, None] = {}
        self._asked_waiters: dict[int, RemoteWaiter] = {}

    # -- where it is run ---------------------------------------------------------------------------

    def attach(self, sender: Sender) -> None:
        """This broker is to open it."""
        assert self._phase == _ABSENT, "a store is run by one broker at a time"
        self._sender = sender
        self._phase = _OPENING
        sender.send((OPEN_STORE, self.number, self.path))

    def hold(self) -> None:
        """It is going to move: commands wait from now on until it is open elsewhere."""
        if self._phase == _OPEN and not self._is_held:
            self._is_held = True
            self._held_from = self._taken + 1

    def go_on(self) -> None:
        """It stays where it is after all."""
        if self._phase == _OPEN and self._is_held:
            self._send_held()

    def close(self) -> None:
        """Let the broker finish and give it back; `on_closed` says when that has happened."""
        if self._phase == _OPEN:
            self.speak((CLOSE_STORE, self.number))
            self._phase = _CLOSING
            if not self._is_held:
                self.health = DOWN

    def lost(self, reason: str) -> None:
        """Its broker is gone, or has given it up."""
        self._sender = None
        self._phase = _ABSENT
        self.health = DOWN
        held_from = self._held_from if self._is_held else self._taken + 1
        self._is_held = False
        self._held = []
        self._held_bytes = 0
        self._end_all(held_from, reason)
        self._leave_broker(planned=False)

    @property
    def open_count(self) -> int:
        """Commands that are not answered yet."""
        return len(self._commands)

    @property
    def is_open(self) -> bool:
        return self._phase == _OPEN

    @property
    def is_reachable(self) -> bool:
        return self._phase == _OPEN or self._is_held

    def _opened(self, entities: list[Listed], first_grant: int) -> None:
        self._phase = _OPEN
        self.health = UP
        self.first_grant = first_grant
        for receiver in list(self._receivers):
            receiver.open()
        now = self._clock.now()
        for waiter in list(self._waiters):
            if waiter.number == 0:
                self._ask(waiter, now)
        self._send_held()
        self.on_opened(entities)

    def _send_held(self) -> None:
        self._is_held = False
        held = self._held
        self._held = []
        self._held_bytes = 0
        for operation in held:
            self.speak(operation)

    def _closed(self) -> None:
        self._sender = None
        self._phase = _ABSENT
        if not self._is_held:
            self.health = DOWN
        # What is not answered by now never will be: the disk was too slow for the time it got.
        self._end_all(self._held_from if self._is_held else self._taken + 1, "")
        self._leave_broker(planned=self._is_held)
        self.on_closed()

    def _end_all(self, held_from: int, reason: str) -> None:
        """Nobody answers any more what was sent; what waits goes on waiting if the store moves."""
        self.flush_replies()
        unknown = f"{_UNKNOWN} ({reason})" if reason else _UNKNOWN
        replies: list[Reply] = []
        for number in list(self._commands):
            if number < held_from:
                replies.append(self._reply(number, None, Unavailable(unknown)))
            elif not self._is_held:
                replies.append(self._reply(number, None, Unavailable(_NOT_DONE)))
        if replies:
            self._on_replies(replies)
        for number in list(self._durable):
            if number < held_from or not self._is_held:
                call = self._durable.pop(number, None)
                if call is not None:
                    call()
        for number in list(self._commits):
            if number < held_from:
                self._commits.pop(number)(Unavailable(unknown))
            elif not self._is_held:
                self._commits.pop(number)(Unavailable(_NOT_DONE))

    def _leave_broker(self, planned: bool) -> None:
        self._open_receivers.clear()
        self._closed_receivers.clear()
        self._asked_waiters.clear()
        for receiver in list(self._receivers):
            receiver.down(planned)
        for waiter in list(self._waiters):
            waiter.number = 0
            if waiter.grant:  # a lock that somebody wanted to take over is lost with the broker
                self._waiters.pop(waiter, None)
                waiter.answer(Unavailable(_UNKNOWN))

    # -- what the gateway asks ---------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        if self._phase != _OPEN or self._is_held:
            self._submit_later(commands)
            return
        sender = self._sender
        assert sender is not None
        number = self._taken
        for command in commands:
            number += 1
            self._commands[number] = command
            if isinstance(command, Send):
                self.pending_bytes += _size_of(command)
            sender.send(encode_command(self.number, number, command))
        self._taken = number

    def _submit_later(self, commands: list[Command]) -> None:
        refused: list[Reply] = []
        for command in commands:
            size = _size_of(command) if isinstance(command, Send) else MESSAGE_OVERHEAD_BYTES
            if self._has_room(size):
                number = self.take_number()
                self._commands[number] = command
                if isinstance(command, Send):
                    self.pending_bytes += size
                self._held.append(encode_command(self.number, number, command))
                self._held_bytes += size
            else:
                refused.append(Reply(command, None, Unavailable(_NOT_DONE)))
        if refused:
            self._on_replies(refused)

    def _has_room(self, size: int) -> bool:
        return (
            self._is_held
            and len(self._held) < HELD_COUNT_MAX
            and self._held_bytes + size <= HELD_BYTES_MAX
        )

    def turn_if_alone(self, client: object) -> None:
        """Whoever talks alone does not wait for the end of the turn."""
        alone = client is self._client
        self._client = client
        if alone and self._sender is not None:
            self._sender.flush()

    def when_durable(self, call: Callable[[], None]) -> None:
        """A store that is down has nothing on its way."""
        if not self.is_reachable:
            call()
            return
        number = self.take_number()
        self._durable[number] = call
        self._speak_in_order((DURABLE, self.number, number))

    def transactions(self, clock: Clock, prefix: bytes) -> RemoteTransactions:
        """One connection's transactions in this store."""
        return RemoteTransactions(self, clock, prefix)

    def commit(self, commands: list[Command], size_bytes: int, then: Then) -> None:
        """All of these together or none (transactions.py)."""
        if not (self._phase == _OPEN and not self._is_held) and not self._has_room(size_bytes):
            then(Unavailable(_NOT_DONE))
            return
        number = self.take_number()
        self._commits[number] = then
        encoded = [encode_command(self.number, 0, command) for command in commands]
        if self._is_held:
            self._held_bytes += size_bytes
        self._speak_in_order((COMMIT, self.number, number, encoded))

    def _speak_in_order(self, operation: Operation) -> None:
        if self._is_held:
            self._held.append(operation)
        else:
            self.speak(operation)

    # -- receivers and sessions --------------------------------------------------------------------

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> RemoteReceiver:
        receiver = RemoteReceiver(self, description, sink)
        self._receivers[receiver] = None
        if self._phase == _OPEN:
            receiver.open()
        else:
            receiver.down(planned=self._is_held)
        return receiver

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> RemoteWaiter:
        now = self._clock.now()
        deadline_ms = now.mono_ms + timeout_ms
        waiter = RemoteWaiter(self, entity_id, session_id, deadline_ms, grant, then)
        if not self.is_reachable:
            waiter.answer(Unavailable(_NOT_DONE))
            return waiter
        self._waiters[waiter] = None
        if self._phase == _OPEN:
            self._ask(waiter, now)
        return waiter

    def _ask(self, waiter: RemoteWaiter, now: Now) -> None:
        number = self.take_number()
        self._asked_waiters[number] = waiter
        waiter.ask(number, now)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self.speak((RELEASE_SESSION, self.number, entity_id, encode_lock(lock)))

    def tick(self) -> None:
        """To be called a few times a second: whoever waits for a session does not wait for ever.

        While the store is open its broker sees to that.
        """
        if self._phase == _OPEN or not self._waiters:
            return
        mono_ms = self._clock.now().mono_ms
        for waiter in [each for each in self._waiters if each.deadline_ms <= mono_ms]:
            self._waiters.pop(waiter, None)
            waiter.answer(OperationTimeout("No session became available in time."))

    # -- what receivers and waiters use ------------------------------------------------------------

    def now(self) -> Now:
        return self._clock.now()

    def take_number(self) -> int:
        self._taken += 1
        return self._taken

    def speak(self, operation: Operation) -> None:
        """Say this to the broker that runs the store; nothing, if there is none."""
        if self._phase == _OPEN and self._sender is not None:
            self._sender.send(operation)

    def open_as(self, number: int, receiver: RemoteReceiver) -> None:
        self._open_receivers[number] = receiver

    def forget_receiver(self, receiver: RemoteReceiver) -> None:
        self._receivers.pop(receiver, None)
        if self._open_receivers.pop(receiver.number, None) is not None:
            self._closed_receivers[receiver.number] = receiver
            self.speak((CLOSE_RECEIVER, self.number, receiver.number))

    def forget_waiter(self, waiter: RemoteWaiter) -> None:
        self._waiters.pop(waiter, None)
        if self._asked_waiters.pop(waiter.number, None) is not None:
            self.speak((CANCEL_ACCEPT, self.number, waiter.number))

    # -- what the broker tells ---------------------------------------------------------------------

    def handle(self, operation: Operation, sender: Sender) -> None:
        """One operation for this store.  What an earlier broker still has to say counts no more."""
        if sender is not self._sender:
            return
        code: int = operation[0]
        if code == REPLY:
            number: int = operation[2]
            if number in self._commands:
                form: int = operation[3]
                if form == ERROR:
                    reply = self._reply(number, None, decode_error(operation[4]))
                else:
                    reply = self._reply(number, decode_result(form, operation[4]), None)
                self._replies.append(reply)
            return
        self.flush_replies()
        if code == DELIVERIES:
            self._deliver(operation)
        elif code == ACCEPTED:
            self._accepted(operation)
        elif code == OPENED:
            self._opened(decode_listed(operation[2]), operation[3])
        elif code == STORE_FAILED:
            self.lost(operation[2])
            self.on_failed(operation[2], operation[3])
        elif code == CLOSED:
            self._closed()
        elif code == DURABLE:
            call = self._durable.pop(operation[2], None)
            if call is not None:
                call()
        elif code == COMMITTED:
            then = self._commits.pop(operation[2], None)
            if then is not None:
                then(None if operation[3] is None else decode_error(operation[3]))
        elif code == ENTITY_GONE:
            self.on_entity_gone(operation[2])
        elif code == CLOSE_RECEIVER:
            self._closed_receivers.pop(operation[2], None)
        else:
            self._tell_receiver(code, operation)

    def flush_replies(self) -> None:
        """The replies of a frame go on together."""
        if self._replies:
            replies = self._replies
            self._replies = []
            self._on_replies(replies)

    def _reply(self, number: int, result: object, error: ServiceError | None) -> Reply:
        command = self._commands.pop(number)
        if isinstance(command, Send):
            self.pending_bytes -= _size_of(command)
        return Reply(command, result, error)

    def _deliver(self, operation: Operation) -> None:
        receiver = self._open_receivers.get(operation[2])
        if receiver is not None:
            receiver.delivered(operation[3], operation[4], operation[5])
            return
        closed = self._closed_receivers.get(operation[2])
        if closed is not None:
            closed.give_back(operation[3], operation[4])

    def _tell_receiver(self, code: int, operation: Operation) -> None:
        receiver = self._open_receivers.get(operation[2])
        if receiver is None:
            return
        if code == DRAINED:
            receiver.drained(operation[3])
            return
        self._receivers.pop(receiver, None)  # nothing to be opened again, or closed
        del self._open_receivers[operation[2]]
        if code == REMOVED:
            receiver.removed()
        elif code == LOST:
            receiver.lost(decode_error(operation[3]))

    def _accepted(self, operation: Operation) -> None:
        _, _, number, entity_id, lock, error = operation
        waiter = self._asked_waiters.pop(number, None)
        if waiter is not None:
            self._waiters.pop(waiter, None)
            waiter.answer(decode_error(error) if lock is None else decode_lock(lock))
        elif lock is not None:  # it was cancelled meanwhile
            self.release_session(entity_id, decode_lock(lock))

    def told_age(self, commit_age_ms: int, sender: Sender) -> None:
        """How long the oldest commit of the store has been on its way."""
        if sender is self._sender and self._phase == _OPEN:
            self.health = SLOW if commit_age_ms > self.slow_after_ms else UP


def dispatch(
    operations: list[Operation], sender: Sender, stores: list[RemoteStore]
) -> list[Operation]:
    """Give each operation of a broker process to its store; returns those about the process."""
    rest: list[Operation] = []
    last: RemoteStore | None = None
    for operation in operations:
        number: int = operation[1]
        if number == ANY:
            rest.append(operation)
            if operation[0] == BEAT:
                for beat in operation[5]:
                    stores[beat[0]].told_age(beat[1], sender)
            continue
        store = stores[number]
        if last is not None and last is not store:
            last.flush_replies()
        store.handle(operation, sender)
        last = store
    if last is not None:
        last.flush_replies()
    return rest


def _size_of(command: Send) -> int:
    size = 0
    for message in command.messages:
        size += len(message.body) + MESSAGE_OVERHEAD_BYTES
    return size


def _ignore() -> None:
    """Nobody wants to know."""


def _ignore_listed(entities: list[Listed]) -> None:
    """Nobody wants to know."""


def _ignore_failure(text: str, log: list[str]) -> None:
    """Nobody wants to know."""


def _ignore_number(number: int) -> None:
    """Nobody wants to know."""
