"""A link to a store at which faults refuse what clients ask (A-1, A-6): wraps any `StoreLink`.

    gateway ── FaultyLink ─▶ StoreLink

This is the one place where it is known of every command which part of which entity it is for.
While no fault is in force that a gateway has to ask about, commands do not even pass through here:
`submit` is the link's own.  What the gateway asks for itself (relays, runtime, making entities) is
passed on; so is what belongs to no entity that the directory knows.
"""

from collections.abc import Callable
from functools import partial

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Send
from twinbus.entities.sessions import SessionLock
from twinbus.errors import ServerBusy, ServiceError
from twinbus.gateway.directory.directory import Directory, Entity, plain_id
from twinbus.gateway.faults.faults import Fault, Faults
from twinbus.links.sink import Sink
from twinbus.links.store_link import Accepting, Answer, ReceiverDescription, Receiving, StoreLink
from twinbus.links.transactions import StoreTransactions, Transaction
from twinbus.links.wrapper import LinkWrapper, submit_admitted


class FaultyLink(LinkWrapper):
    """One store, as faults let it be seen."""

    def __init__(self, link: StoreLink, store: int, faults: Faults) -> None:
        super().__init__(link)
        self._store = store
        self._faults = faults
        self._directory = Directory()  # until it is told
        self._receivers: set[GuardedReceiver] = set()
        self.submit = link.submit

    def watch(self, directory: Directory) -> None:
        """From now on the entities are known."""
        self._directory = directory

    # -- what changes with the faults --------------------------------------------------------------

    def faults_changed(self) -> None:
        """A fault has begun or ended."""
        self.submit = self._submit if self._faults.active else self._link.submit
        for receiver in list(self._receivers):
            receiver.restore()

    def lose_receivers(self, fault: Fault) -> None:
        """A fault on some partitions has begun: nothing more comes from these."""
        if fault.probability < 1.0:
            return  # who is hit now and then finds out by himself
        for receiver in list(self._receivers):
            if fault.covers(receiver.entity, receiver.partition):
                receiver.lose(fault.error())

    def holds_back(self, receiver: "GuardedReceiver") -> bool:
        """Whether a fault is (still) in the way of a receiver."""
        return self._faults.holds_back(receiver.entity, receiver.partition)

    def forget(self, receiver: "GuardedReceiver") -> None:
        self._receivers.discard(receiver)

    # -- what the gateway calls (StoreLink) --------------------------------------------------------

    def _submit(self, commands: list[Command]) -> None:
        submit_admitted(self._link, commands, self.refusal)

    def refusal(self, command: Command) -> ServiceError | None:
        """Whether a fault keeps a command of this store from being done."""
        found = self._find(command.entity_id)
        return None if found is None else self._faults.refusal(command, *found)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        found = None if description.relays else self._find(description.entity_id)
        if found is None:
            return self._link.open_receiver(description, sink)
        entity, partition = found
        error = self._faults.receiver_refusal(entity, partition) if self._faults.active else None
        if error is not None:
            raise error
        # Who receives from a whole entity is detached when a fault begins; only one of many parts
        # has to be held back in silence.
        if not entity.is_partitioned or description.session is not None:
            return self._link.open_receiver(description, sink)
        reopen = partial(self._link.open_receiver, description, sink)
        receiver = GuardedReceiver(self, entity, partition, sink, reopen)
        self._receivers.add(receiver)
        return receiver

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        found = self._find(entity_id) if self._faults.active else None
        error = None if found is None else self._faults.receiver_refusal(*found)
        if error is not None:
            raise error
        return self._link.accept_session(entity_id, session_id, timeout_ms, grant, then)

    def transactions(self, clock: Clock, prefix: bytes) -> StoreTransactions:
        return FaultyTransactions(self, self._link.transactions(clock, prefix))

    def _find(self, entity_id: int) -> tuple[Entity, int] | None:
        """The entity and the partition that a number of this store is for."""
        return self._directory.part(plain_id(self._store, entity_id))


class GuardedReceiver:
    """A receiver at one partition, which a fault may hold back for a while (Receiving)."""

    def __init__(
        self,
        link: FaultyLink,
        entity: Entity,
        partition: int,
        sink: Sink,
        reopen: Callable[[], Receiving],
    ) -> None:
        self._link = link
        self.entity = entity
        self.partition = partition
        self._sink = sink
        self._reopen = reopen
        self._receiving: Receiving | None = reopen()
        self._credit = 0
        self._drain = False

    @property
    def session(self) -> SessionLock | None:
        return None

    def set_credit(self, credit: int, drain: bool) -> None:
        self._credit, self._drain = credit, drain
        if self._receiving is not None:
            self._receiving.set_credit(credit, drain)

    def resume(self) -> None:
        if self._receiving is not None:
            self._receiving.resume()

    def close(self) -> None:
        self._link.forget(self)
        if self._receiving is not None:
            self._receiving.close()

    def lose(self, error: ServiceError) -> None:
        """Nothing more comes until it is restored."""
        if self._receiving is None or isinstance(error, ServerBusy):
            return  # who is throttled gets less, not nothing
        self._receiving.close()
        self._receiving = None
        self._credit, self._drain = 0, False
        self._sink.lost(error)

    def restore(self) -> None:
        """If no fault is in the way any more, go on."""
        if self._receiving is not None or self._link.holds_back(self):
            return
        try:
            self._receiving = self._reopen()
        except ServiceError as error:  # deleted meanwhile
            self._sink.lost(error)
            return
        if self._credit:
            self._receiving.set_credit(self._credit, self._drain)


class FaultyTransactions:
    """Transactions of a connection in this store; what a fault refuses is not added."""

    def __init__(self, link: FaultyLink, inner: StoreTransactions) -> None:
        self._link = link
        self._inner = inner
        self.declare = inner.declare
        self.commit = inner.commit
        self.roll_back = inner.roll_back

    def add(self, transaction: Transaction, command: Command) -> None:
        self._check(command)
        self._inner.add(transaction, command)

    def schedule(self, transaction: Transaction, command: Send) -> list[int]:
        self._check(command)
        return self._inner.schedule(transaction, command)

    def _check(self, command: Command) -> None:
        error = self._link.refusal(command)
        if error is not None:
            raise error
