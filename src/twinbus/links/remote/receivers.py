"""The gateway's side of a receiver, and of a wait for a session, in a store behind a socket.

Both outlive the broker that serves them: they know all that is needed to ask the next one.

Credit is counted as AMQP does it, because deliveries and credit cross on the way: we send not how
many more may come, but how many may have come in all (`limit`).  Messages that the connection has
no room or no credit for wait here.  The far end sends at most a window of bytes ahead of what was
handed over.
"""

from collections import deque
from typing import Any, Final, Protocol

from twinbus.clock import Now
from twinbus.entities.commands import RECEIVE_AND_DELETE, RELEASE, Lock
from twinbus.entities.message import Message
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError, SessionLockLost
from twinbus.links.remote.codec import SETTLE
from twinbus.links.remote.messages import decode_message, encode_lock
from twinbus.links.remote.operations import (
    ACCEPT,
    CONSUMED,
    CREDIT,
    OPEN_RECEIVER,
    WINDOW_BYTES,
    Operation,
)
from twinbus.links.sink import Sink
from twinbus.links.store_link import Answer, ReceiverDescription

# How often the far end is told what was handed over.
CONSUMED_STEP_BYTES: Final = WINDOW_BYTES // 4
_ACCEPT_AGAIN_MS: Final = 10_000  # a named session is answered for at once

Chunk = tuple[list[Message], list[bytes], int, int]  # locked until, bytes of the window


class Home(Protocol):
    """The store that a receiver is of (remote_store.py)."""

    @property
    def number(self) -> int: ...

    @property
    def is_reachable(self) -> bool:
        """Is it open, or moving to where it will be?"""

    @property
    def first_grant(self) -> int:
        """Locks of sessions that are older were lost when the store was opened again."""

    def now(self) -> Now: ...

    def take_number(self) -> int: ...

    def speak(self, operation: Operation) -> None:
        """Say this to the broker that runs the store; nothing, if there is none."""


class Keeper(Protocol):
    """Who keeps the receivers and waits of a store (receiver_list.py)."""

    def open_as(self, number: int, receiver: "RemoteReceiver") -> None: ...

    def forget_receiver(self, receiver: "RemoteReceiver") -> None: ...

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> "RemoteWaiter": ...

    def forget_waiter(self, waiter: "RemoteWaiter") -> None: ...


class RemoteReceiver:
    """One receiver; implements `links.Receiving`."""

    def __init__(
        self, home: Home, keeper: Keeper, description: ReceiverDescription, sink: Sink
    ) -> None:
        self._home = home
        self._keeper = keeper
        self._description = description
        self._sink = sink
        self.session = description.session  # changes when it is locked anew
        self.number = 0  # under which the broker knows it; 0: it does not
        self.credit = 0
        self._drain = 0  # number of the drain under way; 0: none
        self._is_drained = False  # the broker's answer waits for what is queued
        self._passed = 0  # messages handed over, or given up
        self._base = 0  # what `_passed` was, with the queued ones, when it was opened
        self._queue: deque[Chunk] = deque()
        self._queued = 0  # messages in it
        self._consumed = 0  # bytes, and nobody told yet
        self._accepting: RemoteWaiter | None = None  # its session, anew
        self._is_locked = True  # by `session`; not any more when the store is opened again

    # -- what the gateway asks ---------------------------------------------------------------------

    def set_credit(self, credit: int, drain: bool) -> None:
        self.credit = credit
        self._is_drained = False
        self._drain = self._home.take_number() if drain else 0
        if drain and not self._home.is_reachable:
            self._finish_drain()
            return
        self._tell_credit()
        if self._queue:
            self._hand_over()

    def resume(self) -> None:
        if self._queue or self._is_drained:
            self._hand_over()

    def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        for messages, _, until, _ in self._queue:
            self._give_back(messages, until)
        self._queue.clear()
        self._keeper.forget_receiver(self)

    # -- opening, and opening again ----------------------------------------------------------------

    def open(self) -> None:
        """The store is there: ask its broker, for the session first if that is to be had anew."""
        session = self.session
        if session is None or (self._is_locked and session.grant >= self._home.first_grant):
            self._open()
        elif self._description.is_exclusive:
            self._accepting = self._keeper.accept_session(
                self._description.entity_id, session.session_id, _ACCEPT_AGAIN_MS, 0, self._accepted
            )
        else:
            self._lose("The lock of the session was lost with the broker that gave it.")

    def _accepted(self, result: SessionLock | ServiceError) -> None:
        session = self.session
        assert session is not None
        self._accepting = None
        if isinstance(result, SessionLock):
            self._is_locked = True
            session.grant = result.grant
            session.locked_until_ms = result.locked_until_ms
            session.locked_until_utc_ms = result.locked_until_utc_ms
            self._open()
        else:
            self._lose(f"The session could not be locked again: {result}")

    def _open(self) -> None:
        home = self._home
        session = self.session
        self.number = home.take_number()
        self._base = self._passed + self._queued
        self._consumed = 0
        self._keeper.open_as(self.number, self)
        home.speak(
            (
                OPEN_RECEIVER,
                home.number,
                self.number,
                self._description.entity_id,
                self._description.subqueue,
                self._description.receive_mode,
                None if session is None else encode_lock(session),
                self._description.is_exclusive,
                self._description.relays,
                self._limit(),
                self._drain,
            )
        )

    def _lose(self, text: str) -> None:
        self._keeper.forget_receiver(self)
        self._sink.lost(SessionLockLost(text))

    def down(self, planned: bool) -> None:
        """The broker is gone.  What it had deleted on delivery is nowhere else but here."""
        self.number = 0
        self._is_locked = False  # numbers of locks may repeat when somebody sets the clock back
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        removes = self._description.receive_mode == RECEIVE_AND_DELETE
        kept = removes or (planned and self.session is None)
        if kept:  # the next broker's window is not theirs
            self._queue = deque(
                [(messages, bodies, until, 0) for messages, bodies, until, _ in self._queue]
            )
        else:  # a crash may have forgotten these locks: others may be getting the messages
            self._queue.clear()
            self._queued = 0
        if self._drain and not planned:
            self._finish_drain()

    def _limit(self) -> int:
        return max(0, self._passed + self.credit - self._base)

    def _tell_credit(self) -> None:
        if self.number:
            home = self._home
            home.speak((CREDIT, home.number, self.number, self._limit(), self._drain))

    # -- what the broker tells ---------------------------------------------------------------------

    def delivered(self, until: int, entries: list[Any], size: int) -> None:
        """Messages, as they came."""
        messages: list[Message] = []
        bodies: list[bytes] = []
        for fields in entries:
            messages.append(decode_message(fields))
            bodies.append(fields[0])
        if self._ran_out(until):
            self._queued += len(messages)
            self._drop(len(messages), size)  # the locks ran out on the way
        elif self._queue or len(messages) > self.credit or self._sink.full():
            self._queue.append((messages, bodies, until, size))
            self._queued += len(messages)
            self._hand_over()
        else:
            self._hand(messages, bodies, until)
            self._consume(size)

    def drained(self, number: int) -> None:
        if number == self._drain:  # else something else has been asked for since
            self._is_drained = True
            self._hand_over()

    def removed(self) -> None:
        self._sink.removed()

    def lost(self, error: ServiceError) -> None:
        self._sink.lost(error)

    def give_back(self, until: int, entries: list[Any]) -> None:
        """These came after it was closed."""
        self._give_back([decode_message(fields) for fields in entries], until)

    # -- handing over ------------------------------------------------------------------------------

    def _hand(self, messages: list[Message], bodies: list[bytes], until: int) -> None:
        self.credit -= len(messages)
        self._passed += len(messages)
        self._sink.deliver(messages, bodies, until)

    def _hand_over(self) -> None:
        """As much of what is queued as there is room and credit for."""
        queue = self._queue
        while queue and self.credit > 0 and not self._sink.full():
            messages, bodies, until, size = queue.popleft()
            if self._ran_out(until):
                self._drop(len(messages), size)
                continue
            count = min(len(messages), self.credit)
            if count < len(messages):
                queue.appendleft((messages[count:], bodies[count:], until, size))
                size = 0  # the window opens when the last of them is through
            self._queued -= count
            self._hand(messages[:count], bodies[:count], until)
            self._consume(size)
        if self._is_drained and (not queue or self.credit == 0):
            self._finish_drain()

    def _ran_out(self, until: int) -> bool:
        """Have the locks of these messages run out?

        Not in a session: it may have been renewed since, or the clock set.  What is left out would
        stay locked for its holder, and later ones would come before it; when the session is lost,
        the broker says so.  Nor for a relay, where it would be overtaken as well: that one knows
        what to do with a message whose lock is lost (gateway/transfer/carrier.py).
        """
        if until == 0 or self.session is not None or self._description.relays:
            return False
        return until <= self._home.now().utc_ms

    def _drop(self, count: int, size: int) -> None:
        """Nobody could settle these any more: their locks ran out while they waited here."""
        self._queued -= count
        self._passed += count
        self._consume(size)
        self._tell_credit()

    def _consume(self, size: int) -> None:
        self._consumed += size
        if self._consumed >= CONSUMED_STEP_BYTES and self.number:
            home = self._home
            home.speak((CONSUMED, home.number, self.number, self._consumed))
            self._consumed = 0

    def _finish_drain(self) -> None:
        self._drain = 0
        self._is_drained = False
        self.credit = 0
        self._sink.drained()

    def _give_back(self, messages: list[Message], until: int) -> None:
        """Let others have them now, not when the locks run out.  Sessions do so by themselves."""
        if until == 0 or self.session is not None:
            return
        locks: list[Lock] = [(message.sequence_number, message.grant) for message in messages]
        home = self._home
        fields = (self._description.entity_id, self._description.subqueue, locks, RELEASE, None, 0)
        home.speak((SETTLE, home.number, 0, *fields))  # 0: nobody wants the answer


class RemoteWaiter:
    """A wait for a session; implements `links.Accepting`."""

    def __init__(
        self,
        home: Home,
        keeper: Keeper,
        entity_id: int,
        session_id: str | None,
        deadline_ms: int,
        grant: int,
        then: Answer,
    ) -> None:
        self._home = home
        self._keeper = keeper
        self._entity_id = entity_id
        self._session_id = session_id
        self.deadline_ms = deadline_ms  # monotonic
        self.grant = grant
        self._then: Answer | None = then
        self.number = 0  # under which the broker knows it; 0: it does not

    def ask(self, number: int, now: Now) -> None:
        self.number = number
        home = self._home
        left_ms = max(0, self.deadline_ms - now.mono_ms)
        home.speak(
            (ACCEPT, home.number, number, self._entity_id, self._session_id, left_ms, self.grant)
        )

    def answer(self, result: SessionLock | ServiceError) -> None:
        then = self._then
        self._then = None
        if then is not None:
            then(result)

    def cancel(self) -> None:
        if self._then is not None:
            self._then = None
            self._keeper.forget_waiter(self)
