"""A link to a store where faults refuse clients' requests (A-1, A-6): wraps any `StoreLink`.

    gateway ── FaultyLink ─▶ StoreLink

This is the one place that knows, for every command, which part of which entity it is for.  It has
work only while a fault is in force that a gateway has to ask about.  The gateway's own requests
(relays, runtime, creating entities) are passed on; so are those for entities that the directory
does not know.
"""

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Send
from twinbus.errors import ServiceError
from twinbus.gateway.directory.directory import Directory, Entity, plain_id
from twinbus.gateway.faults.faults import Faults
from twinbus.links.sink import Sink
from twinbus.links.store_link import Accepting, Answer, ReceiverDescription, Receiving, StoreLink
from twinbus.links.transactions import StoreTransactions, Transaction
from twinbus.links.wrapper import LinkWrapper, submit_admitted


class FaultyLink(LinkWrapper):
    """One store, as faults let it be seen."""

    def __init__(self, link: StoreLink, store: int, faults: Faults) -> None:
        super().__init__(link, has_work=False)
        self._store = store
        self._faults = faults
        self._directory = Directory()  # until it is told

    def watch(self, directory: Directory) -> None:
        """From now on the entities are known."""
        self._directory = directory

    # -- what the gateway calls (StoreLink) --------------------------------------------------------

    def _submit(self, commands: list[Command]) -> None:
        submit_admitted(self._link, commands, self.refusal)

    def refusal(self, command: Command) -> ServiceError | None:
        """Whether a fault keeps a command of this store from being done."""
        found = self._find(command.entity_id)
        return None if found is None else self._faults.refusal(command, *found)

    def open_receiver(self, description: ReceiverDescription, sink: Sink) -> Receiving:
        if not description.relays:
            self._check_receiver(description.entity_id)
        return self._link.open_receiver(description, sink)

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Accepting:
        self._check_receiver(entity_id)
        return super().accept_session(entity_id, session_id, timeout_ms, grant, then)

    def _check_receiver(self, entity_id: int) -> None:
        found = self._find(entity_id) if self.has_work else None
        error = None if found is None else self._faults.receiver_refusal(*found)
        if error is not None:
            raise error

    def transactions(self, clock: Clock, prefix: bytes) -> StoreTransactions:
        return FaultyTransactions(self, self._link.transactions(clock, prefix))

    def _find(self, entity_id: int) -> tuple[Entity, int] | None:
        """The entity and the partition that a number of this store is for."""
        return self._directory.part(plain_id(self._store, entity_id))


class FaultyTransactions:
    """Transactions of a connection in this store; refused commands are not added."""

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
