"""What a queue holds, and how facts rebuild it.

The half of a queue that decides nothing: its parts, the counts, the watermark, and the store's side
of it (replay, restore, publish, walk).  Decisions are in transitions.py and queue.py.

Replaying is idempotent: facts are absolute, so going once more through any tail of the facts that
led to a state gives that state again.  Snapshots taken in slices rest on it.  What a fact names and
is not here any more has been removed by a later fact, and is passed over.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.arrivals import Arrivals
from twinbus.entities.carried import CarriedNumbers
from twinbus.entities.descriptions import (
    DESCRIPTIONS,
    DISABLED,
    RECEIVE_DISABLED,
    SEND_DISABLED,
    QueueDescription,
)
from twinbus.entities.duplicates import DuplicateHistory
from twinbus.entities.facts import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    Activated,
    Arrived,
    Carried,
    DeadLettered,
    EntityCreated,
    Fact,
    IdsSeen,
    Locked,
    Removed,
    Rescheduled,
    Stored,
    Unlocked,
)
from twinbus.entities.message import ACTIVE, GONE, NEVER_MS, SCHEDULED, Message, Overlay
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    first_number,
    shown_name,
    split_partition,
)
from twinbus.entities.subqueue import SubQueue
from twinbus.errors import EntityDisabled
from twinbus.limits import ARRIVAL_PASSING_MAX

_MEGABYTE: Final = 1_048_576


class Grants:
    """Numbers for locks; one counter for all queues of a store, so none is ever used twice."""

    __slots__ = ("next",)

    def __init__(self, next_grant: int = 1) -> None:
        self.next = next_grant


class QueueCounts:
    """How much is in a queue."""

    __slots__ = (
        "active",
        "dead_letter",
        "deferred",
        "message_count",
        "scheduled",
        "size_bytes",
        "transfer",
        "transfer_dead_letter",
    )

    def __init__(
        self,
        active: int,
        deferred: int,
        scheduled: int,
        dead_letter: int,
        size_bytes: int,
        transfer_dead_letter: int = 0,
    ) -> None:
        self.active = active  # locked ones included
        self.deferred = deferred
        self.scheduled = scheduled
        self.dead_letter = dead_letter
        self.transfer = 0
        self.transfer_dead_letter = transfer_dead_letter
        self.message_count = active + deferred + scheduled + dead_letter + transfer_dead_letter
        self.size_bytes = size_bytes


class QueueState:
    """The main part of one queue, its dead-letter queue and its transfer dead-letter queue."""

    __slots__ = (
        "_dead_letter",
        "_expiry_waits",
        "_main",
        "_receive_disabled",
        "_send_disabled",
        "_size_bytes_max",
        "_transfer_dead_letter",
        "accessed_utc_ms",
        "arrivals",
        "carried",
        "copied_size_bytes",
        "description",
        "entity_id",
        "facts",
        "grants",
        "history",
        "kind",
        "last_sequence_number",
        "name",
        "needs_keys",
        "partition",
        "published",
        "topic_id",
    )

    def __init__(
        self,
        entity_id: int,
        name: str,
        description: QueueDescription,
        facts: list[Fact],
        grants: Grants,
    ) -> None:
        self.entity_id = entity_id
        self.kind = description.KIND  # "queue", "subscription" or "topic"
        self.name = name  # as the store knows it: with namespace and partition
        self.partition = split_partition(name)[1]  # NO_PARTITION if it is whole
        self.topic_id = 0  # of a subscription: the topic it belongs to
        self.facts = facts  # where it states what happens; the store's own list
        self.grants = grants
        self.published = first_number(self.partition)  # highest visible sequence number
        self.last_sequence_number = self.published  # highest assigned
        self.accessed_utc_ms = description.created_utc_ms  # UTC; last send or receive, not durable
        self._main = SubQueue()
        self._dead_letter = SubQueue()
        # Few queues ever have one, and ten thousand queues must stay cheap: made when asked for.
        self._transfer_dead_letter: SubQueue | None = None
        self.description = description
        self.history: DuplicateHistory | None = None  # where duplicates are to be detected
        self.carried: CarriedNumbers | None = None  # once something came from another store
        self.arrivals: Arrivals | None = None  # once something came that its producer has numbered
        self._send_disabled = False
        self._receive_disabled = False
        self._size_bytes_max = 0
        self._expiry_waits = False  # something has expired that is not published yet
        self.needs_keys = False  # whether NewMessage must bring its ids along
        self.copied_size_bytes = 0  # of a topic's last send, its copies: the broker makes room
        self.update(description)

    def update(self, description: QueueDescription) -> None:
        """Follow a new description.  Running locks and given expiry times stay as they are."""
        status = description.status
        self.description = description
        self._send_disabled = status in (DISABLED, SEND_DISABLED)
        self._receive_disabled = status in (DISABLED, RECEIVE_DISABLED)
        self._size_bytes_max = description.max_size_megabytes * _MEGABYTE
        if description.requires_duplicate_detection:
            if self.history is None:
                self.history = DuplicateHistory(description.duplicate_detection_window_ms)
            self.history.window_ms = description.duplicate_detection_window_ms
        self.needs_keys = (
            description.requires_session
            or description.requires_duplicate_detection
            or description.KIND == "topic"  # a subscription may ask for what the topic does not
        )

    @property
    def shown_name(self) -> str:
        """What its users call it; for everything that they get to see."""
        return shown_name(self.name)

    def check_sendable(self) -> None:
        """Refuse when the status of the queue keeps senders out."""
        if self._send_disabled:
            raise self._disabled()

    def takes_copies(self) -> bool:
        """Whether a topic may put copies into this subscription."""
        return not self._send_disabled

    def check_receivable(self) -> None:
        """Refuse when the status of the queue keeps receivers out."""
        if self._receive_disabled:
            raise self._disabled()

    def _disabled(self) -> EntityDisabled:
        return EntityDisabled(
            f"Messaging entity '{self.shown_name}' is currently disabled: "
            f"its status is {self.description.status}."
        )

    def publish(self, sequence_number: int) -> None:
        """Everything up to this number is durable."""
        self.published = max(self.published, sequence_number)
        self._expiry_waits = False

    def next_due_ms(self, now: Now) -> int:
        """Milliseconds until `tick` has something to do; -1 when nothing is waiting for time."""
        main, transfer = self._main, self._transfer_dead_letter
        lock_ms = due_ms = NEVER_MS
        number = 0
        if main.locks.ends or self._dead_letter.locks.ends:
            lock_ms = min(main.locks.next_ms(), self._dead_letter.locks.next_ms())
        if transfer is not None:
            lock_ms = min(lock_ms, transfer.locks.next_ms())
        if main.schedule:
            due_ms, number = main.next_scheduled()
        expiry_ms = main.table.next_expiry_ms()
        # What is due but not yet durable has to wait; ticking all the time would not help it.
        soon_ms = now.utc_ms + 1
        if number > self.published:
            due_ms = max(due_ms, soon_ms)
        if self._expiry_waits:
            expiry_ms = max(expiry_ms, soon_ms)
        if lock_ms == due_ms == expiry_ms == NEVER_MS:
            return -1
        return max(0, min(lock_ms - now.mono_ms, due_ms - now.utc_ms, expiry_ms - now.utc_ms))

    def has_ready(self, subqueue: int) -> bool:
        """Would `lock_next` find something (or at least something that has expired)?"""
        if self._receive_disabled:
            return False
        return self._part(subqueue).has_ready(self.published)

    def counts(self) -> QueueCounts:
        """How much is here."""
        main = self._main
        transfer = self._transfer_dead_letter
        return QueueCounts(
            active=main.table.count - main.deferred_count - main.scheduled_count,
            deferred=main.deferred_count,
            scheduled=main.scheduled_count,
            dead_letter=self._dead_letter.table.count,
            size_bytes=self.size_bytes(),
            transfer_dead_letter=0 if transfer is None else transfer.table.count,
        )

    def size_bytes(self) -> int:
        """What the bodies of all messages take."""
        size_bytes = self._main.size_bytes + self._dead_letter.size_bytes
        if self._transfer_dead_letter is not None:
            size_bytes += self._transfer_dead_letter.size_bytes
        return size_bytes

    def messages_from(self, subqueue: int, sequence_number: int, count: int) -> list[Message]:
        """For snapshots: durable messages in order from this number on, `count` at most.

        Fewer than `count` means that the part has no more.
        """
        if subqueue == TRANSFER_DEAD_LETTER and self._transfer_dead_letter is None:
            return []
        part = self._part(subqueue)
        limit = self.published
        found: list[Message] = []
        number = sequence_number
        while len(found) < count:
            run = part.table.run_from(number, count - len(found))
            if not run:
                break
            for message in run:
                if message.sequence_number > limit:
                    return found
                found.append(message)
            number = run[-1].sequence_number + 1
        return found

    def span(self, subqueue: int) -> tuple[int, int, int]:
        """Of a part: the lowest number that is there, the one that no published number of the queue
        reaches, and how many messages there are.  Of an empty part both numbers are the same.
        """
        after = self.published + 1
        lowest = self.messages_from(subqueue, 1, 1)
        if not lowest:
            return after, after, 0
        return lowest[0].sequence_number, after, self._part(subqueue).table.count

    def put_scheduled(self, message: Message) -> None:
        """Take in a scheduled message that is durable already.

        For transactions: its number was told before, and newer ones may have been published since.
        """
        self._main.put(message)

    # -- rebuilding -----------------------------------------------------------------------------

    def restore(self, message: Message, subqueue: int, now: Now) -> None:
        """Put in a message as a snapshot or a fact has it, in place of one with its number.

        A lock it carries runs anew from `now`.
        """
        number = message.sequence_number
        self._seen(number)
        if message.state == GONE:
            return  # it was removed before the fact that stored it was written
        part = self._part(subqueue)
        known = part.table.get(number)
        if known is not None:
            part.remove(known)
        if message.grant != 0:
            message.locked_until_ms = now.mono_ms + self.description.lock_duration_ms
            part.locks.add(message.locked_until_ms, [number])
            self.grants.next = max(self.grants.next, message.grant + 1)
        part.put(message)
        if subqueue == MAIN and message.state == ACTIVE and message.expires_ms != NEVER_MS:
            part.table.watch_expiry(message)

    def replay(self, fact: Fact, now: Now) -> None:
        """Let a fact happen again.  Locks run anew from `now`; everything is durable."""
        if isinstance(fact, Stored):
            for message in fact.messages:
                self.restore(message, fact.subqueue, now)
        elif isinstance(fact, Removed):
            part = self._part(fact.subqueue)
            for number in fact.sequence_numbers:
                gone = part.table.get(number)
                if gone is not None:
                    part.remove(gone)
        elif isinstance(fact, Locked):
            self._replay_locked(fact, now)
        elif isinstance(fact, Unlocked):
            self._replay_unlocked(fact)
        elif isinstance(fact, DeadLettered):
            self._replay_dead_lettered(fact)
        elif isinstance(fact, Activated):
            self._replay_activated(fact)
        elif isinstance(fact, Rescheduled):
            self._replay_rescheduled(fact)
        elif isinstance(fact, IdsSeen):
            if self.history is not None:
                self.history.restore(fact.digests, fact.seen_ms)
        elif isinstance(fact, Carried):
            self._carried_numbers().remember(fact.carrier, fact.numbers)
        elif isinstance(fact, Arrived):
            self._arrivals().add(fact.producer, fact.bounds)
        elif isinstance(fact, EntityCreated):
            self.update(DESCRIPTIONS[fact.kind].from_json(fact.description))

    def _replay_locked(self, fact: Locked, now: Now) -> None:
        part = self._part(fact.subqueue)
        until_ms = now.mono_ms + self.description.lock_duration_ms
        grant = fact.first_grant
        for number in fact.sequence_numbers:
            message = part.table.get(number)
            if message is not None:
                part.lock(message, grant, until_ms)
            grant += 1
        self.grants.next = max(self.grants.next, grant)

    def _replay_unlocked(self, fact: Unlocked) -> None:
        part = self._part(fact.subqueue)
        message = part.table.get(fact.sequence_number)
        if message is None:
            return
        message.delivery_count = fact.delivery_count
        message.overlay = fact.overlay
        part.unlock(message, fact.state)
        if fact.subqueue == MAIN and fact.state == ACTIVE and message.expires_ms != NEVER_MS:
            part.table.watch_expiry(message)

    def _replay_dead_lettered(self, fact: DeadLettered) -> None:
        subqueue = MAIN
        message = self._main.table.get(fact.sequence_number)
        if message is None and fact.subqueue == TRANSFER_DEAD_LETTER:
            subqueue = DEAD_LETTER
            message = self._dead_letter.table.get(fact.sequence_number)
        if message is None:
            return
        target = self._part(fact.subqueue)
        known = target.table.get(fact.sequence_number)
        if known is not None:
            target.remove(known)
        self._dead_letter_message(
            subqueue, message, fact.delivery_count, fact.overlay, fact.subqueue
        )

    def _replay_activated(self, fact: Activated) -> None:
        message = self._main.table.get(fact.sequence_number)
        if message is not None:
            if self._main.table.get(fact.new_sequence_number) is None:
                self._activate_message(
                    message, fact.new_sequence_number, fact.enqueued_ms, fact.expires_ms
                )
            else:
                self._main.remove(message)
        self._seen(fact.new_sequence_number)

    def _replay_rescheduled(self, fact: Rescheduled) -> None:
        message = self._main.table.get(fact.sequence_number)
        if message is not None:
            self._reschedule_message(message, fact.delivery_count, fact.due_ms, fact.overlay)

    def _seen(self, number: int) -> None:
        self.last_sequence_number = max(self.last_sequence_number, number)
        self.published = self.last_sequence_number

    # -- moves that decisions and replay share --------------------------------------------------

    def _dead_letter_message(
        self, subqueue: int, message: Message, count: int, overlay: Overlay, target: int
    ) -> None:
        """Move a message from one part to a dead-letter queue.  It keeps its number."""
        self._part(subqueue).remove(message)
        message.state = ACTIVE
        message.delivery_count = count
        message.overlay = overlay
        self._part(target).put(message)

    def _reschedule_message(
        self, message: Message, count: int, due_ms: int, overlay: Overlay | None
    ) -> None:
        """Let a message of the main part wait.  Its expiry stays as near or far as it was."""
        self._main.remove(message)
        message.state = SCHEDULED
        message.delivery_count = count
        message.enqueued_ms = due_ms
        message.overlay = overlay
        self._main.put(message)

    def _activate_message(
        self, message: Message, new_number: int, enqueued_ms: int, expires_ms: int
    ) -> None:
        """Give a scheduled message its final number and time."""
        main = self._main
        main.remove(message)
        message.sequence_number = new_number
        message.enqueued_ms = enqueued_ms
        message.expires_ms = expires_ms
        message.state = ACTIVE
        main.put(message)
        if expires_ms != NEVER_MS:
            main.table.watch_expiry(message)
        self.last_sequence_number = max(self.last_sequence_number, new_number)

    def _carried_numbers(self) -> CarriedNumbers:
        if self.carried is None:
            self.carried = CarriedNumbers()
        return self.carried

    def _arrivals(self) -> Arrivals:
        if self.arrivals is None:
            parts = 1 if self.partition == NO_PARTITION else PARTITION_COUNT
            self.arrivals = Arrivals(passing_max=ARRIVAL_PASSING_MAX // parts)
        return self.arrivals

    def _part(self, subqueue: int) -> SubQueue:
        if subqueue == MAIN:
            return self._main
        if subqueue == DEAD_LETTER:
            return self._dead_letter
        assert subqueue == TRANSFER_DEAD_LETTER
        if self._transfer_dead_letter is None:
            self._transfer_dead_letter = SubQueue()
        return self._transfer_dead_letter
