"""The journal: sends for a store that is not well are kept in another until it is.  (A-3)

When a store is SLOW or DOWN, what must go there and nowhere else (keyed sends, sends to a plain
entity) is written into a hidden queue of another store, with its address, and acknowledged when it
is durable there.  From then on every send for that store takes this way, until the journal is empty
again: nothing overtakes within a key.

    state        sends for the store      until
    NORMAL       go straight              it is SLOW or DOWN                     ─▶ JOURNALLING
    JOURNALLING  into the journal         it is UP                               ─▶ DRAINING
    DRAINING     into the journal         little is left                         ─▶ CLOSING
                                          it is SLOW or DOWN                     ─▶ JOURNALLING
    CLOSING      wait here for a moment   nothing is left: then they go straight ─▶ NORMAL
                                          it takes too long: into the journal    ─▶ DRAINING
                                          it is SLOW or DOWN: into the journal   ─▶ JOURNALLING

- The queue is called `$journal/<store>/<when and where it was made>`.  No client can name it, since
  no name begins with `$`.  It is made when it is needed and removed when it is empty.  When its own
  store is not well another one is made elsewhere; they are emptied in the order they were made.
- A `Drain` carries entries over in their order, exactly once (carrier.py).  They appear in their
  entity then, and their life counts from when they were accepted.  They have been acknowledged, so
  neither a full nor a disabled entity refuses them; only for one that is gone they are dropped,
  also if there is another one of that name now.
- It takes no more when the oldest entry has waited for 15 minutes, or 1 GB waits: Unavailable.
- Where all stores are slow a journal would help nobody: sends go straight, and take their time.
- A ping gets through when a send would be taken, and leaves no entry.
- Scheduled sends are not journalled, because their numbers are asked for, and neither are those of
  a transaction or of a relay.  They go straight, and fail if they must.
- At a start `found` tells of journals that were left; they are emptied before anything goes
  straight.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from twinbus.clock import Clock, Now
from twinbus.entities.carried import JOURNAL
from twinbus.entities.commands import (
    CreateEntities,
    DeleteEntities,
    GetRuntime,
    Listed,
    NewEntity,
    Reply,
    Runtime,
    Send,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import partition_name
from twinbus.entities.sessioned_queue import check_session_id
from twinbus.errors import InvalidOperation, QuotaExceeded, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Directory, Entity, Part
from twinbus.gateway.transfer.journal_drain import Drain
from twinbus.gateway.transfer.journal_entries import encode_entry
from twinbus.limits import DELIVERY_COUNT_MAX_MAX
from twinbus.links.store_link import DOWN, UP, StoreLink

NORMAL: Final = 0
JOURNALLING: Final = 1
DRAINING: Final = 2
CLOSING: Final = 3

AGE_MS_MAX: Final = 900_000
SIZE_MEGABYTES_MAX: Final = 1_024
LITTLE: Final = 256  # entries: so many are carried over in a moment
CLOSING_MS_MAX: Final = 2_000
HELD_COUNT_MAX: Final = 10_000  # sends that wait while a journal is made or closed
UNKNOWN: Final = 1 << 60  # how many entries there are, before anybody has counted


class JournalQueue:
    """A queue that is, or was, the journal."""

    __slots__ = ("carrier", "created_ms", "part")

    def __init__(self, part: Part, name: str, created_ms: int) -> None:
        self.part = part
        self.created_ms = created_ms
        # The name says in which store, and there nobody else has ever had this number.
        self.carrier = f"{name}@{part.entity_id}"


class Journal:
    """The journal of one store that is not, or was not, well."""

    def __init__(self, journals: "Journals", store: int) -> None:
        self._journals = journals
        self._links = journals.links
        self._clock = journals.clock
        self._store = store
        self.state = NORMAL
        self.places: list[JournalQueue] = []  # the first is emptied, the last is written
        self._drain: Drain | None = None  # of the first
        self._held: deque[tuple[Part, Entity, Send]] = deque()
        self._writing = 0  # sends on their way into the journal
        self._open_count = 0  # entries that wait, as far as we know
        self._oldest_ms = 0  # UTC; no entry that waits was accepted before; 0 = none waits
        self._is_making = False
        self._is_counting = False
        self._is_final = False  # nothing can be added before the answer
        self._closing_since_ms = 0  # monotonic
        self._close_after_ms = 0  # monotonic; not before

    # -- sends -----------------------------------------------------------------------------------

    def divert(self, part: Part, entity: Entity, command: Send) -> bool:
        """Take over a send for this store; False: it goes straight."""
        if self.state == NORMAL or not _can_wait(command, self._clock.now()):
            return False
        if self._is_pointless():
            return False
        if self.state == CLOSING or self._held:
            self._hold(part, entity, command)
        else:
            self._write(part, entity, command)
        return True

    def _is_pointless(self) -> bool:
        """Does the store still take sends, and no other does so any faster?

        So it is with several stores on one disk.  Only while nothing waits that could be overtaken.
        """
        is_used = self.places or self._is_making or self._held
        is_down = self._links[self._store].health == DOWN
        return not is_used and not is_down and self._journals.choose(self._store) < 0

    def _hold(self, part: Part, entity: Entity, command: Send) -> None:
        self._held.append((part, entity, command))
        if len(self._held) > HELD_COUNT_MAX:
            if self.state == CLOSING:
                self._go_on_draining()
            else:
                self._refuse_held(Unavailable("The journal is not ready; send again later."))

    def _write(self, part: Part, entity: Entity, command: Send) -> None:
        now = self._clock.now()
        if not self._oldest_ms or not (self._open_count or self._writing):
            self._oldest_ms = now.utc_ms
        if now.utc_ms - self._oldest_ms > AGE_MS_MAX:
            minutes = AGE_MS_MAX // 60_000
            self._refuse(command, f"its journal has waited for more than {minutes} minutes")
            return
        if not self._has_place():
            self._held.append((part, entity, command))
            self._make()
            return
        place = self.places[-1].part
        name = partition_name(entity.name, part.partition) if entity.is_partitioned else entity.name
        created_ms = entity.description.created_utc_ms
        entries = [
            NewMessage(encode_entry(name, created_ms, now.utc_ms, each))
            for each in command.messages
            if not each.is_ping
        ]
        if not entries:  # a send would be taken here, and more a ping does not ask
            self._journals.answer(Reply(command, [0] * len(command.messages), None))
            return
        self._writing += 1
        self._is_final = False
        self._links[place.store].submit([Send(place.entity_id, entries, (self, command))])

    def _has_place(self) -> bool:
        """Can the last of the queues be written?  If no store is well, one that is slow will do."""
        if not self.places:
            return False
        health = self._links[self.places[-1].part.store].health
        return health == UP or (health != DOWN and self._journals.choose(self._store) < 0)

    def _flush(self) -> None:
        """Write what was held, in order."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self._write(*held.popleft())
        self._held.extend(held)

    def _refuse(self, command: Send, reason: str) -> None:
        text = f"The store that this message belongs to is not well, and {reason}; try again later."
        self._journals.answer(Reply(command, None, Unavailable(text)))

    def _refuse_held(self, error: ServiceError) -> None:
        held, self._held = self._held, deque()
        for _, _, command in held:
            self._journals.answer(Reply(command, None, error))

    # -- the queue -------------------------------------------------------------------------------

    def _make(self) -> None:
        """Make the queue in a store that is well."""
        if self._is_making:
            return
        store = self._journals.choose(self._store)
        if store < 0:
            self._refuse_held(Unavailable("No store is well enough to keep this; try again later."))
            return
        self._is_making = True
        now = self._clock.now()
        described = QueueDescription(
            max_size_megabytes=SIZE_MEGABYTES_MAX,
            max_delivery_count=DELIVERY_COUNT_MAX_MAX,
            created_utc_ms=now.utc_ms,
        )
        name = f"{JOURNAL}{self._store}/{now.utc_ms}.{store}"
        new = NewEntity("queue", name, described)
        self._links[store].submit([CreateEntities([new], (self, store))])

    def found(self, place: JournalQueue) -> None:
        """A journal of before: it has to be emptied before anything goes straight."""
        if any(known.carrier == place.carrier for known in self.places):
            return  # its store has been opened again
        self.places.append(place)
        self.places.sort(key=_created_ms)
        self._open_count = UNKNOWN
        self.state = DRAINING if self._links[self._store].health == UP else JOURNALLING
        if self._drain is not None and self._drain.source is not self.places[0].part:
            self._drain.close()  # an older one has come to light, and goes first
        self._empty()

    def _empty(self) -> None:
        """Have the first journal emptied, if the store is well and nobody is at it yet."""
        if self._drain is not None and self._drain.is_done:
            self._drain = None
        if self._drain is None and self.places and self.state != JOURNALLING:
            place = self.places[0]
            journals = self._journals
            self._drain = Drain(
                self._links,
                self._clock,
                journals.directory,
                place.part,
                place.carrier,
                self._progressed,
            )
            self._drain.open()
            self._count()

    def _progressed(self, count: int, accepted_ms: int) -> None:
        """So many entries are where they belong, and none older than this waits."""
        self._open_count = max(0, self._open_count - count)
        self._oldest_ms = max(self._oldest_ms, accepted_ms)
        self.review()

    # -- from state to state ---------------------------------------------------------------------

    def health_changed(self, health: int) -> None:
        """The store is UP, SLOW or DOWN."""
        if health != UP:
            if self.state != JOURNALLING:
                self.state = JOURNALLING
                self._flush()
        elif self.state == JOURNALLING:
            self.state = DRAINING
            self._empty()
            if not self.places and not self._is_making:
                self._return_to_normal()  # nothing was written
        if self._drain is not None:
            self._drain.health_changed(self._store)

    def review(self) -> None:
        """Has the journal become little enough to be closed, or empty?"""
        if self.state == DRAINING:
            self._empty()
            self._close_if_little()
        elif self.state == CLOSING and self._has_closed_for_long():
            self._go_on_draining()
        if self.state != JOURNALLING and self._drain is not None and self._drain.is_idle:
            self._count()

    def _has_closed_for_long(self) -> bool:
        return self._clock.now().mono_ms - self._closing_since_ms > CLOSING_MS_MAX

    def _close_if_little(self) -> None:
        now = self._clock.now()
        is_little = self._open_count <= LITTLE and len(self.places) == 1 and not self._is_making
        if is_little and now.mono_ms >= self._close_after_ms:
            self.state = CLOSING
            self._closing_since_ms = now.mono_ms

    def _go_on_draining(self) -> None:
        """It cannot be closed yet: whoever waits goes into the journal after all."""
        self.state = DRAINING
        self._close_after_ms = self._clock.now().mono_ms + CLOSING_MS_MAX
        self._flush()

    def _count(self) -> None:
        """Ask how many entries the first journal holds."""
        if not self._is_counting:
            self._is_counting = True
            self._is_final = self.state == CLOSING and not self._writing
            part = self.places[0].part
            self._links[part.store].submit([GetRuntime([part.entity_id], (self, self.places[0]))])

    def _counted(self, place: JournalQueue, runtime: Runtime | None) -> None:
        if not self.places or self.places[0] is not place:
            return
        if self._drain is None or self._drain.source is not place.part:
            return
        self._open_count = 0 if runtime is None else runtime.active
        if self._open_count == 0 and self._drain.is_idle:
            if len(self.places) > 1:
                self._let_go(place, runtime)
                self._open_count = UNKNOWN
                self._empty()
            elif self.state == CLOSING and self._is_final:
                self._let_go(place, runtime)
                self._return_to_normal()
        if self.state == DRAINING:
            self._close_if_little()

    def _let_go(self, place: JournalQueue, runtime: Runtime | None) -> None:
        """A journal is empty: its queue goes, unless it keeps what could not be delivered."""
        assert self._drain is not None
        self._drain.close()
        self._drain = None
        self.places.remove(place)
        if runtime is not None and runtime.dead_letter == 0:
            part = place.part
            self._links[part.store].submit([DeleteEntities([part.entity_id])])

    def _return_to_normal(self) -> None:
        """In one step: from now on everything goes straight, first of all what waited."""
        self.state = NORMAL
        self._oldest_ms = 0
        self._open_count = 0
        held, self._held = self._held, deque()
        for part, _, command in held:
            command.entity_id = part.entity_id
            self._links[part.store].submit([command])

    # -- replies and time ------------------------------------------------------------------------

    def replied(self, reply: Reply, rest: object) -> None:
        """The store that keeps the journal has answered."""
        command = reply.command
        if isinstance(command, Send):
            assert isinstance(rest, Send)
            self._written(rest, len(command.messages), reply.error)
        elif isinstance(command, CreateEntities):
            self._made(reply, rest)
        else:
            assert isinstance(rest, JournalQueue)
            self._is_counting = False
            if reply.error is None and isinstance(reply.result, list):
                self._counted(rest, reply.result[0])

    def _written(self, command: Send, count: int, error: ServiceError | None) -> None:
        self._writing -= 1
        if error is None:
            self._open_count += count
            numbers = [0] * len(command.messages)  # they get theirs where they are going
            self._journals.answer(Reply(command, numbers, None))
        elif isinstance(error, QuotaExceeded):
            self._refuse(command, "its journal is full")
        else:
            self._journals.answer(Reply(command, None, error))
        self.review()

    def _made(self, reply: Reply, rest: object) -> None:
        self._is_making = False
        command = reply.command
        assert isinstance(command, CreateEntities)
        assert isinstance(rest, int)
        if reply.error is None and isinstance(reply.result, list):
            new = command.entities[0]
            created_ms = new.description.created_utc_ms
            self.places.append(JournalQueue(Part(rest, reply.result[0], 0), new.name, created_ms))
            self._flush()
            self._empty()
        else:
            self._refuse_held(Unavailable("The journal could not be made; send again later."))
            if self.state == DRAINING and not self.places:
                self._return_to_normal()

    def tick(self, now: Now) -> None:
        if self._drain is not None:
            self._drain.tick(now)
        self.review()


class Journals:
    """The journals of all stores of a gateway."""

    def __init__(
        self,
        links: Sequence[StoreLink],
        directory: Directory,
        clock: Clock,
        answer: Callable[[Reply], None],
    ) -> None:
        self.links = links
        self.directory = directory
        self.clock = clock
        self.answer = answer  # gives a reply to whoever asked
        self._journals = [Journal(self, store) for store in range(len(links))]
        self._healths = [UP] * len(links)

    def found(self, store: int, listed: list[Listed]) -> None:
        """At a start: what a store lists.  Whoever is not hidden is none of our business."""
        for each in listed:
            if not each.name.startswith(JOURNAL):
                continue
            number = each.name.removeprefix(JOURNAL).partition("/")[0]
            if number.isdecimal() and int(number) < len(self._journals):
                sick = int(number)
                self.health_changed(sick, self.links[sick].health)
                part = Part(store, each.entity_id, 0)
                place = JournalQueue(part, each.name, each.description.created_utc_ms)
                self._journals[sick].found(place)

    def takes(self, store: int) -> bool:
        """Do sends for this store have to be diverted?"""
        health = self.links[store].health
        if health != self._healths[store]:
            self.health_changed(store, health)
        return self._journals[store].state != NORMAL

    def divert(self, entity: Entity, part: Part, command: Send) -> bool:
        """Take over a send for a part whose store is not well; False: it goes straight."""
        if len(self.links) == 1 or entity.kind == "subscription" or not self.takes(part.store):
            return False
        try:
            _check(entity, command)
        except ServiceError as error:
            self.answer(Reply(command, None, error))
            return True
        return self._journals[part.store].divert(part, entity, command)

    def choose(self, sick: int) -> int:
        """The store for a new journal: well, and with the fewest of them; −1 if there is none."""
        counts = [0] * len(self.links)
        for journal in self._journals:
            for place in journal.places:
                counts[place.part.store] += 1
        best = -1
        for distance in range(1, len(self.links)):
            store = (sick + distance) % len(self.links)
            is_well = self.links[store].health == UP
            if is_well and (best < 0 or counts[store] < counts[best]):
                best = store
        return best

    def health_changed(self, store: int, health: int) -> None:
        """A store is up, slow or down now."""
        if health != self._healths[store]:
            self._healths[store] = health
            if len(self.links) > 1:
                self._journals[store].health_changed(health)

    def state(self, store: int) -> int:
        """NORMAL, JOURNALLING, DRAINING or CLOSING."""
        return self._journals[store].state

    def tick(self, now: Now) -> None:
        """Time has passed; to be called several times a second."""
        for store, link in enumerate(self.links):
            self.health_changed(store, link.health)
        for journal in self._journals:
            if journal.state != NORMAL:
                journal.tick(now)


def _can_wait(command: Send, now: Now) -> bool:
    """May the send be journalled?"""
    if command.carrier:
        return False
    return all(
        message.scheduled_ms <= now.utc_ms and message.overlay is None
        for message in command.messages
    )


def _check(entity: Entity, command: Send) -> None:
    """Refuse what the entity itself would: once it is acknowledged nobody can be told."""
    entity.check_sendable()
    if entity.description.requires_session and entity.kind == "queue":
        for message in command.messages:
            if message.session_id is None:
                if message.is_ping:
                    continue
                raise InvalidOperation(
                    "The queue requires sessions: every message must have a session id."
                )
            check_session_id(message.session_id)


def _created_ms(place: JournalQueue) -> int:
    return place.created_ms
