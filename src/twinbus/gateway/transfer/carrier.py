"""Carrying messages from one part of a store to other stores, each of them exactly once.

    source ─▶ receive (peek-lock) ─▶ lane ─▶ Send with the carrier's name and the numbers at home
           ◀─ complete ◀────────────────────── when that is durable

- A lane leads to one part of one entity.  It has one send at a time under way, so nothing overtakes
  in it.  When an answer says that the send may have happened, or that it cannot be done just now,
  the very same numbers are sent again, after growing pauses, to the very same part: what has come
  there is dropped (entities/carried.py).
- Nothing is completed at its source before it is durable where it went, and nothing is forgotten
  there before it is completed here.
- A lock may run out, and a store be opened anew: then a message is delivered again.  One that is in
  hand just gets its new lock; any other is sent once more, and dropped.
- What a part refuses for good is refused alone: the others of its send go again one by one.

This base knows where to and as what only by asking the class that is made of it: `Relay` (relay.py)
forwards, `Drain` (journal_drain.py) empties a journal.  It must never decide by the clock whether
something has happened.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from twinbus.clock import Clock, Now
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    RELEASE,
    Lock,
    RenewLocks,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay
from twinbus.errors import (
    DiskFull,
    EntityNotFound,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Part
from twinbus.links.store_link import DOWN, ReceiverDescription, Receiving, StoreLink

WINDOW: Final = 256  # messages in hand; see limits.CARRIED_NUMBERS_MAX
WINDOW_BYTES: Final = 8_388_608
CHUNK: Final = 64  # messages of one send, and their bytes
CHUNK_BYTES: Final = 4_194_304
PAUSE_MS_MIN: Final = 100
PAUSE_MS_MAX: Final = 5_000

# Answers after which the same is tried again: it may have happened, or cannot happen just now.
WAIT: Final = (Unavailable, ServerBusy, OperationTimeout, DiskFull)


class CarriedMessage:
    """A message in hand."""

    __slots__ = ("body", "grant", "keys", "message")

    def __init__(self, message: Message, body: bytes) -> None:
        self.message = message.copy()
        self.body = body
        self.grant = message.grant  # of the lock that counts: the newest
        self.keys: tuple[str | None, str | None, str | None] = (None, None, None)

    @property
    def number(self) -> int:
        return self.message.sequence_number


class Lane:
    """The way to one part, in order."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.waiting: deque[CarriedMessage] = deque()
        self.sent: list[CarriedMessage] = []  # under way, or to be sent again just like this
        self.is_asking = False  # there will be an answer
        self.completed: list[int] = []  # at the source, and not yet told there
        self.singly = 0  # so many go one by one, because together they were refused
        self.retry_at_ms = 0  # monotonic
        self.pause_ms = 0
        self.is_pumping = False

    def pause(self, now: Now) -> None:
        """Wait before the next try, longer each time."""
        self.pause_ms = min(PAUSE_MS_MAX, max(PAUSE_MS_MIN, 2 * self.pause_ms))
        self.retry_at_ms = now.mono_ms + self.pause_ms

    def hasten(self) -> None:
        """Something may have got better: try at once."""
        self.retry_at_ms = 0
        self.pause_ms = 0


class Carrier:
    """Carries what is ready in one part of one entity; a `Sink` of that part.

    It has many methods because it is a sink, a sender and a settler of the same messages, which no
    one of them could forget without the others, beside what a class made of it answers.
    """

    def __init__(
        self, links: Sequence[StoreLink], clock: Clock, source: Part, subqueue: int, name: str
    ) -> None:
        self.links = links
        self.clock = clock
        self.source = source
        self.subqueue = subqueue
        self.name = name  # the same after every restart, and nobody else's
        self.is_closed = False
        self.lanes: dict[int, Lane] = {}
        self._receiving: Receiving | None = None
        self._credit = 0
        # By number: delivered, and not known to be completed.
        self._in_hand: dict[int, CarriedMessage] = {}
        self._bytes_in_hand = 0
        self._open_at_ms = NEVER_MS  # when to open the receiver (again)
        self._open_pause_ms = 0
        self._renew_at_ms = NEVER_MS

    # -- what a carrier is for -------------------------------------------------------------------

    def carried_message(self, message: Message, body: bytes) -> CarriedMessage:
        """What is kept of a message in hand."""
        return CarriedMessage(message, body)

    def address(self, carried: CarriedMessage) -> int:
        """Which lane it takes; always the same for one message.  A ServiceError refuses it."""
        raise NotImplementedError

    def destination(self, lane: Lane) -> Part:
        """Where the lane leads now.  A ServiceError refuses what is to be sent."""
        raise NotImplementedError

    def rewritten(self, carried: CarriedMessage, now: Now) -> NewMessage:
        """The message as it is sent."""
        raise NotImplementedError

    def refuse(self, carried: CarriedMessage, error: ServiceError) -> tuple[int, Overlay | None]:
        """With which outcome a message that cannot go is settled."""
        raise NotImplementedError

    def progressed(self, batch: list[CarriedMessage]) -> None:
        """These are completed."""

    # -- beginning and end -----------------------------------------------------------------------

    def open(self) -> None:
        """Begin to receive; what refuses now is asked again later."""
        now = self.clock.now()
        self._open_at_ms = NEVER_MS
        link = self.links[self.source.store]
        try:
            self._receiving = link.open_receiver(
                ReceiverDescription(self.source.entity_id, self.subqueue, PEEK_LOCK, relays=True),
                self,
            )
        except EntityNotFound:
            self.removed()
            return
        except ServiceError:
            self._reopen_later(now)
            return
        self._open_pause_ms = 0
        self._credit = 0
        self._ask_for_more()

    def close(self) -> None:
        """Take on no more.  What may have gone already is carried to its end (`is_done`)."""
        if self.is_closed:
            return
        self.is_closed = True
        self._open_at_ms = NEVER_MS
        if self._receiving is not None:
            self._receiving.close()
            self._receiving = None
        unsent: list[CarriedMessage] = []
        for lane in self.lanes.values():
            unsent += lane.waiting
            lane.waiting.clear()
        if unsent:
            self._settle(unsent, RELEASE, None, None)

    @property
    def is_done(self) -> bool:
        """Is it closed, and nothing in hand any more?"""
        return self.is_closed and not self._in_hand

    @property
    def in_hand(self) -> Iterable[CarriedMessage]:
        """Delivered, and not known to be completed."""
        return self._in_hand.values()

    @property
    def is_idle(self) -> bool:
        """Is nothing in hand?"""
        return not self._in_hand

    # -- Sink ------------------------------------------------------------------------------------

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        now = self.clock.now()
        half_ms = max(0, locked_until_utc_ms - now.utc_ms) // 2
        self._renew_at_ms = min(self._renew_at_ms, now.mono_ms + half_ms)
        self._credit -= len(messages)
        for message, body in zip(messages, bodies, strict=True):
            known = self._in_hand.get(message.sequence_number)
            if known is not None:
                known.grant = message.grant
                continue
            carried = self.carried_message(message, body)
            self._in_hand[carried.number] = carried
            self._bytes_in_hand += len(body)
            self._take(carried)
        for lane in list(self.lanes.values()):
            self._pump(lane)
        self._ask_for_more()

    def _take(self, carried: CarriedMessage) -> None:
        try:
            partition = self.address(carried)
        except ServiceError as error:
            self._refuse(carried, error)
            return
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = Lane(partition)
        lane.waiting.append(carried)

    def full(self) -> bool:
        return self._bytes_in_hand > WINDOW_BYTES

    def drained(self) -> None:
        """We never ask for that."""

    def removed(self) -> None:
        """The source is gone, and all that was to be carried with it."""
        self._receiving = None
        self.close()
        self._in_hand.clear()
        self._bytes_in_hand = 0

    def lost(self, error: ServiceError) -> None:
        self._receiving = None
        if not self.is_closed:
            self._reopen_later(self.clock.now())

    def _reopen_later(self, now: Now) -> None:
        self._open_pause_ms = min(PAUSE_MS_MAX, max(PAUSE_MS_MIN, 2 * self._open_pause_ms))
        self._open_at_ms = now.mono_ms + self._open_pause_ms

    def _ask_for_more(self) -> None:
        free = WINDOW - len(self._in_hand)
        if self._receiving is not None and self._credit < WINDOW // 2 <= free:
            self._credit = free
            self._receiving.set_credit(free, False)

    # -- sending ---------------------------------------------------------------------------------

    def _pump(self, lane: Lane) -> None:
        """Send what can be sent.  Answers may come at once, so this goes round, not deeper."""
        if lane.is_pumping:
            return
        lane.is_pumping = True
        try:
            while self._send_next(lane):
                pass
        finally:
            lane.is_pumping = False

    def _send_next(self, lane: Lane) -> bool:
        """Begin the next send; is there reason to look again at once?"""
        now = self.clock.now()
        if lane.is_asking or now.mono_ms < lane.retry_at_ms:
            return False
        if not lane.sent:
            lane.sent = self._chunk(lane)
            if not lane.sent:
                return False
        try:
            part = self.destination(lane)
        except ServiceError as error:
            self._answered(lane, error, now)
            return True
        link = self.links[part.store]
        if link.health == DOWN or part.entity_id == 0:  # nobody has been asked for its number yet
            lane.pause(now)
            return False
        news = [self.rewritten(carried, now) for carried in lane.sent]
        send = Send(part.entity_id, news, (self, lane))
        send.carrier = self.name
        send.carrier_numbers = [carried.number for carried in lane.sent]
        send.carrier_completed = list(lane.completed)
        lane.is_asking = True
        link.submit([send])
        return not lane.is_asking

    def _chunk(self, lane: Lane) -> list[CarriedMessage]:
        chunk: list[CarriedMessage] = []
        size = 0
        waiting = lane.waiting
        count_max = 1 if lane.singly else CHUNK
        while waiting and len(chunk) < count_max:
            carried = waiting[0]
            size += len(carried.body)
            if chunk and size > CHUNK_BYTES:
                break
            chunk.append(waiting.popleft())
        return chunk

    def replied(self, reply: Reply, rest: object) -> None:
        """A store has answered."""
        command = reply.command
        if isinstance(command, Send):
            assert isinstance(rest, Lane)
            rest.is_asking = False
            if reply.error is None:
                told = set(command.carrier_completed)
                rest.completed = [number for number in rest.completed if number not in told]
            self._answered(rest, reply.error, self.clock.now())
            self._pump(rest)
        elif isinstance(command, Settle):
            assert isinstance(rest, Settling)
            self._settled(rest, reply)
            self._ask_for_more()
        elif reply.error is None and isinstance(reply.result, list) and reply.result:
            self._renewed(reply.result[0])

    def _answered(self, lane: Lane, error: ServiceError | None, now: Now) -> None:
        """What became of the messages that were sent."""
        if isinstance(error, WAIT):
            lane.pause(now)
            return
        batch, lane.sent = lane.sent, []
        lane.hasten()
        if error is not None and len(batch) > 1:
            lane.waiting.extendleft(reversed(batch))
            lane.singly = len(batch)
            return
        lane.singly = max(0, lane.singly - 1)
        if error is None:
            self._settle(batch, COMPLETE, None, lane)
        else:
            self._refuse(batch[0], error)

    # -- settling --------------------------------------------------------------------------------

    def _refuse(self, carried: CarriedMessage, error: ServiceError) -> None:
        outcome, overlay = self.refuse(carried, error)
        self._settle([carried], outcome, overlay, None)

    def _settle(
        self, batch: list[CarriedMessage], outcome: int, overlay: Overlay | None, lane: Lane | None
    ) -> None:
        locks: list[Lock] = [(carried.number, carried.grant) for carried in batch]
        settling = Settling(batch, locks, outcome, overlay, lane)
        source = self.source
        settle = Settle(source.entity_id, self.subqueue, locks, outcome, overlay, (self, settling))
        self.links[source.store].submit([settle])

    def _settled(self, settling: "Settling", reply: Reply) -> None:
        """Completed, or not: then it is delivered again, sent again, and dropped there."""
        errors: list[ServiceError | None] = [reply.error] * len(settling.batch)
        if reply.error is None and isinstance(reply.result, list):
            errors = reply.result
        again: list[CarriedMessage] = []
        done: list[CarriedMessage] = []
        for carried, lock, error in zip(settling.batch, settling.locks, errors, strict=True):
            if error is not None and carried.grant != lock[1]:
                again.append(carried)  # it has been delivered anew meanwhile
                continue
            if error is None:
                done.append(carried)
                if settling.lane is not None:
                    settling.lane.completed.append(carried.number)
            if self._in_hand.pop(carried.number, None) is not None:
                self._bytes_in_hand -= len(carried.body)
        if again:
            self._settle(again, settling.outcome, settling.overlay, settling.lane)
        if done:
            self.progressed(done)
        if self._receiving is not None:
            self._receiving.resume()

    # -- time ------------------------------------------------------------------------------------

    def health_changed(self, store: int) -> None:
        """A store may be back: whatever waits for it need not wait any longer."""
        if store == self.source.store and self._open_at_ms != NEVER_MS:
            self._open_pause_ms = 0
            self.open()
        for lane in list(self.lanes.values()):
            lane.hasten()
            self._pump(lane)

    def tick(self, now: Now) -> None:
        """Try again what is due, and keep the locks of what waits."""
        if self._open_at_ms <= now.mono_ms:
            self.open()
        if self._renew_at_ms <= now.mono_ms:
            self._renew_at_ms = NEVER_MS
            self._renew()
        for lane in list(self.lanes.values()):
            if lane.retry_at_ms and lane.retry_at_ms <= now.mono_ms:
                self._pump(lane)

    def _renew(self) -> None:
        """All or none of these: if one is lost, it comes anew, and the others with it."""
        if not self._in_hand:
            return
        locks: list[Lock] = [(carried.number, carried.grant) for carried in self._in_hand.values()]
        renew = RenewLocks(self.source.entity_id, self.subqueue, locks, (self, None))
        self.links[self.source.store].submit([renew])

    def _renewed(self, until_utc_ms: int) -> None:
        """The locks of all that is in hand run anew."""
        now = self.clock.now()
        half_ms = max(PAUSE_MS_MIN, (until_utc_ms - now.utc_ms) // 2)
        self._renew_at_ms = min(self._renew_at_ms, now.mono_ms + half_ms)


class Settling(NamedTuple):
    """A settlement under way."""

    batch: list[CarriedMessage]
    locks: list[Lock]
    outcome: int
    overlay: Overlay | None
    lane: Lane | None
