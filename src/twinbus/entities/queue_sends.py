"""How messages get into a queue: sent, carried over from another store, dead on arrival.

Copies of what has come before are accepted and dropped, whichever way they are known by: a
producer's number, a message id within the window, a number that another store has carried over.
"""

from twinbus.clock import Now
from twinbus.entities.arrivals import Screened, has_number
from twinbus.entities.carried import JOURNAL
from twinbus.entities.commands import Command, Send
from twinbus.entities.facts import MAIN, Arrived, Carried, IdsSeen, Stored, Together, gather
from twinbus.entities.message import (
    NEVER_MS,
    SCHEDULED,
    Message,
    NewMessage,
    ProducerKey,
    has_producer_key,
)
from twinbus.entities.transitions import QueueTransitions
from twinbus.errors import NotSupported, QuotaExceeded


class QueueSends(QueueTransitions):
    """A queue that takes messages in."""

    __slots__ = ()

    def apply(self, command: Command, now: Now) -> object:
        """Decide on any command, the one door of a queue; what it gives is the reply's result."""
        if isinstance(command, Send):
            if command.carrier:
                return self.send_carried(command, now)
            if command.has_room:
                self.check_sendable()
            return self.send(command.messages, now, command.has_room)
        return self._apply_other(command, now)

    def _apply_other(self, command: Command, now: Now) -> object:
        raise NotSupported(f"A queue does not know the command {type(command).__name__}.")

    def send(self, messages: list[NewMessage], now: Now, admitted: bool = False) -> list[int]:
        """Enqueue or schedule, all or none; returns the sequence numbers.

        What is accepted and dropped has the number 0: a ping, a copy of what its producer has sent
        before under the same number, and, where duplicates are detected, a duplicate.

        What was acknowledged before it came here is admitted, whatever the status and the size.
        """
        if self._send_disabled and not admitted:
            raise self._disabled()
        if has_producer_key(messages):
            return self._send_keyed(messages, admitted, now)
        return self._send_unkeyed(messages, admitted, now)

    def must_be_whole(self, messages: list[NewMessage]) -> bool:
        """Must these be one frame?  Ids and producers' numbers come with their messages."""
        return self.history is not None or has_producer_key(messages)

    def _send_keyed(self, messages: list[NewMessage], admitted: bool, now: Now) -> list[int]:
        only = messages[0].producer_key
        if len(messages) == 1 and only is not None and not only.is_ping:
            return self._send_numbered(messages, only, admitted, now)
        found = self._arrivals().screen(messages)
        if found.ping_count and not admitted:
            self.check_ping(found.ping_bytes)
        if not found.fresh:
            # Nothing to write.  But a ping tells whether the log works, and of a copy the first one
            # may be on its way to the disk still: an empty fact waits for it.
            self.facts.append(Together([]))
            return found.spread([])
        mark = len(self.facts)
        numbers = self._send_unkeyed(found.fresh, admitted, now)
        self._arrive(found)
        gather(self.facts, mark)
        return found.spread(numbers)

    def _send_numbered(
        self, messages: list[NewMessage], only: ProducerKey, admitted: bool, now: Now
    ) -> list[int]:
        """What `_send_keyed` does with one numbered message: a paired sender sends one a call."""
        arrivals = self._arrivals()
        producer, number = only.producer, only.number
        if has_number(arrivals.bounds_of(producer), number):
            self.facts.append(Together([]))  # as above
            return [0]
        mark = len(self.facts)
        numbers = self._send_unkeyed(messages, admitted, now)
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

    def _send_unkeyed(self, messages: list[NewMessage], admitted: bool, now: Now) -> list[int]:
        history = self.history
        if history is None:
            return self._send_fresh(messages, admitted, now)
        sifted = history.sift(messages, self.description.enable_partitioning, now.utc_ms)
        if not sifted.fresh:
            # Nothing new to write.  But the first one may be on its way to the disk still, and
            # until it is there nobody may hear that it was accepted: an empty fact waits for it.
            self.facts.append(Together([]))
            return sifted.spread([])
        history.check_room(len(sifted.fresh), now.utc_ms)
        mark = len(self.facts)
        numbers = self._send_fresh(sifted.fresh, admitted, now)
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
        given = self.send(fresh, now, carrier.startswith(JOURNAL)) if fresh else []
        kept = carried.with_these(carrier, numbers, command.carrier_completed)
        carried.remember(carrier, kept)
        # Stated also if nothing is new: the first send may be on its way to the disk still.
        self.facts.append(Carried(self.entity_id, carrier, kept))
        gather(self.facts, mark)
        given.reverse()
        return [0 if number in known else given.pop() for number in numbers]

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

    def _send_fresh(self, messages: list[NewMessage], admitted: bool, now: Now) -> list[int]:
        """Store what is new, or refuse it."""
        if not admitted:
            self._check_size(messages)
        self._check_ids(messages)
        stored = self.enqueue(messages, now)
        self.facts.append(Stored(self.entity_id, MAIN, stored))
        return [message.sequence_number for message in stored]

    def check_send(self, messages: list[NewMessage], now: Now) -> None:
        """Refuse what `send` would refuse; nothing changes."""
        self.check_sendable()
        self._check_size(messages)
        if self.history is not None:
            self.history.check_room(len(messages), now.utc_ms)
        self._check_ids(messages)

    def _check_size(self, messages: list[NewMessage]) -> None:
        """Refuse messages that the queue has no room for."""
        size_bytes = self.size_bytes()
        for new in messages:
            size_bytes += len(new.body)
        if size_bytes > self._size_bytes_max:
            raise self._quota_exceeded()

    def _check_ids(self, messages: list[NewMessage]) -> None:
        """Refuse messages without the ids they need; a plain queue needs none."""

    def check_more(self, earlier: list[NewMessage], messages: list[NewMessage], now: Now) -> None:
        """Refuse what could not be sent in one transaction with what came earlier."""
        self.check_send(earlier + messages, now)

    def copied_bytes(self, messages: list[NewMessage], now: Now) -> int:
        """How much `send` would write beside the messages: the copies of a topic."""
        return 0

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

    def _quota_exceeded(self) -> QuotaExceeded:
        return QuotaExceeded(
            f"The queue '{self.shown_name}' has reached its maximum size of "
            f"{self.description.max_size_megabytes} MB; receive messages to make room."
        )
