"""A queue as a pure state machine: a main part and a dead-letter queue.

A command is decided at once, in memory; what happened is appended as facts to a list that the store
writes.  A refused command raises and has changed nothing.  The same facts, replayed, give the same
queue (state.py).

What callers may rely on:
- A message above `published` is not yet durable.  It is never delivered, peeked, expired or
  activated; only its sender knows of it.
- Locks run on the monotonic clock, so a jump of UTC neither shortens nor prolongs one.  A lock
  counts as ended from its last millisecond on, whether or not `tick` has come by.
- An expired message is never delivered.  Inside the dead-letter queue nothing expires.
- Messages handed out are the queue's own objects: read them before the next command.

This module must never read a clock, touch a disk or know AMQP.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RELEASE,
    CancelScheduled,
    Command,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import (
    DEAD_LETTER as DEAD_LETTER_QUEUE,
)
from twinbus.entities.facts import (
    MAIN,
    Activated,
    DeadLettered,
    Fact,
    Locked,
    Removed,
    Stored,
    Unlocked,
)
from twinbus.entities.message import (
    ACTIVE,
    DEFERRED,
    NEVER_MS,
    SCHEDULED,
    Message,
    NewMessage,
    Overlay,
    merge_overlays,
)
from twinbus.entities.state import NO_LIMIT, Grants, QueueCounts, QueueState
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

# What one tick, or one walk of the cursor, may change before the loop gets its turn again.
TRANSITIONS_MAX: Final = 1_000

REASON_EXPIRED: Final = "TTLExpiredException"
REASON_DELIVERY_COUNT: Final = "MaxDeliveryCountExceeded"

_LOCK_LOST: Final = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been "
    "removed from the queue, or was received by a different receiver instance."
)


class Queue(QueueState):
    """One queue with its dead-letter queue."""

    __slots__ = ("facts",)

    def __init__(
        self,
        entity_id: int,
        name: str,
        description: QueueDescription,
        facts: list[Fact],
        grants: Grants,
    ) -> None:
        super().__init__(entity_id, name, description, grants)
        self.facts = facts

    # -- sending --------------------------------------------------------------------------------

    def send(self, messages: list[NewMessage], now: Now) -> list[int]:
        """Enqueue or schedule, all or none; returns the sequence numbers."""
        if self._send_disabled:
            raise self._disabled()
        main = self._main
        size_bytes = main.size_bytes + self._dead_letter.size_bytes
        for new in messages:
            size_bytes += len(new.body)
        if size_bytes > self._size_bytes_max:
            raise self._quota_exceeded()
        utc_ms = now.utc_ms
        self.accessed_utc_ms = utc_ms
        default_ttl_ms = self.description.default_time_to_live_ms
        table = main.table
        number = self.last_sequence_number
        stored: list[Message] = []
        numbers: list[int] = []
        for new in messages:
            number += 1
            numbers.append(number)
            is_scheduled = new.scheduled_ms > utc_ms
            enqueued_ms = new.scheduled_ms if is_scheduled else utc_ms
            expires_ms = NEVER_MS
            if new.time_to_live_ms != NEVER_MS or default_ttl_ms != NEVER_MS:
                expires_ms = enqueued_ms + min(new.time_to_live_ms, default_ttl_ms)
            body = new.body
            message = Message(number, body, len(body), enqueued_ms, expires_ms, new.session_id)
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
        self.facts.append(Stored(self.entity_id, MAIN, stored))
        return numbers

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
        messages = self._take_ready(subqueue, count, now)
        if messages:
            self._lock(subqueue, messages, now)
        return messages

    def take_next(self, subqueue: int, count: int, now: Now) -> list[Message]:
        """Receive and delete: the next free messages are handed out and gone."""
        messages = self._take_ready(subqueue, count, now)
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
        _check_sequence_numbers(sequence_numbers)
        part = self._part(subqueue)
        found: list[Message] = []
        expired: list[Message] = []
        for number in sequence_numbers:
            message = part.table.get(number)
            if message is None or message.state != DEFERRED or message.grant != 0:
                raise MessageNotFound(f"No deferred message has the sequence number {number}.")
            if subqueue == MAIN and message.expires_ms <= now.utc_ms:
                expired.append(message)
            found.append(message)
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

    def peek(self, subqueue: int, from_sequence_number: int, count: int, now: Now) -> list[Message]:
        """Look at messages in order, whatever their state, without locking them."""
        self.check_receivable()
        if count < 1:
            raise ArgumentOutOfRange(f"A peek asks for at least 1 message, not {count}.")
        part = self._part(subqueue)
        limit = self.published if subqueue == MAIN else NO_LIMIT
        count = min(count, PEEK_COUNT_MAX)
        seen: list[Message] = []
        number = from_sequence_number
        while len(seen) < count:
            run = part.table.run_from(number, count - len(seen))
            if not run:
                break
            for message in run:
                if message.sequence_number > limit:
                    return seen
                if subqueue != MAIN or not _has_expired(message, now):
                    seen.append(message)
            number = run[-1].sequence_number + 1
        return seen

    def _take_ready(self, subqueue: int, count: int, now: Now) -> list[Message]:
        self.check_receivable()
        self.accessed_utc_ms = now.utc_ms
        if subqueue != MAIN:
            part = self._part(subqueue)
            return part.take_ready(count, NO_LIMIT, -1, [], TRANSITIONS_MAX)
        expired: list[Message] = []
        messages = self._main.take_ready(
            count, self.published, now.utc_ms, expired, TRANSITIONS_MAX
        )
        if expired:
            self._expire(expired)
        return messages

    def _lock(self, subqueue: int, messages: list[Message], now: Now) -> None:
        first_grant = self.grants.next
        grant = first_grant
        until_ms = now.mono_ms + self.description.lock_duration_ms
        numbers: list[int] = []
        for message in messages:
            message.grant = grant
            message.locked_until_ms = until_ms
            numbers.append(message.sequence_number)
            grant += 1
        self.grants.next = grant
        self._part(subqueue).locks.add(until_ms, numbers)
        self.facts.append(Locked(self.entity_id, subqueue, first_grant, numbers))

    # -- settling -------------------------------------------------------------------------------

    def settle(
        self,
        subqueue: int,
        locks: list[Lock],
        outcome: int,
        overlay: Overlay | None,
        now: Now,
    ) -> list[ServiceError | None] | None:
        """End locks.  None when all went well, else for each lock its error or None."""
        part = self._part(subqueue)
        if outcome == COMPLETE:
            return self._complete(subqueue, part.table.take_locked(locks, now.mono_ms))
        if outcome == DEAD_LETTER and subqueue != MAIN:
            raise InvalidOperation("A message in a dead-letter queue cannot be dead-lettered.")
        mono_ms = now.mono_ms
        results: list[ServiceError | None] = []
        failed = False
        for number, grant in locks:
            message = part.table.get(number)
            if message is None or message.grant != grant or message.locked_until_ms <= mono_ms:
                failed = True
                results.append(MessageLockLost(_LOCK_LOST))
                continue
            results.append(None)
            if outcome == DEAD_LETTER:
                count = message.delivery_count + 1
                self._move_to_dead_letter(message, count, overlay or Overlay())
            else:
                self._give_back(subqueue, message, outcome, overlay, now)
        return results if failed else None

    def _complete(
        self, subqueue: int, taken: list[Message | None]
    ) -> list[ServiceError | None] | None:
        numbers = self._part(subqueue).forget(taken)
        if numbers:
            self.facts.append(Removed(self.entity_id, subqueue, numbers))
        if len(numbers) == len(taken):
            return None
        return [MessageLockLost(_LOCK_LOST) if message is None else None for message in taken]

    def renew(self, subqueue: int, locks: list[Lock], now: Now) -> list[int]:
        """Let locks run anew from now, all or none; returns until when, in UTC.

        No fact: after a restart every lock runs anew anyway.
        """
        part = self._part(subqueue)
        found: list[Message] = []
        for number, grant in locks:
            message = part.table.get(number)
            if message is None or message.grant != grant or message.locked_until_ms <= now.mono_ms:
                raise MessageLockLost(_LOCK_LOST)
            found.append(message)
        duration_ms = self.description.lock_duration_ms
        for message in found:
            part.lock(message, message.grant, now.mono_ms + duration_ms)
        return [now.utc_ms + duration_ms] * len(found)

    def _give_back(
        self, subqueue: int, message: Message, outcome: int, overlay: Overlay | None, now: Now
    ) -> None:
        """A lock ends and the message stays: free, deferred, or beyond its limits."""
        count = message.delivery_count
        if outcome != RELEASE:
            count += 1
        if subqueue == MAIN and outcome == ABANDON:
            count_max = self.description.max_delivery_count
            if count >= count_max:
                text = f"Message could not be consumed after {count_max} delivery attempts."
                merged = merge_overlays(overlay, Overlay(REASON_DELIVERY_COUNT, text))
                assert merged is not None
                self._move_to_dead_letter(message, count, merged)
                return
        part = self._part(subqueue)
        state = DEFERRED if outcome == DEFER else message.state
        message.delivery_count = count
        message.overlay = merge_overlays(message.overlay, overlay)
        part.unlock(message, state)
        if subqueue == MAIN and _has_expired(message, now):
            self._expire([message])
            return
        self.facts.append(
            Unlocked(
                self.entity_id, subqueue, message.sequence_number, count, state, message.overlay
            )
        )
        if subqueue == MAIN and state == ACTIVE and message.expires_ms != NEVER_MS:
            part.table.watch_expiry(message)

    def _move_to_dead_letter(self, message: Message, count: int, overlay: Overlay) -> None:
        merged = merge_overlays(message.overlay, overlay)
        assert merged is not None
        self._dead_letter_message(message, count, merged)
        self.facts.append(DeadLettered(self.entity_id, message.sequence_number, count, merged))

    def _expire(self, messages: list[Message]) -> None:
        if not self.description.dead_lettering_on_message_expiration:
            self._remove(MAIN, messages)
            return
        overlay = Overlay(REASON_EXPIRED, "The message expired and was dead lettered.")
        for message in messages:
            self._move_to_dead_letter(message, message.delivery_count, overlay)

    def _remove(self, subqueue: int, messages: list[Message]) -> None:
        part = self._part(subqueue)
        numbers: list[int] = []
        for message in messages:
            part.remove(message)
            numbers.append(message.sequence_number)
        self.facts.append(Removed(self.entity_id, subqueue, numbers))

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """End locks, activate what is due, expire; in turns of about TRANSITIONS_MAX."""
        left = TRANSITIONS_MAX
        for subqueue in (MAIN, DEAD_LETTER_QUEUE):
            part = self._part(subqueue)
            due = part.locks.take_due(now.mono_ms, left)
            left -= len(due)
            for number in due:
                found = part.table.get(number)
                if found is not None and found.grant != 0 and found.locked_until_ms <= now.mono_ms:
                    self._give_back(subqueue, found, ABANDON, None, now)
        while left > 0:
            due_ms, number = self._main.next_scheduled()
            if due_ms > now.utc_ms or number > self.published:
                break  # one that is not durable yet holds up the later ones: order goes first
            self._activate(number, now)
            left -= 1
        if left > 0:
            table = self._main.table
            expired = table.find_expired(now.utc_ms, self.published, left)
            self._expiry_waits = len(expired) < left and table.next_expiry_ms() <= now.utc_ms
            if expired:
                self._expire(expired)

    def next_due_ms(self, now: Now) -> int:
        """Milliseconds until `tick` has something to do; -1 when nothing is waiting for time."""
        lock_ms = min(self._main.locks.next_ms(), self._dead_letter.locks.next_ms())
        due_ms, number = self._main.next_scheduled()
        expiry_ms = self._main.table.next_expiry_ms()
        # What is due but not yet durable has to wait; ticking all the time would not help it.
        soon_ms = now.utc_ms + 1
        if number > self.published:
            due_ms = max(due_ms, soon_ms)
        if self._expiry_waits:
            expiry_ms = max(expiry_ms, soon_ms)
        if lock_ms == due_ms == expiry_ms == NEVER_MS:
            return -1
        return max(0, min(lock_ms - now.mono_ms, due_ms - now.utc_ms, expiry_ms - now.utc_ms))

    def _activate(self, number: int, now: Now) -> None:
        """A scheduled message is due: it takes a new number and its place at the end."""
        message = self._main.table.get(number)
        assert message is not None
        expires_ms = NEVER_MS
        if message.expires_ms != NEVER_MS:
            expires_ms = now.utc_ms + message.expires_ms - message.enqueued_ms
        new_number = self.last_sequence_number + 1
        self._activate_message(message, new_number, now.utc_ms, expires_ms)
        self.facts.append(Activated(self.entity_id, number, new_number, now.utc_ms, expires_ms))

    def apply(self, command: Command, now: Now) -> object:
        """Decide on any command; the reply's result."""
        if isinstance(command, Send):
            return self.send(command.messages, now)
        if isinstance(command, Settle):
            return self.settle(
                command.subqueue, command.locks, command.outcome, command.overlay, now
            )
        if isinstance(command, RenewLocks):
            return self.renew(command.subqueue, command.locks, now)
        if isinstance(command, Peek):
            return self.peek(command.subqueue, command.from_sequence_number, command.count, now)
        if isinstance(command, ReceiveDeferred):
            return self.receive_deferred(
                command.subqueue, command.sequence_numbers, command.receive_mode, now
            )
        if isinstance(command, CancelScheduled):
            self.cancel_scheduled(command.sequence_numbers, now)
            return None
        raise NotSupported(f"A queue does not know the command {type(command).__name__}.")

    # -- refusals -------------------------------------------------------------------------------

    def _quota_exceeded(self) -> QuotaExceeded:
        return QuotaExceeded(
            f"The queue '{self.name}' has reached its maximum size of "
            f"{self.description.max_size_megabytes} MB; receive messages to make room."
        )


def _has_expired(message: Message, now: Now) -> bool:
    """Is this a free message whose time is over?  (Deferred and scheduled ones wait.)"""
    return message.expires_ms <= now.utc_ms and message.state == ACTIVE and message.grant == 0


def _check_sequence_numbers(sequence_numbers: list[int]) -> None:
    if len(sequence_numbers) > SEQUENCE_NUMBERS_MAX:
        raise ArgumentOutOfRange(
            f"A request may name {SEQUENCE_NUMBERS_MAX} sequence numbers, "
            f"not {len(sequence_numbers)}."
        )
    if len(set(sequence_numbers)) != len(sequence_numbers):
        raise ArgumentInvalid("A sequence number is given twice.")
