"""Delivery: free messages × link credit → deliveries.

A `Receiver` is the broker's side of one receiving link.  `Sink` is what the gateway puts behind it.
Competing receivers take turns in small chunks, so that they share the load; a receiver whose
connection is full gets nothing until it has read.  With thousands of receivers open, a turn looks
only at those that have credit, and at none once nothing is left to hand out.
"""

from collections import deque
from typing import Final, Protocol

from twinbus.clock import Now
from twinbus.entities.commands import PEEK_LOCK
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import Message
from twinbus.entities.queue import Queue
from twinbus.errors import ServerBusy
from twinbus.limits import RECEIVERS_MAX
from twinbus.links.sink import LARGE_BODY_BYTES, Sink
from twinbus.links.store_link import ReceiverDescription

# Chunk sizes: one receiver alone takes long strides (fewer calls a message); competitors alternate
# in short ones.  Large bodies go few at a time, so that a chunk stays within a few megabytes.
CHUNK_ALONE: Final = 128
CHUNK_SHARED: Final = 16
CHUNK_LARGE: Final = 4
# Deliveries of one queue in one loop turn; the rest waits for the next turn so that others get one.
TURN_COUNT_MAX: Final = 1_024


class Owner(Protocol):
    """Who runs the receivers (receivers.py)."""

    def set_credit(self, receiver: "Receiver", credit: int, drain: bool) -> None: ...

    def resume(self, receiver: "Receiver") -> None: ...

    def close(self, receiver: "Receiver") -> None: ...


class Receiver:
    """One receiving link: how it settles, and how much it has asked for."""

    __slots__ = (
        "_owner",
        "credit",
        "drain",
        "in_ring",
        "is_exclusive",
        "large",
        "queue",
        "receive_mode",
        "relays",
        "session",
        "sink",
        "subqueue",
        "undelivered",
    )

    def __init__(
        self, owner: Owner, queue: Queue, description: ReceiverDescription, sink: Sink
    ) -> None:
        self._owner = owner
        self.queue = queue
        self.subqueue = description.subqueue
        self.receive_mode = description.receive_mode
        self.sink = sink
        self.session = description.session  # whose messages it gets, in a session entity
        self.is_exclusive = description.is_exclusive  # whether closing it releases the session
        self.relays = description.relays  # the gateway's own, for what is to be forwarded
        self.credit = 0
        self.drain = False
        self.in_ring = False  # of those that take turns (QueueReceivers)
        self.undelivered = 0  # taken by receive-and-delete, not durable yet
        self.large = True  # the last chunk had large bodies; at first we do not know

    def set_credit(self, credit: int, drain: bool) -> None:
        self._owner.set_credit(self, credit, drain)

    def resume(self) -> None:
        self._owner.resume(self)

    def close(self) -> None:
        self._owner.close(self)

    def holds(self, grant: int) -> bool:
        """Is this the lock by which it has its session?"""
        return self.session is not None and self.session.grant == grant


class Bodies(Protocol):
    """The part of the store that delivery needs."""

    def read_bodies(self, messages: list[Message]) -> list[bytes]: ...


class Taken:
    """Messages removed for a receive-and-delete receiver; sent when that is durable."""

    __slots__ = ("bodies", "messages", "receiver")

    def __init__(self, receiver: Receiver, messages: list[Message], bodies: list[bytes]) -> None:
        self.receiver = receiver
        self.messages = messages
        self.bodies = bodies

    def release(self) -> None:
        """The removal is durable: send them."""
        self.receiver.undelivered -= len(self.messages)
        self.receiver.sink.deliver(self.messages, self.bodies, 0)
        finish_drain(self.receiver)


def finish_drain(receiver: Receiver) -> None:
    """Answer a drain once nothing that was taken for it is still on its way."""
    if receiver.drain and receiver.undelivered == 0 and not receiver.sink.full():
        receiver.drain = False
        receiver.credit = 0
        receiver.sink.drained()


class QueueReceivers:
    """All receivers of one queue (of all its parts), taking turns."""

    __slots__ = ("_draining", "_ring", "queue", "receivers")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.receivers: dict[Receiver, None] = {}  # without a session
        self._ring: deque[Receiver] = deque()  # those of them that have credit
        self._draining: dict[Receiver, None] = {}

    def count(self) -> int:
        """How many there are, and wait to be; with none, this can be dropped."""
        return len(self.receivers)

    def add(self, receiver: Receiver) -> None:
        self.receivers[receiver] = None
        self.stir(receiver)

    def remove(self, receiver: Receiver, now: Now) -> None:
        """A receiver closes."""
        self.receivers.pop(receiver, None)
        self._draining.pop(receiver, None)
        if receiver.in_ring:
            receiver.in_ring = False
            self._ring.remove(receiver)

    def stir(self, receiver: Receiver) -> None:
        """A receiver has new credit or room: look at it in the next turn."""
        if receiver not in self.receivers:
            return
        if receiver.credit > 0 and not receiver.in_ring:
            receiver.in_ring = True
            self._ring.append(receiver)
        if receiver.drain:
            self._draining[receiver] = None

    def stir_all(self) -> None:
        """Something that concerns every receiver has changed."""

    def remove_all(self) -> None:
        """The entity is gone: tell everybody."""
        for receiver in list(self.receivers):
            receiver.sink.removed()

    def next_due_ms(self, due_ms: int, now: Now) -> int:
        """Milliseconds until the queue (`due_ms`) or `tick` has something to do; -1: never."""
        return due_ms

    def tick(self, now: Now) -> None:
        """Time has passed for those who wait.  (Receivers wait for ever.)"""

    def pump(self, store: Bodies, now: Now, taken: list[Taken]) -> int:
        """Hand out what can be handed out, TURN_COUNT_MAX at most; returns how many."""
        left = TURN_COUNT_MAX
        ring = self._ring
        idle = 0  # receivers in a row that could not be served and stay in the ring
        while left > 0 and idle < len(ring):
            receiver = ring.popleft()
            receiver.in_ring = False
            try:
                served = self._serve(receiver, store, now, left, taken)
            finally:  # also if it could not be served: its turn comes again
                self.stir(receiver)  # to the end, if it has credit left
            left -= served
            if served:
                idle = 0
            elif not self._has_ready():
                break
            elif receiver.in_ring:
                idle += 1
        for receiver in list(self._draining):
            if receiver.drain and (receiver.credit == 0 or not self._ready(receiver)):
                finish_drain(receiver)
            if not receiver.drain:
                self._draining.pop(receiver, None)
        return TURN_COUNT_MAX - left

    def _has_ready(self) -> bool:
        queue = self.queue
        return (
            queue.has_ready(MAIN)
            or queue.has_ready(DEAD_LETTER)
            or queue.has_ready(TRANSFER_DEAD_LETTER)
        )

    def _ready(self, receiver: Receiver) -> bool:
        return self.queue.has_ready(receiver.subqueue)

    def _take(self, receiver: Receiver, count: int, now: Now) -> list[Message]:
        if receiver.receive_mode == PEEK_LOCK:
            return self.queue.lock_next(receiver.subqueue, count, now)
        return self.queue.take_next(receiver.subqueue, count, now)

    def _locked_until_utc_ms(self, receiver: Receiver, now: Now) -> int:
        return now.utc_ms + self.queue.description.lock_duration_ms

    def _serve(
        self, receiver: Receiver, store: Bodies, now: Now, left: int, taken: list[Taken]
    ) -> int:
        if not (receiver.credit > 0 and self._ready(receiver)) or receiver.sink.full():
            return 0
        chunk = CHUNK_SHARED if self._ring else CHUNK_ALONE  # the others that have credit
        count = min(receiver.credit, left, CHUNK_LARGE if receiver.large else chunk)
        messages = self._take(receiver, count, now)
        if not messages:
            return 0
        receiver.credit -= len(messages)
        receiver.large = messages[-1].length > LARGE_BODY_BYTES
        bodies = store.read_bodies(messages)
        if receiver.receive_mode == PEEK_LOCK:
            until_ms = self._locked_until_utc_ms(receiver, now)
            receiver.sink.deliver(messages, bodies, until_ms)
        else:
            receiver.undelivered += len(messages)
            taken.append(Taken(receiver, messages, bodies))
        return len(messages)


def check_receiver_count(receivers: QueueReceivers) -> None:
    """Refuse one more than an entity may have."""
    if receivers.count() >= RECEIVERS_MAX:
        raise ServerBusy(
            f"'{receivers.queue.shown_name}' has {RECEIVERS_MAX} receivers already; "
            "wait 10 seconds and try again, or close some."
        )
