"""Clients of a simulated cluster that accept sessions, and all clients of a schedule together."""

from tests.simulation.cluster_clients import PLACES, Link, Receiver, World, ignore, is_unknown
from tests.simulation.cluster_judge import SessionStates
from tests.simulation.cluster_senders import Sender
from twinbus.entities.commands import (
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    GetSessionState,
    ReceiveDeferred,
    RenewSession,
    Reply,
    SetSessionState,
)
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import OperationTimeout, ServiceError, SessionCannotBeLocked, Unavailable
from twinbus.links.store_link import Accepting, ReceiverDescription


class SessionReceiver(Receiver):
    """Accepts one session after the other."""

    def __init__(self, world: World, place: str) -> None:
        super().__init__(world, place, MAIN, PEEK_LOCK)
        self._accepting: Accepting | None = None
        self._accepts = 0  # tells one answer from another

    def act(self) -> None:
        if self.link is not None and self.link.lock is not None and self.rng.random() < 0.3:
            self._look_after(self.link.lock)
        elif self._accepting is not None:
            if self.rng.random() < 0.1:
                self._accepting.cancel()
                self._accepting = None
                self._accepts += 1
        else:
            super().act()

    def open(self) -> None:
        session_id = None
        if self.rng.random() < 0.3:
            session_id = f"{self.rng.choice('xy')}{self.rng.randrange(4)}"
        self._accepts += 1
        number = self._accepts
        answers: list[SessionLock | ServiceError] = []

        def then(result: SessionLock | ServiceError) -> None:
            assert not answers, "a wait for a session is answered twice"
            answers.append(result)
            assert number == self._accepts, "a wait that was given up is answered"
            self._accepting = None
            self._accepted(result)

        gateway = self.world.life.gateway
        timeout_ms = self.rng.choice((0, 500, 4_000))
        try:
            accepting = gateway.accept_session(self.entity_id, session_id, timeout_ms, 0, then)
        except Unavailable:
            return
        if not answers:
            self._accepting = accepting

    def _accepted(self, result: SessionLock | ServiceError) -> None:
        if not isinstance(result, SessionLock):
            expected = OperationTimeout | SessionCannotBeLocked | Unavailable
            assert isinstance(result, expected), result
            return
        link = Link(self, MAIN, PEEK_LOCK)
        link.lock = result
        gateway = self.world.life.gateway
        try:
            link.receiving = gateway.open_receiver(
                ReceiverDescription(self.entity_id, MAIN, PEEK_LOCK, result), link
            )
        except ServiceError:
            gateway.release_session(self.entity_id, result)
            return
        if not link.is_closed:
            self.link = link
            self.held = []

    def lost(self, link: Link) -> None:
        self._let_go()
        super().lost(link)

    def close(self) -> None:
        super().close()
        self._let_go()

    def disconnected(self) -> None:
        super().disconnected()
        self._accepting = None
        self._accepts += 1

    def _let_go(self) -> None:
        """The session is free, and all its messages with it."""
        for each in self.held:
            each.copy.held_by = None
        self.held = []

    def deferred_command(self, numbers: list[int]) -> ReceiveDeferred | None:
        lock = None if self.link is None else self.link.lock
        if lock is None:
            return None
        command = super().deferred_command(numbers)
        assert command is not None
        command.session_id = lock.session_id
        command.session_grant = lock.grant
        return command

    def _look_after(self, lock: SessionLock) -> None:
        """Renew the session, or set or get its state."""
        entity_id, session_id, grant = self.entity_id, lock.session_id, lock.grant
        states = self.world.states.setdefault((self.place, session_id), SessionStates())
        choice = self.rng.random()
        if choice < 0.6:
            self.world.ask(RenewSession(entity_id, session_id, grant), ignore)
        elif choice < 0.8:
            state = b"%d" % self.rng.getrandbits(60)
            number = states.setting(state)

            def set_(reply: Reply) -> None:
                if reply.error is None:
                    states.set(number)
                elif not is_unknown(reply.error):
                    states.refused(number)

            self.world.ask(SetSessionState(entity_id, session_id, grant, state), set_)
        else:
            before = list(states.possible.values())

            def got(reply: Reply) -> None:
                if reply.error is None:
                    known = [*before, *states.possible.values()]
                    assert reply.result in known, "a session has a state that nobody has set"

            self.world.ask(GetSessionState(entity_id, session_id, grant), got)


def start_clients(world: World) -> None:
    """Some of each kind."""
    rng = world.rng
    for name in "xy":
        Sender(world, name)
    for place in PLACES:
        if place.has_sessions:
            SessionReceiver(world, place.name)
            SessionReceiver(world, place.name)
        else:
            mode = RECEIVE_AND_DELETE if rng.random() < 0.1 else PEEK_LOCK
            for _ in range(rng.choice((1, 1, 2))):
                Receiver(world, place.name, MAIN, mode)
        if rng.random() < 0.4:
            Receiver(world, place.name, DEAD_LETTER_QUEUE, PEEK_LOCK)
