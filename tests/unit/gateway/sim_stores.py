"""Several stores on simulated disks, each behind a link that outlives its broker.

`SimStore` is what the gateway sees of a store: when the power of one goes, whatever it was asked is
answered with Unavailable, and when it is back its receivers are opened again, as a store behind a
socket does it.  `SimStores` steps all of them, and lets time pass.
"""

import random
from collections.abc import Callable
from uuid import UUID

from twinbus.broker.broker import Broker
from twinbus.broker.delivery import Receiver
from twinbus.clock import Clock, Now
from twinbus.entities.commands import (
    Command,
    CreateEntities,
    Listed,
    NewEntity,
    Reply,
    dispatch_replies,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.fields import Changes, Fields
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.partitions import PARTITION_COUNT, partition_name
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import default_rule
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServiceError, Unavailable
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.links.sink import Sink
from twinbus.links.store_link import DOWN, UP, Accepting, Answer, ReceiverDescription
from twinbus.links.transactions import StoreTransactions
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import CrashMode, SimDisk

SEGMENT_SIZE = 1 << 17
SEGMENT_SIZE_LARGE = 1 << 22


class KeyCodec:
    """Messages here are no AMQP: a key, a bar and a text; without a key the bar comes first."""

    def read_fields(self, stored: bytes) -> Fields:
        return Fields({}, {})

    def read_keys(self, stored: bytes) -> tuple[str | None, str | None, str | None]:
        key = key_of_body(stored)
        return stored.decode(), key if key.startswith("s") else None, key or None

    def read_properties(self, encoded: bytes) -> dict[str, object]:
        return {}

    def rewrite(self, stored: bytes, changes: Changes) -> bytes:
        return stored

    def new_id(self) -> UUID:
        return UUID(int=1)


def key_of_body(body: bytes) -> str:
    return body.partition(b"|")[0].decode()


def keyed(body: bytes) -> NewMessage:
    """A message with the keys that its body names."""
    new = NewMessage(body)
    new.message_id, new.session_id, new.partition_key = KeyCodec().read_keys(body)
    return new


class SimReceiver:
    """A receiver that is opened again with its store; implements `Receiving`."""

    def __init__(self, home: "SimStore", open_it: Callable[[], Receiver]) -> None:
        self._home = home
        self._open = open_it
        self._receiver: Receiver | None = None
        self._credit = 0

    @property
    def session(self) -> SessionLock | None:
        return None

    def open(self) -> None:
        self._receiver = self._open()
        self._receiver.set_credit(self._credit, False)

    def forget(self) -> None:
        """The broker is gone; so much credit it had left."""
        if self._receiver is not None:
            self._credit = self._receiver.credit
        self._receiver = None

    def set_credit(self, credit: int, drain: bool) -> None:
        self._credit = credit
        if self._receiver is not None:
            self._receiver.set_credit(credit, drain)

    def resume(self) -> None:
        if self._receiver is not None:
            self._receiver.resume()

    def close(self) -> None:
        self._home.receivers.remove(self)
        if self._receiver is not None:
            self._receiver.close()


class SimStore:
    """One store; implements `StoreLink`."""

    def __init__(self, clock: SimClock, segment_size: int, is_one_of_many: bool) -> None:
        self.clock = clock
        self.is_one_of_many = is_one_of_many
        self.segment_size = segment_size
        self.disk = SimDisk()
        self.health = DOWN
        self.receivers: list[SimReceiver] = []
        self.pending: dict[int, Command] = {}  # asked and not answered
        self.sent: list[Command] = []  # everything asked so far
        self.is_wanted = False
        self.broker: Broker
        self.store: Store
        self.start()

    @property
    def pending_bytes(self) -> int:
        return self.broker.pending_bytes

    @property
    def open_count(self) -> int:
        return len(self.pending)

    def start(self) -> None:
        self.store = Store.open(self.disk, self.clock.now(), 7, self.segment_size)
        self.broker = Broker(
            self.store, self.clock, self._wake, self._replied, KeyCodec(), self.is_one_of_many
        )
        self.broker.entities.note_all()
        self.health = UP
        for receiver in self.receivers:
            receiver.open()

    def crash(self, rng: random.Random, mode: CrashMode = CrashMode.DROP) -> None:
        """The power goes; what was asked may have happened."""
        self.health = DOWN
        self.disk = self.disk.after_power_cut(rng, mode)
        for receiver in self.receivers:
            receiver.forget()
        lost, self.pending = self.pending, {}
        for command in lost.values():
            error = Unavailable("The store is down; this may have happened.")
            dispatch_replies([Reply(command, None, error)])

    def _wake(self) -> None:
        self.is_wanted = True

    def _replied(self, replies: list[Reply]) -> None:
        for reply in replies:
            self.pending.pop(id(reply.command), None)
        dispatch_replies(replies)

    def submit(self, commands: list[Command]) -> None:
        for command in commands:
            self.sent.append(command)
            if self.health == DOWN:
                error = Unavailable("The store is down; nothing has happened.")
                dispatch_replies([Reply(command, None, error)])
                continue
            self.pending[id(command)] = command
            self.broker.submit([command])

    def turn_if_alone(self, talker: object) -> None:
        """Every step is taken by the test."""

    def when_durable(self, call: Callable[[], None]) -> None:
        self.broker.when_durable(call)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> SimReceiver:
        def open_it() -> Receiver:
            return self.broker.open_receiver(description, sink)

        receiver = SimReceiver(self, open_it)
        if self.health != DOWN:
            receiver.open()
        self.receivers.append(receiver)
        return receiver

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        raise NotImplementedError

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        raise NotImplementedError

    def transactions(self, clock: Clock, prefix: bytes) -> StoreTransactions:
        return self.broker.transactions(clock, prefix)

    def step(self) -> bool:
        """One turn with its commit, or one task; False if there was nothing to do."""
        if self.health == DOWN:
            return False
        self.is_wanted = False
        commit = self.broker.turn(may_commit=True)
        if commit is not None:
            commit.write()
            self.broker.committed(commit)
            return True
        task = self.store.next_task(self.clock.now())
        if task is not None:
            task.run()
            self.store.finish_task(task)
        return task is not None or self.is_wanted

    def queue(self, name: str) -> Queue:
        return self.store.entities[self.store.names[name.lower()]]


class Answers:
    """Keeps the replies to what a test asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def replied(self, reply: Reply, rest: object) -> None:
        self.replies.append(reply)

    @property
    def errors(self) -> list[ServiceError | None]:
        return [reply.error for reply in self.replies]


class SimStores:
    """Some stores, a directory of what is in them, and time."""

    def __init__(self, count: int = 3, segment_size: int = SEGMENT_SIZE) -> None:
        self.clock = SimClock()
        self.stores = [SimStore(self.clock, segment_size, count > 1) for _ in range(count)]
        self.directory = Directory()
        self.codec = KeyCodec()
        self.tickers: list[Callable[[Now], None]] = []  # who wants to know the time

    # -- entities --------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        stores: list[int],
        description: QueueDescription | None = None,
        kind: str = "queue",
    ) -> Entity:
        """A plain entity in one store, or the sixteen parts of one spread over several."""
        described = description or QueueDescription()
        is_partitioned = described.enable_partitioning
        parts = []
        for partition in range(PARTITION_COUNT if is_partitioned else 1):
            store = stores[partition % len(stores)]
            own = partition_name(name, partition) if is_partitioned else name
            rule = default_rule() if kind == "subscription" else None
            ids = self.ask(store, CreateEntities([NewEntity(kind, own, described, rule)]))
            assert isinstance(ids, list)
            parts.append(Part(store, ids[0], partition))
        return self.directory.add(kind, name, described, parts)

    def ask(self, store: int, command: Command) -> object:
        """The answer of one store."""
        answers = Answers()
        command.context = (answers, None)
        self.stores[store].submit([command])
        self.settle_down()
        (reply,) = answers.replies
        if reply.error is not None:
            raise reply.error
        return reply.result

    def listings(self) -> list[tuple[int, list[Listed]]]:
        return [
            (index, [Listed(q.entity_id, q.kind, q.name, q.description) for q in found])
            for index, store in enumerate(self.stores)
            if (found := list(store.store.entities.values()))
        ]

    def contents(self, entity: Entity, subqueue: int = MAIN) -> list[list[bytes]]:
        """The bodies in each part, in order."""
        return [
            self.stores[part.store].store.read_bodies(self.messages(part, subqueue))
            for part in entity.parts
        ]

    def messages(self, part: Part, subqueue: int = MAIN) -> list[Message]:
        queue = self.stores[part.store].store.entities[part.entity_id]
        return queue.messages_from(subqueue, 0, 100_000)

    # -- steps -----------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Until no store has anything to do."""
        while True:
            did = [store.step() for store in self.stores]  # each of them, not until one has
            if not any(did):
                return

    def pass_time(self, duration_ms: int, step_ms: int = 100) -> None:
        """Time passes for the stores and for whoever listens."""
        for _ in range(0, duration_ms, step_ms):
            self.clock.advance(step_ms)
            for store in self.stores:
                if store.health != DOWN:
                    store.broker.entities.tick()
            for tick in self.tickers:
                tick(self.clock.now())
            self.settle_down()

    def forget_gateway(self) -> None:
        """The gateway is gone: nobody hears the answers, and what it received stays locked."""
        for store in self.stores:
            for receiver in list(store.receivers):
                receiver.close()
            for command in store.pending.values():
                command.context = None

    def crash(self, store: int, rng: random.Random, mode: CrashMode = CrashMode.DROP) -> None:
        self.stores[store].crash(rng, mode)

    def restart(self, store: int) -> None:
        self.stores[store].start()
