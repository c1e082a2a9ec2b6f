"""Emptying a journal whose store is behind a socket."""

import pytest

from tests.unit.broker.harness import SimSink
from tests.unit.links.remote.pair import up
from twinbus.entities.commands import PEEK_LOCK, Reply, Send, dispatch_replies
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.gateway.directory.directory import Directory, Part
from twinbus.gateway.transfer.journal_drain import Drain
from twinbus.gateway.transfer.journal_entries import encode_entry
from twinbus.links.store_link import ReceiverDescription

pytestmark = pytest.mark.proves("A-3")

A_DAY_MS = 86_400_000


def test_no_entry_overtakes_one_that_is_on_the_socket_when_the_clock_is_set() -> None:
    world, host = up()
    world.stores[1].attach(world.start())
    world.run()
    described = QueueDescription()
    journal = world.create_queue("$journal/1/1.0")
    part = Part(1, world.create_queue("orders", described, store=1), 0)
    directory = Directory()
    directory.add("queue", "orders", described, [part])

    def answer(replies: list[Reply]) -> None:
        world.replies += replies
        dispatch_replies(replies)

    for store in world.stores:
        store._on_replies = answer
    drain = Drain(
        world.stores, world.clock, directory, Part(0, journal, 0), "$journal/1/1.0@1", _ignore
    )
    drain.open()
    world.run()

    def write(body: bytes) -> None:
        accepted_ms = world.clock.now().utc_ms
        entry = encode_entry("orders", described.created_utc_ms, accepted_ms, NewMessage(body))
        world.submit(Send(journal, [NewMessage(entry)]))

    write(b"first")
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    world.clock.jump_utc(A_DAY_MS)  # by this clock the lock has run out; by the broker's it has not
    write(b"second")
    world.run()
    world.pass_time(described.lock_duration_ms)
    drain.tick(world.clock.now())
    world.run()
    sink = SimSink()
    receiver = world.stores[1].open_receiver(
        ReceiverDescription(part.entity_id, MAIN, PEEK_LOCK), sink
    )
    receiver.set_credit(10, drain=False)
    world.run()
    assert sink.bodies == [b"first", b"second"]


def _ignore(count: int, accepted_ms: int) -> None:
    """Nobody wants to know."""
