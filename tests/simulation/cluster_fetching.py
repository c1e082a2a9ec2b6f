"""The end of a schedule: everything that is left in a healed cluster is fetched and compared."""

from functools import partial
from typing import Final

from tests.simulation.cluster_clients import LOCK_MS, PLACES, Receiver, World
from tests.unit.broker.stored_messages import content
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    Command,
    Delivered,
    GetRuntime,
    Lock,
    Peek,
    ReceiveDeferred,
    Reply,
    Runtime,
    Settle,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.message import ACTIVE, DEFERRED, Message
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import OperationTimeout, ServiceError
from twinbus.links.store_link import ReceiverDescription, Receiving

MONTH_MS: Final = 30 * 86_400_000
PATIENCE_MS: Final = 60_000
MANY: Final = 10_000
SERVING_MS: Final = 3_000


class Basket:
    """Takes all that comes (Sink), and completes it."""

    def __init__(self, world: World, place: str, subqueue: int) -> None:
        self._world = world
        self._place = place
        self._subqueue = subqueue
        self.is_drained = False
        self.receiving: Receiving | None = None

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        for message, body in zip(messages, bodies, strict=True):
            found(self._world, self._place, self._subqueue, message, body)
        if locked_until_utc_ms:
            locks: list[Lock] = [(each.sequence_number, each.grant) for each in messages]
            entity_id = self._world.number_of(self._place)
            settle = Settle(entity_id, self._subqueue, locks, COMPLETE)
            self._world.ask(settle, self._completed)

    def _completed(self, reply: Reply) -> None:
        assert reply.error is None, reply.error
        assert reply.result is None, reply.result

    def full(self) -> bool:
        return False

    def drained(self) -> None:
        self.is_drained = True

    def removed(self) -> None:
        raise AssertionError("no entity is removed")

    def lost(self, error: ServiceError) -> None:
        raise error


def found(world: World, place: str, subqueue: int, message: Message, body: bytes) -> None:
    name = int(content(body).partition(b":")[0])
    now_utc_ms = world.loop.clock.now().utc_ms
    copy = world.judge.delivered(place, subqueue, message, name, 0, now_utc_ms, 0, None)
    world.judge.found(copy)


def check_served(world: World) -> None:
    """Nobody who has credit and room waits for messages that are there."""
    world.loop.run(SERVING_MS)
    for client in world.clients:
        if isinstance(client, Receiver) and not client.has_sessions:
            link = client.link
            if link is not None and link.credit > 0 and not link.is_full:
                free = _free(world, client.place, link.subqueue)
                if free:  # a lock may have ended just now
                    world.loop.run(SERVING_MS)
                    free &= _free(world, client.place, link.subqueue)
                assert link.credit == 0 or not free, f"{free} waits, and a receiver of it too"


def _free(world: World, place: str, subqueue: int) -> set[int]:
    """Sequence numbers of what could be received."""
    free: set[int] = set()
    number = 0
    while True:
        peeked = as_list(ask_now(world, Peek(world.number_of(place), subqueue, number, 100)))
        for each in peeked:
            assert isinstance(each, Delivered)
            number = each.message.sequence_number + 1
            if each.message.state == ACTIVE and each.message.grant == 0:
                free.add(number - 1)
        if not peeked:
            return free


def fetch_everything(world: World) -> None:
    """Every place is emptied, main part, deferred messages and dead letters."""
    # Every lock of before has ended, and what was scheduled is due, wherever UTC has gone.
    world.loop.clock.jump_utc(MONTH_MS)
    world.loop.run(3 * LOCK_MS)
    for place in PLACES:
        if place.has_sessions:
            while _fetch_session(world, place.name):
                pass
        else:
            _fetch(world, place.name, MAIN, None)
        _fetch_deferred(world, place.name, MAIN, place.has_sessions)
        _fetch(world, place.name, DEAD_LETTER, None)
        _fetch_deferred(world, place.name, DEAD_LETTER, False)
    _check_empty(world)


def _fetch(world: World, place: str, subqueue: int, lock: SessionLock | None) -> None:
    mode = world.rng.choice((PEEK_LOCK, RECEIVE_AND_DELETE))
    basket = Basket(world, place, subqueue)
    gateway = world.life.gateway
    receiving = gateway.open_receiver(
        ReceiverDescription(world.number_of(place), subqueue, mode, lock), basket
    )
    receiving.set_credit(MANY, True)
    world.loop.ship()
    drained = world.loop.run(PATIENCE_MS, lambda: basket.is_drained and not world.asked)
    assert drained, f"{place} cannot be drained"
    receiving.close()


def _fetch_session(world: World, place: str) -> bool:
    lock = _accept(world, place, None)
    if lock is None:
        return False
    _fetch(world, place, MAIN, lock)
    return True


def _accept(world: World, place: str, session_id: str | None) -> SessionLock | None:
    answers: list[SessionLock | ServiceError] = []
    gateway = world.life.gateway
    gateway.accept_session(world.number_of(place), session_id, 200, 0, answers.append)
    world.loop.ship()
    assert world.loop.run(PATIENCE_MS, lambda: bool(answers)), "no answer to a wait for a session"
    (answer,) = answers
    if isinstance(answer, SessionLock):
        return answer
    assert isinstance(answer, OperationTimeout), answer
    return None


def _fetch_deferred(world: World, place: str, subqueue: int, has_sessions: bool) -> None:
    number = 0
    while True:
        peeked = ask_now(world, Peek(world.number_of(place), subqueue, number, 100))
        assert isinstance(peeked, list)
        if not peeked:
            return
        number = peeked[-1].message.sequence_number + 1
        for each in peeked:
            assert isinstance(each, Delivered)
            assert each.message.state == DEFERRED, "something is left"
            numbers = [each.message.sequence_number]
            entity_id = world.number_of(place)
            command = ReceiveDeferred(entity_id, subqueue, numbers, RECEIVE_AND_DELETE)
            lock = None
            if has_sessions:
                lock = _accept(world, place, each.message.session_id)
                assert lock is not None
                command.session_id, command.session_grant = lock.session_id, lock.grant
            (delivered,) = as_list(ask_now(world, command))
            assert isinstance(delivered, Delivered)
            found(world, place, subqueue, delivered.message, delivered.body)
            if lock is not None:
                world.life.gateway.release_session(entity_id, lock)


def _check_empty(world: World) -> None:
    parts: dict[int, list[int]] = {}
    for entity in world.life.gateway.directory.by_id.values():
        for part in entity.parts:
            parts.setdefault(part.store, []).append(part.entity_id)
    for store, entity_ids in parts.items():
        answers: list[Reply] = []
        world.life.links[store].submit([GetRuntime(entity_ids, (_Answer(answers), None))])
        world.loop.ship()
        world.loop.run(PATIENCE_MS, partial(bool, answers))
        for runtime in as_list(answers[0].result):
            assert isinstance(runtime, Runtime)
            left = [runtime.active, runtime.deferred, runtime.scheduled, runtime.dead_letter]
            left.append(runtime.transfer_dead_letter)
            assert left == [0] * 5, f"store {store} is not empty: {left}"


class _Answer:
    def __init__(self, answers: list[Reply]) -> None:
        self._answers = answers

    def replied(self, reply: Reply, rest: object) -> None:
        self._answers.append(reply)


def ask_now(world: World, command: Command) -> object:
    """Ask, and let time pass until the answer is there; it must not be an error."""
    answers: list[Reply] = []
    world.ask(command, answers.append)
    world.loop.ship()
    assert world.loop.run(PATIENCE_MS, lambda: bool(answers)), "no answer"
    assert answers[0].error is None, answers[0].error
    return answers[0].result


def as_list(value: object) -> list[object]:
    """What is said to be one."""
    assert isinstance(value, list)
    return value
