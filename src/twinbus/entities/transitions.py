"""What a message goes through in its queue, each step together with the fact that says so.

Commands (queue.py) and time decide which step a message takes; how it is taken is here, once for
all of them: locked, given back, deferred, dead-lettered, made to wait, activated, expired, removed.

This module must never refuse: whoever calls has checked.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import ABANDON, DEFER, RELEASE
from twinbus.entities.facts import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    Activated,
    DeadLettered,
    Locked,
    Removed,
    Rescheduled,
    Unlocked,
)
from twinbus.entities.message import ACTIVE, DEFERRED, NEVER_MS, Message, Overlay, merge_overlays
from twinbus.entities.state import QueueState
from twinbus.entities.subqueue import SubQueue

# What one tick, or one walk of the cursor, may change before the loop gets its turn again.
TRANSITIONS_MAX: Final = 1_000

REASON_EXPIRED: Final = "TTLExpiredException"
REASON_DELIVERY_COUNT: Final = "MaxDeliveryCountExceeded"


class QueueTransitions(QueueState):
    """A queue that can take steps and states them."""

    __slots__ = ()

    # -- locks ----------------------------------------------------------------------------------

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

    def _give_back(
        self,
        subqueue: int,
        message: Message,
        outcome: int,
        overlay: Overlay | None,
        now: Now,
        delay_ms: int = 0,
    ) -> None:
        """A lock ends and the message stays: free, deferred, waiting, or beyond its limits."""
        count = message.delivery_count
        if subqueue == MAIN and outcome == ABANDON:
            count += 1  # only here: who defers has dealt with it, and nobody counts dead letters
            count_max = self.description.max_delivery_count
            # What is to be forwarded only ever gets to a relay, and that gives up when it must.
            if count >= count_max and self.description.forward_to is None:
                text = f"Message could not be consumed after {count_max} delivery attempts."
                merged = merge_overlays(overlay, Overlay(REASON_DELIVERY_COUNT, text))
                assert merged is not None
                self._move_to_dead_letter(MAIN, message, count, merged, DEAD_LETTER)
                return
            if delay_ms > 0:
                self._reschedule(message, count, now.utc_ms + delay_ms, overlay)
                return
        part = self._part(subqueue)
        state = DEFERRED if outcome == DEFER else message.state
        message.delivery_count = count
        message.overlay = merge_overlays(message.overlay, overlay)
        self._unlock(part, subqueue, message, state, now)

    def release_locks(self, subqueue: int, now: Now) -> None:
        """End all locks of a part, as if nobody had looked: a relay begins anew, in order."""
        part = self._part(subqueue)
        for number in sorted(part.locks.take_due(NEVER_MS - 1, NEVER_MS)):
            found = part.table.get(number)
            if found is not None and found.grant != 0:
                self._give_back(subqueue, found, RELEASE, None, now)

    def _unlock(
        self, part: SubQueue, subqueue: int, message: Message, state: int, now: Now
    ) -> None:
        """The message is free in this state, unless its time was over meanwhile."""
        part.unlock(message, state)
        if subqueue == MAIN and has_expired(message, now):
            self._expire([message])
            return
        self.facts.append(
            Unlocked(
                self.entity_id,
                subqueue,
                message.sequence_number,
                message.delivery_count,
                state,
                message.overlay,
            )
        )
        if subqueue == MAIN and state == ACTIVE and message.expires_ms != NEVER_MS:
            part.table.watch_expiry(message)

    # -- moves ----------------------------------------------------------------------------------

    def _move_to_dead_letter(
        self, subqueue: int, message: Message, count: int, overlay: Overlay, target: int
    ) -> None:
        merged = merge_overlays(message.overlay, overlay)
        assert merged is not None
        self._dead_letter_message(subqueue, message, count, merged, target)
        number = message.sequence_number
        self.facts.append(DeadLettered(self.entity_id, number, count, merged, target))

    def _reschedule(
        self, message: Message, count: int, due_ms: int, overlay: Overlay | None
    ) -> None:
        merged = merge_overlays(message.overlay, overlay)
        self._reschedule_message(message, count, due_ms, merged)
        number = message.sequence_number
        self.facts.append(Rescheduled(self.entity_id, number, count, due_ms, merged))

    def _expire(self, messages: list[Message]) -> None:
        if not self.description.dead_lettering_on_message_expiration:
            self._remove(MAIN, messages)
            return
        overlay = Overlay(REASON_EXPIRED, "The message expired and was dead lettered.")
        for message in messages:
            self._move_to_dead_letter(MAIN, message, message.delivery_count, overlay, DEAD_LETTER)

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
        left = self._end_locks(MAIN, self._main, TRANSITIONS_MAX, now)
        left = self._end_locks(DEAD_LETTER, self._dead_letter, left, now)
        if self._transfer_dead_letter is not None:
            left = self._end_locks(TRANSFER_DEAD_LETTER, self._transfer_dead_letter, left, now)
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

    def _end_locks(self, subqueue: int, part: SubQueue, left: int, now: Now) -> int:
        due = part.locks.take_due(now.mono_ms, left)
        for number in due:
            found = part.table.get(number)
            if found is not None and found.grant != 0 and found.locked_until_ms <= now.mono_ms:
                self._give_back(subqueue, found, ABANDON, None, now)
        return left - len(due)

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


def has_expired(message: Message, now: Now) -> bool:
    """Is this a free message whose time is over?  (Deferred and scheduled ones wait.)"""
    return message.expires_ms <= now.utc_ms and message.state == ACTIVE and message.grant == 0
