"""A queue as a pure state machine: a main part and its dead-letter queues.

A command is decided at once, in memory; what happened is appended as facts to a list that the store
writes.  A refused command raises and has changed nothing.  The same facts, replayed, give the same
queue (state.py).  Here is what clients may ask for and what is refused; the steps that a message
takes are in transitions.py, how it gets in is in queue_sends.py.

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
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    PEEK_LOCK,
    TRANSFER_DEAD_LETTER,
    CancelScheduled,
    Command,
    ListPartitions,
    Lock,
    PartitionState,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Runtime,
    Settle,
)
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTER_QUEUE
from twinbus.entities.facts import MAIN, Removed
from twinbus.entities.facts import TRANSFER_DEAD_LETTER as TRANSFER_QUEUE
from twinbus.entities.fields import MessageCodec
from twinbus.entities.message import ACTIVE, DEFERRED, SCHEDULED, Message, Overlay, overlay_bytes
from twinbus.entities.queue_sends import QueueSends
from twinbus.entities.rules import Rule
from twinbus.entities.session_locks import SessionLock
from twinbus.entities.subqueue import SubQueue
from twinbus.entities.transitions import TRANSITIONS_MAX, has_expired
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    ServiceError,
)
from twinbus.limits import PEEK_COUNT_MAX, SEQUENCE_NUMBERS_MAX

LOCK_LOST: Final = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been "
    "removed from the queue, or was received by a different receiver instance."
)


class Queue(QueueSends):
    """One queue (or subscription) with its dead-letter queues.

    The commands of clients have one door, `apply`; `check_send`, `check_more` and `check_settle`
    refuse beforehand what it would refuse.  Everything else that others call is no command:
    - deliveries: `lock_next`, `take_next`, and those of a session;
    - forwarding and walks over many messages: `take_ready`, `peek`, `remove`, `undefer`, …;
    - the store and its time: `enqueue`, `publish`, `replay`, `tick`, ….

    Half of its methods are questions that topics and queues with sessions answer in another way.
    """

    __slots__ = ()

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
        count = self._peek_count(count)
        seen: list[Message] = []
        number = from_sequence_number
        while len(seen) < count:
            run = self.messages_from(subqueue, number, count - len(seen))
            if not run:
                break
            seen += [each for each in run if subqueue != MAIN or not has_expired(each, now)]
            number = run[-1].sequence_number + 1
        return seen

    def _peek_count(self, count: int) -> int:
        """How many messages a peek may show that asks for so many."""
        self.check_receivable()
        if count < 1:
            raise ArgumentOutOfRange(f"A peek asks for at least 1 message, not {count}.")
        return min(count, PEEK_COUNT_MAX)

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
                self.dead_letter(MAIN, [message], overlay or Overlay(), DEAD_LETTER_QUEUE)
            elif outcome == TRANSFER_DEAD_LETTER:
                self.dead_letter(subqueue, [message], overlay or Overlay(), TRANSFER_QUEUE)
            else:
                self._give_back(subqueue, message, outcome, overlay, now, delay_ms)
        return results if failed else None

    def check_settle(self, command: Settle, now: Now) -> None:
        """Refuse if `apply` would refuse any of the locks; nothing changes."""
        part = self._part(command.subqueue)
        self._check_outcome(command.subqueue, command.outcome, command.delay_ms)
        for lock in command.locks:
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

    # -- what topics answer in another way --------------------------------------------------------

    def dependents(self) -> "list[Queue]":
        """Entities that go with this one: the subscriptions of a topic."""
        return []

    def join(self, codec: MessageCodec | None, together_size_max: int) -> None:
        """It belongs to a store, in which so many bytes can be written together."""

    def receive_refusal(self, subqueue: int) -> str:
        """Why nobody can receive from this part; empty when they can."""
        description = self.description
        if subqueue == MAIN and description.forward_to is not None:
            return f"'{self.shown_name}' forwards its messages; receive from where they go."
        forwards_dead = description.forward_dead_lettered_messages_to is not None
        if subqueue == DEAD_LETTER_QUEUE and forwards_dead:
            return f"'{self.shown_name}' forwards its dead letters; receive from where they go."
        return ""

    def take_due(self, size_bytes_max: int, now: Now) -> list[Message]:
        """What is due here and goes elsewhere; `fan_out_due` must follow at once."""
        return []

    def fan_out_due(self, messages: list[Message], bodies: list[bytes], now: Now) -> None:
        """Send on what `take_due` has handed out."""

    def rules_of(self, subscription_id: int) -> list[Rule]:
        """The rules of one of its subscriptions."""
        return []

    def add_runtime(self, runtime: Runtime) -> None:
        """What there is to tell beside the counts of its own messages."""

    # -- sessions, of which a plain queue has none ------------------------------------------------

    def check_session(self, subqueue: int, session: SessionLock | None, now: Now) -> None:
        """Refuse a receiver that has no session where it needs one, or one where there is none."""
        if session is not None:
            raise InvalidOperation(f"'{self.shown_name}' has no sessions here.")

    def check_has_sessions(self) -> None:
        """Refuse whoever wants to accept a session here."""
        raise self._no_sessions()

    def has_available(self) -> bool:
        """May a session be available?  Only `accept_session` knows for certain."""
        return False

    def accept_session(self, session_id: str | None, now: Now) -> SessionLock | None:
        """Lock this session, or the one that has been available for longest.

        None when no session is available.  One that is named may be new and empty.
        """
        raise self._no_sessions()

    def take_over(self, session_id: str, grant: int, now: Now) -> SessionLock:
        """Another receiver goes on under the same lock."""
        raise self._no_sessions()

    def release_session(self, session_id: str, grant: int, now: Now) -> None:
        """The holder closes: locks end, delivery counts stay.  Too late, it changes nothing."""

    def take_lost(self) -> list[tuple[str, int]]:
        """Session locks that ran out since the last question, as session id and grant."""
        return []

    def take_stirred(self) -> list[str]:
        """Held sessions that have got something to hand out since the last question."""
        return []

    def session_ready(self, session_id: str) -> bool:
        """Would `lock_next_of` find something (or at least something that has expired)?"""
        return False

    def lock_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        """Lock the next free messages of a held session, `count` at most."""
        raise self._no_sessions()

    def take_next_of(self, session_id: str, grant: int, count: int, now: Now) -> list[Message]:
        """Receive and delete from a held session."""
        raise self._no_sessions()

    def locked_until_utc_ms(self, session_id: str, now: Now) -> int:
        """Until when a held session, and what was handed out from it, is locked."""
        raise self._no_sessions()

    def peek_session(self, session_id: str, start: int, count: int, now: Now) -> list[Message]:
        """Look at the messages of one session; nobody needs to hold it for that."""
        raise self._no_sessions()

    def session_states(self) -> list[tuple[str, bytes, int]]:
        """For snapshots: each session that has a state, the state, and when it was set (UTC)."""
        return []

    def _no_sessions(self) -> InvalidOperation:
        return InvalidOperation(
            f"'{self.shown_name}' does not require sessions: receive without a session."
        )

    # -- the door for commands --------------------------------------------------------------------

    def _apply_other(self, command: Command, now: Now) -> object:
        """Decide on what is not a send."""
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
        if isinstance(command, ListPartitions):
            self.check_receivable()
            first, after, count = self.span(command.subqueue)
            return [PartitionState(max(0, self.partition), True, first, after, count)]
        return super()._apply_other(command, now)

    # -- refusals -------------------------------------------------------------------------------

    def _refuse_session(self, session_id: str | None) -> None:
        if session_id is not None:
            raise InvalidOperation(
                f"'{self.shown_name}' has no sessions here; leave out the session id."
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
