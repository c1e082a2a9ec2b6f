"""Receiving from all partitions of an entity as if it were one (E-8).

    partition 0 ─ _PartSink ─┐             ┌─▶ straight to the client's link, while it has credit
    partition 1 ─ _PartSink ─┼─ receiver ──┤
    …                        ┘             └─▶ the cache: locked, for the credit that comes next

The messages may be in any partition, so each one is granted a sixteenth of the client's credit and
one more: together a little more than the client wants.  A grant that is half used up is renewed, so
that a partition with all the messages can deliver them all; the others get their turn in
between.

Cached messages are locked, and nobody else gets them.  So they do not wait long: when the client
has asked for nothing for a while, the cache and the grants are given back (`tick`).  So are
messages whose lock is half over, because too little time is left to process them.  They are
given back unseen (RELEASE), which does not count as a delivery.

Receive-and-delete locks as well.  Only messages that the client has credit for are removed, and
they are handed out when the removal is durable.

Must never hand out more than the client's credit, nor messages of one partition out of order.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from twinbus.entities.commands import COMPLETE, PEEK_LOCK, RELEASE, Lock, Reply, Settle
from twinbus.entities.message import Message
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ServerBusy, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.partitions.fan_out import Routes
from twinbus.gateway.partitions.receiver_cache import Cached, ReceiverCache
from twinbus.links.sink import LARGE_BODY_BYTES, Sink
from twinbus.links.store_link import DOWN, ReceiverDescription, Receiving

GRANT_MAX: Final = 128  # messages that one partition may have on its way; it is renewed in time
GRANT_LARGE_MAX: Final = 2  # where bodies are large, and at first, when we do not know
IDLE_MS: Final = 2_000  # a client that has asked for nothing for so long is not receiving


class _PartSink:
    """What one partition delivers to (Sink)."""

    __slots__ = ("_owner", "granted", "is_draining", "is_dry", "part", "receiving", "rests")

    def __init__(self, owner: "PartitionedReceiver", part: Part) -> None:
        self._owner = owner
        self.part = part
        self.receiving: Receiving | None = None  # None: it could not be opened
        self.granted = 0  # messages that may still come
        self.rests = False  # it has had its turn
        self.is_draining = False
        self.is_dry = False  # it has been drained, and had less than it might have given

    def grant(self, count: int, drain: bool) -> None:
        if self.receiving is not None:
            self.granted = count
            self.is_draining = drain
            self.is_dry = False
            self.receiving.set_credit(count, drain)

    def close(self) -> None:
        """Nothing more is to come; what is on its way is given back by the link."""
        self.granted = 0
        self.is_draining = False
        if self.receiving is not None:
            self.receiving.close()
            self.receiving = None

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        self.granted = max(0, self.granted - len(messages))
        self._owner.delivered(self, messages, bodies, locked_until_utc_ms)

    def full(self) -> bool:
        if self.rests and self.receiving is not None:
            self.rests = False
            self.receiving.resume()  # in the broker's next turn
            return True
        return self._owner.is_full()

    def drained(self) -> None:
        if self.is_draining:  # else the client has changed its mind meanwhile
            self.is_draining = False
            self.is_dry = self.granted > 0
            self.granted = 0
            self._owner.part_drained(self)

    def removed(self) -> None:
        self._owner.part_removed()

    def lost(self, error: ServiceError) -> None:
        self.close()  # whoever may be asked again is asked anew
        self._owner.part_lost(error)


class PartitionedReceiver:
    """A client's receiver at all partitions of an entity (Receiving)."""

    __slots__ = (
        "_cache",
        "_completing",
        "_credit",
        "_drain",
        "_entity",
        "_first",
        "_gateway",
        "_has_large_bodies",
        "_idle_from_ms",
        "_is_closed",
        "_is_over",
        "_parts",
        "_removed",
        "_removes",
        "_sink",
        "_subqueue",
    )

    def __init__(
        self, gateway: Routes, entity: Entity, description: ReceiverDescription, sink: Sink
    ) -> None:
        self._gateway = gateway
        self._entity = entity
        self._subqueue = description.subqueue
        self._sink = sink
        self._removes = description.receive_mode != PEEK_LOCK
        self._credit = 0  # messages that the client still wants
        self._completing = 0  # so many are being removed from their partitions for it
        self._removed: deque[tuple[Message, bytes]] = deque()  # and it wants them no more, just now
        self._drain = False
        self._cache = ReceiverCache()
        self._has_large_bodies = True
        self._idle_from_ms = 0  # monotonic: since when the client has no credit
        self._is_over = False  # the client knows that there is nothing more to come
        self._is_closed = False
        self._first = 0  # the partition that is granted first the next time
        self._parts = [_PartSink(self, part) for part in entity.parts]
        gateway.receivers.add(self)
        try:
            refusals = [self._open(part) for part in self._parts]
        except ServiceError:
            self.close()
            raise
        if refusals[0] is not None and None not in refusals:
            raise refusals[0]  # nobody is there: the client is told, and does not wait in vain

    def _open(self, part: _PartSink) -> Unavailable | None:
        """Receive from a partition; a refusal that may be over soon is given back."""
        link = self._gateway.links[part.part.store]
        try:
            part.receiving = link.open_receiver(
                ReceiverDescription(part.part.entity_id, self._subqueue, PEEK_LOCK), part
            )
        except Unavailable as error:
            part.receiving = None  # it is tried again with the next credit
            return error
        return None

    def _reopen(self, part: _PartSink) -> bool:
        """Ask a partition again; False: it refuses for good, and the client has been told.

        Nothing is raised: neither time nor credit can do anything about it.
        """
        try:
            self._open(part)
        except ServerBusy:
            return True  # as with one that is down
        except ServiceError as error:
            self.part_lost(error)
            return False
        return True

    # -- what the client's link calls (Receiving) --------------------------------------------------

    @property
    def session(self) -> SessionLock | None:
        return None

    def set_credit(self, credit: int, drain: bool) -> None:
        if self._is_closed:
            return
        self._credit = credit
        self._drain = drain
        if drain:
            for part in self._parts:
                part.is_draining = False
                part.is_dry = False
            self._gateway.ticking.add(self)  # a partition may go down in the middle
        self._serve()
        self._note_idle()
        self._grant_all()
        self._finish_drain()

    def resume(self) -> None:
        if self._is_closed:
            return
        self._serve()
        self._grant_all()
        self._resume_parts()
        self._finish_drain()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for part in self._parts:
            part.close()
        self._gateway.ticking.discard(self)
        self._gateway.receivers.discard(self)
        self._release(self._cache.take_all())

    def lose(self, is_lost: Callable[[Entity, int], bool], error: ServiceError) -> None:
        for part in self._parts:
            if part.receiving is not None and is_lost(self._entity, part.part.partition):
                part.lost(error)

    def tick(self) -> None:
        """Time has passed: give back what is not asked for, ask partitions that have come back."""
        now = self._gateway.clock.now()
        self._release(self._cache.take_stale(now.mono_ms))
        is_idle = self._credit <= 0 and now.mono_ms - self._idle_from_ms >= IDLE_MS
        if is_idle and not self._completing:
            self._stand_by()
        else:
            self._grant_all()
        self._finish_drain()
        if (
            self._cache.is_empty()
            and not self._drain
            and (is_idle or not self._misses_partitions())
        ):
            self._gateway.ticking.discard(self)

    # -- what the partitions call ------------------------------------------------------------------

    def is_full(self) -> bool:
        return self._cache.is_full() or self._sink.full()

    def delivered(
        self, part: _PartSink, messages: list[Message], bodies: list[bytes], until_ms: int
    ) -> None:
        """Messages from one partition: what the client has credit for goes on, the rest waits."""
        partition = part.part.partition
        if self._is_closed:
            self._settle(partition, [_lock_of(message) for message in messages], RELEASE)
            return
        self._has_large_bodies = messages[-1].length > LARGE_BODY_BYTES
        self._first = (partition + 1) % PARTITION_COUNT
        is_next = self._cache.is_empty() and len(messages) <= self._credit
        is_wanted = is_next and not self._sink.full()
        if is_wanted and not self._removes:
            self._hand_out(partition, messages, bodies, until_ms)
        else:
            self._keep(partition, messages, bodies, until_ms)
            self._serve()
        self._renew(part)
        self._finish_drain()

    def part_drained(self, part: _PartSink) -> None:
        if not part.is_dry and self._credit > self._completing:
            part.grant(self._share(), self._drain)  # it gave all it might: there may be more
        self._finish_drain()

    def part_removed(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._sink.removed()

    def part_lost(self, error: ServiceError) -> None:
        if isinstance(error, Unavailable):  # it comes back by itself: the others go on
            self._gateway.ticking.add(self)
            self._finish_drain()
        elif not self._is_over:
            self._is_over = True
            self._sink.lost(error)

    # -- grants ----------------------------------------------------------------------------------

    def _share(self) -> int:
        most = GRANT_LARGE_MAX if self._has_large_bodies else GRANT_MAX
        return min(most, 1 + (self._credit - self._completing) // PARTITION_COUNT)

    def _grant_all(self) -> None:
        """Ask every partition for its share, if the client wants anything."""
        if self._credit <= self._completing:
            return
        share = self._share()
        first = self._first  # who has just been served comes last
        for step in range(PARTITION_COUNT):
            part = self._parts[(first + step) % PARTITION_COUNT]
            if part.receiving is None and not self._reopen(part):
                return
            if self._drain:
                if not part.is_draining and not part.is_dry:
                    part.grant(share, True)
            elif 2 * part.granted <= share:
                part.grant(share, False)

    def _renew(self, part: _PartSink) -> None:
        """A partition has delivered: it may go on, as long as the client wants anything."""
        if self._is_closed or self._drain or self._credit <= self._completing:
            return
        share = self._share()
        if 2 * part.granted <= share:
            part.grant(share, False)
            part.rests = True

    def _stand_by(self) -> None:
        """The client does not receive: give back everything, and hear only of the entity's end.

        A receiver that is closed also gives back what is on its way to us; so it is opened anew.
        """
        self._release(self._cache.take_all())
        for part in self._parts:
            if part.granted or part.receiving is None:
                part.close()
                if not self._reopen(part):
                    return

    def _misses_partitions(self) -> bool:
        """Is there more to come from a tick: idleness, or a partition that cannot be asked?"""
        return self._credit <= self._completing or any(part.granted == 0 for part in self._parts)

    def _resume_parts(self) -> None:
        for part in self._parts:
            if part.receiving is not None:
                part.receiving.resume()

    def _finish_drain(self) -> None:
        """Tell the client, when no partition that can be asked has anything more."""
        if not self._drain or self._completing or self._is_closed or self._sink.full():
            return
        if self._credit > 0:
            links = self._gateway.links
            for part in self._parts:
                is_there = part.receiving is not None and links[part.part.store].health != DOWN
                if is_there and not part.is_dry:
                    return
        self._drain = False
        self._credit = 0
        self._note_idle()
        self._sink.drained()

    # -- handing out -------------------------------------------------------------------------------

    def _hand_out(
        self, partition: int, messages: list[Message], bodies: list[bytes], until_ms: int
    ) -> None:
        if self._removes:
            self._completing += len(messages)
            taken = _Taken(self, messages, bodies)
            self._settle(partition, [_lock_of(message) for message in messages], COMPLETE, taken)
        else:
            self._give(messages, bodies, until_ms)

    def _give(self, messages: list[Message], bodies: list[bytes], until_ms: int) -> None:
        self._credit -= len(messages)
        self._note_idle()
        self._sink.deliver(messages, bodies, until_ms)

    def _note_idle(self) -> None:
        if self._credit <= 0:
            self._idle_from_ms = self._gateway.clock.now().mono_ms
            self._gateway.ticking.add(self)

    def removed(self, messages: list[Message], bodies: list[bytes], count: int) -> None:
        """Of `count` messages that were to be removed, these are; hand them out."""
        self._completing -= count
        self._removed.extend(zip(messages, bodies, strict=True))
        if self._is_closed:
            self._give_removed()  # they can be given back to nobody: whoever closed may want them
            return
        self._serve()
        self._grant_all()
        self._finish_drain()

    def _give_removed(self) -> None:
        """As many as the client has credit for: it may have taken some of it back meanwhile.

        Whether its connection is full does not matter: these are nowhere else any more.
        """
        count = min(len(self._removed), self._credit)
        if count > 0:
            given = [self._removed.popleft() for _ in range(count)]
            self._give([message for message, _ in given], [body for _, body in given], 0)

    # -- the cache ---------------------------------------------------------------------------------

    def _keep(
        self, partition: int, messages: list[Message], bodies: list[bytes], until_ms: int
    ) -> None:
        # Half of the lock is to be left for whoever gets the message; it may have come late.
        now = self._gateway.clock.now()
        half_ms = self._entity.description.lock_duration_ms // 2
        keep_ms = max(0, min(half_ms, until_ms - now.utc_ms - half_ms))
        self._cache.keep(partition, messages, bodies, until_ms, now.mono_ms + keep_ms)
        self._gateway.ticking.add(self)

    def _serve(self) -> None:
        """Hand out from the cache what the client has credit for."""
        if self._removed:
            self._give_removed()
        cache = self._cache
        if cache.is_empty():
            return
        mono_ms = self._gateway.clock.now().mono_ms
        was_full = cache.is_full()
        stale: list[Cached] = []
        while not cache.is_empty() and self._credit > self._completing and not self._sink.full():
            stale += cache.take_stale(mono_ms)
            run = cache.take_run(self._credit - self._completing)
            if run:
                messages = [cached.message for cached in run]
                bodies = [cached.body for cached in run]
                until_ms = run[0].locked_until_utc_ms
                self._hand_out(run[0].partition, messages, bodies, until_ms)
        self._release(stale)
        if was_full and not cache.is_full():
            self._resume_parts()

    def _release(self, unwanted: list[Cached]) -> None:
        by_partition: dict[int, list[Lock]] = {}
        for cached in unwanted:
            by_partition.setdefault(cached.partition, []).append(_lock_of(cached.message))
        for partition, locks in by_partition.items():
            self._settle(partition, locks, RELEASE)

    def _settle(
        self, partition: int, locks: list[Lock], outcome: int, taken: "_Taken | None" = None
    ) -> None:
        part = self._entity.parts[partition]
        context = None if taken is None else (taken, None)
        settle = Settle(part.entity_id, self._subqueue, locks, outcome, None, context)
        self._gateway.links[part.store].submit([settle])


class _Taken:
    """Messages on their way out of their partition, for receive-and-delete."""

    __slots__ = ("_bodies", "_messages", "_owner")

    def __init__(
        self, owner: PartitionedReceiver, messages: list[Message], bodies: list[bytes]
    ) -> None:
        self._owner = owner
        self._messages = messages
        self._bodies = bodies

    def replied(self, reply: Reply, rest: object) -> None:
        """They are gone from the partition, but for those whose lock was lost.

        If the store went down meanwhile nobody knows.  What is still there comes again; what was
        removed is handed out never, or a message might be handed out twice.
        """
        messages, bodies = self._messages, self._bodies
        count = len(messages)
        if reply.error is not None:
            messages, bodies = [], []
        elif isinstance(reply.result, list):
            kept = [at for at, error in enumerate(reply.result) if error is None]
            messages = [self._messages[at] for at in kept]
            bodies = [self._bodies[at] for at in kept]
        for message in messages:
            message.grant = 0
        self._owner.removed(messages, bodies, count)


def _lock_of(message: Message) -> Lock:
    return (message.sequence_number, message.grant)
