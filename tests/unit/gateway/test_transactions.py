"""Transactions over stores: bound by the first command to one store, one partition, one key."""

from collections.abc import Callable

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from tests.unit.links.remote.pair import up
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    AddRule,
    Command,
    CreateEntities,
    DeleteEntities,
    ListEntities,
    Lock,
    NewEntity,
    RemoveRule,
    ReplaceRule,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription, TopicDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import (
    COUNTER_BITS,
    PARTITION_COUNT,
    hash_key,
    partition_name,
    partition_of,
)
from twinbus.entities.rule_descriptions import default_rule
from twinbus.errors import (
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    NotSupported,
    QuotaExceeded,
    ServiceError,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimedOut,
    Unavailable,
)
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.transactions import BoundTransaction, GatewayTransactions
from twinbus.limits import TRANSACTION_DURATION_MS_MAX, TRANSACTIONS_MAX
from twinbus.links.store_link import DOWN, ReceiverDescription, StoreLink
from twinbus.testing.clock import SimClock

PARTITIONED = QueueDescription(enable_partitioning=True, max_size_megabytes=1_024)
KEY = "customer-1"
HERE = hash_key(KEY)  # the partition of that key


class Ended:
    """Somebody who wants to know how a transaction ends."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def committed(self) -> None:
        self.heard.append("committed")

    def rolled_back(self) -> None:
        self.heard.append("rolled back")


class Scene:
    """Stores in this process, a directory of what is in them, and one client."""

    def __init__(self, store_count: int = 2) -> None:
        self.clock = SimClock()
        self.stores = [BrokerHarness(clock=self.clock) for _ in range(store_count)]
        self.directory = Directory()
        self.links: list[StoreLink] = [store.broker for store in self.stores]
        self.transactions = GatewayTransactions(self, self.clock, b"client-1")

    def plain(self, name: str, store: int) -> Entity:
        self._ask(store, CreateEntities([NewEntity("queue", name, QueueDescription())]))
        return self._listed(name)

    def partitioned(
        self, name: str, description: QueueDescription = PARTITIONED, first_store: int = 0
    ) -> Entity:
        """Its partitions go round the stores."""
        for partition in range(PARTITION_COUNT):
            new = NewEntity(description.KIND, partition_name(name, partition), description)
            store = (first_store + partition) % len(self.stores)
            self._ask(store, CreateEntities([new]))
        return self._listed(name)

    def _ask(self, store: int, command: Command) -> object:
        harness = self.stores[store]
        harness.submit(command)
        harness.run()
        reply = harness.reply_to(command)
        assert reply is not None
        assert reply.error is None
        return reply.result

    def _listed(self, name: str) -> Entity:
        """Built anew: numbers of partitioned entities are kept by whoever asked for them last."""
        listings = [(i, self._ask(i, ListEntities())) for i in range(len(self.stores))]
        known = set(self.directory.names)
        fresh = Directory()
        fresh.load(listings)  # type: ignore[arg-type]  # a reply holds an object
        for each in fresh.names.values():
            if each.name not in known:
                self.directory.add(each.kind, each.name, each.description, each.parts)
        return self.directory.names[name]

    def delete(self, entity: Entity) -> None:
        for part in entity.parts:
            self._ask(part.store, DeleteEntities([part.entity_id]))

    def declare(self) -> BoundTransaction:
        return self.transactions.declare(self)

    def commit(self, transaction: BoundTransaction) -> ServiceError | None:
        results: list[ServiceError | None] = []
        self.transactions.commit(transaction, results.append)
        for store in self.stores:
            store.run()
        assert len(results) == 1
        return results[0]

    def counts(self, entity: Entity) -> list[int]:
        """Messages in each of its parts."""
        counts = []
        for part in entity.parts:
            queue = self.stores[part.store].store.entities[part.entity_id]
            counts.append(queue.counts().message_count)
        return counts

    def locked(self, entity: Entity, partition: int, *bodies: bytes) -> list[Lock]:
        """Locks of new messages in one part of an entity."""
        part = entity.parts[partition]
        harness = self.stores[part.store]
        self._ask(part.store, Send(part.entity_id, [NewMessage(body) for body in bodies]))
        sink = SimSink()
        receiver = harness.broker.open_receiver(
            ReceiverDescription(part.entity_id, MAIN, PEEK_LOCK), sink
        )
        receiver.set_credit(len(bodies), False)
        harness.run()
        assert len(sink.locks) == len(bodies)
        return sink.locks


def keyed(entity: Entity, *keys: str | None) -> Send:
    """A send with a message for each of these partition keys."""
    return Send(entity.entity_id, [NewMessage(b"body", partition_key=key) for key in keys])


def settling(entity: Entity, locks: list[Lock]) -> Settle:
    return Settle(entity.entity_id, MAIN, locks, COMPLETE)


def another_key(fits: Callable[[int], bool]) -> str:
    """A key other than KEY, whose partition fits."""
    return next(key for key in map(str, range(1_000)) if fits(hash_key(key)))


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- plain entities -------------------------------------------------------------------------------


@pytest.mark.proves("M-7")
def test_plain_entities_of_one_store_are_settled_and_sent_to_together(scene: Scene) -> None:
    orders, invoices = scene.plain("orders", 1), scene.plain("invoices", 1)
    locks = scene.locked(orders, 0, b"order")
    transaction = scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, settling(orders, locks))
    transaction.endings.append(ended)
    scene.transactions.add(transaction, keyed(invoices, None, "any", "other"))  # no rule for keys
    assert scene.counts(invoices) == [0]
    assert scene.commit(transaction) is None
    assert (scene.counts(orders), scene.counts(invoices)) == ([0], [3])
    assert ended.heard == ["committed"]


@pytest.mark.proves("E-10")
def test_another_store_is_refused_and_the_transaction_goes_on(scene: Scene) -> None:
    near, far = scene.plain("near", 0), scene.plain("far", 1)
    transaction = scene.declare()
    scene.transactions.add(transaction, keyed(near, None))
    says = r"stays in one store: it began with 'near' in store 0, and 'far' is in store 1"
    with pytest.raises(InvalidOperation, match=says):
        scene.transactions.add(transaction, keyed(far, None))
    scene.transactions.add(transaction, keyed(near, None))
    assert scene.commit(transaction) is None
    assert (scene.counts(near), scene.counts(far)) == ([2], [0])


def test_a_refused_first_command_binds_to_nothing(scene: Scene) -> None:
    near, far = scene.plain("near", 0), scene.plain("far", 1)
    transaction = scene.declare()
    with pytest.raises(MessageLockLost):
        scene.transactions.add(transaction, settling(near, [(1, 1)]))
    scene.clock.advance(TRANSACTION_DURATION_MS_MAX)  # its time has not begun either
    assert scene.transactions.find(transaction.txn_id) is transaction
    scene.transactions.add(transaction, keyed(far, None))
    assert scene.commit(transaction) is None
    assert (scene.counts(near), scene.counts(far)) == ([0], [1])


@pytest.mark.proves("M-7")
def test_roll_back_gives_everything_back(scene: Scene) -> None:
    orders = scene.plain("orders", 1)
    locks = scene.locked(orders, 0, b"order")
    transaction = scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, settling(orders, locks))
    transaction.endings.append(ended)
    scene.transactions.roll_back(transaction)
    assert ended.heard == ["rolled back"]
    assert scene.counts(orders) == [1]
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(transaction.txn_id)
    again = scene.declare()
    scene.transactions.add(again, settling(orders, locks))  # the lock still holds
    assert scene.commit(again) is None


def test_a_commit_that_the_store_refuses_is_told_with_its_reason(scene: Scene) -> None:
    orders = scene.plain("orders", 1)
    transaction = scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, keyed(orders, None))
    transaction.endings.append(ended)
    scene.delete(orders)
    error = scene.commit(transaction)
    assert isinstance(error, TransactionRolledBack)
    assert "could not be found" in str(error)
    assert ended.heard == ["rolled back"]


def test_what_could_not_be_told_refuses_the_commit(scene: Scene) -> None:
    orders = scene.plain("orders", 1)
    transaction = scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, keyed(orders, None))
    transaction.endings.append(ended)
    transaction.failure = InvalidOperation("Something was wrong.")
    error = scene.commit(transaction)
    assert isinstance(error, TransactionRolledBack)
    assert "Something was wrong." in str(error)
    assert ended.heard == ["rolled back"]
    assert scene.counts(orders) == [0]


def test_an_empty_transaction_can_be_committed_and_rolled_back(scene: Scene) -> None:
    assert scene.commit(scene.declare()) is None
    scene.transactions.roll_back(scene.declare())


def test_an_entity_that_is_gone(scene: Scene) -> None:
    transaction = scene.declare()
    with pytest.raises(EntityNotFound):
        scene.transactions.add(transaction, Send(77, [NewMessage(b"body")]))


def test_open_transactions_have_a_limit(scene: Scene) -> None:
    first = scene.declare()
    for _ in range(TRANSACTIONS_MAX - 1):
        scene.declare()
    with pytest.raises(QuotaExceeded):
        scene.declare()
    scene.transactions.roll_back(first)
    scene.declare()


def test_the_end_of_the_control_link_rolls_back_its_transactions(scene: Scene) -> None:
    orders = scene.plain("orders", 0)
    owner = object()
    transaction, other = scene.transactions.declare(owner), scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, keyed(orders, None))
    transaction.endings.append(ended)
    scene.transactions.roll_back_all(owner)
    assert ended.heard == ["rolled back"]
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(transaction.txn_id)
    assert scene.transactions.find(other.txn_id) is other


@pytest.mark.parametrize("is_ticked", [True, False])
def test_a_transaction_that_takes_too_long(scene: Scene, is_ticked: bool) -> None:
    orders = scene.plain("orders", 1)
    transaction, idle = scene.declare(), scene.declare()
    ended = Ended()
    scene.transactions.add(transaction, keyed(orders, None))
    transaction.endings.append(ended)
    scene.clock.advance(TRANSACTION_DURATION_MS_MAX - 1)
    scene.transactions.tick()
    assert scene.transactions.find(transaction.txn_id) is transaction
    scene.clock.advance(1)
    if is_ticked:
        scene.transactions.tick()
    with pytest.raises(TransactionTimedOut):
        scene.transactions.find(transaction.txn_id)
    assert ended.heard == ["rolled back"]
    assert scene.transactions.find(idle.txn_id) is idle  # it has not begun
    assert scene.stores[1].broker.transaction_bytes == 0


def test_only_the_newest_that_took_too_long_are_remembered(scene: Scene) -> None:
    orders = scene.plain("orders", 0)
    first = scene.declare()
    for transaction in [first, *(scene.declare() for _ in range(TRANSACTIONS_MAX - 1))]:
        scene.transactions.add(transaction, keyed(orders, None))
    scene.clock.advance(TRANSACTION_DURATION_MS_MAX)
    scene.transactions.tick()
    last = scene.declare()
    scene.transactions.add(last, keyed(orders, None))
    scene.clock.advance(TRANSACTION_DURATION_MS_MAX)
    with pytest.raises(TransactionTimedOut):
        scene.transactions.find(last.txn_id)
    with pytest.raises(TransactionNotFound):
        scene.transactions.find(first.txn_id)


# --- partitioned entities -------------------------------------------------------------------------


@pytest.mark.proves("E-10")
@pytest.mark.parametrize("store_count", [1, 2, 5])
def test_one_key_settles_and_sends_in_its_partition(store_count: int) -> None:
    scene = Scene(store_count)
    orders, invoices = scene.partitioned("orders"), scene.partitioned("invoices")
    locks = scene.locked(orders, HERE, b"one", b"two")
    transaction = scene.declare()
    scene.transactions.add(transaction, settling(orders, locks))
    scene.transactions.add(transaction, keyed(invoices, KEY, KEY))
    scene.transactions.add(transaction, keyed(orders, KEY))
    assert scene.commit(transaction) is None
    assert scene.counts(orders) == [int(p == HERE) for p in range(PARTITION_COUNT)]
    assert scene.counts(invoices) == [2 * (p == HERE) for p in range(PARTITION_COUNT)]


@pytest.mark.proves("E-10")
def test_a_send_without_a_key_is_refused(scene: Scene) -> None:
    orders = scene.partitioned("orders")
    transaction = scene.declare()
    for keys in [(None,), (KEY, None), ()]:
        with pytest.raises(InvalidOperation, match="key"):
            scene.transactions.add(transaction, keyed(orders, *keys))
    scene.transactions.add(transaction, keyed(orders, KEY))
    with pytest.raises(InvalidOperation, match="'orders' is partitioned"):
        scene.transactions.add(transaction, keyed(orders, None))
    assert scene.commit(transaction) is None
    assert sum(scene.counts(orders)) == 1


@pytest.mark.proves("E-10")
@pytest.mark.parametrize("same_partition", [True, False])
def test_different_keys_are_refused(scene: Scene, same_partition: bool) -> None:
    """Wherever they lead: what is allowed must not depend on a hash."""
    orders, invoices = scene.partitioned("orders"), scene.partitioned("invoices")
    other = another_key(lambda partition: (partition == HERE) is same_partition)
    transaction = scene.declare()
    with pytest.raises(InvalidOperation, match="one key"):
        scene.transactions.add(transaction, keyed(orders, KEY, other))
    scene.transactions.add(transaction, keyed(orders, KEY))
    for entity in (orders, invoices):
        with pytest.raises(InvalidOperation, match=f"'{KEY}' came first, and now '{other}'"):
            scene.transactions.add(transaction, keyed(entity, other))
    scene.transactions.add(transaction, keyed(invoices, KEY))
    assert scene.commit(transaction) is None
    assert (sum(scene.counts(orders)), sum(scene.counts(invoices))) == (1, 1)


@pytest.mark.proves("E-4", "E-10")
def test_different_sessions_are_refused(scene: Scene) -> None:
    description = QueueDescription(
        enable_partitioning=True, requires_session=True, max_size_megabytes=1_024
    )
    orders = scene.partitioned("orders", description)
    transaction = scene.declare()
    first = NewMessage(b"body", session_id=KEY, partition_key=KEY)
    scene.transactions.add(transaction, Send(orders.entity_id, [first]))
    second = Send(orders.entity_id, [NewMessage(b"body", session_id="another")])
    with pytest.raises(InvalidOperation, match="session id"):
        scene.transactions.add(transaction, second)
    mixed = NewMessage(b"body", session_id=KEY, partition_key="another")
    with pytest.raises(InvalidOperation, match="differs"):  # E-4
        scene.transactions.add(transaction, Send(orders.entity_id, [mixed]))
    assert scene.commit(transaction) is None
    assert sum(scene.counts(orders)) == 1


@pytest.mark.proves("E-3")
def test_where_duplicates_are_detected_the_message_id_is_a_key(scene: Scene) -> None:
    description = QueueDescription(
        enable_partitioning=True, requires_duplicate_detection=True, max_size_megabytes=1_024
    )
    orders = scene.partitioned("orders", description)
    transaction = scene.declare()
    scene.transactions.add(
        transaction, Send(orders.entity_id, [NewMessage(b"body", message_id=KEY)])
    )
    other = NewMessage(b"body", message_id="another")
    with pytest.raises(InvalidOperation, match="one key"):
        scene.transactions.add(transaction, Send(orders.entity_id, [other]))
    assert scene.commit(transaction) is None
    assert scene.counts(orders)[HERE] == 1


@pytest.mark.proves("E-10")
def test_messages_of_another_partition_are_not_settled(scene: Scene) -> None:
    orders = scene.partitioned("orders")
    there = (HERE + 2) % PARTITION_COUNT  # in the same store, and still another partition
    locks, other_locks = scene.locked(orders, HERE, b"one"), scene.locked(orders, there, b"two")
    transaction = scene.declare()
    with pytest.raises(InvalidOperation, match="different partitions"):
        scene.transactions.add(transaction, settling(orders, locks + other_locks))
    scene.transactions.add(transaction, keyed(orders, KEY))
    with pytest.raises(InvalidOperation, match=f"partition {there}, .* partition {HERE} already"):
        scene.transactions.add(transaction, settling(orders, other_locks))
    scene.transactions.add(transaction, settling(orders, locks))
    assert scene.commit(transaction) is None
    assert scene.counts(orders)[HERE] == 1
    assert scene.counts(orders)[there] == 1


@pytest.mark.proves("E-10")
def test_a_key_of_another_partition_than_what_was_settled(scene: Scene) -> None:
    orders = scene.partitioned("orders")
    there = (HERE + 2) % PARTITION_COUNT
    transaction = scene.declare()
    scene.transactions.add(transaction, settling(orders, scene.locked(orders, there, b"one")))
    with pytest.raises(InvalidOperation, match="stays in one partition"):
        scene.transactions.add(transaction, keyed(orders, KEY))
    scene.transactions.add(transaction, keyed(orders, another_key(lambda p: p == there)))
    assert scene.commit(transaction) is None


def test_a_partition_and_a_plain_entity_of_its_store(scene: Scene) -> None:
    orders = scene.partitioned("orders")
    store = orders.parts[HERE].store
    near, far = scene.plain("near", store), scene.plain("far", 1 - store)
    transaction = scene.declare()
    scene.transactions.add(transaction, keyed(near, None))
    scene.transactions.add(transaction, keyed(orders, KEY))
    scene.transactions.add(transaction, keyed(near, "another"))
    with pytest.raises(InvalidOperation, match=rf"'near' in store {store}, and 'far' is in store"):
        scene.transactions.add(transaction, keyed(far, KEY))
    assert scene.commit(transaction) is None
    assert (scene.counts(near), scene.counts(orders)[HERE]) == ([2], 1)


def test_the_same_partition_of_two_entities_in_different_stores(scene: Scene) -> None:
    orders, invoices = scene.partitioned("orders"), scene.partitioned("invoices", first_store=1)
    transaction = scene.declare()
    scene.transactions.add(transaction, keyed(orders, KEY))
    store = orders.parts[HERE].store
    says = (
        f"began with partition {HERE} of 'orders' in store {store}, and partition {HERE} of "
        f"'invoices' is in store {1 - store}"
    )
    with pytest.raises(InvalidOperation, match=says):
        scene.transactions.add(transaction, keyed(invoices, KEY))
    assert scene.commit(transaction) is None


@pytest.mark.parametrize("partition", [-1, PARTITION_COUNT])
def test_a_lock_of_no_partition(scene: Scene, partition: int) -> None:
    orders = scene.partitioned("orders")
    with pytest.raises(MessageLockLost):
        scene.transactions.add(scene.declare(), settling(orders, [(partition << COUNTER_BITS, 1)]))


def test_scheduled_numbers_are_those_of_the_partition(scene: Scene) -> None:
    orders = scene.partitioned("orders")
    transaction = scene.declare()
    with pytest.raises(InvalidOperation, match="needs a partition key"):
        scene.transactions.schedule(transaction, keyed(orders, None))
    numbers = scene.transactions.schedule(transaction, keyed(orders, KEY, KEY))
    assert [partition_of(number) for number in numbers] == [HERE, HERE]
    with pytest.raises(InvalidOperation, match="one key"):
        scene.transactions.schedule(transaction, keyed(orders, "another"))
    assert scene.commit(transaction) is None
    assert scene.counts(orders)[HERE] == 2


@pytest.mark.proves("E-13")
def test_rules_are_not_changed_inside_a_transaction(scene: Scene) -> None:
    news = scene.partitioned(
        "news", TopicDescription(enable_partitioning=True, max_size_megabytes=1_024)
    )
    transaction = scene.declare()
    number = news.entity_id
    for command in (
        AddRule(number, default_rule()),
        ReplaceRule(number, default_rule()),
        RemoveRule(number, "$Default"),
    ):
        with pytest.raises(NotSupported):
            scene.transactions.add(transaction, command)
    scene.transactions.add(transaction, keyed(news, KEY))
    assert scene.commit(transaction) is None


# --- stores that are down, and stores elsewhere ---------------------------------------------------


@pytest.mark.proves("E-5")
def test_a_store_that_is_down_is_told_at_once(scene: Scene) -> None:
    near, far = scene.plain("near", 0), scene.plain("far", 1)
    scene.stores[1].broker.health = DOWN
    transaction = scene.declare()
    with pytest.raises(Unavailable, match="Store 1, where 'far'"):
        scene.transactions.add(transaction, keyed(far, None))
    scene.transactions.add(transaction, keyed(near, None))  # nothing bound it
    assert scene.commit(transaction) is None


def test_a_part_that_is_not_known_yet(scene: Scene) -> None:
    orders = scene.plain("orders", 1)
    orders.parts[0].entity_id = 0
    with pytest.raises(Unavailable):
        scene.transactions.add(scene.declare(), keyed(orders, None))


def test_a_store_elsewhere_brings_its_own_transactions() -> None:
    """It is the same to the client, but that the broker has its say only at the commit."""
    world, _ = up()
    near = Scene(1)
    directory = near.directory
    for name in ("source", "target"):
        number = world.create_queue(name)
        directory.add("queue", name, QueueDescription(), [Part(1, number, 0)])
    source, target = directory.names["source"], directory.names["target"]
    near.links.append(world.stores[0])
    transactions = near.transactions
    world.send(source.parts[0].entity_id, b"in")
    _, sink = world.receiver(source.parts[0].entity_id, credit=1)
    transaction = near.declare()
    ended, results = Ended(), list[ServiceError | None]()
    transactions.add(transaction, settling(source, sink.locks))
    transaction.endings.append(ended)
    transactions.add(transaction, keyed(target, None))
    with pytest.raises(InvalidOperation, match="'source' in store 1, and 'near' is in store 0"):
        transactions.add(transaction, keyed(near.plain("near", 0), None))
    transactions.commit(transaction, results.append)
    assert results == []
    world.run()
    assert (results, ended.heard) == ([None], ["committed"])
    refused = near.declare()
    transactions.add(refused, settling(source, sink.locks))  # it is completed already
    transactions.commit(refused, results.append)
    world.run()
    assert isinstance(results[1], TransactionRolledBack)
