"""The broker: takes commands, drives queues and the store, releases replies when durable.

No asyncio, no threads, no clock of its own: `shell.py` calls `turn` once per loop turn in which
something happened, writes the commit it gets back, and calls `committed`.  A simulation does the
same with a simulated disk and clock.

    submit(commands) ─▶ queues decide at once ─▶ facts ─▶ turn(): pump deliveries, begin a commit
    committed(commit) ─▶ publish, release replies and receive-and-delete deliveries

What a reply waits for is counted in facts: a reply is released when as many facts are durable as
had been stated when the queue decided.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from twinbus.broker.delivery import TURN_COUNT_MAX, QueueReceivers, Receiver, Sink, Taken
from twinbus.clock import Clock, Now
from twinbus.entities.commands import (
    PEEK_LOCK,
    Command,
    Delivered,
    Peek,
    ReceiveDeferred,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import Message
from twinbus.entities.queue import Queue
from twinbus.errors import DiskFull, EntityNotFound, ServiceError
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX
from twinbus.storage.store import Commit, Store

# UTC may jump, so a timer that waits for a UTC time looks again at least this often.
TIMER_MS_MAX: Final = 5_000
# A turn with at most this many messages is light: taking it at once delays nobody.
LIGHT_WORK_MAX: Final = 4
# What a fact may take beyond the body; only used to decide whether a send still has room.
FACT_OVERHEAD_BYTES: Final = 128


class Durable:
    """Something to call when everything stated so far is durable."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call


class Broker:
    """Runs the queues of one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[], None],
        on_replies: Callable[[list[Reply]], None],
    ) -> None:
        self.store = store
        self._clock = clock
        self._wake = wake  # asks the shell for a turn; called once until the turn comes
        self._on_replies = on_replies
        self._awake = False
        self._talker: object = None  # who came last
        self.turn_now: Callable[[], None] = wake  # the shell's way to take a turn at once
        self._receivers: dict[int, QueueReceivers] = {}
        self._touched: dict[int, Queue] = {}  # queues to pump in the next turn
        self.pending_bytes = 0  # of sends decided and in no commit yet
        self.work_count = 0  # messages sent, settled and handed out since the last commit began
        self.light = True  # whether the last commit carries few of them
        self._stated = 0  # facts handed to commits so far; `_stated + len(facts)` = all stated
        self._durable = 0  # facts known to be durable
        self._waiting: deque[tuple[int, Reply | Taken | Durable]] = deque()
        self._timers: list[tuple[int, int]] = []  # (monotonic ms, entity id)
        self._armed: dict[int, int] = {}

    # -- commands --------------------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        """Decide on each command now; the replies come through `on_replies` when they are true."""
        now = self._clock.now()
        ready: list[Reply] = []
        for command in commands:
            queue = self.store.entities.get(command.entity_id)
            before = self._position()
            error: ServiceError | None = None
            result: object = None
            if queue is None:
                error = EntityNotFound("The messaging entity could not be found.")
            else:
                try:
                    result = self._decide(queue, command, now)
                except ServiceError as refused:
                    error = refused
                self.touch(queue)
            reply = Reply(command, result, error)
            position = self._position()
            if position == before:  # nothing stated: nothing to wait for
                ready.append(reply)
            else:
                self._waiting.append((position, reply))
        if ready:
            self._on_replies(ready)

    def _decide(self, queue: Queue, command: Command, now: Now) -> object:
        if isinstance(command, Send):
            self._check_room(command)
            return queue.send(command.messages, now)
        if isinstance(command, Peek) and command.count == 0:
            return []  # the SDK asks for none at times
        if isinstance(command, Settle):
            self.work_count += len(command.locks)
        result = queue.apply(command, now)
        if isinstance(command, Peek):
            found = cast(list[Message], result)
            return self._delivered(_within(found, PEEK_RESPONSE_BYTES_MAX), 0)
        if isinstance(command, ReceiveDeferred):
            locked = command.receive_mode == PEEK_LOCK
            until = now.utc_ms + queue.description.lock_duration_ms if locked else 0
            return self._delivered(cast(list[Message], result), until)
        return result

    def _check_room(self, command: Send) -> None:
        size = 0
        for message in command.messages:
            size += len(message.body) + FACT_OVERHEAD_BYTES
        if not self.store.room_for(size):
            raise DiskFull(
                "The disk is full: no new message can be stored. Receiving and settling go on; "
                "free some space and send again."
            )
        self.pending_bytes += size
        self.work_count += len(command.messages)

    def _delivered(self, messages: list[Message], until: int) -> list[Delivered]:
        bodies = self.store.read_bodies(messages)
        return [Delivered(m, b, until) for m, b in zip(messages, bodies, strict=True)]

    # -- entities --------------------------------------------------------------------------------

    def create_queue(
        self, name: str, description: QueueDescription, then: Callable[[], None]
    ) -> Queue:
        queue = self.store.create_queue(name, description)
        self.when_durable(then)
        return queue

    def update_queue(
        self, queue: Queue, description: QueueDescription, then: Callable[[], None]
    ) -> None:
        self.store.update_queue(queue.entity_id, description)
        self.when_durable(then)
        self.touch(queue)

    def delete_queue(self, queue: Queue, then: Callable[[], None]) -> None:
        self.store.delete_queue(queue.entity_id)
        self.when_durable(then)
        self._touched.pop(queue.entity_id, None)
        receivers = self._receivers.pop(queue.entity_id, None)
        if receivers is not None:
            for receiver in list(receivers.ring):
                receiver.sink.removed()

    def message_count(self) -> int:
        """Messages in all queues, in whatever state."""
        return sum(queue.counts().message_count for queue in self.store.entities.values())

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything stated until now is durable."""
        self._waiting.append((self._position(), Durable(call)))
        self._ask_for_turn()

    # -- receivers -------------------------------------------------------------------------------

    def open_receiver(
        self, entity_id: int, subqueue: int, receive_mode: int, sink: Sink
    ) -> Receiver:
        queue = self.store.entities.get(entity_id)
        if queue is None:
            raise EntityNotFound("The messaging entity could not be found.")
        queue.check_receivable()
        receiver = Receiver(queue, subqueue, receive_mode, sink)
        receivers = self._receivers.get(entity_id)
        if receivers is None:
            receivers = self._receivers[entity_id] = QueueReceivers(queue)
        receivers.add(receiver)
        return receiver

    def set_credit(self, receiver: Receiver, credit: int, drain: bool) -> None:
        receiver.credit = credit
        receiver.drain = drain
        self.touch(receiver.queue)

    def close_receiver(self, receiver: Receiver) -> None:
        entity_id = receiver.queue.entity_id
        receivers = self._receivers.get(entity_id)
        if receivers is not None:
            receivers.remove(receiver)
            if not receivers.ring:
                del self._receivers[entity_id]

    # -- turns -----------------------------------------------------------------------------------

    def touch(self, queue: Queue) -> None:
        """Something about this queue changed: look at it in the next turn."""
        self._touched[queue.entity_id] = queue
        self._ask_for_turn()

    def facts_stated(self) -> None:
        """The store stated facts of its own accord (it moved messages): commit them."""
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake()

    def hurry(self, talker: object) -> None:
        """A client has said what it had to say.

        If it talks alone, nobody else would share its turn and its commit, so both are taken at
        once; that spares a message two rounds of the loop.
        """
        alone = talker is self._talker
        self._talker = talker
        if alone and self._awake and self.work_count <= LIGHT_WORK_MAX:
            self.turn_now()

    def turn(self, may_commit: bool) -> Commit | None:
        """Pump what was touched, then begin a commit if one may run and there is reason to."""
        self._awake = False
        now = self._clock.now()
        touched = self._touched
        if touched:
            self._touched = {}
            for queue in touched.values():
                self._pump(queue, now)
        if not may_commit:
            return None
        commit = self.store.begin_commit()
        if commit is None:
            self._release()
            return None
        self._stated += commit.fact_count
        self.light = self.work_count <= LIGHT_WORK_MAX
        self.work_count = 0
        if not self.store.facts:
            self.pending_bytes = 0
        return commit

    def _pump(self, queue: Queue, now: Now) -> None:
        receivers = self._receivers.get(queue.entity_id)
        if receivers is not None:
            taken: list[Taken] = []
            handed_out = receivers.pump(self.store, now, taken)
            self.work_count += handed_out
            if taken:
                position = self._position()
                for batch in taken:
                    self._waiting.append((position, batch))
            if handed_out >= TURN_COUNT_MAX:
                self.touch(queue)  # there may be more; others get their turn first
        self._arm(queue, now)

    def committed(self, commit: Commit) -> None:
        """The commit is durable: publish, and release what waited for it."""
        for queue in self.store.finish_commit(commit):
            self.touch(queue)
        self._durable += commit.fact_count
        self._release()
        if self.store.facts:
            self._ask_for_turn()

    def _position(self) -> int:
        return self._stated + len(self.store.facts)

    def _release(self) -> None:
        waiting = self._waiting
        replies: list[Reply] = []
        while waiting and waiting[0][0] <= self._durable:
            waiter = waiting.popleft()[1]
            if isinstance(waiter, Reply):
                replies.append(waiter)
            elif isinstance(waiter, Taken):
                waiter.release()
            else:
                waiter.call()
        if replies:
            self._on_replies(replies)

    # -- time ------------------------------------------------------------------------------------

    def _arm(self, queue: Queue, now: Now) -> None:
        due = queue.next_due_ms(now)
        if due < 0:
            return
        deadline = now.mono_ms + min(due, TIMER_MS_MAX)
        armed = self._armed.get(queue.entity_id)
        if armed is None or deadline < armed:
            self._armed[queue.entity_id] = deadline
            heapq.heappush(self._timers, (deadline, queue.entity_id))

    def arm_all(self) -> None:
        """After a start: whatever was scheduled, locked or expiring gets its timer."""
        now = self._clock.now()
        for queue in self.store.entities.values():
            self._arm(queue, now)

    def next_timer_ms(self) -> int:
        """Monotonic time of the earliest timer; −1 when there is none."""
        return self._timers[0][0] if self._timers else -1

    def tick(self) -> None:
        """Run the timers that are due."""
        now = self._clock.now()
        timers = self._timers
        while timers and timers[0][0] <= now.mono_ms:
            deadline, entity_id = heapq.heappop(timers)
            if self._armed.get(entity_id) != deadline:
                continue  # a nearer one has run since
            del self._armed[entity_id]
            queue = self.store.entities.get(entity_id)
            if queue is not None:
                queue.tick(now)
                self._arm(queue, now)
                self.touch(queue)


def _within(messages: list[Message], size_max: int) -> list[Message]:
    """As many of the first messages as fit, but always one."""
    size = 0
    for index, message in enumerate(messages):
        size += message.length
        if size > size_max and index:
            return messages[:index]
    return messages
