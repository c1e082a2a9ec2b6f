"""A pair in simulated time: two namespaces that fail as told, senders, pings, one event loop.

The shell of this world performs the steps of flows as the real ones do, but every outcome comes
from the health of the place that was asked.  It decides nothing; pairing_judge.py watches.
"""

import heapq
import random
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, Final

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.simulation.pairing_judge import Judge
from tests.unit.pairing.stamps import stamp_of
from twinbus.pairing.batch import snapshot
from twinbus.pairing.core import Pairing
from twinbus.pairing.parcels import collect
from twinbus.pairing.pinging import ping
from twinbus.pairing.rules import PATH, PRODUCER_KEY
from twinbus.pairing.sending import SenderState, send
from twinbus.pairing.steps import Flow, Pause, SendPing, SendToBacklog, SendToPrimary, Step

ANSWER_S: Final = 0.05
TEMPLATE: Final = AmqpAnnotatedMessage(data_body=b"", properties={"message_id": ""})


class Health(Enum):
    """Of an entity or a backlog queue: what becomes of a send."""

    UP = "takes it"
    DOWN = "connection refused"
    HUNG = "nothing arrives, nothing comes back"
    LOST = "arrives, but the answer is lost"
    BUSY = "server busy"
    FORBIDDEN = "unauthorized"
    FULL = "quota exceeded"
    GONE = "not found"
    STRANGE = "an error without a class of its own"


ERRORS: Final[dict[Health, Callable[[], ServiceBusError]]] = {
    Health.DOWN: ServiceBusConnectionError,
    Health.HUNG: OperationTimeoutError,
    Health.LOST: OperationTimeoutError,
    Health.BUSY: ServiceBusServerBusyError,
    Health.FORBIDDEN: ServiceBusAuthorizationError,
    Health.FULL: ServiceBusQuotaExceededError,
    Health.GONE: MessagingEntityNotFoundError,
    Health.STRANGE: lambda: ServiceBusError("strange"),
}


class Place:
    """An entity of the primary, or a backlog queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = Health.UP


class World:
    """Time, places and what runs."""

    def __init__(self, rng: random.Random, entities: list[str], queues: list[str]) -> None:
        self.rng = rng
        self.now = 0.0
        self.entities = {name: Place(name) for name in entities}
        self.queues = {name: Place(name) for name in queues}
        self.pairing: Pairing
        self.judge: Judge
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._armed: float | None = None

    def clock(self) -> float:
        return self.now

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), act))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            act()
            for event in self.pairing.take_events():
                self.judge.event(event, self.now)
            self._arm()
        self.now = until

    def start(
        self, entity: str, flow: Flow[Any], done: Callable[[Exception | None], None]
    ) -> "Run":
        run = Run(self, entity, flow, done)
        run.resume(None)
        return run

    def _arm(self) -> None:
        """The background task of a shell: wakes up in time, or a little late."""
        deadline = self.pairing.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._armed = deadline
            self.later(max(0.0, deadline - self.now) + self.rng.choice((0.0, 0.0, 0.3)), self._tick)

    def _tick(self) -> None:
        self._armed = None
        for entity in self.pairing.tick():
            self.later(self.rng.choice((0.0, 0.1)), partial(self._ping, entity))

    def _ping(self, entity: str) -> None:
        self.start(entity, ping(self.pairing, entity), lambda error: self.judge.ping_ended(entity))


class FlowRun:
    """A flow and the step that it waits for."""

    def __init__(self, flow: Flow[Any], done: Callable[[Exception | None], None]) -> None:
        self._flow = flow
        self._done = done
        self.has_ended = False

    def resume(self, error: Exception | None) -> None:
        if self.has_ended:
            return  # cancelled in a pause
        try:
            step = self._flow.send(None) if error is None else self._flow.throw(error)
        except StopIteration:
            self._end(None)
        except ServiceBusError as raised:
            self._end(raised)
        else:
            self._perform(step)

    def cancel(self) -> None:
        self.has_ended = True
        self._flow.close()

    def _end(self, error: Exception | None) -> None:
        self.has_ended = True
        self._done(error)

    def _perform(self, step: Step) -> None:
        """Begin with it; `resume` is told what came of it."""
        raise NotImplementedError


class Run(FlowRun):
    """One whose steps meet what the health of the places decides."""

    def __init__(
        self, world: World, entity: str, flow: Flow[Any], done: Callable[[Exception | None], None]
    ) -> None:
        super().__init__(flow, done)
        self._world = world
        self._entity = entity

    def _perform(self, step: Step) -> None:
        world, judge = self._world, self._world.judge
        match step:
            case Pause(seconds):
                judge.paused(seconds)
                world.later(seconds, lambda: self.resume(None))
            case SendToPrimary(outgoing, timeout_s):
                messages = outgoing if isinstance(outgoing, list) else [outgoing]
                judge.primary_begins(self._entity, world.now)
                answered = partial(judge.primary_answered, self._entity)
                self._attempt(world.entities[self._entity], messages, timeout_s, answered)
            case SendPing(entity, message, timeout_s):
                judge.ping_begins(entity, world.now)
                answered = partial(judge.ping_answered, entity)
                self._attempt(world.entities[entity], [message], timeout_s, answered)
            case SendToBacklog(queue, messages, timeout_s):
                answered = partial(judge.backlog_answered, queue)
                self._attempt(world.queues[queue], messages, timeout_s, answered)
            case _:
                raise AssertionError(step)

    def _attempt(
        self,
        place: Place,
        messages: list[AmqpAnnotatedMessage],
        timeout_s: float,
        answered: Callable[[ServiceBusError | None, float], None],
    ) -> None:
        world = self._world
        assert timeout_s > 0
        health = place.health
        hangs = health in {Health.HUNG, Health.LOST}
        took_s = timeout_s if hangs else min(timeout_s, world.rng.choice((ANSWER_S, 1.0)))
        error = ERRORS[health]() if health is not Health.UP else None

        def end() -> None:
            if error is None:
                self._arrive(place, messages, is_answer_lost=self.has_ended)
            if not self.has_ended:
                answered(error, world.now)
                self.resume(error)

        if health is Health.LOST:
            self._arrive(place, messages, is_answer_lost=True)
        world.later(took_s, end)

    def _arrive(
        self, place: Place, messages: list[AmqpAnnotatedMessage], is_answer_lost: bool
    ) -> None:
        for message in messages:
            if message.properties is not None and message.properties.message_id is not None:
                message_id = str(message.properties.message_id)
                self._world.judge.arrived(place.name, message_id, key_of(message), is_answer_lost)


def key_of(message: AmqpAnnotatedMessage) -> str:
    """Where the primary finds it, and where a backlog queue does."""
    properties = message.application_properties or {}
    if PATH in properties:
        assert not message.delivery_annotations
        return str(properties[PRODUCER_KEY])
    stamp = stamp_of(message)
    assert stamp is not None
    return stamp


class Sender:
    """Sends to one entity, one thing after the other, and sends again what has failed."""

    def __init__(self, world: World, entity: str, name: str, gap_s: float) -> None:
        self._world = world
        self._state = SenderState(entity)
        self._name = name
        self.gap_s = gap_s
        self._numbers = count()
        self._in_hand: list[AmqpAnnotatedMessage] = []
        self.is_stopped = False
        world.later(world.rng.random() * gap_s, self.send)

    def send(self) -> None:
        world, rng = self._world, self._world.rng
        if self.is_stopped:
            return
        if not self._in_hand or rng.random() < 0.1:
            self._in_hand = [self._message() for _ in range(rng.choice((1, 1, 1, 3)))]
        messages = self._in_hand
        ids = [str(each.properties.message_id) for each in messages if each.properties]
        world.judge.send_begins(self._name, self._state.entity, ids)
        parcel = collect(messages if len(messages) > 1 else messages[0])
        timeout_s = rng.choice((None, None, 5.0, 40.0))
        flow = send(world.pairing, self._state, parcel, timeout_s)
        run = world.start(self._state.entity, flow, self._ended)
        if rng.random() < 0.05:
            world.later(rng.random() * 3, lambda: self._cancel(run))

    def _message(self) -> AmqpAnnotatedMessage:
        message = snapshot(TEMPLATE)
        assert message.properties is not None
        message.properties.message_id = f"{self._name}-{next(self._numbers)}"
        message.properties.group_id = self._world.rng.choice((None, None, "a", "b"))
        return message

    def _cancel(self, run: Run) -> None:
        if not run.has_ended:
            run.cancel()
            self._world.judge.send_cancelled(self._name)
            self._world.later(self.gap_s, self.send)

    def _ended(self, error: Exception | None) -> None:
        world = self._world
        world.judge.send_ended(self._name, error, world.now)
        if error is None and world.rng.random() < 0.9:
            self._in_hand = []  # otherwise the same objects are sent once more, with new keys
        world.later(self.gap_s * (0.5 + world.rng.random()), self.send)
