"""The broker: takes commands, drives queues and the store, releases replies when durable.

No asyncio, no threads, no clock of its own: `shell.py` calls `turn` once per loop turn in which
something happened, writes the commit it gets back, and calls `committed`.  A simulation does the
same with a simulated disk and clock.

    submit(commands) ─▶ queues decide at once ─▶ facts ─▶ turn(): pump deliveries, begin a commit
    committed(commit) ─▶ publish, release replies and receive-and-delete deliveries

What a reply waits for is counted in facts: a reply is released when as many facts are durable as
had been stated when the queue decided.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from twinbus.broker.auto_delete import IdleEntities, is_busy
from twinbus.broker.bulk import PENDING, Walk
from twinbus.broker.delivery import (
    TURN_COUNT_MAX,
    QueueReceivers,
    Receiver,
    Sink,
    Taken,
    check_receiver_count,
)
from twinbus.broker.entity_requests import REQUESTS
from twinbus.broker.forwarding import Forwarder, refuses_receivers, send_carried
from twinbus.broker.session_delivery import SessionReceivers, check_session, receivers_of
from twinbus.broker.session_waiters import Answer, Waiter
from twinbus.broker.store_requests import STORE_REQUESTS
from twinbus.broker.timers import Timers
from twinbus.clock import Clock, Now
from twinbus.entities.commands import (
    PEEK_LOCK,
    AddRule,
    Command,
    Delivered,
    GetSessionState,
    ListRules,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    ReplaceRule,
    Reply,
    Send,
    Settle,
    StoreCommand,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.fields import MessageCodec
from twinbus.entities.message import Message
from twinbus.entities.queue import Queue
from twinbus.entities.sessions import SessionLock, SessionQueue
from twinbus.entities.topic import Topic
from twinbus.errors import (
    ArgumentInvalid,
    DiskFull,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
    StorageError,
)
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX, PENDING_BYTES_MAX
from twinbus.links.store_link import UP
from twinbus.storage.store import Commit, Store

# UTC may jump, so a timer that waits for a UTC time looks again at least this often.
TIMER_MS_MAX: Final = 5_000
# A turn with at most this many messages is light: taking it at once delays nobody.
LIGHT_WORK_MAX: Final = 4
# Bodies of scheduled messages that a topic fans out in one go.
DUE_SIZE_BYTES_MAX: Final = 4_194_304
# What a fact may take beyond the body; only used to decide whether a send still has room.
FACT_OVERHEAD_BYTES: Final = 128
# Commands whose answer, or refusal, tells of state that others have changed.
_TELLING: Final = (GetSessionState, AddRule, RemoveRule, ReplaceRule, ListRules)


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
        codec: MessageCodec | None = None,
        is_one_of_many: bool = False,
    ) -> None:
        self.store = store
        self.codec = codec
        self._clock = clock
        self._wake = wake  # asks the shell for a turn; called once until the turn comes
        self._on_replies = on_replies
        self._awake = False
        self._talker: object = None  # who came last
        self.turn_now: Callable[[], None] = wake  # the shell's way to take a turn at once
        self._receivers: dict[int, QueueReceivers] = {}
        self._touched: dict[int, Queue] = {}  # queues to pump in the next turn
        self.pending_bytes = 0  # of sends decided and in no commit yet
        self.transaction_bytes = 0  # of what waits in open transactions
        self.work_count = 0  # messages sent, settled and handed out since the last commit began
        self.light = True  # whether the last commit carries few of them
        self._stated = 0  # facts handed to commits so far; `_stated + len(facts)` = all stated
        self._durable = 0  # facts known to be durable
        self._waiting: deque[tuple[int, Reply | Taken | Durable]] = deque()
        self._broken = ""  # what must never be, and is: no turn succeeds any more
        self.walks: deque[Walk] = deque()  # requests about many messages; they take turns
        self.health = UP  # a broker in this process is never down: the process would be
        self.on_entity_gone: Callable[[int], None] = _ignore  # it was deleted for being idle
        self._timers = Timers()
        self._forwarder = Forwarder(store, codec, is_one_of_many)
        self._idle = IdleEntities()

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
            try:
                if queue is not None:
                    result = self._decide(queue, command, now)
                elif isinstance(command, StoreCommand):
                    result = STORE_REQUESTS[type(command)](self, command, now)
                else:
                    raise EntityNotFound("The messaging entity could not be found.")
            except ServiceError as refused:
                error = refused
            if queue is not None:
                self.touch(queue)
            if result is PENDING:
                continue  # a walk has begun; it brings the reply
            reply = Reply(command, result, error)
            position = self._position()
            if position == before and not self._reads_ahead(command, position):
                ready.append(reply)  # nothing stated: nothing to wait for
            else:
                self._wait(position, reply)
        if ready:
            self._on_replies(ready)

    def _reads_ahead(self, command: Command, position: int) -> bool:
        """Would the reply tell of something that a crash could still undo?

        Of a rule also by a refusal: it exists already, or it does not exist.
        """
        return position > self._durable and isinstance(command, _TELLING)

    def _decide(self, queue: Queue, command: Command, now: Now) -> object:
        if isinstance(command, Send):
            if queue.topic_id:
                raise InvalidOperation("Messages are sent to a topic, not to its subscriptions.")
            self._check_room(queue, command)
            if command.carrier:
                numbers = send_carried(self.store, queue, command, now)
            else:
                numbers = queue.send(command.messages, now)
            if isinstance(queue, Topic):
                # Only now do we know how much it makes.  The next send is refused if need be.
                self.store.room_for(queue.copied_size_bytes)
            return numbers
        queue.accessed_utc_ms = now.utc_ms
        if isinstance(command, Settle):
            self.work_count += len(command.locks)
        elif isinstance(command, Peek) and command.count == 0:
            return []  # the SDK asks for none at times
        else:
            decide = REQUESTS.get(type(command))
            if decide is not None:
                return decide(self, queue, command, now)
        result = queue.apply(command, now)
        if isinstance(command, Peek):
            found = cast(list[Message], result)
            return self._delivered(_within(found, PEEK_RESPONSE_BYTES_MAX), 0)
        if isinstance(command, ReceiveDeferred):
            locked = command.receive_mode == PEEK_LOCK
            until = now.utc_ms + queue.description.lock_duration_ms if locked else 0
            return self._delivered(cast(list[Message], result), until)
        return result

    def _check_room(self, queue: Queue, command: Send) -> None:
        if not command.messages:
            raise ArgumentInvalid("There is no message in it.")
        size = 0
        for message in command.messages:
            size += len(message.body) + FACT_OVERHEAD_BYTES
        if size > self.store.together_size_max and queue.must_be_whole(command.messages):
            raise QuotaExceeded(
                f"The messages take {size} bytes; {self.store.together_size_max} can be written "
                "at once. Send fewer at a time."
            )
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

    def note_entity(self, queue: Queue) -> None:
        """The entity is new, or has a new description."""
        if isinstance(queue, Topic):
            queue.codec = self.codec
            queue.bound(self.store.together_size_max)
        self._forwarder.note(queue)
        now = self._clock.now()
        self._idle.note(queue, now)
        receivers = self._receivers.get(queue.entity_id)
        if receivers is not None:
            receivers.stir_all()  # it may have been enabled again
            for receiver in list(receivers.receivers):
                refusal = refuses_receivers(queue, receiver.subqueue)
                if refusal and not receiver.relays:  # it forwards from now on
                    receiver.sink.lost(InvalidOperation(refusal))
        self._arm(queue, now)
        self.touch(queue)

    def delete_entities(self, queues: list[Queue]) -> None:
        """These go in one frame, topics with their subscriptions; then receivers hear of it.

        Not earlier: a receiver that hears of it gives back what it holds, and the reply to that
        must not be counted before the deletes are one fact.
        """
        gone = list(queues)
        for queue in queues:
            if isinstance(queue, Topic):
                gone += queue.subscriptions.values()
        self.store.delete_entities([queue.entity_id for queue in queues])
        self._ask_for_turn()
        orphans: list[QueueReceivers] = []
        for each in gone:
            self._forwarder.forget(each)
            self._idle.forget(each)
            self._touched.pop(each.entity_id, None)
            receivers = self._receivers.pop(each.entity_id, None)
            if receivers is not None:
                orphans.append(receivers)
        for receivers in orphans:
            receivers.remove_all()

    def message_count(self) -> int:
        """Messages in all queues, in whatever state."""
        return sum(queue.counts().message_count for queue in self.store.entities.values())

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything stated until now is durable."""
        self._wait(self._position(), Durable(call))
        self._ask_for_turn()

    @property
    def open_count(self) -> int:
        """Replies that wait until they are true."""
        return len(self._waiting)

    # -- receivers -------------------------------------------------------------------------------

    def open_receiver(
        self,
        entity_id: int,
        subqueue: int,
        receive_mode: int,
        sink: Sink,
        session: SessionLock | None = None,
        is_exclusive: bool = True,
        relays: bool = False,
    ) -> Receiver:
        queue = self._receivable(entity_id, subqueue, relays)
        check_session(queue, subqueue, session, self._clock.now())
        queue.accessed_utc_ms = self._clock.now().utc_ms
        receivers = self._receivers_of(queue)
        if session is None:  # who has a session was counted when it asked for one
            check_receiver_count(receivers)
        receiver = Receiver(self, queue, subqueue, receive_mode, sink, session, is_exclusive)
        if relays:  # a former one may have left locks: what it held must come first again
            receiver.relays = True
            queue.release_locks(subqueue, self._clock.now())
            self.touch(queue)
        receivers.add(receiver)
        return receiver

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Waiter:
        """Lock a session for a receiver, the next available one if none is named.

        `then` is called with the lock or an error, at once or later.  `grant` is that of a lock to
        be taken over, or 0.  The caller opens a receiver with the lock, or releases it.
        """
        queue = self._receivable(entity_id, MAIN, False)
        if not isinstance(queue, SessionQueue):
            raise InvalidOperation(
                f"'{queue.shown_name}' does not require sessions: receive without a session."
            )
        receivers = self._receivers_of(queue)
        assert isinstance(receivers, SessionReceivers)
        check_receiver_count(receivers)
        self.touch(queue)  # a wait has to have its timer
        waiter = receivers.accept(session_id, timeout_ms, grant, then, self._clock.now())
        if waiter.is_waiting:
            waiter.when_cancelled(partial(self.cancel_accept, entity_id))
        self._drop_if_empty(receivers)
        return waiter

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        """A lock that was given for a receiver which could not be opened."""
        queue = self.store.entities.get(entity_id)
        if isinstance(queue, SessionQueue):
            queue.release_session(lock.session_id, lock.grant, self._clock.now())
            self.touch(queue)

    def cancel_accept(self, entity_id: int, waiter: Waiter) -> None:
        """The wait for a session is given up: `then` will not be called."""
        receivers = self._receivers.get(entity_id)
        if isinstance(receivers, SessionReceivers):
            receivers.cancel(waiter)
            self._drop_if_empty(receivers)

    def set_credit(self, receiver: Receiver, credit: int, drain: bool) -> None:
        receiver.credit = max(0, credit - receiver.undelivered)  # those are on their way
        receiver.drain = drain
        self.resume(receiver)

    def resume(self, receiver: Receiver) -> None:
        """The receiver may have room or credit again."""
        receivers = self._receivers.get(receiver.queue.entity_id)
        if receivers is not None:
            receivers.stir(receiver)
        self.touch(receiver.queue)

    def close_receiver(self, receiver: Receiver) -> None:
        receivers = self._receivers.get(receiver.queue.entity_id)
        if receivers is not None:
            receivers.remove(receiver, self._clock.now())
            self._drop_if_empty(receivers)
            if receiver.session is not None:
                self.touch(receiver.queue)  # somebody may be waiting for the session

    def _receivable(self, entity_id: int, subqueue: int, relays: bool) -> Queue:
        queue = self.store.entities.get(entity_id)
        if queue is None:
            raise EntityNotFound("The messaging entity could not be found.")
        refusal = "" if relays else refuses_receivers(queue, subqueue)
        if refusal:
            raise InvalidOperation(refusal)
        queue.check_receivable()
        return queue

    def _receivers_of(self, queue: Queue) -> QueueReceivers:
        receivers = self._receivers.get(queue.entity_id)
        if receivers is None:
            receivers = self._receivers[queue.entity_id] = receivers_of(queue)
        return receivers

    def _drop_if_empty(self, receivers: QueueReceivers) -> None:
        # Whoever was told of something may have closed and opened receivers meanwhile.
        entity_id = receivers.queue.entity_id
        if receivers.count() == 0 and self._receivers.get(entity_id) is receivers:
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
        if self._broken:
            raise StorageError(self._broken)
        now = self._clock.now()
        touched = self._touched
        if touched:
            self._touched = {}
            try:
                for queue in touched.values():
                    self._pump(queue, now)
            except BaseException:
                self._touched = {**touched, **self._touched}  # the next turn looks at them again
                raise
        if not may_commit:
            return None
        if self.walks:
            self._walk_on(now)
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
        if queue.entity_id in self._forwarder.sources:
            self._forward(queue, now)
        receivers = self._receivers.get(queue.entity_id)
        if receivers is not None:
            taken: list[Taken] = []
            handed_out = receivers.pump(self.store, now, taken)
            self.work_count += handed_out
            if taken:
                position = self._position()
                for batch in taken:
                    self._wait(position, batch)
            if handed_out >= TURN_COUNT_MAX:
                self.touch(queue)  # there may be more; others get their turn first
            self._drop_if_empty(receivers)
        self._arm(queue, now)

    def _walk_on(self, now: Now) -> None:
        """One slice of one walk; the next turn is another's."""
        walk = self.walks.popleft()
        reply = walk.step(now)
        if walk.queue.entity_id in self.store.entities:
            self.touch(walk.queue)
        if reply is None:
            self.walks.append(walk)
        else:
            self._wait(self._position(), reply)
        if self.walks:
            self._ask_for_turn()

    def _forward(self, queue: Queue, now: Now) -> None:
        moved = self._forwarder.move(queue, now)
        self.work_count += moved
        if moved:
            self.touch(queue)  # there may be more; others get their turn first

    def committed(self, commit: Commit) -> None:
        """The commit is durable: publish, and release what waited for it."""
        for queue in self.store.finish_commit(commit):
            self.touch(queue)
        self._durable += commit.fact_count
        self._release()
        if self.store.facts or self.walks:
            self._ask_for_turn()

    def _position(self) -> int:
        return self._stated + len(self.store.facts)

    def _wait(self, position: int, waiter: Reply | Taken | Durable) -> None:
        """Release it when so many facts are durable, and everybody before it has been released."""
        waiting = self._waiting
        if waiting and waiting[-1][0] > position:
            # Somebody gathered facts after a reply had been counted.  That reply, and everybody
            # behind it, would wait for facts that nobody is going to state.
            self._broken = "a reply waits for a fact of the future"
            self._ask_for_turn()
        waiting.append((position, waiter))

    def unwritten(self) -> object:
        """The first who waits for something that no commit is writing; None if there is none."""
        waiting = self._waiting
        return waiting[0][1] if waiting and waiting[0][0] > self._stated else None

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
                if replies:  # whoever waits for everything before also waits for these
                    self._on_replies(replies)
                    replies = []
                waiter.call()
        if replies:
            self._on_replies(replies)

    # -- time ------------------------------------------------------------------------------------

    def _arm(self, queue: Queue, now: Now) -> None:
        entity_id = queue.entity_id
        due = queue.next_due_ms(now)
        receivers = self._receivers.get(entity_id)
        if receivers is not None:
            due = receivers.next_due_ms(due, now)
        if entity_id in self._idle.watched or entity_id in self._forwarder.stalled:
            due = TIMER_MS_MAX if due < 0 else due
        if due < 0:
            return
        self._timers.arm(entity_id, now.mono_ms + min(due, TIMER_MS_MAX))

    def arm_all(self) -> None:
        """After a start: whatever was scheduled, locked or expiring gets its timer, and what was
        to be forwarded goes on."""
        for queue in self.store.entities.values():
            self.note_entity(queue)

    def next_timer_ms(self) -> int:
        """Monotonic time of the earliest timer; −1 when there is none."""
        return self._timers.next_ms()

    def tick(self) -> None:
        """Run the timers that are due."""
        now = self._clock.now()
        while True:
            entity_id = self._timers.take_due(now.mono_ms)
            if entity_id == 0:
                return
            queue = self.store.entities.get(entity_id)
            if queue is None or self._delete_if_idle(queue, now):
                continue
            if isinstance(queue, Topic):
                self._fan_out_due(queue, now)
            queue.tick(now)
            receivers = self._receivers.get(entity_id)
            if receivers is not None:
                receivers.tick(now)
            self._arm(queue, now)
            self.touch(queue)

    def _fan_out_due(self, topic: Topic, now: Now) -> None:
        """What was scheduled in a topic goes to its subscriptions, a few megabytes at a time.

        It waits while the disk is full, or too much else is on its way there.
        """
        if self.pending_bytes > PENDING_BYTES_MAX or not self.store.room_for(0):
            return
        messages = topic.take_due(DUE_SIZE_BYTES_MAX, now)
        if messages:
            topic.fan_out_due(messages, self.store.read_bodies(messages), now)
            self.pending_bytes += topic.copied_size_bytes
            self.store.room_for(topic.copied_size_bytes)

    def _delete_if_idle(self, queue: Queue, now: Now) -> bool:
        if queue.entity_id not in self._idle.watched:
            return False
        is_busy_now = is_busy(queue, self._receivers, self._forwarder)
        if self._idle.left_ms(queue, is_busy_now, now) > 0:
            return False
        self.delete_entities([queue])
        self.on_entity_gone(queue.entity_id)
        return True

    def is_in_use(self, queue: Queue) -> bool:
        """Does somebody receive from it, or does anything forward from or to it?"""
        return is_busy(queue, self._receivers, self._forwarder)


def _ignore(entity_id: int) -> None:
    """For a broker whose entities nobody else keeps a list of."""


def _within(messages: list[Message], size_max: int) -> list[Message]:
    """As many of the first messages as fit, but always one."""
    size = 0
    for index, message in enumerate(messages):
        size += message.length
        if size > size_max and index:
            return messages[:index]
    return messages
