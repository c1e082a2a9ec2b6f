"""The broker: takes commands, drives queues and the store, releases replies when durable.

No asyncio, no threads, no clock of its own: `shell.py` calls `turn` once per loop turn in which
something happened, writes the commit it gets back, and calls `committed`.  A simulation does the
same with a simulated disk and clock.

    submit(commands) ─▶ queues decide at once ─▶ facts ─▶ turn(): pump deliveries, begin a commit
    committed(commit) ─▶ publish, release replies and receive-and-delete deliveries
"""

from collections.abc import Callable
from typing import Final

from twinbus.broker.bulk import PENDING
from twinbus.broker.delivery import TURN_COUNT_MAX, Receiver, Taken
from twinbus.broker.entity_requests import REQUESTS
from twinbus.broker.forwarding import Forwarder, check_carried
from twinbus.broker.live_entities import TIMER_MS_MAX, LiveEntities
from twinbus.broker.receivers import StoreReceivers
from twinbus.broker.session_waiters import Waiter
from twinbus.broker.store_requests import STORE_REQUESTS
from twinbus.broker.store_run import StoreRun, finish_commit
from twinbus.broker.transactions import Transactions
from twinbus.clock import Clock, Now
from twinbus.entities.commands import (
    AddRule,
    Command,
    GetSessionState,
    ListRules,
    RemoveRule,
    ReplaceRule,
    Reply,
    Send,
    Settle,
    StoreCommand,
)
from twinbus.entities.facts import FACT_OVERHEAD_BYTES
from twinbus.entities.fields import MessageCodec
from twinbus.entities.queue import Queue
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import (
    ArgumentInvalid,
    DiskFull,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
    StorageError,
)
from twinbus.links.sink import Sink
from twinbus.links.store_link import UP, Answer, ReceiverDescription
from twinbus.storage.log import Commit
from twinbus.storage.store import Store

# A turn with at most this many messages is light: taking it at once delays nobody.
LIGHT_WORK_MAX: Final = 4
# Commands whose answer, or refusal, tells of state that others have changed.
_TELLING: Final = (GetSessionState, AddRule, RemoveRule, ReplaceRule, ListRules)


class Broker(StoreRun):
    """Runs the queues of one store; implements `links.StoreLink`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[], None],
        on_replies: Callable[[list[Reply]], None],
        codec: MessageCodec | None = None,
        is_one_of_many: bool = False,
    ) -> None:
        super().__init__(store, clock, wake, on_replies, codec)
        self._client: object = None  # who came last
        self.turn_now: Callable[[], None] = wake  # the shell's way to take a turn at once
        self.light = True  # whether the last commit carries few messages
        self.health = UP  # a broker in this process is never down: the process would be
        self._forwarder = Forwarder(store, codec, is_one_of_many)
        self.receivers = StoreReceivers(self)
        self.entities = LiveEntities(self, self.receivers, self._forwarder)

    # -- commands --------------------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        """Decide on each command now; the replies come through `on_replies` when they are true."""
        now = self.clock.now()
        ready: list[Reply] = []
        for command in commands:
            queue = self.store.entities.get(command.entity_id)
            before = self.position()
            error: ServiceError | None = None
            result: object = None
            try:
                if queue is not None:
                    result = self._decide(queue, command, now)
                elif isinstance(command, StoreCommand):
                    result = STORE_REQUESTS[type(command)](self.entities, command, now)
                else:
                    raise EntityNotFound("The messaging entity could not be found.")
            except ServiceError as refused:
                error = refused
            if queue is not None:
                self.touch(queue)
            if result is PENDING:
                continue  # a walk has begun; it brings the reply
            reply = Reply(command, result, error)
            position = self.position()
            if position == before and not self._reads_ahead(command, position):
                ready.append(reply)  # nothing stated: nothing to wait for
            else:
                self.wait(position, reply)
        if ready:
            self._on_replies(ready)

    def _reads_ahead(self, command: Command, position: int) -> bool:
        """Would the reply tell of something that a crash could still undo?

        Of a rule also by a refusal: it exists already, or it does not exist.
        """
        return position > self._durable and isinstance(command, _TELLING)

    def _decide(self, queue: Queue, command: Command, now: Now) -> object:
        """Let the queue decide; where the store has a say, too, a request knows how."""
        if isinstance(command, Send):
            if queue.topic_id:
                raise InvalidOperation("Messages are sent to a topic, not to its subscriptions.")
            self._check_room(queue, command)
            if command.carrier:
                check_carried(self.store, queue, command, now)
            numbers = queue.apply(command, now)
            if queue.copied_size_bytes:
                # Only now do we know how much it makes.  The next send is refused if need be.
                self.store.room_for(queue.copied_size_bytes)
            return numbers
        queue.accessed_utc_ms = now.utc_ms
        if isinstance(command, Settle):
            self.work_count += len(command.locks)
            return queue.apply(command, now)
        decide = REQUESTS.get(type(command))
        return queue.apply(command, now) if decide is None else decide(self, queue, command, now)

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

    def message_count(self) -> int:
        """Messages in all queues, in whatever state."""
        return sum(queue.counts().message_count for queue in self.store.entities.values())

    # -- receivers, sessions, transactions -------------------------------------------------------

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiver:
        return self.receivers.open(description, sink)

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Waiter:
        return self.receivers.accept_session(entity_id, session_id, timeout_ms, grant, then)

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self.receivers.release_session(entity_id, lock)

    def transactions(self, clock: Clock, prefix: bytes) -> Transactions:
        return Transactions(self, clock, prefix)

    # -- turns -----------------------------------------------------------------------------------

    def turn_if_alone(self, client: object) -> None:
        """A client has said what it had to say.

        If it talks alone, nobody else would share its turn and its commit, so both are taken at
        once; that spares a message two rounds of the loop.
        """
        alone = client is self._client
        self._client = client
        if alone and self._awake and self.work_count <= LIGHT_WORK_MAX:
            self.turn_now()

    def turn(self, may_commit: bool) -> Commit | None:
        """Pump what was touched, then begin a commit if one may run and there is reason to."""
        self._awake = False
        if self._broken:
            raise StorageError(self._broken)
        now = self.clock.now()
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
        receivers = self.receivers.by_entity.get(queue.entity_id)
        if receivers is not None:
            taken: list[Taken] = []
            handed_out = receivers.pump(self.store, now, taken)
            self.work_count += handed_out
            if taken:
                position = self.position()
                for batch in taken:
                    self.wait(position, batch)
            if handed_out >= TURN_COUNT_MAX:
                self.touch(queue)  # there may be more; others get their turn first
            self.receivers.drop_if_empty(receivers)
        due_ms = queue.next_due_ms(now)
        if receivers is not None:
            due_ms = receivers.next_due_ms(due_ms, now)
        if due_ms >= 0:
            self.entities.arm(queue.entity_id, due_ms, now)

    def _walk_on(self, now: Now) -> None:
        """One slice of one walk; the next turn is another's."""
        walk = self.walks.popleft()
        reply = walk.step(now)
        if walk.queue.entity_id in self.store.entities:
            self.touch(walk.queue)
        if reply is None:
            self.walks.append(walk)
        else:
            self.wait(self.position(), reply)
        if self.walks:
            self.ask_for_turn()

    def _forward(self, queue: Queue, now: Now) -> None:
        moved = self._forwarder.move(queue, now)
        if queue.entity_id in self._forwarder.stalled:
            self.entities.arm(queue.entity_id, TIMER_MS_MAX, now)
        self.work_count += moved
        if moved:
            self.touch(queue)  # there may be more; others get their turn first

    def committed(self, commit: Commit) -> None:
        """The commit is durable: publish, and release what waited for it."""
        for queue in finish_commit(self.store, commit):
            self.touch(queue)
        self._durable += commit.fact_count
        self._release()
        if self.store.facts or self.walks:
            self.ask_for_turn()
