"""A store behind a socket: commands while it is up, down, moving, and lost in the middle."""

import pytest

from tests.unit.links.remote.pair import World, restarted, up
from twinbus.entities.commands import COMPLETE, GetRuntime, Listed, Peek, Runtime, Send, Settle
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import EntityNotFound, ServiceError, Unavailable
from twinbus.links.remote.beats import Beat, StoreBeat, encode_beat
from twinbus.links.remote.operations import ANY, BEAT, PONG
from twinbus.links.remote.remote_store import HELD_COUNT_MAX, RemoteStore, dispatch
from twinbus.links.store_link import DOWN, SLOW, UP


def sent(entity_id: int, *bodies: bytes) -> Send:
    return Send(entity_id, [NewMessage(body) for body in bodies])


def error_of(world: World, send: Send) -> ServiceError | None:
    reply = world.reply_to(send)
    assert reply is not None
    return reply.error


def test_a_store_that_nobody_runs_is_down_and_says_so_at_once() -> None:
    world = World()
    store = world.stores[0]
    assert store.health == DOWN
    send = sent(1, b"x")
    world.submit(send)
    assert "nothing has been done" in str(error_of(world, send))
    assert store.pending_bytes == 0
    durable: list[str] = []
    store.when_durable(lambda: durable.append("yes"))
    assert durable == ["yes"]


def test_opening_lists_what_is_there() -> None:
    world, host = up()
    assert world.stores[0].health == UP
    world.create_queue("orders")
    host.kill()
    assert world.stores[0].health == DOWN
    listed: list[Listed] = []
    world.stores[0].on_opened = listed.extend
    restarted(world)
    assert [(each.entity_id, each.kind, each.name) for each in listed] == [(1, "queue", "orders")]


def test_commands_and_their_replies() -> None:
    world, _ = up()
    queue = world.create_queue()
    assert world.send(queue, b"a", b"b") == [1, 2]
    _, sink = world.receiver(queue, credit=1)
    assert world.answer(Settle(queue, MAIN, sink.locks, COMPLETE)) is None
    (runtime, missing) = world.answer(GetRuntime([queue, 99]))
    assert isinstance(runtime, Runtime)
    assert (runtime.active, missing) == (1, None)
    (peeked,) = world.answer(Peek(queue, MAIN, 0, 5))
    assert peeked.body == b"b"
    with pytest.raises(EntityNotFound):
        world.send(99, b"x")


def test_pending_bytes_are_those_on_their_way() -> None:
    world, host = up()
    queue = world.create_queue()
    store = world.stores[0]
    world.submit(sent(queue, b"x" * 1_000))
    assert store.pending_bytes > 1_000
    world.run()
    assert store.pending_bytes == 0
    world.submit(sent(queue, b"x" * 1_000))
    host.kill()
    assert store.pending_bytes == 0


def test_when_durable_comes_after_everything_before_it() -> None:
    world, _ = up()
    queue = world.create_queue()
    store = world.stores[0]
    send = sent(queue, b"x")
    world.submit(send)
    seen: list[bool] = []
    store.when_durable(lambda: seen.append(world.reply_to(send) is not None))
    assert seen == []
    world.run()
    assert seen == [True]


def test_what_was_on_its_way_when_the_broker_was_lost_may_have_happened() -> None:
    world, host = up()
    queue = world.create_queue()
    store = world.stores[0]
    send = sent(queue, b"x")
    world.submit(send)
    durable: list[str] = []
    store.when_durable(lambda: durable.append("yes"))
    host.kill()
    error = error_of(world, send)
    assert isinstance(error, Unavailable)
    assert "may have happened" in str(error)
    assert durable == ["yes"]


@pytest.mark.parametrize("steps", range(14))
def test_lost_at_every_point(steps: int) -> None:
    """What is acknowledged is there, what was refused is not, and everything is answered once."""
    world, host = up()
    queue = world.create_queue()
    sends = [sent(queue, b"%d" % number) for number in range(4)]
    world.submit(*sends[:2])
    for step in range(steps):
        if step == 3:
            world.submit(sends[2])
        host.step()
    host.kill()
    world.submit(sends[3])
    restarted(world)
    found = world.answer(Peek(queue, MAIN, 0, 10))
    assert isinstance(found, list)
    bodies = {each.body for each in found}
    submitted = [each for each in sends if steps > 3 or each is not sends[2]]
    for send in submitted:
        error = error_of(world, send)
        body = send.messages[0].body
        if error is None:
            assert body in bodies
        elif "nothing has been done" in str(error):
            assert body not in bodies
        else:
            assert "may have happened" in str(error)
    assert world.reply_to(sends[3]) is not None


def test_a_planned_move_loses_and_refuses_nothing() -> None:
    world, host = up()
    queue = world.create_queue()
    store = world.stores[0]
    before = sent(queue, b"before")
    world.submit(before)
    store.hold()
    held = [sent(queue, b"%d" % number) for number in range(3)]
    world.submit(*held)
    order: list[str] = []
    store.when_durable(lambda: order.append("durable"))
    closed: list[bool] = []
    store.on_closed = lambda: closed.append(True)
    store.close()
    world.run()
    assert closed == [True]
    assert error_of(world, before) is None
    assert all(world.reply_to(each) is None for each in held)
    assert store.health == UP
    assert order == []
    assert host.host.is_empty
    restarted(world)
    assert [world.result_of(each) for each in held] == [[2], [3], [4]]
    assert order == ["durable"]


def test_a_move_that_fails_refuses_what_waited() -> None:
    world, _ = up()
    queue = world.create_queue()
    store = world.stores[0]
    store.hold()
    store.close()
    world.run()
    send = sent(queue, b"x")
    world.submit(send)
    next_host = world.start()
    store.attach(next_host)
    next_host.kill()
    assert "nothing has been done" in str(error_of(world, send))
    assert store.health == DOWN
    restarted(world)
    assert world.answer(Peek(queue, MAIN, 0, 10)) == []


def test_a_move_that_is_called_off() -> None:
    world, _ = up()
    queue = world.create_queue()
    store = world.stores[0]
    store.hold()
    send = sent(queue, b"x")
    world.submit(send)
    world.run()
    assert world.reply_to(send) is None
    store.go_on()
    world.run()
    assert error_of(world, send) is None


def test_not_everything_can_wait_for_a_move() -> None:
    world, _ = up()
    queue = world.create_queue()
    store = world.stores[0]
    store.hold()
    large = [sent(queue, bytes(1 << 20)) for _ in range(40)]
    world.submit(*large)
    refused = [each for each in large if world.reply_to(each) is not None]
    assert 5 < len(refused) < 20
    small = [Peek(queue, MAIN, 0, 1) for _ in range(HELD_COUNT_MAX + 5)]
    world.submit(*small)
    assert world.reply_to(small[-1]) is not None


def test_a_store_closed_without_a_move_is_down() -> None:
    world, _ = up()
    store = world.stores[0]
    store.close()
    assert store.health == DOWN
    world.run()
    assert not store.is_open


def test_health_follows_the_beats() -> None:
    world, host = up()
    store = world.stores[0]

    def beat(age_ms: int) -> None:
        report = StoreBeat(0, age_ms, 0, 0, 0, -1, 0, 0, 0)
        rest = dispatch([encode_beat(Beat(0, 0, 0, [report], []))], host, world.stores)
        assert [operation[0] for operation in rest] == [BEAT]

    beat(1_001)
    assert store.health == SLOW
    beat(1_000)
    assert store.health == UP
    store.slow_after_ms = 100
    beat(101)
    assert store.health == SLOW
    host.kill()
    beat(0)
    assert store.health == DOWN


def test_an_earlier_broker_has_no_say_any_more() -> None:
    world, host = up()
    queue = world.create_queue()
    store = world.stores[0]
    send = sent(queue, b"x")
    world.submit(send)
    host.read()
    while any(shell.step() for shell in host.shells.values()):
        pass
    for disk in world.disks.values():
        disk.revive()
    store.lost("taken away")
    world.hosts.remove(host)
    restarted(world)
    assert host.write(), "it has something to say"
    assert "may have happened" in str(error_of(world, send))


def test_operations_about_the_process_are_given_back() -> None:
    world, host = up()
    assert dispatch([(PONG, ANY, 7)], host, world.stores) == [(PONG, ANY, 7)]


def test_an_entity_deleted_for_being_idle_is_told() -> None:
    world, host = up()
    gone: list[int] = []
    world.stores[0].on_entity_gone = gone.append
    host.shells[0].broker.entities.on_gone(5)
    world.run()
    assert gone == [5]


class CountingSender:
    """Where operations go, and how often they are to go at once."""

    def __init__(self) -> None:
        self.flushed = 0

    def send(self, operation: object) -> None:
        """It is not looked at."""

    def flush(self) -> None:
        self.flushed += 1


def test_whoever_talks_alone_does_not_wait_for_others() -> None:
    world = World()
    store = RemoteStore(0, "path", world.clock, world.replies.extend)
    sender = CountingSender()
    store.turn_if_alone("first")
    store.attach(sender)
    store.turn_if_alone("first")
    assert sender.flushed == 1
    store.turn_if_alone("second")
    assert sender.flushed == 1
