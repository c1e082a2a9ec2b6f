"""The broker's shell: a failing disk is given up once, and who talks alone is answered at once."""

import asyncio

import pytest

from tests.unit.broker.harness import SimSink
from twinbus.broker.broker import LIGHT_WORK_MAX
from twinbus.broker.shell import BrokerShell
from twinbus.entities.commands import PEEK_LOCK, Reply, Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NEVER_MS, Message, NewMessage
from twinbus.errors import LogPoisoned, StorageError
from twinbus.limits import REPLY_STALLED_MS
from twinbus.links.store_link import ReceiverDescription
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SEGMENT_SIZE = 65_536


@pytest.mark.asyncio
async def test_a_commit_fails_while_maintenance_is_under_way() -> None:
    """Found by chance: the end of the task raised, and took the process's other stores along."""
    disk, clock = SimDisk(), SimClock()
    failures: list[BaseException] = []
    store = Store.open(disk, clock.now(), 7, SEGMENT_SIZE)
    shell = BrokerShell(store, clock, lambda replies: None, failures.append)
    task = store.next_task(clock.now())
    assert task is not None, "a spare segment is to be made"
    task.run()
    store.create_entity("queue", "orders", QueueDescription())
    commit = store.begin_commit()
    assert commit is not None
    disk.fail("write", for_ever=True)
    with pytest.raises(LogPoisoned):
        commit.write()
    shell._maintained(task, None)
    assert [type(failure) for failure in failures] == [LogPoisoned]
    await shell.close()


class Answers:
    """A shell with one queue, and what it has answered."""

    def __init__(self, writes_inline: bool) -> None:
        clock = SimClock()
        store = Store.open(SimDisk(), clock.now(), 7, SEGMENT_SIZE)
        self.replies: list[Reply] = []
        self.shell = BrokerShell(
            store, clock, self.replies.extend, _raise, writes_inline=writes_inline
        )
        self.entity_id = store.create_entity("queue", "orders", QueueDescription()).entity_id
        self.shell.broker.ask_for_turn()

    def send(self, client: object, count: int = 1) -> None:
        broker = self.shell.broker
        for _ in range(count):
            broker.submit([Send(self.entity_id, [NewMessage(b"body", NEVER_MS)])])
        broker.turn_if_alone(client)


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.asyncio
async def test_who_talks_alone_is_answered_at_once() -> None:
    answers = Answers(writes_inline=True)
    await asyncio.sleep(0)
    answers.send("one")
    assert answers.replies == [], "it is not known yet that it talks alone"
    await asyncio.sleep(0)
    for count in range(1, 4):
        answers.send("one")
        assert len(answers.replies) == 1 + count
    answers.send("another")
    assert len(answers.replies) == 4
    await answers.shell.close()
    assert len(answers.replies) == 5


@pytest.mark.asyncio
@pytest.mark.parametrize(("writes_inline", "count"), [(False, 1), (True, LIGHT_WORK_MAX + 1)])
async def test_no_answer_before_it_is_one(writes_inline: bool, count: int) -> None:
    """A commit that somebody else writes, or that waits for a turn, has not answered anybody."""
    answers = Answers(writes_inline)
    await asyncio.sleep(0)
    for _ in range(2):
        answers.send("one", count)
    assert answers.replies == []
    await answers.shell.close()
    assert len(answers.replies) == 2 * count


class Watched:
    """A shell with one queue, and how often its store was given up."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.store = Store.open(SimDisk(), self.clock.now(), 7, SEGMENT_SIZE)
        self.failures: list[BaseException] = []
        self.replies: list[Reply] = []
        self.shell = BrokerShell(self.store, self.clock, self.replies.extend, self.failures.append)
        self.entity_id = self.store.create_entity("queue", "q", QueueDescription()).entity_id

    async def send(self, body: bytes = b"body") -> None:
        self.shell.broker.submit([Send(self.entity_id, [NewMessage(body, NEVER_MS)])])
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.proves("S-2")
@pytest.mark.asyncio
async def test_a_store_that_cannot_do_what_was_decided_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody would be answered again, and the log would fill with the same lines."""
    watched = Watched()
    queue = watched.store.entities[watched.entity_id]
    queue.send([NewMessage(bytes(SEGMENT_SIZE))], watched.clock.now())  # past everybody who refuses
    for _ in range(3):
        await watched.send()
    assert [type(failure) for failure in watched.failures] == [StorageError]
    assert "must be written together" in watched.shell.trouble()
    assert watched.replies == []
    levels = [record.levelname for record in caplog.records if record.name == "twinbus.broker"]
    assert levels == ["ERROR", "CRITICAL"]
    await watched.shell.close()


@pytest.mark.asyncio
async def test_one_turn_that_fails_is_taken_again() -> None:
    """A link that cannot take a delivery must not cost everybody else the store."""
    watched = Watched()
    broker = watched.shell.broker

    class Broken(SimSink):
        def deliver(self, messages: list[Message], bodies: list[bytes], until_ms: int) -> None:
            super().deliver(messages, bodies, until_ms)
            if len(self.messages) == 1:
                raise RuntimeError("this message cannot be shown")

    sink = Broken()
    receiver = broker.open_receiver(ReceiverDescription(watched.entity_id, MAIN, PEEK_LOCK), sink)
    receiver.set_credit(10, drain=False)
    for _ in range(3):
        await watched.send()
    await watched.shell.close()
    assert len(watched.replies) == len(sink.messages) == 3
    assert watched.failures == []


@pytest.mark.proves("S-4")
@pytest.mark.asyncio
async def test_a_reply_that_waits_for_what_nobody_writes_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    await watched.send()
    broker = watched.shell.broker
    broker.wait(broker.position() + 15, Reply(Send(watched.entity_id, []), None, None))
    assert watched.shell.trouble() == ""
    watched.clock.advance(REPLY_STALLED_MS - 1)
    assert watched.shell.trouble() == ""
    for _ in range(2):
        watched.clock.advance(1)
        assert "not being written" in watched.shell.trouble()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await watched.send()  # the next one sees what is wrong
    assert [str(failure) for failure in watched.failures] == [watched.shell.trouble()]
    assert "fact of the future" in watched.shell.trouble()
    await watched.shell.close()
