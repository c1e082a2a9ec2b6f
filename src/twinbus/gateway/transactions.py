"""Transactions over stores: each is bound to one store, and to one partition where there are any.

    declare ─▶ first command: bound to the store it goes to ─▶ add, add, add: the same store
            ─▶ commit, roll_back: the store's own (broker/transactions.py)

A store writes all of a transaction into one frame.  Nothing spans two stores: a command that would
is refused when it is added.  A refusal leaves the transaction as it was.

Sends to partitioned entities name a key, all of them the same one, and messages of partitioned
entities are settled only in that key's partition (E-10).  That holds however the partitions are
spread: a program that works with one store works with many.  Plain entities have no such rule; they
only have to be in the same store.

Send-via is no special case: a message goes straight to its destination, in the frame of the
transaction, so only the destination and the message's own key count.  The via partition key says
where a message would wait for its transfer.  None waits, so it is ignored.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from twinbus.clock import Clock
from twinbus.entities.commands import Command, Send, Settle
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    hash_key,
    key_of,
    partition_of,
    shown_name,
)
from twinbus.entities.queue import LOCK_LOST
from twinbus.errors import (
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    NotSupported,
    ServiceError,
    TransactionRolledBack,
    Unavailable,
)
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.limits import TRANSACTION_DURATION_MS_MAX
from twinbus.links.store_link import DOWN, StoreLink
from twinbus.links.transactions import (
    Declared,
    OpenTransactions,
    StoreTransactions,
    Then,
    Transaction,
)

NO_STORE: Final = -1


class Routes(Protocol):
    """Where entities are, and the links to the stores: the gateway."""

    @property
    def directory(self) -> Directory: ...

    @property
    def links(self) -> Sequence[StoreLink]: ...


# --- over stores ----------------------------------------------------------------------------------


class TransactionPlace:
    """Where a command goes, and what that would bind a transaction to."""

    __slots__ = ("entity", "entity_id", "key", "partition", "store")

    def __init__(self, entity: Entity, part: Part, partition: int, key: str | None) -> None:
        self.entity = entity
        self.store = part.store
        self.entity_id = part.entity_id  # in that store
        self.partition = partition  # NO_PARTITION of a plain entity
        self.key = key  # of what is sent to a partitioned entity


class BoundTransaction(Declared):
    """A transaction as its connection sees it; its store has another, from its first command on."""

    __slots__ = ("first", "in_store", "key", "partition", "store")

    def __init__(self, txn_id: bytes, owner: object) -> None:
        super().__init__(txn_id, owner)
        self.store = NO_STORE
        self.first = ""  # what bound it to that store, for people
        self.in_store: Transaction | None = None
        self.partition = NO_PARTITION  # of every partitioned entity in it
        self.key: str | None = None  # of everything sent to partitioned entities

    def committed(self) -> None:
        """It is durable in its store."""
        for ending in self.endings:
            ending.committed()

    def rolled_back(self) -> None:
        """Nothing of it has happened."""
        for ending in self.endings:
            ending.rolled_back()


class GatewayTransactions(OpenTransactions[BoundTransaction]):
    """The open transactions of one connection."""

    def __init__(self, routes: Routes, clock: Clock, prefix: bytes) -> None:
        super().__init__(clock, prefix, BoundTransaction)
        self._routes = routes
        self._stores: dict[int, StoreTransactions] = {}

    # -- adding ------------------------------------------------------------------------------------

    def add(self, transaction: BoundTransaction, command: Command) -> None:
        """Make a command part of a transaction, or raise why not; then it is no part of it."""
        if not isinstance(command, Send | Settle):
            raise NotSupported("Only sends, schedules and settlements can be in a transaction.")
        self._enlist(transaction, command, False)

    def schedule(self, transaction: BoundTransaction, command: Send) -> list[int]:
        """Add messages for later; their sequence numbers are known, and theirs, from now on."""
        return self._enlist(transaction, command, True)

    def _enlist(
        self, transaction: BoundTransaction, command: Send | Settle, is_schedule: bool
    ) -> list[int]:
        place = self._place(transaction, command)
        store = self._in_store(place.store)
        in_store = transaction.in_store
        if in_store is None:
            in_store = store.declare(transaction)
        command.entity_id = place.entity_id
        numbers: list[int] = []
        try:
            if is_schedule:
                assert isinstance(command, Send)
                numbers = store.schedule(in_store, command)
            else:
                store.add(in_store, command)
        except ServiceError:
            if transaction.in_store is None:
                store.roll_back(in_store)  # it binds nobody
            raise
        self._bind(transaction, in_store, place)
        return numbers

    def _in_store(self, store: int) -> StoreTransactions:
        found = self._stores.get(store)
        if found is None:
            found = self._routes.links[store].transactions(self._clock, self._prefix)
            self._stores[store] = found
        return found

    def _bind(
        self, transaction: BoundTransaction, in_store: Transaction, place: TransactionPlace
    ) -> None:
        if transaction.in_store is None:
            transaction.in_store = in_store
            transaction.store = place.store
            transaction.first = _shown(place)
            transaction.deadline_ms = self._clock.now().mono_ms + TRANSACTION_DURATION_MS_MAX
            in_store.endings.append(transaction)
        if place.partition != NO_PARTITION:
            transaction.partition = place.partition
        if place.key is not None:
            transaction.key = place.key

    # -- where to ----------------------------------------------------------------------------------

    def _place(self, transaction: BoundTransaction, command: Send | Settle) -> TransactionPlace:
        """Where a command goes, if that is where the transaction is."""
        entity = self._routes.directory.by_id.get(command.entity_id)
        if entity is None:
            raise EntityNotFound("The messaging entity could not be found.")
        partition = NO_PARTITION
        key: str | None = None
        if not entity.is_partitioned:
            part = entity.parts[0]
        else:
            if isinstance(command, Send):
                key = _only_key(transaction, entity, command.messages)
                partition = hash_key(key)
            else:
                partition = _only_partition(command)
            if transaction.partition not in (NO_PARTITION, partition):
                raise InvalidOperation(
                    "A transaction with partitioned entities stays in one partition: this is about "
                    f"partition {partition}, and it has something in partition "
                    f"{transaction.partition} already."
                )
            part = entity.parts[partition]
        place = TransactionPlace(entity, part, partition, key)
        if transaction.store not in (NO_STORE, part.store):
            raise _in_two_stores(transaction, place)
        if part.entity_id == 0 or self._routes.links[part.store].health == DOWN:
            raise Unavailable(
                f"Store {part.store}, where '{shown_name(entity.name)[:64]}' would take this, is "
                "down; it is not part of the transaction."
            )
        return place

    # -- ending ------------------------------------------------------------------------------------

    def commit(self, transaction: BoundTransaction, then: Then) -> None:
        """Let everything happen; `then` hears when it is durable, or at once why it is refused."""
        failure = transaction.failure
        if failure is not None:
            self.roll_back(transaction)
            then(TransactionRolledBack(f"The transaction was rolled back: {failure}"))
            return
        self._open.pop(transaction.txn_id, None)
        if transaction.in_store is None:
            then(None)  # nothing was asked for
        else:
            self._stores[transaction.store].commit(transaction.in_store, then)

    def roll_back(self, transaction: BoundTransaction) -> None:
        """Forget everything it had asked for."""
        self._open.pop(transaction.txn_id, None)
        if transaction.in_store is not None:
            self._stores[transaction.store].roll_back(transaction.in_store)


# --- in words -------------------------------------------------------------------------------------


def _shown(place: TransactionPlace) -> str:
    """An entity, or the partition of one, as a user knows it."""
    name = f"'{shown_name(place.entity.name)[:64]}'"
    return name if place.partition == NO_PARTITION else f"partition {place.partition} of {name}"


def _in_two_stores(transaction: BoundTransaction, place: TransactionPlace) -> InvalidOperation:
    """The rule, both sides of it, and what to do: a user does not see where entities are."""
    return InvalidOperation(
        f"A transaction stays in one store: it began with {transaction.first} in store "
        f"{transaction.store}, and {_shown(place)} is in store {place.store}. Use entities that "
        "are in the same store ('twinbus status' shows where each is), or a server with one store."
    )


# --- keys and partitions --------------------------------------------------------------------------


def _only_key(transaction: BoundTransaction, entity: Entity, messages: list[NewMessage]) -> str:
    """The key of all these messages and of all sent to partitioned entities before."""
    key = transaction.key
    shown = shown_name(entity.name)[:64]
    for message in messages:
        own_key = key_of(message, entity.description.requires_duplicate_detection)
        if own_key is None:
            raise InvalidOperation(
                f"'{shown}' is partitioned: what is sent to it in a transaction needs a partition "
                "key or a session id."
            )
        if key is not None and own_key != key:
            raise InvalidOperation(
                "What a transaction sends to partitioned entities has one key, the same partition "
                f"key or session id in all messages: '{key[:64]}' came first, and now "
                f"'{own_key[:64]}'."
            )
        key = own_key
    if key is None:
        raise InvalidOperation("There is no message to send, and therefore no key.")
    return key


def _only_partition(command: Settle) -> int:
    """The partition of all these messages."""
    partitions = {partition_of(number) for number, _ in command.locks}
    if len(partitions) != 1:
        raise InvalidOperation(
            "The messages are in different partitions; a transaction stays in one of them."
        )
    partition = partitions.pop()
    if not 0 <= partition < PARTITION_COUNT:
        raise MessageLockLost(LOCK_LOST)
    return partition
