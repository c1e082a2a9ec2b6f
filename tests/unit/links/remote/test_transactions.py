"""Transactions that are gathered at the gateway and decided by a broker behind a socket."""

import pytest

from tests.unit.links.remote.pair import World, restarted, up
from twinbus.entities.commands import (
    COMPLETE,
    DeleteEntities,
    GetRuntime,
    Peek,
    Runtime,
    Send,
    Settle,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import (
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    ServiceError,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimedOut,
    Unavailable,
)
from twinbus.limits import TRANSACTION_DURATION_MS_MAX, TRANSACTION_MESSAGES_MAX, TRANSACTIONS_MAX
from twinbus.links.remote.transactions import RemoteTransactions
from twinbus.links.transactions import Transaction


class Told:
    """Whoever did something in a transaction."""

    def __init__(self) -> None:
        self.endings: list[str] = []
        self.answers: list[ServiceError | None] = []

    def committed(self) -> None:
        self.endings.append("committed")

    def rolled_back(self) -> None:
        self.endings.append("rolled back")


def begun(world: World) -> tuple[RemoteTransactions, Transaction, Told]:
    transactions = RemoteTransactions(world.stores[0], world.clock, b"prefix")
    transaction = transactions.declare("owner")
    told = Told()
    transaction.endings.append(told)
    return transactions, transaction, told


def active(world: World, queue: int) -> int:
    (runtime,) = world.answer(GetRuntime([queue]))
    assert isinstance(runtime, Runtime)
    return runtime.active


def test_everything_happens_together() -> None:
    world, _ = up()
    source, target = world.create_queue("source"), world.create_queue("target")
    world.send(source, b"in")
    _, sink = world.receiver(source, credit=1)
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Settle(source, MAIN, sink.locks, COMPLETE))
    transactions.add(transaction, Send(target, [NewMessage(b"out")]))
    assert world.stores[0].transaction_bytes > 0
    assert transactions.find(transaction.txn_id) is transaction
    transactions.commit(transaction, told.answers.append)
    assert told.answers == []
    world.run()
    assert (told.answers, told.endings) == ([None], ["committed"])
    assert (active(world, source), active(world, target)) == (0, 1)
    assert world.stores[0].transaction_bytes == 0
    with pytest.raises(TransactionNotFound):
        transactions.find(transaction.txn_id)


def test_what_the_broker_refuses_is_rolled_back() -> None:
    world, _ = up()
    queue, other = world.create_queue("a"), world.create_queue("b")
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(queue, [NewMessage(b"x")]))
    transactions.add(transaction, Settle(other, MAIN, [(1, 1)], COMPLETE))
    transactions.commit(transaction, told.answers.append)
    world.run()
    (error,) = told.answers
    assert isinstance(error, TransactionRolledBack)
    assert told.endings == ["rolled back"]
    assert active(world, queue) == 0


def test_an_entity_that_is_gone_at_the_commit() -> None:
    world, _ = up()
    queue = world.create_queue("a")
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(queue, [NewMessage(b"x")]))
    world.answer(DeleteEntities([queue]))
    transactions.commit(transaction, told.answers.append)
    world.run()
    assert isinstance(told.answers[0], TransactionRolledBack)


def test_a_failure_that_nobody_could_be_told_is_told_at_the_commit() -> None:
    world, _ = up()
    transactions, transaction, told = begun(world)
    transaction.failure = InvalidOperation("that was wrong")
    transactions.commit(transaction, told.answers.append)
    assert "that was wrong" in str(told.answers[0])
    assert told.endings == ["rolled back"]


def test_a_rollback_asks_nobody() -> None:
    world, _ = up()
    queue = world.create_queue("a")
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(queue, [NewMessage(b"x")]))
    transactions.roll_back_all("somebody else")
    assert told.endings == []
    transactions.roll_back_all("owner")
    assert told.endings == ["rolled back"]
    assert world.stores[0].transaction_bytes == 0


def test_limits_are_checked_here() -> None:
    world, _ = up()
    transactions, transaction, _ = begun(world)
    with pytest.raises(QuotaExceeded, match="at most 100 messages"):
        transactions.add(transaction, Send(1, [NewMessage(b"")] * (TRANSACTION_MESSAGES_MAX + 1)))
    with pytest.raises(QuotaExceeded, match="bytes together"):
        transactions.add(transaction, Send(1, [NewMessage(bytes(1 << 20))] * 40))
    transactions.add(transaction, Settle(1, MAIN, [(5, 1)], COMPLETE))
    with pytest.raises(InvalidOperation, match="already settled"):
        transactions.add(transaction, Settle(1, MAIN, [(5, 1)], COMPLETE))
    with pytest.raises(NotSupported):
        transactions.add(transaction, Peek(1, MAIN, 0, 1))
    with pytest.raises(NotSupported):
        transactions.schedule(transaction, Send(1, [NewMessage(b"")]))
    for _ in range(TRANSACTIONS_MAX - 1):
        transactions.declare("owner")
    with pytest.raises(QuotaExceeded):
        transactions.declare("owner")


def test_what_takes_too_long_is_rolled_back() -> None:
    world, _ = up()
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(1, [NewMessage(b"")]))
    late = transactions.declare("owner")
    transactions.add(late, Send(1, [NewMessage(b"")]))
    world.clock.advance(TRANSACTION_DURATION_MS_MAX)
    with pytest.raises(TransactionTimedOut):
        transactions.find(transaction.txn_id)
    transactions.tick()
    with pytest.raises(TransactionTimedOut):
        transactions.find(late.txn_id)
    assert told.endings == ["rolled back"]


@pytest.mark.parametrize("steps", range(7))
def test_a_broker_lost_at_the_commit(steps: int) -> None:
    world, host = up()
    queue = world.create_queue("a")
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(queue, [NewMessage(b"x")]))
    transactions.commit(transaction, told.answers.append)
    for _ in range(steps):
        host.step()
    host.kill()
    (error,) = told.answers
    restarted(world)
    if error is None:
        assert active(world, queue) == 1
    else:
        assert isinstance(error, Unavailable)
        assert told.endings == ["rolled back"]


def test_a_commit_waits_for_a_move() -> None:
    world, _ = up()
    queue = world.create_queue("a")
    transactions, transaction, told = begun(world)
    transactions.add(transaction, Send(queue, [NewMessage(b"x")]))
    store = world.stores[0]
    store.hold()
    store.close()
    transactions.commit(transaction, told.answers.append)
    world.run()
    assert told.answers == []
    restarted(world)
    assert told.answers == [None]


def test_no_commit_where_nothing_is() -> None:
    world, host = up()
    transactions, transaction, told = begun(world)
    host.kill()
    transactions.commit(transaction, told.answers.append)
    (error,) = told.answers
    assert "nothing has been done" in str(error)
    assert told.endings == ["rolled back"]
