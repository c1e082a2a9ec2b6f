"""Clients of a simulated cluster: they send, receive and settle at random, and tell the judge.

They use the gateway as the server's links do, and try again as the SDKs do.  Every command has its
own asker, who is to be answered exactly once, whatever happens to stores and brokers.
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.cluster import Cluster, SimGateway
from tests.simulation.cluster_judge import Copy, Hold, Judge, Place, SessionStates
from tests.unit.broker.stored_messages import content
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    Command,
    Delivered,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Reply,
    Settle,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import MessageLockLost, ServiceError, SessionLockLost, Unavailable
from twinbus.links.remote.receivers import RemoteReceiver
from twinbus.links.store_link import ReceiverDescription, Receiving

MAY_HAVE_HAPPENED: Final = "may have happened"
HELD_MAX: Final = 30
PLACES: Final = (
    Place("pq", True, False),
    Place("ps", True, True),
    Place("pt/Subscriptions/a", True, False),
    Place("pt/Subscriptions/b", True, False),
    Place("q0", False, False),
    Place("q1", False, False),
    Place("s0", False, True),
    Place("pd", True, False),
)
LOCK_MS: Final = 5_000


def is_unknown(error: ServiceError) -> bool:
    """May it have happened all the same?  Any other refusal says that nothing was done."""
    return isinstance(error, Unavailable) and MAY_HAVE_HAPPENED in str(error)


class Asked:
    """Waits for the answer to one command."""

    def __init__(self, world: "World", command: Command, then: Callable[[Reply], None]) -> None:
        self._world = world
        self.command = command
        self._then = then

    def replied(self, reply: Reply, rest: object) -> None:
        assert self in self._world.asked, f"{type(self.command).__name__} was answered before"
        del self._world.asked[self]
        self._then(reply)


class World:
    """What all clients share."""

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self.cluster = cluster
        self.judge = judge
        self.loop = cluster.loop
        self.rng: random.Random = cluster.loop.rng
        self.asked: dict[Asked, None] = {}  # a set would have an order of its own every time
        self.clients: list[Client] = []
        self.deferred: dict[str, list[int]] = {}
        self.states: dict[tuple[str, str], SessionStates] = {}
        self.is_over = False
        cluster.on_loss = self._store_lost

    @property
    def life(self) -> SimGateway:
        return self.cluster.gateway

    def ask(self, command: Command, then: Callable[[Reply], None]) -> None:
        asked = Asked(self, command, then)
        self.asked[asked] = None
        command.context = (asked, None)
        self.life.gateway.submit([command])

    def number_of(self, name: str) -> int:
        entity = self.life.gateway.directory.find(name)
        assert entity is not None, f"{name} is not there"
        return entity.entity_id

    def store_of(self, name: str, sequence_number: int) -> int:
        entity = self.life.gateway.directory.find(name)
        assert entity is not None
        return entity.parts[sequence_number >> 48 if entity.is_partitioned else 0].store

    def restart_gateway(self) -> None:
        """Everything of the gateway is gone, and nobody knows what became of what he asked."""
        self.cluster.restart_gateway()
        asked = list(self.asked)
        for each in asked:
            error = Unavailable(f"The connection is lost: this {MAY_HAVE_HAPPENED}.")
            each.replied(Reply(each.command, None, error), None)
        for client in self.clients:
            client.disconnected()

    def _store_lost(self, number: int) -> None:
        for client in self.clients:
            client.store_lost(number)


class Client:
    """Does something now and then."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.judge = world.judge
        world.clients.append(self)
        self._wait()

    def _wait(self) -> None:
        self.world.loop.after(self.rng.choice((10, 100, 500, 1_500)), self._again)

    def _again(self) -> None:
        if self.world.is_over:
            return
        if self.world.cluster.is_ready:
            self.act()
        self._wait()

    def act(self) -> None:
        raise NotImplementedError

    def disconnected(self) -> None:
        """The gateway is gone."""

    def store_lost(self, number: int) -> None:
        """Nobody runs this store at the moment."""


class Held:
    """A message in somebody's hands."""

    __slots__ = ("copy", "lock", "place", "subqueue")

    def __init__(self, copy: Copy, lock: Lock, place: str, subqueue: int) -> None:
        self.copy = copy
        self.lock = lock
        self.place = place
        self.subqueue = subqueue


class Link:
    """A receiving link (Sink), and what its client may expect of it."""

    def __init__(self, owner: "Receiver", subqueue: int, receive_mode: int) -> None:
        self.owner = owner
        self.subqueue = subqueue
        self.receive_mode = receive_mode
        self.receiving: Receiving | None = None
        self.lock: SessionLock | None = None
        self.hold: Hold | None = None
        self.credit = 0
        self.is_draining = False
        self.is_full = False
        self.is_closed = False

    def set_credit(self, credit: int, drain: bool) -> None:
        assert self.receiving is not None
        self.credit = credit
        self.is_draining = drain
        self.receiving.set_credit(credit, drain)

    def close(self) -> None:
        assert self.receiving is not None
        if not self.is_closed:
            self.is_closed = True
            self.receiving.close()

    # -- what the gateway calls (Sink) -------------------------------------------------------------

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        # Received and deleted: there is nobody to give it back to, so it comes all the same.
        is_late = self.is_closed and self.receive_mode == RECEIVE_AND_DELETE
        assert is_late or not self.is_closed, "a receiver that was closed gets messages"
        self.credit -= len(messages)
        assert self.credit >= 0, "more messages came than were asked for"
        assert (locked_until_utc_ms == 0) == (self.receive_mode == RECEIVE_AND_DELETE)
        if self.lock is not None:
            assert isinstance(self.receiving, RemoteReceiver)
            lock = (self.lock.grant, self.receiving.number)  # either may be new when it moved
            if self.hold is None or self.hold.lock != lock:
                self.hold = Hold(self.lock.session_id, lock)
        for message, body in zip(messages, bodies, strict=True):
            self.owner.received(self, message, body, locked_until_utc_ms)

    def full(self) -> bool:
        return self.is_full

    def drained(self) -> None:
        assert self.is_draining, "nobody asked for a drain"
        assert not self.is_closed
        self.is_draining = False
        self.credit = 0

    def removed(self) -> None:
        raise AssertionError("no entity is removed")

    def lost(self, error: ServiceError) -> None:
        assert isinstance(error, SessionLockLost | Unavailable), error
        if not self.is_closed:
            self.is_closed = True
            if self.receiving is not None:
                self.receiving.close()  # as the server does with a link that it detaches
            self.owner.lost(self)


class Receiver(Client):
    """Receives from a place without sessions, or from a dead-letter queue."""

    def __init__(self, world: World, place: str, subqueue: int, receive_mode: int) -> None:
        super().__init__(world)
        self.place = place
        self._subqueue = subqueue
        self._receive_mode = receive_mode
        self.link: Link | None = None
        self.held: list[Held] = []

        self.has_sessions = self.judge.places[place].has_sessions

    @property
    def entity_id(self) -> int:
        return self.world.number_of(self.place)

    def act(self) -> None:
        link = self.link
        if link is None:
            self.open()
            return
        if link.is_full and self.rng.random() < 0.3:
            link.is_full = False
            assert link.receiving is not None
            link.receiving.resume()
            return
        choice = self.rng.random()
        if choice < 0.45:
            self.settle()
        elif choice < 0.75:
            if len(self.held) < HELD_MAX and not link.is_draining:
                link.set_credit(self.rng.choice((0, 1, 3, 20)), self.rng.random() < 0.2)
        elif choice < 0.80:
            self.renew()
        elif choice < 0.86:
            link.is_full = True
        elif choice < 0.90:
            self.receive_deferred()
        elif choice < 0.94:
            self.close()
        else:
            self.peek()

    # -- the link ----------------------------------------------------------------------------------

    def open(self) -> None:
        link = Link(self, self._subqueue, self._receive_mode)
        try:
            link.receiving = self.world.life.gateway.open_receiver(
                ReceiverDescription(self.entity_id, self._subqueue, self._receive_mode), link
            )
        except Unavailable:
            return
        if not link.is_closed:
            self.link = link

    def close(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()
            if link.receive_mode == RECEIVE_AND_DELETE:
                self._may_be_lost()  # what is on its way to a receiver that closes

    def lost(self, link: Link) -> None:
        if self.link is link:
            self.link = None

    def disconnected(self) -> None:
        if self.link is not None:
            self.link.is_closed = True
        self.link = None
        self.held = []

    def store_lost(self, number: int) -> None:
        if self.link is not None and self.link.receive_mode == RECEIVE_AND_DELETE:
            self._may_be_lost()

    def _may_be_lost(self) -> None:
        """Received and deleted is delivered at most once: what was on its way may be nowhere."""
        for (place, _), copy in self.judge.copies.items():
            if place == self.place:
                copy.completing += 1

    # -- messages ----------------------------------------------------------------------------------

    def received(self, link: Link, message: Message, body: bytes, until_utc_ms: int) -> None:
        name = int(content(body).partition(b":")[0])
        number = message.sequence_number
        store = self.world.store_of(self.place, number)
        copy = self.judge.delivered(
            self.place,
            link.subqueue,
            message,
            name,
            until_utc_ms,
            self.world.loop.clock.now().utc_ms,
            self.world.cluster.interruptions(store, message.grant, self.has_sessions),
            link,
        )
        if link.hold is not None:
            self.judge.delivered_in_session(link.hold, copy, number)
        if until_utc_ms == 0:
            self.judge.removed(copy, self.world.cluster.next_grant(store))
        else:
            self.held.append(Held(copy, (number, message.grant), self.place, link.subqueue))

    def settle(self) -> None:
        if not self.held:
            return
        count = self.rng.randint(1, min(8, len(self.held)))
        chosen = self.rng.sample(self.held, count)
        chosen = [each for each in chosen if each.subqueue == chosen[0].subqueue]
        outcomes = [COMPLETE, COMPLETE, COMPLETE, ABANDON, RELEASE, DEFER]
        if chosen[0].subqueue == MAIN:
            outcomes.append(DEAD_LETTER)
        self.settle_with(chosen, self.rng.choice(outcomes))

    def settle_with(self, chosen: list[Held], outcome: int) -> None:
        self.held = [each for each in self.held if each not in chosen]
        hold = None if self.link is None else self.link.hold
        for each in chosen:
            self.judge.settling(each.copy, outcome, hold)
        locks = [each.lock for each in chosen]
        command = Settle(self.entity_id, chosen[0].subqueue, locks, outcome)

        def then(reply: Reply) -> None:
            errors: list[ServiceError | None] = [reply.error] * len(chosen)
            if reply.error is None and isinstance(reply.result, list):
                errors = reply.result
            for each, error in zip(chosen, errors, strict=True):
                self._settled(each, outcome, error)

        self.world.ask(command, then)

    def _settled(self, held: Held, outcome: int, error: ServiceError | None) -> None:
        if error is None:
            self.judge.settled(held.copy, outcome, held.lock[1])
            if outcome == DEFER and held.subqueue == MAIN:
                self.world.deferred.setdefault(held.place, []).append(held.lock[0])
        elif not is_unknown(error):
            assert isinstance(error, MessageLockLost | SessionLockLost | Unavailable), error
            self.judge.not_settled(held.copy, outcome)

    def renew(self) -> None:
        if self.held:
            chosen = self.rng.sample(self.held, min(3, len(self.held)))
            chosen = [each for each in chosen if each.subqueue == chosen[0].subqueue]
            locks = [each.lock for each in chosen]
            self.world.ask(RenewLocks(self.entity_id, chosen[0].subqueue, locks), ignore)

    def deferred_command(self, numbers: list[int]) -> ReceiveDeferred | None:
        return ReceiveDeferred(self.entity_id, MAIN, numbers, PEEK_LOCK)

    def receive_deferred(self) -> None:
        waiting = self.world.deferred.get(self.place, [])
        link = self.link
        if not waiting or link is None or self._subqueue != MAIN:
            return
        numbers = sorted(set(self.rng.sample(waiting, min(3, len(waiting)))))
        command = self.deferred_command(numbers)
        if command is None:
            return

        def then(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.result, list)
            for each in reply.result:
                self._received_deferred(each, command.receive_mode, link)

        self.world.ask(command, then)

    def _received_deferred(self, each: Delivered, receive_mode: int, link: Link) -> None:
        name = int(content(each.body).partition(b":")[0])
        number = each.message.sequence_number
        store = self.world.store_of(self.place, number)
        copy = self.judge.delivered(
            self.place,
            MAIN,
            each.message,
            name,
            each.locked_until_utc_ms,
            self.world.loop.clock.now().utc_ms,
            self.world.cluster.interruptions(store, each.message.grant, self.has_sessions),
            link,
        )
        self.held.append(Held(copy, (number, each.message.grant), self.place, MAIN))

    def peek(self) -> None:
        gone = {copy for copy in self.judge.copies.values() if copy.gone_from_grant < 1 << 100}

        def then(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.result, list)
            last = 0
            for each in reply.result:
                name = int(content(each.body).partition(b":")[0])
                assert self.judge.copies[self.place, name] not in gone, "a completed one is seen"
                assert each.message.sequence_number > last, "peeked out of order"
                last = each.message.sequence_number

        self.world.ask(Peek(self.entity_id, self._subqueue, 0, self.rng.choice((1, 20))), then)


def ignore(reply: Reply) -> None:
    """Whatever it is, it was answered."""
