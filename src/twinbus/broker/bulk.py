"""Requests about many messages: browse, list, delete, settle, undefer, resubmit, by a selection.

A queue may hold millions of messages, so such a request is a walk: each turn of the run looks at
one slice of one walk, and whoever sends or receives gets his turn in between.

    Walk.step ─▶ the next messages, oldest first ─▶ which does the selection mean? ─▶ act on them
              ◀─ not over: again in a later turn            over: the reply, when all is durable

A walk ends at the last message that was there when it began, so it ends.  What a slice does is
stated in facts as any other change is; a walk cut short by a crash has done what was durable of it.

Never touches a message that somebody has locked, except to look at it.
"""

from typing import Final

from twinbus.broker.store_run import StoreRun
from twinbus.clock import Now
from twinbus.entities.commands import Command, Delivered, Reply
from twinbus.entities.facts import DEAD_LETTER, MAIN, Stored, gather
from twinbus.entities.fields import Fields
from twinbus.entities.filters import SqlFilter, parse_filter
from twinbus.entities.message import (
    ACTIVE,
    DEFERRED,
    NEVER_MS,
    SCHEDULED,
    Message,
    NewMessage,
    Overlay,
    overlay_bytes,
)
from twinbus.entities.queue import Queue
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    Selected,
    SelectionCommand,
    SettleRanges,
    Undefer,
)
from twinbus.entities.sql.values import FilterError
from twinbus.errors import (
    DiskFull,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    ServerBusy,
    ServiceError,
)
from twinbus.limits import PEEK_COUNT_MAX, RUNS_MAX, WALKS_MAX
from twinbus.metered import UNIT_BYTES

# What one slice may look at, and what it may read; a few milliseconds' work.
SLICE_COUNT_MAX: Final = PEEK_COUNT_MAX
SLICE_BODIES_MAX: Final = 128
SLICE_BROWSE_MAX: Final = 512  # where bodies are only handed on
SLICE_BODIES_BYTES_MAX: Final = 4_194_304
OVERHEAD_BYTES: Final = 256  # what the facts of one resubmitted message take beyond its body

PENDING: Final = object()  # in place of a result: the reply comes later, from a walk

STATE_NAMES: Final = {ACTIVE: "Active", DEFERRED: "Deferred", SCHEDULED: "Scheduled"}


class Walk:
    """One request, a slice at a time."""

    reads_bodies = False
    changes_messages = True
    bodies_max = SLICE_BODIES_MAX  # that a slice reads

    def __init__(self, run: StoreRun, queue: Queue, command: SelectionCommand) -> None:
        selection = command.selection
        self.command = command
        self.queue = queue
        self.selected = Selected()
        self._store_run = run
        self._store = run.store
        self._codec = run.codec
        self._subqueue = command.subqueue
        self._selection = selection
        self._states = frozenset(selection.states)
        # What is resubmitted is written in one piece.
        self._size_bytes_max = min(SLICE_BODIES_BYTES_MAX, run.store.together_size_max // 2)
        self._left = command.count
        self._next = max(1, selection.from_sequence_number)
        self._last = min(queue.published, selection.to_sequence_number - 1)
        self._filter: SqlFilter | None = None
        if selection.expression:
            if self._codec is None:
                raise NotSupported("Without a codec, no filter can look into messages.")
            self._filter = parse_filter(selection.expression, {})
        if selection.session_id is not None and not queue.description.requires_session:
            raise InvalidOperation(
                f"'{queue.shown_name}' has no sessions; leave out the session id."
            )
        queue.check_receivable()

    def step(self, now: Now) -> Reply | None:
        """Do one slice; gives the reply when that was the last."""
        try:
            if self._store.entities.get(self.queue.entity_id) is not self.queue:
                raise EntityNotFound("The messaging entity was deleted.")
            is_over = self._step(now)
        except ServiceError as error:
            # What was done before stays done and is reported; who asks again hears the reason.
            if self.selected.count == 0:
                return Reply(self.command, None, error)
            self.selected.next_sequence_number = self._next
            return Reply(self.command, self.selected, None)
        return Reply(self.command, self.selected, None) if is_over else None

    def _step(self, now: Now) -> bool:
        start = self._next
        messages, is_end = self._candidates(now)
        reads = self.reads_bodies or self._filter is not None
        bodies = self._store.read_bodies(messages) if reads and messages else []
        if self._filter is not None:
            messages, bodies = self._matching(self._filter, messages, bodies)
        wanted = min(self._left, len(messages))
        done = 0
        if wanted:
            after, self._next = self._next, start  # if it is refused, that is where to go on
            done = self._take(messages[:wanted], bodies[:wanted], now)
            self._next = after
        self.selected.count += done
        self._left -= done
        if done < len(messages):
            self._next = messages[done].sequence_number
            self.selected.next_sequence_number = self._next
            return True
        if is_end:
            return True
        if self._left == 0:
            self.selected.next_sequence_number = self._next
            return True
        return False

    # -- choosing ----------------------------------------------------------------------------------

    def _candidates(self, now: Now) -> tuple[list[Message], bool]:
        """Messages that fit by what is known without their bodies, and whether they are the last.

        Moves on behind the last one that was looked at.
        """
        reads = self.reads_bodies or self._filter is not None
        most = self.bodies_max if reads else SLICE_COUNT_MAX
        if self._filter is not None:
            most = SLICE_BODIES_MAX  # looking into them takes longer than anything else
        size_bytes = 0
        found: list[Message] = []
        run = self._run(now)
        for message in run:
            if message.sequence_number > self._last:
                return found, True
            if self._fits(message):
                size_bytes += message.length + overlay_bytes(message.overlay)
                if len(found) == most or (reads and found and size_bytes > self._size_bytes_max):
                    return found, False
                found.append(message)
            self._next = message.sequence_number + 1
        return found, len(run) < SLICE_COUNT_MAX or self._next > self._last

    def _run(self, now: Now) -> list[Message]:
        queue, session_id = self.queue, self._selection.session_id
        if session_id is not None and self._subqueue == MAIN:
            return queue.peek_session(session_id, self._next, SLICE_COUNT_MAX, now)
        return queue.peek(self._subqueue, self._next, SLICE_COUNT_MAX, now)

    def _fits(self, message: Message) -> bool:
        selection = self._selection
        if self._states and message.state not in self._states:
            return False
        if message.enqueued_ms >= selection.before_ms:
            return False
        if selection.session_id is not None and message.session_id != selection.session_id:
            return False
        return message.grant == 0 or not self.changes_messages

    def _matching(
        self, condition: SqlFilter, messages: list[Message], bodies: list[bytes]
    ) -> tuple[list[Message], list[bytes]]:
        """Those that the filter wants; one that it cannot deal with is none of them."""
        codec = self._codec
        assert codec is not None
        found: list[Message] = []
        found_bodies: list[bytes] = []
        for message, body in zip(messages, bodies, strict=True):
            fields = codec.read_fields(body)
            if message.overlay is not None and message.overlay.properties is not None:
                fields.user.update(codec.read_properties(message.overlay.properties))
            stamp(fields, message)
            try:
                matches = condition.matches(fields, codec.new_id)
            except FilterError:
                continue
            if matches:
                found.append(message)
                found_bodies.append(body)
        return found, found_bodies

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        """Act on these; returns on how many of the first ones."""
        raise NotImplementedError


def stamp(fields: Fields, message: Message) -> None:
    """Add what the queue knows about a message and its bytes do not say."""
    fields.stamp(message.sequence_number, message.enqueued_ms)
    fields.system["deliverycount"] = message.delivery_count
    fields.system["state"] = STATE_NAMES[message.state]
    overlay = message.overlay
    if overlay is None:
        return
    if overlay.enqueued_sequence_number:
        fields.system["enqueuedsequencenumber"] = overlay.enqueued_sequence_number
    if overlay.source is not None:
        fields.system["deadlettersource"] = overlay.source
    if overlay.reason is not None:
        fields.user["deadletterreason"] = overlay.reason
    if overlay.description is not None:
        fields.user["deadlettererrordescription"] = overlay.description


class BrowseWalk(Walk):
    """Looks, and gives what it saw: as much as a peek may give."""

    reads_bodies = True
    changes_messages = False
    bodies_max = SLICE_BROWSE_MAX

    def __init__(self, run: StoreRun, queue: Queue, command: SelectionCommand) -> None:
        super().__init__(run, queue, command)
        assert isinstance(command, Browse)
        self._size_bytes = 0
        self._maximum_bytes = command.maximum_bytes

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        for count, (message, body) in enumerate(zip(messages, bodies, strict=True)):
            self._size_bytes += message.length
            if self._size_bytes > self._maximum_bytes and self.selected.delivered:
                return count
            self.selected.delivered.append(Delivered(_seen(message), body, 0))
        return len(messages)


def _seen(message: Message) -> Message:
    """The message as it is now: until the reply goes out, much may happen to it."""
    copy = message.copy()
    copy.grant = 0
    return copy


class NumbersWalk(Walk):
    """Says which numbers are there, as runs of them."""

    changes_messages = False

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        bounds = self.selected.bounds
        for count, message in enumerate(messages):
            number = message.sequence_number
            if bounds and bounds[-1] == number:
                bounds[-1] = number + 1
            elif len(bounds) == 2 * RUNS_MAX:
                return count
            else:
                bounds += (number, number + 1)
        return len(messages)


class DeleteWalk(Walk):
    """Removes for good."""

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        self._store_run.work_count += len(messages)
        return self.queue.remove_free(self._subqueue, _numbers(messages))


class SettleWalk(Walk):
    """Removes what is within ranges of numbers, or moves it to the dead-letter queue."""

    def __init__(self, run: StoreRun, queue: Queue, command: SelectionCommand) -> None:
        assert isinstance(command, SettleRanges)
        if command.overlay is not None and command.subqueue != MAIN:
            raise InvalidOperation("A message in a dead-letter queue cannot be dead-lettered.")
        super().__init__(run, queue, command)
        self._bounds = command.bounds
        self._overlay = command.overlay
        self._at = 0  # where in the bounds the walk has come to

    def _candidates(self, now: Now) -> tuple[list[Message], bool]:
        """Range after range, until there is enough for a slice."""
        found: list[Message] = []
        left = SLICE_COUNT_MAX  # what this slice may look at; a range without messages counts too
        while self._at < len(self._bounds):
            number = max(self._next, self._bounds[self._at])
            end = min(self._bounds[self._at + 1], self._last + 1)
            if number >= end:
                self._at += 2
                continue
            if left <= 0:
                return found, False
            run = self.queue.peek(self._subqueue, number, min(left, end - number), now)
            left -= max(1, len(run))
            self._next = end
            for message in run:
                if message.sequence_number >= end:
                    break
                if self._fits(message):
                    found.append(message)
            else:
                if run:  # the rest of the range may have more
                    self._next = run[-1].sequence_number + 1
        return found, True

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        self._store_run.work_count += len(messages)
        for message in messages:
            self.selected.units += 1 + max(0, message.length - 1) // UNIT_BYTES
        if self._overlay is None:
            return self.queue.remove_free(self._subqueue, _numbers(messages))
        self.queue.dead_letter(MAIN, messages, self._overlay, DEAD_LETTER)
        return len(messages)


class UndeferWalk(Walk):
    """Makes deferred messages active again."""

    def _fits(self, message: Message) -> bool:
        return message.state == DEFERRED and super()._fits(message)

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        self._store_run.work_count += len(messages)
        self.queue.undefer(_numbers(messages), now, self._subqueue)
        return len(messages)


class ResubmitWalk(Walk):
    """Puts dead letters back into the main part of their entity.

    They come in as new messages: a new number, a new life, no deliveries, nothing about why they
    were dead.  Duplicate detection does not look at them, as it would know them all.  The size of
    the entity stays, so there is no quota to ask; only the disk must have room for a moment.
    """

    reads_bodies = True

    def __init__(self, run: StoreRun, queue: Queue, command: SelectionCommand) -> None:
        if command.subqueue == MAIN:
            raise InvalidOperation(
                "Only dead letters can be resubmitted; ask at the dead-letter queue's address."
            )
        super().__init__(run, queue, command)
        queue.check_sendable()

    def _fits(self, message: Message) -> bool:
        # A topic may have put something without a session here; nobody could receive it there.
        if message.session_id is None and self.queue.description.requires_session:
            return False
        return super()._fits(message)

    def _take(self, messages: list[Message], bodies: list[bytes], now: Now) -> int:
        queue, store = self.queue, self._store
        queue.check_sendable()
        size_bytes = sum(message.length + OVERHEAD_BYTES for message in messages)
        if not store.room_for(size_bytes):
            raise DiskFull("The disk is full: nothing can be resubmitted. Free some space first.")
        self._store_run.pending_bytes += size_bytes
        self._store_run.work_count += len(messages)
        news = [_renewed(message, body) for message, body in zip(messages, bodies, strict=True)]
        mark = len(store.facts)
        store.facts.append(Stored(queue.entity_id, MAIN, queue.enqueue(news, now)))
        queue.remove_free(self._subqueue, _numbers(messages))
        gather(store.facts, mark)
        return len(messages)


def _renewed(message: Message, body: bytes) -> NewMessage:
    new = NewMessage(body, session_id=message.session_id)
    if message.expires_ms != NEVER_MS:
        new.time_to_live_ms = message.expires_ms - message.enqueued_ms
    if message.overlay is not None and message.overlay.properties is not None:
        new.overlay = Overlay(properties=message.overlay.properties)
    return new


def _numbers(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


_WALKS: Final[dict[type[Command], type[Walk]]] = {
    Browse: BrowseWalk,
    DeleteMessages: DeleteWalk,
    ListNumbers: NumbersWalk,
    Resubmit: ResubmitWalk,
    SettleRanges: SettleWalk,
    Undefer: UndeferWalk,
}


def begin_walk(run: StoreRun, queue: Queue, command: Command, now: Now) -> object:
    """Decide on a request about many messages; PENDING when the reply comes from a walk."""
    assert isinstance(command, SelectionCommand)
    if isinstance(command, Undefer) and command.sequence_numbers:
        queue.undefer(command.sequence_numbers, now, command.subqueue)
        selected = Selected()
        selected.count = len(command.sequence_numbers)
        return selected
    if len(run.walks) >= WALKS_MAX:
        raise ServerBusy(f"{WALKS_MAX} requests about many messages are under way; try again.")
    run.walks.append(_WALKS[type(command)](run, queue, command))
    return PENDING
