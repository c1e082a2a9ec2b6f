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
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError, Unavailable
from twinbus.links.remote.codec import encode_command
from twinbus.links.remote.messages import encode_lock
from twinbus.links.remote.operations import (
    ACCEPTED,
    ANY,
    BEAT,
    CLOSE_RECEIVER,
    CLOSE_STORE,
    CLOSED,
    COMMIT,
    COMMITTED,
    DELIVERIES,
    DURABLE,
    ENTITY_GONE,
    MESSAGE_OVERHEAD_BYTES,
    OPEN_STORE,
    OPENED,
    RELEASE_SESSION,
    REPLY,
    STORE_FAILED,
    Operation,
    Sender,
)
from twinbus.links.remote.receiver_list import NOT_DONE, UNKNOWN, RemoteReceivers
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


class RemoteStore:
    """One store, wherever it is run.

    Half of its methods are those of `StoreLink`, the others follow its broker's life.
    """

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
        self.on_opened: Callable[[list[Listed]], None] = _ignore
        self.on_failed: Callable[[str, list[str]], None] = _ignore
        self.on_closed: Callable[[], None] = _ignore
        self.on_entity_gone: Callable[[int], None] = _ignore
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
        self.is_held = False  # it is moving to another broker as planned
        self._held: list[Operation] = []
        self._held_bytes = 0
        self._held_from = 0  # numbers from here on have not been sent
        self.receivers = RemoteReceivers(self)

    # -- where it is run ---------------------------------------------------------------------------

    def attach(self, sender: Sender) -> None:
        """This broker is to open it."""
        assert self._phase == _ABSENT, "a store is run by one broker at a time"
        self._sender = sender
        self._phase = _OPENING
        sender.send((OPEN_STORE, self.number, self.path))

    def hold(self) -> None:
        """It is going to move: commands wait from now on until it is open elsewhere."""
        if self._phase == _OPEN and not self.is_held:
            self.is_held = True
            self._held_from = self._taken + 1

    def go_on(self) -> None:
        """It stays where it is after all."""
        if self._phase == _OPEN and self.is_held:
            self._send_held()

    def close(self) -> None:
        """Let the broker finish and give it back; `on_closed` says when that has happened."""
        if self._phase == _OPEN:
            self.speak((CLOSE_STORE, self.number))
            self._phase = _CLOSING
            if not self.is_held:
                self.health = DOWN

    def lost(self, reason: str) -> None:
        """Its broker is gone, or has given it up."""
        self._sender = None
        self._phase = _ABSENT
        self.health = DOWN
        held_from = self._held_from if self.is_held else self._taken + 1
        self.is_held = False
        self._held = []
        self._held_bytes = 0
        self._end_all(held_from, reason)
        self.receivers.leave_broker(planned=False)

    @property
    def open_count(self) -> int:
        """Commands that are not answered yet."""
        return len(self._commands)

    @property
    def is_open(self) -> bool:
        return self._phase == _OPEN

    @property
    def is_reachable(self) -> bool:
        return self._phase == _OPEN or self.is_held

    def _opened(self, entities: list[Listed], first_grant: int) -> None:
        self._phase = _OPEN
        self.health = UP
        self.first_grant = first_grant
        self.receivers.ask_again()
        self._send_held()
        self.on_opened(entities)

    def _send_held(self) -> None:
        self.is_held = False
        held = self._held
        self._held = []
        self._held_bytes = 0
        for operation in held:
            self.speak(operation)

    def _closed(self) -> None:
        self._sender = None
        self._phase = _ABSENT
        if not self.is_held:
            self.health = DOWN
        # What is not answered by now never will be: the disk was too slow for the time it got.
        self._end_all(self._held_from if self.is_held else self._taken + 1, "")
        self.receivers.leave_broker(planned=self.is_held)
        self.on_closed()

    def _end_all(self, held_from: int, reason: str) -> None:
        """Nobody answers any more what was sent; what waits goes on waiting if the store moves."""
        self.flush_replies()
        unknown = f"{UNKNOWN} ({reason})" if reason else UNKNOWN
        replies: list[Reply] = []
        for number in list(self._commands):
            if number < held_from:
                replies.append(self._reply(number, None, Unavailable(unknown)))
            elif not self.is_held:
                replies.append(self._reply(number, None, Unavailable(NOT_DONE)))
        if replies:
            self._on_replies(replies)
        for number in list(self._durable):
            if number < held_from or not self.is_held:
                call = self._durable.pop(number, None)
                if call is not None:
                    call()
        for number in list(self._commits):
            if number < held_from:
                self._commits.pop(number)(Unavailable(unknown))
            elif not self.is_held:
                self._commits.pop(number)(Unavailable(NOT_DONE))

    # -- what the gateway asks ---------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        if self._phase != _OPEN or self.is_held:
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
                refused.append(Reply(command, None, Unavailable(NOT_DONE)))
        if refused:
            self._on_replies(refused)

    def _has_room(self, size: int) -> bool:
        return (
            self.is_held
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
        if not (self._phase == _OPEN and not self.is_held) and not self._has_room(size_bytes):
            then(Unavailable(NOT_DONE))
            return
        number = self.take_number()
        self._commits[number] = then
        encoded = [encode_command(self.number, 0, command) for command in commands]
        if self.is_held:
            self._held_bytes += size_bytes
        self._speak_in_order((COMMIT, self.number, number, encoded))

    def _speak_in_order(self, operation: Operation) -> None:
        if self.is_held:
            self._held.append(operation)
        else:
            self.speak(operation)

    # -- receivers and sessions --------------------------------------------------------------------

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> RemoteReceiver:
        return self.receivers.open(description, sink)

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> RemoteWaiter:
        return self.receivers.accept_session(entity_id, session_id, timeout_ms, grant, then)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self.speak((RELEASE_SESSION, self.number, entity_id, encode_lock(lock)))

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
            self.receivers.deliver(operation)
        elif code == ACCEPTED:
            self.receivers.accepted(operation)
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
            self.receivers.closed(operation[2])
        else:
            self.receivers.tell(code, operation)

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


def _ignore(*anything: object) -> None:
    """Nobody wants to know."""
