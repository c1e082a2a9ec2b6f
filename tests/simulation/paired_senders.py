"""Pairs and the applications that send with them, in the time of a simulated cluster.

An application sends again what has failed, the same objects, and gives up after a few times; what
it was told goes to the judge of its primary.  When it starts again it has forgotten everything.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from tests.simulation.cluster_judge import Judge
from tests.simulation.paired_backlog import Backlog
from tests.simulation.paired_primary import Call, Network, Primary, Then, body_of, encoded_messages
from tests.simulation.pairing_world import FlowRun
from twinbus.pairing.batch import PairedMessageBatch
from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.parcels import collect
from twinbus.pairing.pinging import ping
from twinbus.pairing.sending import SenderState, Shortcut, send, shortcut
from twinbus.pairing.steps import Flow, Pause, SendPing, SendToBacklog, SendToPrimary, Step

TICK_MS: Final = 200
PING_S_MAX: Final = 3.0  # the real limit is longer than a whole schedule
PAUSES_MS: Final = (0, 100, 700)


class Entity:
    """Where an application sends to: `places` are where that comes to rest."""

    def __init__(self, name: str, places: list[str], keys: str) -> None:
        self.name = name
        self.places = places
        self.keys = keys  # "session", "partition" (some of them), or none


class Pair:
    """One pairing after the other, with all that runs in its process."""

    def __init__(
        self,
        letter: str,
        settings: PairSettings,
        network: Network,
        primary: Primary,
        backlog: Backlog,
        judge: Judge,
    ) -> None:
        self.letter = letter  # in front of the names of its messages
        self.settings = settings
        self.network = network
        self.primary = primary
        self.backlog = backlog
        self.judge = judge
        self.loop = network.loop
        self.rng = network.rng
        self.callers: list[Caller] = []
        self.is_over = False
        self.restart()
        self._tick()

    def restart(self) -> None:
        """The process ends where it is, and begins anew."""
        queues = list(self.backlog.queues)
        self.pairing = Pairing(self.settings, queues, self.rng, lambda: self.loop.now_ms / 1000)
        for caller in self.callers:
            caller.forget()

    @property
    def is_quiet(self) -> bool:
        return all(caller.sending is None for caller in self.callers)

    def _tick(self) -> None:
        self.pairing.take_events()
        for entity in self.pairing.tick():
            PairRun(self, entity, ping(self.pairing, entity), _ignore).resume(None)
        if not self.is_over:
            self.loop.after(TICK_MS, self._tick)

    def call(self, entity: str, outgoing: Any, timeout_s: float, then: Then) -> None:
        data = encoded_messages(outgoing)
        Call(self.network, self.primary, entity, data, timeout_s, then)


def _ignore(error: Exception | None) -> None:
    """The pairing has been told."""


class PairRun(FlowRun):
    """Performs the steps of a send or a ping."""

    def __init__(
        self,
        pair: Pair,
        entity: str,
        flow: Flow[Any],
        done: Then,
        first_error: Exception | None = None,
    ) -> None:
        super().__init__(flow, done)
        self._pair = pair
        self._entity = entity
        self._first_error = first_error  # of a try that was made before there was a flow

    def _perform(self, step: Step) -> None:
        pair = self._pair
        match step:
            case Pause(seconds):
                pair.loop.after(round(1000 * seconds), lambda: self.resume(None))
            case SendToPrimary() if self._first_error is not None:
                error, self._first_error = self._first_error, None
                self.resume(error)
            case SendToPrimary(outgoing, timeout_s):
                pair.call(self._entity, outgoing, timeout_s, self.resume)
            case SendPing(entity, message, timeout_s):
                pair.call(entity, message, min(timeout_s, PING_S_MAX), self.resume)
            case SendToBacklog(queue, messages, _):
                pair.backlog.take(queue, messages, self.resume)
            case _:
                raise AssertionError(step)


class Sending:
    """Messages in the hands of an application."""

    def __init__(self, names: list[int], key: str | None, message: Any, tries: int) -> None:
        self.names = names
        self.key = key
        self.message = message  # or a list of them, or a batch
        self.tries_left = tries
        self.cancel: Callable[[], None] | None = None  # ends the call that is under way


class Caller:
    """A part of an application that sends to one entity, one thing after the other."""

    def __init__(self, pair: Pair, entity: Entity, gap_ms: int) -> None:
        self._pair = pair
        self._entity = entity
        self._gap_ms = gap_ms
        self._state = SenderState(entity.name)
        self.sending: Sending | None = None
        pair.callers.append(self)
        pair.loop.after(pair.rng.randint(0, 2 * gap_ms), self._act)

    def forget(self) -> None:
        """With its process it has lost what it had in hand; that may have arrived or not."""
        if self.sending is not None and self.sending.cancel is not None:
            self.sending.cancel()
        self.sending = None
        self._state = SenderState(self._entity.name)

    def _act(self) -> None:
        if self._pair.is_over:
            return
        if self.sending is None:
            self.sending = self._new()
            self._send(self.sending)
        self._pair.loop.after(self._pair.rng.randint(1, 2 * self._gap_ms), self._act)

    # --- messages -------------------------------------------------------------------------------

    def _new(self) -> Sending:
        rng = self._pair.rng
        key = None
        if self._entity.keys == "session" or (self._entity.keys and rng.random() < 0.4):
            key = f"k{rng.randrange(6)}"
        count = rng.choice((1, 1, 1, 1, 1, 3))
        names = [self._name(key) for _ in range(count)]
        messages = [self._message(name, key) for name in names]
        outgoing: Any = messages
        if count == 1:
            outgoing = messages[0]
        elif rng.random() < 0.4:
            outgoing = PairedMessageBatch(1 << 20)
            for each in messages:
                outgoing.add_message(each)
        return Sending(names, key, outgoing, rng.choice((1, 2, 4)))

    def _name(self, key: str | None) -> int:
        entity = self._entity
        return self._pair.judge.sending(entity.name, entity.places, key, True, False)

    def _message(self, name: int, key: str | None) -> ServiceBusMessage:
        is_session = self._entity.keys == "session"
        return ServiceBusMessage(
            body_of(f"{self._pair.letter}{name}"),
            message_id=str(name),
            session_id=key if is_session else None,
            partition_key=None if is_session else key,
        )

    # --- calls ----------------------------------------------------------------------------------

    def _send(self, sending: Sending) -> None:
        pair, rng = self._pair, self._pair.rng
        sending.tries_left -= 1
        entity = pair.pairing.entity(self._entity.name)
        timeout_s = rng.choice((None, None, None, 2.0, 6.0))
        way = shortcut(pair.pairing, entity, sending.message) if timeout_s is None else None
        if way is None:
            self._start_flow(sending, timeout_s, None)
        else:
            sending.cancel = partial(_give_up, way)
            answered = partial(self._shortcut_answered, sending, way, sending.tries_left)
            pair.call(self._entity.name, way.outgoing, pair.settings.send_timeout_s, answered)
        if rng.random() < 0.03:
            cancelled = partial(self._cancelled, sending, sending.tries_left)
            pair.loop.after(rng.choice((1, 20, 1_000)), cancelled)

    def _shortcut_answered(
        self, sending: Sending, way: Shortcut, trial: int, error: Exception | None
    ) -> None:
        if sending is not self.sending or trial != sending.tries_left or not sending.cancel:
            return  # cancelled, or the process is gone
        sending.cancel = None
        if error is None:
            way.succeeded()
            self._ended(sending, trial, None)
        else:
            is_told = way.failed(error)
            self._start_flow(sending, None, error if is_told else None)

    def _start_flow(
        self, sending: Sending, timeout_s: float | None, error: Exception | None
    ) -> None:
        pair = self._pair
        flow = send(pair.pairing, self._state, collect(sending.message), timeout_s)
        done = partial(self._ended, sending, sending.tries_left)
        run = PairRun(pair, self._entity.name, flow, done, error)
        sending.cancel = run.cancel
        run.resume(None)

    def _cancelled(self, sending: Sending, trial: int) -> None:
        if sending is self.sending and trial == sending.tries_left and sending.cancel:
            cancel, sending.cancel = sending.cancel, None
            cancel()
            self._try_again(sending)

    def _ended(self, sending: Sending, trial: int, error: Exception | None) -> None:
        if sending is not self.sending or trial != sending.tries_left:
            return
        sending.cancel = None
        if error is None:
            self._pair.judge.sent(sending.names, [0] * len(sending.names))
            self.sending = None
        else:
            self._try_again(sending)

    def _try_again(self, sending: Sending) -> None:
        """After an error: the same objects, so that they keep their keys; or no more."""
        if not sending.tries_left or self._pair.is_over:
            self.sending = None
            return
        if self._pair.rng.random() < 0.2 and not isinstance(sending.message, PairedMessageBatch):
            self._add(sending)
        again = partial(self._again, sending, sending.tries_left)
        self._pair.loop.after(self._pair.rng.choice(PAUSES_MS), again)

    def _add(self, sending: Sending) -> None:
        """What failed goes once more together with something new."""
        name = self._name(sending.key)
        old = sending.message if isinstance(sending.message, list) else [sending.message]
        sending.message = [*old, self._message(name, sending.key)]
        sending.names.append(name)

    def _again(self, sending: Sending, trial: int) -> None:
        if sending is self.sending and trial == sending.tries_left:
            self._send(sending)


def _give_up(way: Shortcut) -> None:
    """The caller was cancelled: nobody knows what became of it."""
    way.failed(asyncio.CancelledError())
