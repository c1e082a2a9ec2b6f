"""A queue as a pure state machine: a main part and its dead-letter queues.

A command is decided at once, in memory; what happened is appended as facts to a list that the store
writes.  A refused command raises and has changed nothing.  The same facts, replayed, give the same
queue (state.py).  Here is what clients may ask for and what is refused; the steps that a message
takes are in transitions.py.

What callers may rely on:
- A message above `published` is not yet durable.  It is never delivered, peeked, expired or
  activated; only its sender knows of it.
- Locks run on the monotonic clock, so a jump of UTC neither shortens nor prolongs one.  A lock
  counts as ended from its last millisecond on, whether or not `tick` has come by.
- An expired message is never delivered.  Inside a dead-letter queue nothing expires.
- Messages handed out are the queue's own objects: read them before the next command.

This module must never read a clock, touch a disk or know AMQP.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.arrivals import Screened, has_number
from twinbus.entities.carried import JOURNAL
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    PEEK_LOCK,
    TRANSFER_DEAD_LETTER,
    CancelScheduled,
    Command,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.duplicates import DuplicateHistory
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import (
    MAIN,
    Arrived,
    Carried,
    IdsSeen,
    Removed,
    Stored,
    Together,
    gather,
)
from twinbus.entities.facts import TRANSFER_DEAD_LETTER as TRANSFER_QUEUE
from twinbus.entities.message import (
    ACTIVE,
    DEFERRED,
    NEVER_MS,
    SCHEDULED,
    Message,
    NewMessage,
    Overlay,
    ProducerKey,
    has_producer_key,
    overlay_bytes,
)
from twinbus.entities.state import Grants, QueueCounts
from twinbus.entities.subqueue import SubQueue
from twinbus.entities.transitions import TRANSITIONS_MAX, QueueTransitions, has_expired
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    NotSupported,
    QuotaExceeded,
    ServiceError,
)
from twinbus.limits import PEEK_COUNT_MAX, SEQUENCE_NUMBERS_MAX

__all__ = ["Grants", "Queue", "QueueCounts"]

LOCK_LOST: Final = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been "
    "removed from the queue, or was received by a different receiver instance."
)


class Queue(QueueTransitions):
    """One queue (or subscription) with its dead-letter queues."""

    __slots__ = ()

    # -- sending --------------------------------------------------------------------------------

    def send(self, messages: list[NewMessage], now: Now) -> list[int]:
        """Enqueue or schedule, all or none; returns the sequence numbers.

        What is accepted and dropped has the number 0: a ping, a copy of what its producer has sent
        before under the same number, and, where duplicates are detected, a duplicate.
        """
        if has_producer_key(messages):
            return self._send_keyed(messages, now)
        return self._send_unmarked(messages, now)

    def must_be_whole(self, messages: list[NewMessage]) -> bool:
        """Must these be one frame?  Ids and producers' numbers come with their messages."""
        return self.history is not None or has_producer_key(messages)

    def _send_keyed(self, messages: list[NewMessage], now: Now) -> list[int]:
        only = messages[0].producer_key
        if len(messages) == 1 and only is not None and not only.is_ping:
            return self._send_numbered(messages, only, now)
        found = self._arrivals().screen(messages)
        self.check_sendable()
        if found.ping_count:
            self.check_ping(found.ping_bytes)
        if not found.fresh:
            # Nothing to write.  But a ping tells whether the log works, and of a copy the first one
            # may be on its way to the disk still: an empty fact waits for it.
            self.facts.append(Together([]))
            return found.spread([])
        mark = len(self.facts)
        numbers = self._send_unmarked(found.fresh, now)
        self._arrive(found)
        gather(self.facts, mark)
        return found.spread(numbers)

    def _send_numbered(self, messages: list[NewMessage], only: ProducerKey, now: Now) -> list[int]:
        """What `_send_keyed` does with one numbered message: a paired sender sends one a call."""
        self.check_sendable()
        arrivals = self._arrivals()
        producer, number = only.producer, only.number
        if has_number(arrivals.bounds_of(producer), number):
            self.facts.append(Together([]))  # as above
            return [0]
        mark = len(self.facts)
        numbers = self._send_unmarked(messages, now)
        bounds = [number, number + 1]
        arrivals.add(producer, bounds)
        self.facts.append(Arrived(self.entity_id, producer, bounds))
        gather(self.facts, mark)
        return numbers

    def _arrive(self, found: Screened) -> None:
        """From now on these numbers have come; for one frame with their messages."""
        for producer, bounds in found.arrived.items():
            if bounds:
                self._arrivals().add(producer, bounds)
                self.facts.append(Arrived(self.entity_id, producer, bounds))

    def _send_unmarked(self, messages: list[NewMessage], now: Now) -> list[int]:
        history = self.history
        if history is None:
            return self._send_fresh(messages, now)
        return self._send_distinct(history, messages, now)

    def _send_distinct(
        self, history: DuplicateHistory, messages: list[NewMessage], now: Now
    ) -> list[int]:
        self.check_sendable()
        sifted = history.sift(messages, self.description.enable_partitioning, now.utc_ms)
        if not sifted.fresh:
            # Nothing new to write.  But the first one may be on its way to the disk still, and
            # until it is there nobody may hear that it was accepted: an empty fact waits for it.
            self.facts.append(Together([]))
            return sifted.spread([])
        history.check_room(len(sifted.fresh), now.utc_ms)
        mark = len(self.facts)
        numbers = self._send_fresh(sifted.fresh, now)
        if sifted.digests:
            history.add(sifted.digests, now.utc_ms)
            self.facts.append(IdsSeen(self.entity_id, now.utc_ms, sifted.digests))
            gather(self.facts, mark)
        return sifted.spread(numbers)

    def send_carried(self, command: Send, now: Now) -> list[int]:
        """A send from another store: what has come before is dropped, its number is 0."""
        carried = self._carried_numbers()
        carrier, numbers = command.carrier, command.carrier_numbers
        known = set(carried.of(carrier))
        fresh: list[NewMessage] = []
        for message, number in zip(command.messages, numbers, strict=True):
            if number not in known:
                fresh.append(message)
        mark = len(self.facts)
        given = self._let_in(fresh, carrier.startswith(JOURNAL), now)
        kept = carried.with_these(carrier, numbers, command.carrier_completed)
        carried.remember(carrier, kept)
        # Stated also if nothing is new: the first send may be on its way to the disk still.
        self.facts.append(Carried(self.entity_id, carrier, kept))
        gather(self.facts, mark)
        given.reverse()
        return [0 if number in known else given.pop() for number in numbers]

    def _let_in(self, messages: list[NewMessage], is_acknowledged: bool, now: Now) -> list[int]:
        """Send; what has been acknowledged long ago is not refused any more."""
        if not messages:
            return []
        if not is_acknowledged:
            return self.send(messages, now)
        is_disabled, size_bytes_max = self._send_disabled, self._size_bytes_max
        self._send_disabled, self._size_bytes_max = False, NEVER_MS
        try:
            return self.send(messages, now)
        finally:
            self._send_disabled, self._size_bytes_max = is_disabled, size_bytes_max

    def remember(self, messages: list[NewMessage], now: Now) -> list[NewMessage]:
        """For transactions: which messages are to be stored; from now on they are known."""
        if has_producer_key(messages):
            found = self._arrivals().screen(messages)
            self._arrive(found)
            messages = found.fresh
        history = self.history
        if history is None:
            return messages
        sifted = history.sift(messages, self.description.enable_partitioning, now.utc_ms)
        if sifted.digests:
            history.add(sifted.digests, now.utc_ms)
            self.facts.append(IdsSeen(self.entity_id, now.utc_ms, sifted.digests))
        return sifted.fresh

    def _send_fresh(self, messages: list[NewMessage], now: Now) -> list[int]:
        self.check_send(messages, now)
        stored = self.enqueue(messages, now)
        self.facts.append(Stored(self.entity_id, MAIN, stored))
        return [message.sequence_number for message in stored]

    def check_send(self, messages: list[NewMessage], now: Now) -> None:
        """Refuse what `send` would refuse; nothing changes."""
        if self._send_disabled:
            raise self._disabled()
        size_bytes = self.size_bytes()
        for new in messages:
            size_bytes += len(new.body)
        if size_bytes > self._size_bytes_max:
            raise self._quota_exceeded()
        history = self.history
        if history is not None:
            history.check_room(len(messages), now.utc_ms)

    def check_ping(self, size_bytes: int) -> None:
        """Refuse pings of this size if messages would be refused."""
        if self.size_bytes() + size_bytes > self._size_bytes_max:
            raise self._quota_exceeded()

    def enqueue(self, messages: list[NewMessage], now: Now) -> list[Message]:
        """Put messages in that `check_send` let pass; the caller states the fact."""
        main = self._main
        utc_ms = now.utc_ms
        if self.topic_id == 0:  # what a topic puts into a subscription is no sign of use
            self.accessed_utc_ms = utc_ms
        default_ttl_ms = self.description.default_time_to_live_ms
        table = main.table
        number = self.last_sequence_number
        stored: list[Message] = []
        for new in messages:
            number += 1
            is_scheduled = new.scheduled_ms > utc_ms
            enqueued_ms = new.scheduled_ms if is_scheduled else utc_ms
            expires_ms = NEVER_MS
            if new.time_to_live_ms != NEVER_MS or default_ttl_ms != NEVER_MS:
                expires_ms = enqueued_ms + min(new.time_to_live_ms, default_ttl_ms)
            body = new.body
            message = Message(number, body, len(body), enqueued_ms, expires_ms, new.session_id)
            if new.overlay is not None:
                message.overlay = new.overlay
            stored.append(message)
            if is_scheduled:
                message.state = SCHEDULED
                main.put(message)
                continue
            table.append(message)
            main.size_bytes += message.length
            if expires_ms != NEVER_MS:
                table.watch_expiry(message)
        self.last_sequence_number = number
        return stored

    def enqueue_dead(self, new: NewMessage, now: Now) -> Message:
        """Put a message straight into the dead-letter queue; the caller states the fact."""
        number = self.last_sequence_number + 1
        message = Message(number, new.body, len(new.body), now.utc_ms, NEVER_MS, new.session_id)
        message.overlay = new.overlay
        self._dead_letter.put(message)
        self.last_sequence_number = number
        return message

    def cancel_scheduled(self, sequence_numbers: list[int], now: Now) -> None:
        """Remove scheduled messages, all or none."""
        found: list[Message] = []
        _check_sequence_numbers(sequence_numbers)
        for number in sequence_numbers:
            message = self._main.table.get(number)
            if message is None or message.state != SCHEDULED:
                raise MessageNotFound(f"No scheduled message has the sequence number {number}.")
            found.append(message)
        self.accessed_utc_ms = now.utc_ms
        self._remove(MAIN, found)

    # -- receiving ------------------------------------------------------------------------------

    def lock_next(self, subqueue: int, count: int, now: Now) -> list[Message]:
        """Lock the next free messages, `count` at most.

        Fewer may come although `has_ready`: after many expired messages the walk pauses.
        """
        messages = self.take_ready(subqueue, count, now)
        if messages:
            self._lock(subqueue, messages, now)
        return messages

    def take_next(self, subqueue: int, count: int, now: Now) -> list[Message]:
        """Receive and delete: the next free messages are handed out and gone."""
        messages = self.take_ready(subqueue, count, now)
        if messages:
            self._remove(subqueue, messages)
        return messages

    def receive_deferred(
        self, subqueue: int, sequence_numbers: list[int], receive_mode: int, now: Now
    ) -> list[Message]:
        """Receive deferred messages by number, all or none.

        Azure looks at the expiry of a deferred message only here; so do we.
        """
        self.check_receivable()
        found = self._find_deferred(subqueue, sequence_numbers)
        expired: list[Message] = []
        if subqueue == MAIN:
            expired = [message for message in found if message.expires_ms <= now.utc_ms]
        self.accessed_utc_ms = now.utc_ms
        if expired:
            self._expire(expired)
            number = expired[0].sequence_number
            raise MessageNotFound(f"The deferred message {number} has expired.")
        if receive_mode == PEEK_LOCK:
            self._lock(subqueue, found, now)
        else:
            self._remove(subqueue, found)
        return found

    def _find_deferred(self, subqueue: int, sequence_numbers: list[int]) -> list[Message]:
        _check_sequence_numbers(sequence_numbers)
        part = self._part(subqueue)
        found: list[Message] = []
        for number in sequence_numbers:
            message = part.table.get(number)
            if message is None or message.state != DEFERRED or message.grant != 0:
                raise MessageNotFound(f"No deferred message has the sequence number {number}.")
            found.append(message)
        return found

    def peek(self, subqueue: int, from_sequence_number: int, count: int, now: Now) -> list[Message]:
        """Look at messages in order, whatever their state, without locking them."""
        self.check_receivable()
        if count < 1:
            raise ArgumentOutOfRange(f"A peek asks for at least 1 message, not {count}.")
        count = min(count, PEEK_COUNT_MAX)
        seen: list[Message] = []
        number = from_sequence_number
        while len(seen) < count:
            run = self.messages_from(subqueue, number, count - len(seen))
            if not run:
                break
            seen += [each for each in run if subqueue != MAIN or not has_expired(each, now)]
            number = run[-1].sequence_number + 1
        return seen

    def take_ready(self, subqueue: int, count: int, now: Now) -> list[Message]:
        """The next free messages.  The caller locks, removes or dead-letters each of them at once;
        one that is only let go would not be delivered again."""
        self.check_receivable()
        self.accessed_utc_ms = now.utc_ms
        if subqueue != MAIN:
            part = self._part(subqueue)
            return part.take_ready(count, self.published, -1, [], TRANSITIONS_MAX)
        expired: list[Message] = []
        messages = self._main.take_ready(
            count, self.published, now.utc_ms, expired, TRANSITIONS_MAX
        )
        if expired:
            self._expire(expired)
        return messages

    # -- settling -------------------------------------------------------------------------------

    def settle(
        self,
        subqueue: int,
        locks: list[Lock],
        outcome: int,
        overlay: Overlay | None,
        now: Now,
        delay_ms: int = 0,
    ) -> list[ServiceError | None] | None:
        """End locks.  None when all went well, else for each lock its error or None."""
        part = self._part(subqueue)
        if outcome == COMPLETE:
            return self._complete(subqueue, part.table.take_locked(locks, now.mono_ms))
        self._check_outcome(subqueue, outcome, delay_ms)
        results: list[ServiceError | None] = []
        failed = False
        for lock in locks:
            message = _held(part, lock, now)
            if message is None:
                failed = True
                results.append(MessageLockLost(LOCK_LOST))
                continue
            results.append(None)
            if outcome == DEAD_LETTER:
                count = message.delivery_count + 1
                target = DEAD_LETTER_QUEUE
                self._move_to_dead_letter(MAIN, message, count, overlay or Overlay(), target)
            elif outcome == TRANSFER_DEAD_LETTER:
                self.dead_letter(subqueue, [message], overlay or Overlay(), TRANSFER_QUEUE)
            else:
                self._give_back(subqueue, message, outcome, overlay, now, delay_ms)
        return results if failed else None

    def check_settle(
        self, subqueue: int, locks: list[Lock], outcome: int, now: Now, delay_ms: int = 0
    ) -> None:
        """Refuse if `settle` would refuse any of the locks; nothing changes."""
        part = self._part(subqueue)
        self._check_outcome(subqueue, outcome, delay_ms)
        for lock in locks:
            if _held(part, lock, now) is None:
                raise MessageLockLost(LOCK_LOST)

    def overlays_bytes(self, subqueue: int, locks: list[Lock]) -> int:
        """What the messages of these locks carry beside their bodies; settling writes it again."""
        table = self._part(subqueue).table
        size = 0
        for number, _ in locks:
            message = table.get(number)
            if message is not None:
                size += overlay_bytes(message.overlay)
        return size

    def _check_outcome(self, subqueue: int, outcome: int, delay_ms: int) -> None:
        if subqueue == MAIN:
            return
        is_last = outcome == TRANSFER_DEAD_LETTER and subqueue == TRANSFER_QUEUE
        if outcome == DEAD_LETTER or is_last:
            raise InvalidOperation("A message in a dead-letter queue cannot be dead-lettered.")
        if outcome == ABANDON and delay_ms > 0:
            raise InvalidOperation("A message in a dead-letter queue cannot be made to wait.")

    def _complete(
        self, subqueue: int, taken: list[Message | None]
    ) -> list[ServiceError | None] | None:
        numbers = self._part(subqueue).forget(taken)
        if numbers:
            self.facts.append(Removed(self.entity_id, subqueue, numbers))
        if len(numbers) == len(taken):
            return None
        return [MessageLockLost(LOCK_LOST) if message is None else None for message in taken]

    def renew(self, subqueue: int, locks: list[Lock], now: Now) -> list[int]:
        """Let locks run anew from now, all or none; returns until when, in UTC.

        No fact: after a restart every lock runs anew anyway.
        """
        part = self._part(subqueue)
        found: list[Message] = []
        for lock in locks:
            message = _held(part, lock, now)
            if message is None:
                raise MessageLockLost(LOCK_LOST)
            found.append(message)
        duration_ms = self.description.lock_duration_ms
        for message in found:
            part.lock(message, message.grant, now.mono_ms + duration_ms)
        return [now.utc_ms + duration_ms] * len(found)

    # -- many messages at once, for whoever moves them --------------------------------------------

    def remove(self, subqueue: int, messages: list[Message]) -> None:
        """Messages that `take_ready` gave are gone: they live on elsewhere."""
        self._remove(subqueue, messages)

    def put_back(self, subqueue: int, messages: list[Message]) -> None:
        """Messages that `take_ready` gave are free again, as if nobody had looked."""
        part = self._part(subqueue)
        for message in messages:
            part.unlock(message, message.state)

    def dead_letter(
        self, subqueue: int, messages: list[Message], overlay: Overlay, target: int
    ) -> None:
        """Move messages of a part to a dead-letter queue behind it.  Counts stay."""
        for message in messages:
            self._move_to_dead_letter(subqueue, message, message.delivery_count, overlay, target)

    def remove_free(self, subqueue: int, sequence_numbers: list[int]) -> int:
        """Remove messages that nobody has locked, whatever their state; returns how many."""
        part = self._part(subqueue)
        limit = self.published
        found: list[Message] = []
        for number in dict.fromkeys(sequence_numbers):
            message = part.table.get(number)
            if message is not None and message.grant == 0 and number <= limit:
                found.append(message)
        if found:
            self._remove(subqueue, found)
        return len(found)

    def undefer(self, sequence_numbers: list[int], now: Now, subqueue: int = MAIN) -> None:
        """Deferred messages become active again in their old place, all or none."""
        self.check_receivable()
        for message in self._find_deferred(subqueue, sequence_numbers):
            self._unlock(self._part(subqueue), subqueue, message, ACTIVE, now)

    # -- any command ------------------------------------------------------------------------------

    def apply(self, command: Command, now: Now) -> object:
        """Decide on any command; the reply's result."""
        if isinstance(command, Send):
            if command.carrier:
                return self.send_carried(command, now)
            return self.send(command.messages, now)
        if isinstance(command, Settle):
            return self.settle(
                command.subqueue,
                command.locks,
                command.outcome,
                command.overlay,
                now,
                command.delay_ms,
            )
        if isinstance(command, RenewLocks):
            return self.renew(command.subqueue, command.locks, now)
        if isinstance(command, Peek):
            self._refuse_session(command.session_id)
            return self.peek(command.subqueue, command.from_sequence_number, command.count, now)
        if isinstance(command, ReceiveDeferred):
            self._refuse_session(command.session_id)
            return self.receive_deferred(
                command.subqueue, command.sequence_numbers, command.receive_mode, now
            )
        if isinstance(command, CancelScheduled):
            self.cancel_scheduled(command.sequence_numbers, now)
            return None
        raise NotSupported(f"A queue does not know the command {type(command).__name__}.")

    # -- refusals -------------------------------------------------------------------------------

    def _refuse_session(self, session_id: str | None) -> None:
        if session_id is not None:
            raise InvalidOperation(
                f"'{self.shown_name}' has no sessions here; leave out the session id."
            )

    def _quota_exceeded(self) -> QuotaExceeded:
        return QuotaExceeded(
            f"The queue '{self.shown_name}' has reached its maximum size of "
            f"{self.description.max_size_megabytes} MB; receive messages to make room."
        )


def _held(part: SubQueue, lock: Lock, now: Now) -> Message | None:
    """The message that this lock holds now."""
    number, grant = lock
    message = part.table.get(number)
    if message is None or message.grant != grant or message.locked_until_ms <= now.mono_ms:
        return None
    return message


def _check_sequence_numbers(sequence_numbers: list[int]) -> None:
    if len(sequence_numbers) > SEQUENCE_NUMBERS_MAX:
        raise ArgumentOutOfRange(
            f"A request may name {SEQUENCE_NUMBERS_MAX} sequence numbers, "
            f"not {len(sequence_numbers)}."
        )
    if len(set(sequence_numbers)) != len(sequence_numbers):
        raise ArgumentInvalid("A sequence number is given twice.")
