"""Partitioned entities over several brokers on simulated disks, driven by hand.

`SimLink` stands between the routing and a broker.  It can be made slow or down, and it can lag:
then commands, credit and deliveries lie in it until `settle` moves them, as they would on a socket.
"""

from collections.abc import Callable
from typing import Any

from tests.unit.broker.harness import SimSink
from twinbus.broker.broker import Broker
from twinbus.broker.delivery import Receiver
from twinbus.entities.commands import (
    PEEK_LOCK,
    RELEASE,
    Command,
    CreateEntities,
    Delivered,
    NewEntity,
    Reply,
    Send,
    Settle,
    dispatch_replies,
)
from twinbus.entities.descriptions import QueueDescription, subscription_path
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_name
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.partitions.fan_out import Losing, Ticking
from twinbus.gateway.partitions.receiver import PartitionedReceiver
from twinbus.gateway.partitions.routing import route
from twinbus.gateway.partitions.sessions import accept_session
from twinbus.links.sink import Sink
from twinbus.links.store_link import DOWN, UP, Accepting, Answer, ReceiverDescription
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SEGMENT_SIZE = 1 << 22


class Asker:
    """Remembers the replies to what it asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def replied(self, reply: Reply, rest: object) -> None:
        assert rest == "mine"
        self.replies.append(reply)

    @property
    def result(self) -> Any:
        """Of the only reply."""
        assert len(self.replies) == 1, self.replies
        assert self.replies[0].error is None, self.replies[0].error
        return self.replies[0].result

    @property
    def error(self) -> ServiceError:
        assert len(self.replies) == 1, self.replies
        error = self.replies[0].error
        assert error is not None, self.replies[0].result
        return error


class LaggingReceiver:
    """A receiver on the far side of a lagging link, both its handle and its sink."""

    def __init__(self, link: "SimLink", entity_id: int, subqueue: int, sink: Sink) -> None:
        self._link = link
        self._entity_id = entity_id
        self._subqueue = subqueue
        self._sink = sink
        self.receiver: Receiver | None = None
        self._sent = 0  # by the far side
        self._came = 0  # to this side
        self._is_closed = False
        self.session = None

    # -- this side: credit is how many may have come in all ----------------------------------------

    def set_credit(self, credit: int, drain: bool) -> None:
        limit = self._came + credit
        self._link.later(lambda: self._set_limit(limit, drain))

    def _set_limit(self, limit: int, drain: bool) -> None:
        assert self.receiver is not None
        self.receiver.set_credit(max(0, limit - self._sent), drain)

    def resume(self) -> None:
        self._link.later(lambda: self.receiver.resume() if self.receiver else None)

    def close(self) -> None:
        self._is_closed = True
        self._link.later(lambda: self.receiver.close() if self.receiver else None)

    # -- the far side ------------------------------------------------------------------------------

    def deliver(self, messages: list[Message], bodies: list[bytes], until_ms: int) -> None:
        self._sent += len(messages)
        messages = [_over_the_wire(message) for message in messages]
        self._link.later(lambda: self._arrive(messages, bodies, until_ms))

    def _arrive(self, messages: list[Message], bodies: list[bytes], until_ms: int) -> None:
        self._came += len(messages)
        if self._is_closed:
            locks = [(message.sequence_number, message.grant) for message in messages]
            self._link.broker.submit([Settle(self._entity_id, self._subqueue, locks, RELEASE)])
        else:
            self._sink.deliver(messages, bodies, until_ms)

    def full(self) -> bool:
        return False

    def drained(self) -> None:
        self._link.later(self._sink.drained)

    def removed(self) -> None:
        self._link.later(self._sink.removed)

    def lost(self, error: ServiceError) -> None:
        self._link.later(lambda: self._sink.lost(error))


def _over_the_wire(message: Message) -> Message:
    copy = Message(
        message.sequence_number,
        None,
        message.length,
        message.enqueued_ms,
        message.expires_ms,
        message.session_id,
        message.state,
    )
    copy.grant, copy.delivery_count = message.grant, message.delivery_count
    return copy


class SimLink:
    """A store as the gateway sees it (StoreLink)."""

    def __init__(self, clock: SimClock) -> None:
        self.store = Store.open(SimDisk(), clock.now(), 7, SEGMENT_SIZE)
        self.wanted = False
        self.broker = Broker(self.store, clock, self._wake, self._reply, StoredMessageCodec())
        self.broker.entities.note_all()
        self.health = UP
        self.lags = False
        self.hangs = False
        self.held: list[Command] = []  # what came since it hangs
        self.pending_bytes = 0
        self.submitted: list[Command] = []
        self.refuses: Callable[[Command], ServiceError | None] = lambda command: None
        self.refuses_waits: ServiceError | None = None  # whoever wants a session hears this
        self._later: list[Callable[[], None]] = []

    def _wake(self) -> None:
        self.wanted = True

    def later(self, call: Callable[[], None]) -> None:
        """Now, or when the link is moved on."""
        if self.lags:
            self._later.append(call)
        else:
            call()

    def _reply(self, replies: list[Reply]) -> None:
        self.later(lambda: dispatch_replies(replies))

    def settle(self) -> bool:
        """Move everything that lies in the link, and give the broker one turn; False if idle."""
        moved = False
        calls, self._later = self._later, []
        for call in calls:
            moved = True
            call()
        if self.wanted:
            moved = True
            self.wanted = False
            commit = self.broker.turn(may_commit=True)
            if commit is not None:
                commit.write()
                self.broker.committed(commit)
        return moved

    # -- StoreLink ---------------------------------------------------------------------------------

    def submit(self, commands: list[Command]) -> None:
        for command in commands:
            self.submitted.append(command)
            error = self.refuses(command)
            if self.health == DOWN:
                error = Unavailable("The store is down.")
            if error is not None:
                dispatch_replies([Reply(command, None, error)])
            elif self.hangs:
                self.held.append(command)
            elif self.lags:
                self.later(lambda command=command: self.broker.submit([command]))  # type: ignore[misc]
            else:
                self.broker.submit([command])

    def wake(self, error: ServiceError | None = None) -> None:
        """It goes on with what it was asked; with an error, its process was killed instead."""
        self.hangs = False
        held, self.held = self.held, []
        if error is not None:
            dispatch_replies([Reply(command, None, error) for command in held])
        else:
            self.submit(held)

    def turn_if_alone(self, client: object) -> None:
        self.broker.turn_if_alone(client)

    def when_durable(self, call: Callable[[], None]) -> None:
        self.broker.when_durable(call)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Any:
        if self.health == DOWN:
            raise Unavailable("The store is down.")
        if not self.lags:
            return self.broker.open_receiver(description, sink)
        lagging = LaggingReceiver(self, description.entity_id, description.subqueue, sink)
        lagging.receiver = self.broker.open_receiver(description, lagging)
        return lagging

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        if self.refuses_waits is not None:
            raise self.refuses_waits
        return self.broker.accept_session(
            entity_id,
            session_id,
            timeout_ms,
            grant,
            lambda result: self.later(lambda: then(result)),
        )

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        self.broker.release_session(entity_id, lock)


class Bus:
    """Some stores, and the routing over them (Routes)."""

    def __init__(self, store_count: int = 4, lags: bool = False) -> None:
        self.clock = SimClock()
        self.sims = [SimLink(self.clock) for _ in range(store_count)]
        self.links: list[Any] = list(self.sims)
        self.directory = Directory()
        self.ticking: set[Ticking] = set()
        self.receivers: set[Losing] = set()
        self.diverted: list[tuple[Part, Send]] = []
        self.diverts = False
        for sim in self.sims:
            sim.lags = lags

    def answer(self, reply: Reply) -> None:
        dispatch_replies([reply])

    def divert(self, entity: Entity, part: Part, command: Send) -> bool:
        if self.diverts:
            self.diverted.append((part, command))
        return self.diverts

    # -- entities ----------------------------------------------------------------------------------

    def create(
        self,
        kind: str = "queue",
        name: str = "orders",
        description: QueueDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> Entity:
        """A partitioned entity; partition p is in store p mod S."""
        description = description or QueueDescription()
        parts: list[Part] = []
        for store, sim in enumerate(self.sims):
            mine = range(store, PARTITION_COUNT, len(self.sims))
            names = [partition_name(name, partition) for partition in mine]
            asker = Asker()
            entities = [NewEntity(kind, each, description, rule) for each in names]
            sim.broker.submit([CreateEntities(entities, (asker, "mine"))])
            self.settle()
            for partition, entity_id in zip(mine, asker.result, strict=True):
                parts.append(Part(store, entity_id, partition))
        parts.sort(key=lambda part: part.partition)
        return self.directory.add(kind, name, description, parts)

    def create_subscription(
        self, topic: Entity, name: str, description: QueueDescription, rule: RuleDescription
    ) -> Entity:
        return self.create("subscription", subscription_path(topic.name, name), description, rule)

    # -- what is going on --------------------------------------------------------------------------

    def settle(self) -> None:
        """Until nothing is left to do."""
        moved = True
        while moved:
            moved = False
            for sim in self.sims:
                moved |= sim.settle()  # each has its turn, as processes of their own would

    def pass_time(self, duration_ms: int) -> None:
        """Time passes; timers run, and the gateway ticks every second."""
        self.settle()
        while duration_ms > 0:
            step = min(1_000, duration_ms)
            duration_ms -= step
            self.clock.advance(step)
            for sim in self.sims:
                sim.broker.entities.tick()
            for each in list(self.ticking):
                each.tick()
            self.settle()

    def start(self, entity: Entity, command: Command) -> Asker:
        """Route a command as the gateway does."""
        asker = Asker()
        command.context = (asker, "mine")
        command.entity_id = entity.entity_id
        try:
            route(self, entity, command)
        except ServiceError as error:
            self.answer(Reply(command, None, error))
        return asker

    def ask(self, entity: Entity, command: Command) -> Asker:
        """The same, until it is answered."""
        asker = self.start(entity, command)
        self.settle()
        assert len(asker.replies) == 1
        return asker

    def send(self, entity: Entity, *messages: NewMessage) -> Any:
        return self.ask(entity, Send(0, list(messages))).result

    def receiver(
        self, entity: Entity, credit: int = 0, receive_mode: int = PEEK_LOCK, subqueue: int = MAIN
    ) -> tuple[PartitionedReceiver, SimSink]:
        sink = SimSink()
        receiver = PartitionedReceiver(
            self, entity, ReceiverDescription(entity.entity_id, subqueue, receive_mode), sink
        )
        if credit:
            receiver.set_credit(credit, drain=False)
        return receiver, sink

    def accept(
        self, entity: Entity, session_id: str | None = None, timeout_ms: int = 5_000
    ) -> tuple[Accepting, list[SessionLock | ServiceError]]:
        answers: list[SessionLock | ServiceError] = []
        waits = accept_session(self, entity, session_id, timeout_ms, 0, answers.append)
        return waits, answers

    def counts(self, entity: Entity) -> list[int]:
        """Messages in each partition."""
        return [
            self.sims[part.store].store.entities[part.entity_id].counts().message_count
            for part in entity.parts
        ]


def new(body: bytes, key: str | None = None, session_id: str | None = None) -> NewMessage:
    return NewMessage(body, message_id=body.hex(), partition_key=key, session_id=session_id)


def bodies_of(delivered: list[Delivered]) -> list[bytes]:
    return [each.body for each in delivered]


def key_in(partition: int) -> str:
    """A key that belongs to this partition."""
    return next(key for key in map(str, range(1_000)) if hash_key(key) == partition)
