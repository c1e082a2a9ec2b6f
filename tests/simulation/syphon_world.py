"""A world for syphons: backlog queues with locks, destinations that go up and down, simulated time.

A process is one flow of a syphon.  The world performs its steps, decides what becomes of them, and
jumps to the next moment at which something can happen.
"""

import datetime as dt
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)

from twinbus.pairing.core import PairSettings
from twinbus.pairing.events import Event
from twinbus.pairing.producer_keys import STAMP
from twinbus.pairing.rewriting import rewrite
from twinbus.pairing.steps import (
    Abandon,
    Complete,
    DeadLetter,
    Flow,
    Pause,
    Peek,
    Receive,
    SendRestored,
    Step,
)
from twinbus.pairing.syphon import Syphon
from twinbus.pairing.value_types import text_of

START_UTC = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)
LOCK_S = 60.0
SETTINGS = PairSettings(primary="one", secondary="two", primary_name="backlog")


def message(body: str, session_id: str | None = None) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(
        data_body=body, properties=AmqpMessageProperties(message_id=body, group_id=session_id)
    )


@dataclass
class Stored:
    received: ServiceBusReceivedMessage
    locked_until: float = -1.0


class BacklogQueue:
    def __init__(self, lock_s: float = LOCK_S) -> None:
        self.lock_s = lock_s
        self.messages: dict[int, Stored] = {}
        self.dead: dict[int, tuple[str, str]] = {}
        self.receives = 0
        self.peeks = 0
        self.last_number = 0
        self.error: Exception | None = None

    def put(self, waiting: AmqpAnnotatedMessage, now: float) -> int:
        """As a receiver will get it: through the SDK's encoder and decoder."""
        self.last_number += 1
        enqueued_ms = int((START_UTC.timestamp() + now) * 1000)
        waiting.annotations = {
            **(waiting.annotations or {}),
            b"x-opt-enqueued-time": enqueued_ms,
            b"x-opt-sequence-number": {"TYPE": "LONG", "VALUE": self.last_number},
        }
        outgoing = PyamqpTransport.to_outgoing_amqp_message(waiting)
        encoded = bytes(encode_payload(bytearray(), outgoing))
        self.messages[self.last_number] = Stored(ServiceBusReceivedMessage.from_bytes(encoded))
        return self.last_number

    def receive(self, count: int, now: float) -> list[ServiceBusReceivedMessage]:
        free = [each for each in self.messages.values() if each.locked_until <= now][:count]
        for each in free:
            each.locked_until = now + self.lock_s
        return [each.received for each in free]

    def peek(self, first: int, count: int) -> list[ServiceBusReceivedMessage]:
        numbers = sorted(number for number in self.messages if number >= first)[:count]
        return [self.messages[number].received for number in numbers]

    def abandon(self, received: ServiceBusReceivedMessage, now: float) -> None:
        stored = self.messages.get(received.sequence_number or 0)
        if stored is None or stored.locked_until <= now:
            raise MessageLockLostError(message="lock lost")
        stored.locked_until = now

    def settle(self, received: ServiceBusReceivedMessage, now: float) -> int:
        number = received.sequence_number or 0
        stored = self.messages.get(number)
        if stored is None or stored.locked_until <= now:
            raise MessageLockLostError(message="lock lost")
        del self.messages[number]
        return number


@dataclass
class Destination:
    error: Exception | None = None
    loses_answers: bool = False  # takes the messages and says that it did not
    batch_max: int = 1000
    too_large: set[str] = field(default_factory=set)
    arrived: list[tuple[str, str | None]] = field(default_factory=list)  # body, session id
    sends: int = 0
    copies: int = 0
    _keys: set[str] = field(default_factory=set)

    def send(self, messages: list[AmqpAnnotatedMessage]) -> None:
        self.sends += 1
        if self.error is not None:
            raise self.error
        bodies = [b"".join(each.body).decode() for each in messages]
        if len(messages) > self.batch_max or self.too_large.intersection(bodies):
            raise MessageSizeExceededError(message="too large")
        for body, each in zip(bodies, messages, strict=True):
            key = (each.delivery_annotations or {})[STAMP]
            if key in self._keys:
                self.copies += 1
                continue
            self._keys.add(key)
            assert each.properties is not None
            self.arrived.append((body, text_of(each.properties.group_id)))
        if self.loses_answers:
            raise OperationTimeoutError(message="no answer")


@dataclass
class Process:
    syphon: Syphon
    queue: str
    flow: Flow[None]
    step: Step | None = None  # that is under way
    deadline: float = 0.0  # of a receive


class World:
    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.queues: dict[str, BacklogQueue] = {}
        self.destinations: dict[str, Destination] = {}
        self.alive: list[Syphon] = []
        self.events: list[Event] = []
        self.pauses_s: list[float] = []
        self.crash_chance = 0.0
        self.send_s: Callable[[], float] = lambda: 0.01
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: list[Process] = []
        self._ended = 0  # flows
        self._keys = itertools.count(1)

    # --- setting up -----------------------------------------------------------------------

    def put(
        self,
        queue: str,
        path: str,
        body: str,
        session_id: str | None = None,
        mark: str | None = SETTINGS.identity.mark,
    ) -> int:
        """`mark` tells whose it is."""
        waiting = rewrite(message(body, session_id), path, f"producer/{next(self._keys)}", mark)
        number = self.queues[queue].put(waiting, self.now)
        self._wake(queue)
        return number

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), action))

    def start(self, until_empty: bool = False) -> Syphon:
        syphon = Syphon(SETTINGS, lambda: self.now, self.utc_now)
        self.alive.append(syphon)
        for name in self.queues:
            process = Process(syphon, name, syphon.empty(name, until_empty))
            self._proceed(process, process.flow.__next__)
        return syphon

    @property
    def is_over(self) -> bool:
        """Whether a flow has ended for every queue."""
        return self._ended == len(self.queues)

    def utc_now(self) -> dt.datetime:
        return START_UTC + dt.timedelta(seconds=self.now)

    def run(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = until

    # --- processes ------------------------------------------------------------------------

    def _proceed(self, process: Process, resume: Callable[[], Step]) -> None:
        try:
            process.step = resume()
        except StopIteration:
            self._ended += 1
            return
        finally:
            self.events += process.syphon.take_events()
        self._begin(process, process.step)

    def _begin(self, process: Process, step: Step) -> None:
        match step:
            case Receive(queue, _, wait_s):
                self.queues[queue].receives += 1
                process.deadline = self.now + wait_s
                self._waiting.append(process)
                self._look(process)
            case Pause(seconds):
                self.pauses_s.append(seconds)
                self.at(self.now + seconds, lambda: self._answer(process, None))
            case SendRestored():
                self.at(self.now + self.send_s(), lambda: self._perform(process, step))
            case _:
                self.at(self.now + 0.001, lambda: self._perform(process, step))

    def _perform(self, process: Process, step: Step) -> None:
        if process.syphon not in self.alive:
            return None
        if self.chance.random() < self.crash_chance:
            return self._crash(process.syphon)  # before it has happened
        try:
            outcome = self._outcome(step)
        except Exception as error:  # noqa: BLE001 - what the SDK would raise
            return self._answer(process, error)
        if self.chance.random() < self.crash_chance:
            return self._crash(process.syphon)  # after it has happened
        return self._answer(process, outcome)

    def _outcome(self, step: Step) -> Any:
        match step:
            case SendRestored(path, messages, _):
                if path not in self.destinations:
                    raise MessagingEntityNotFoundError(message="not there")
                return self.destinations[path].send(messages)
            case Peek(queue, first, count_max, _):
                self.queues[queue].peeks += 1
                return self.queues[queue].peek(first, count_max)
            case Abandon(queue, messages):
                for each in messages:
                    self.queues[queue].abandon(each, self.now)
                self._wake(queue)
                return None
            case Complete(queue, messages):
                failed = []
                for each in messages:
                    try:
                        self.queues[queue].settle(each, self.now)
                    except MessageLockLostError as error:
                        failed.append(error)
                return failed
            case DeadLetter(queue, received, reason, description):
                number = self.queues[queue].settle(received, self.now)
                self.queues[queue].dead[number] = (reason, description)
                return None
        raise AssertionError(step)

    def _answer(self, process: Process, outcome: object) -> None:
        if process.syphon not in self.alive:
            return
        if isinstance(outcome, Exception):
            self._proceed(process, lambda: process.flow.throw(outcome))
        else:
            self._proceed(process, lambda: process.flow.send(outcome))

    def _look(self, process: Process) -> None:
        """At the queue, for a receive that waits."""
        if process not in self._waiting:
            return None
        assert isinstance(process.step, Receive)
        queue = self.queues[process.step.queue]
        if queue.error is not None:
            return self._received(process, queue.error)
        messages = queue.receive(process.step.count_max, self.now)
        if messages or self.now >= process.deadline:
            return self._received(process, messages)
        ends = [each.locked_until for each in queue.messages.values()]
        self.at(min([process.deadline, *ends]), lambda: self._look(process))
        return None

    def _received(self, process: Process, outcome: object) -> None:
        self._waiting.remove(process)
        self.at(self.now + 0.005, lambda: self._answer(process, outcome))

    def _wake(self, queue: str) -> None:
        for process in [each for each in self._waiting if each.queue == queue]:
            self.at(self.now, lambda process=process: self._look(process))  # type: ignore[misc]

    def _crash(self, syphon: Syphon) -> None:
        """The process of this syphon ends where it is; a new one starts a little later."""
        self.alive.remove(syphon)
        self._waiting = [each for each in self._waiting if each.syphon is not syphon]
        self.at(self.now + self.chance.uniform(1, 30), self._restart)

    def _restart(self) -> None:
        self.start()


def down() -> Exception:
    return ServiceBusConnectionError(message="down")
