"""Random lives of a store with receivers: what a gateway may rely on, whatever happens when.

- nobody gets more than it has credit for, or anything while it is full;
- a drain is answered once, and after it there is no credit;
- a command is answered once;
- what is acknowledged comes to a receiver, and in moves as planned, just once.
"""

import random

import pytest

from tests.unit.broker.harness import SimSink
from tests.unit.links.remote.pair import SimHost, World, restarted, up
from twinbus.entities.commands import COMPLETE, PEEK_LOCK, RECEIVE_AND_DELETE, Send, Settle
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.links.remote.receivers import RemoteReceiver
from twinbus.links.store_link import ReceiverDescription


class StrictSink(SimSink):
    """A link that takes nothing it has not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = 0
        self.is_draining = False

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        assert not self.is_full
        assert len(messages) <= self.allowed
        self.allowed -= len(messages)
        super().deliver(messages, bodies, locked_until_utc_ms)

    def drained(self) -> None:
        assert self.is_draining
        self.is_draining = False
        self.allowed = 0


class Life:
    """One random life."""

    def __init__(self, seed: int, mode: int, has_crashes: bool) -> None:
        self.rng = random.Random(seed)
        self.has_crashes = has_crashes
        self.world: World
        self.host: SimHost
        self.world, self.host = up()
        self.queue = self.world.create_queue()
        self.sends: list[Send] = []
        self.sink = StrictSink()
        self.receiver: RemoteReceiver = self.world.stores[0].open_receiver(
            ReceiverDescription(self.queue, MAIN, mode), self.sink
        )
        self.moving = False

    def step(self) -> None:
        rng = self.rng
        kind = rng.choice(["send", "credit", "full", "step", "step", "step", "run", "lose"])
        if kind == "send":
            body = b"%d" % len(self.sends) + bytes(rng.choice([10, 400_000]))
            self.sends.append(Send(self.queue, [NewMessage(body)]))
            self.world.submit(self.sends[-1])
        elif kind == "credit":
            self.set_credit(rng.randrange(6), rng.random() < 0.3)
        elif kind == "full":
            self.sink.is_full = not self.sink.is_full
            self.receiver.resume()
        elif kind == "step":
            self.host.step()
        elif kind == "run":
            self.world.run()
        elif rng.random() < 0.4:
            self.lose()

    def set_credit(self, credit: int, drain: bool) -> None:
        self.sink.allowed = credit
        self.sink.is_draining = drain
        self.receiver.set_credit(credit, drain)

    def lose(self) -> None:
        store = self.world.stores[0]
        if self.has_crashes and self.rng.random() < 0.5:
            self.host.kill()
        else:
            store.hold()
            store.close()
            for _ in range(self.rng.randrange(3)):
                self.host.step()
            self.world.submit(Send(99, [NewMessage(b"to nowhere")]))
            self.world.run()
        self.host = restarted(self.world)

    def finish(self) -> list[bytes]:
        """Everything comes; returns what was acknowledged."""
        self.sink.is_full = False
        self.receiver.resume()
        for _ in range(4):
            self.set_credit(200, drain=False)
            self.world.run()
            self.world.pass_time(70_000)  # what was locked by a broker that is gone comes again
        replied = [self.world.reply_to(send) for send in self.sends]
        assert all(reply is not None for reply in replied)
        return [
            reply.command.messages[0].body
            for reply in replied
            if reply is not None and reply.error is None and isinstance(reply.command, Send)
        ]


@pytest.mark.parametrize("mode", [PEEK_LOCK, RECEIVE_AND_DELETE])
@pytest.mark.parametrize("seed", range(5))
def test_moves_as_planned(seed: int, mode: int) -> None:
    life = Life(seed, mode, has_crashes=False)
    for _ in range(60):
        life.step()
    life.sink.is_full = False
    life.receiver.resume()
    life.set_credit(200, drain=False)
    life.world.run()
    # In order but where a lock was given back, and each of them once.
    assert sorted(life.sink.bodies) == sorted(send.messages[0].body for send in life.sends)
    if mode == PEEK_LOCK and life.sink.locks:
        assert life.world.answer(Settle(life.queue, MAIN, life.sink.locks, COMPLETE)) is None


@pytest.mark.parametrize("seed", range(10))
def test_with_crashes(seed: int) -> None:
    life = Life(seed, PEEK_LOCK, has_crashes=True)
    for _ in range(60):
        life.step()
    acknowledged = life.finish()
    assert set(acknowledged) <= set(life.sink.bodies)
