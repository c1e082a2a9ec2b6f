"""The stores of one broker process: each opens, fails and closes for itself."""

import pytest

from tests.unit.links.remote.pair import World, restarted, up
from twinbus.entities.commands import Peek, Send
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import Unavailable
from twinbus.links.remote.operations import FAULT
from twinbus.links.store_link import DOWN, UP


def both() -> World:
    """Both stores, run by one host."""
    world = World()
    host = world.start()
    for store in world.stores:
        store.attach(host)
    world.run()
    return world


def test_two_stores_of_one_process() -> None:
    world = both()
    first = world.create_queue("a", store=0)
    second = world.create_queue("b", store=1)
    sends = [Send(first, [NewMessage(b"1")]), Send(second, [NewMessage(b"2")])]
    world.submit(sends[0])
    world.submit(sends[1], store=1)
    world.submit(Peek(first, MAIN, 0, 1))
    world.run()
    assert [world.result_of(send) for send in sends] == [[1], [1]]


def test_a_store_that_fails_takes_nobody_along() -> None:
    world = both()
    failures: list[tuple[str, list[str]]] = []
    world.stores[0].on_failed = lambda text, log: failures.append((text, log))
    first = world.create_queue("a", store=0)
    second = world.create_queue("b", store=1)
    _, sink = world.receiver(first, credit=5)
    world.disk("store-0").fail("sync")
    with pytest.raises(Unavailable, match="may have happened"):
        world.answer(Send(first, [NewMessage(b"1")]), store=0)
    ((_, lines),) = failures
    assert lines == ["the last line"]
    assert world.stores[0].health == DOWN
    assert world.stores[1].health == UP
    assert world.answer(Send(second, [NewMessage(b"2")]), store=1) == [1]
    # The same host opens it again, and everybody goes on.
    world.stores[0].attach(world.hosts[0])
    world.run()
    world.send(first, b"3")
    assert sink.bodies == [b"3"]


def test_what_was_asked_of_a_store_that_has_failed_is_answered_by_its_failure() -> None:
    world = both()
    first = world.create_queue("a", store=0)
    host = world.hosts[0]
    world.disk("store-0").fail("sync")
    one, two = Send(first, [NewMessage(b"1")]), Send(first, [NewMessage(b"2")])
    world.submit(one)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    world.submit(two)
    world.run()
    for send in (one, two):
        reply = world.reply_to(send)
        assert reply is not None
        assert isinstance(reply.error, Unavailable)


def test_a_directory_in_use_is_tried_again_for_a_while() -> None:
    world, _ = up()
    world.in_use.add("store-1")
    host = world.hosts[0]
    world.stores[1].attach(host)
    world.run()
    assert not world.stores[1].is_open
    world.pass_time(1_000)
    assert not world.stores[1].is_open
    world.in_use.clear()
    world.pass_time(1_000)
    assert world.stores[1].is_open


def test_a_directory_in_use_for_too_long_is_a_failure() -> None:
    world, _ = up()
    world.in_use.add("store-1")
    failures: list[str] = []
    world.stores[1].on_failed = lambda text, log: failures.append(text)
    world.stores[1].attach(world.hosts[0])
    world.run()
    world.pass_time(4_999)
    assert failures == []
    world.pass_time(1)
    assert "another server" in failures[0]
    world.pass_time(1_000)
    assert len(failures) == 1
    world.in_use.clear()
    world.stores[1].attach(world.hosts[0])
    world.run()
    assert world.stores[1].is_open


def test_a_disk_that_fails_while_the_store_is_closed() -> None:
    world, _ = up()
    queue = world.create_queue()
    failures: list[str] = []
    world.stores[0].on_failed = lambda text, log: failures.append(text)
    send = Send(queue, [NewMessage(b"1")])
    world.submit(send)
    world.stores[0].close()
    world.disk("store-0").fail("sync")
    world.run()
    assert len(failures) == 1
    assert world.reply_to(send) is not None
    restarted(world)


def test_faults_of_disks_are_passed_on() -> None:
    world, host = up()
    host.send((FAULT, 0, (100, 1.0, 0.0, 0.0)))
    world.run()
    assert host.faults == [(0, (100, 1.0, 0.0, 0.0))]


def test_the_end_closes_every_store() -> None:
    world = both()
    host = world.hosts[0]
    host.host.close_all()
    world.run()
    assert host.host.is_empty
    assert [store.health for store in world.stores] == [DOWN, DOWN]


def test_a_store_cannot_be_opened_twice() -> None:
    world, host = up()
    with pytest.raises(AssertionError, match="opened twice"):
        host.host.received([(5, 0, "store-0")])
    with pytest.raises(AssertionError, match="none of a store's"):
        host.host.received([(9, 0, 0)])
    world.run()
