"""A topic as a pure state machine: what is sent to it goes to its subscriptions at once.

    send ─▶ match the rules ─▶ is there room everywhere? ─▶ copies ─▶ one `Together` of facts

A topic holds nothing but scheduled messages; when they are due, the broker has them fanned out (it
can read their bodies).  A copy without changes shares its body with the others on disk and in
memory; a rule with an action makes a body of its own.

Decisions where the cloud's documentation is silent or vague:
- A subscription that is Disabled or SendDisabled gets no copies; one that is ReceiveDisabled does.
- The quota of a topic holds for each of its subscriptions.  One that is full refuses the send for
  all; only what was scheduled before is let in, as nobody is there any more to be refused.
- A message that no subscription wants is accepted and gone.

Never looks into a message: `MessageCodec` does, and only where a rule or a session asks for it.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import Runtime
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import (
    DEAD_LETTER,
    MAIN,
    Fact,
    FannedOut,
    LastNumber,
    Removed,
    Rescheduled,
    Stored,
    gather,
)
from twinbus.entities.fields import MessageCodec
from twinbus.entities.letters import COPY_BYTES, Copy, Letter, as_changed, as_dead, pieces, with_key
from twinbus.entities.message import (
    NEVER_MS,
    SCHEDULED,
    Message,
    NewMessage,
    Overlay,
    merge_overlays,
    overlay_bytes,
    scheduled_message,
)
from twinbus.entities.queue import Queue
from twinbus.entities.rules import Rule, RuleIndex
from twinbus.entities.sql.values import FILTER_ERROR_REASON
from twinbus.entities.state import Grants
from twinbus.entities.transitions import TRANSITIONS_MAX
from twinbus.errors import QuotaExceeded
from twinbus.limits import TRANSACTION_SIZE_BYTES_MAX

REASON_NO_SESSION: Final = "Session id is null."
_NO_SESSION: Final = "The subscription requires sessions and the message has no session id."
# A send that takes more is written in several pieces.  A piece may grow to three times that and a
# message before it is noticed, so it is at most so many parts of what can be written together.
PIECE_SIZE_BYTES: Final = 8_388_608
PIECES_TOGETHER: Final = 6
DUE_INTERVAL_MS: Final = 10  # between two rounds of what is due others get their turn


class Topic(Queue):
    """One topic.  Whoever makes it links its subscriptions and their rules, and gives a codec."""

    __slots__ = ("_piece_size_bytes", "_together_size_max", "codec", "rules", "subscriptions")

    def __init__(
        self,
        entity_id: int,
        name: str,
        description: QueueDescription,
        facts: list[Fact],
        grants: Grants,
    ) -> None:
        super().__init__(entity_id, name, description, facts, grants)
        self.subscriptions: dict[int, Queue] = {}
        self.rules = RuleIndex()
        self.codec: MessageCodec | None = None
        self._bound(TRANSACTION_SIZE_BYTES_MAX)

    def join(self, codec: MessageCodec | None, together_size_max: int) -> None:
        self.codec = codec
        self._bound(together_size_max)

    def _bound(self, together_size_max: int) -> None:
        self._together_size_max = min(TRANSACTION_SIZE_BYTES_MAX, together_size_max)
        self._piece_size_bytes = min(PIECE_SIZE_BYTES, together_size_max // PIECES_TOGETHER)

    def update(self, description: QueueDescription) -> None:
        super().update(description)
        # Session ids are read when a subscription asks for one, which few do.
        self.needs_keys = description.requires_duplicate_detection

    # -- what is asked of every entity ----------------------------------------------------------

    def dependents(self) -> list[Queue]:
        return list(self.subscriptions.values())

    def receive_refusal(self, subqueue: int) -> str:
        return "A topic holds no messages to receive; receive from one of its subscriptions."

    def rules_of(self, subscription_id: int) -> list[Rule]:
        return self.rules.rules_of(subscription_id)

    def add_runtime(self, runtime: Runtime) -> None:
        runtime.sql_filter_count = self.rules.sql_filter_count
        runtime.correlation_filter_count = self.rules.correlation_filter_count
        runtime.rule_count = self.rules.rule_count
        for subscription in self.subscriptions.values():
            # A body that several of them share counts for each.
            runtime.size_bytes += subscription.counts().size_bytes

    # -- sending --------------------------------------------------------------------------------

    def _send_fresh(self, messages: list[NewMessage], admitted: bool, now: Now) -> list[int]:
        """Fan out or schedule, all or none; returns the topic's own sequence numbers."""
        is_whole = self.must_be_whole(messages)
        plan = self._plan(messages, admitted, now)
        utc_ms = now.utc_ms
        self.accessed_utc_ms = utc_ms
        self.copied_size_bytes = 0
        numbers: list[int] = []
        fan = FanOut(self)
        for new, copies in zip(messages, plan, strict=True):
            self.last_sequence_number += 1
            number = self.last_sequence_number
            numbers.append(number)
            # Nobody hears of the send before all of it is durable, so it may come in pieces.
            if fan.size_bytes > self._piece_size_bytes and not is_whole:
                fan.state()
                fan = FanOut(self)
            if new.scheduled_ms > utc_ms:
                fan.wait(self._schedule(new, number))
            else:
                fan.add(number, copies, now)
        fan.state()
        return numbers

    def check_ping(self, size_bytes: int) -> None:
        """As for a queue; a full subscription refuses, since it would refuse what matches it."""
        super().check_ping(size_bytes)
        for subscription in self.subscriptions.values():
            if subscription.takes_copies():
                self._check_subscription(subscription, size_bytes)

    def check_send(self, messages: list[NewMessage], now: Now) -> None:
        """Refuse what `send` would refuse; nothing changes."""
        self.check_sendable()
        self._plan(messages, False, now)
        if self.history is not None:
            self.history.check_room(len(messages), now.utc_ms)

    def check_more(self, earlier: list[NewMessage], messages: list[NewMessage], now: Now) -> None:
        self.check_send(messages, now)  # matching all of them again each time would take too long

    def copied_bytes(self, messages: list[NewMessage], now: Now) -> int:
        """How much `send` would write beside the messages: what is one transaction is one frame.

        Whether they are let in is for `send` to say, which knows what was acknowledged before.
        """
        size = 0
        for copies in self._plan(messages, True, now):
            for copy in copies:
                size += copy.letter.size_bytes
        return size

    def _plan(self, messages: list[NewMessage], admitted: bool, now: Now) -> list[list[Copy]]:
        """The copies of every message; none of one that is for later."""
        plan: list[list[Copy]] = []
        size_bytes = self.size_bytes()
        for new in messages:
            if new.scheduled_ms > now.utc_ms:
                size_bytes += len(new.body)
                plan.append([])
            else:
                copies, _ = self._copies(new, 0, self._together_size_max)  # more is refused
                plan.append(copies)
        if size_bytes > self._size_bytes_max and not admitted:
            raise self._quota_exceeded()
        self._check_together(messages, plan)
        if not admitted:
            self._check_subscriptions(plan)
        return plan

    def _schedule(self, new: NewMessage, number: int) -> Message:
        """Keep a message until it is due."""
        ttl_ms = self.description.default_time_to_live_ms
        message = scheduled_message(new, number, new.scheduled_ms, ttl_ms)
        self._main.put(message)
        return message

    # -- what was scheduled ---------------------------------------------------------------------

    def take_due(self, size_bytes_max: int, now: Now) -> list[Message]:
        """Scheduled messages whose time has come; `fan_out_due` must follow at once."""
        due: list[Message] = []
        left = size_bytes_max
        while left > 0 and len(due) < TRANSITIONS_MAX:
            due_ms, number = self._main.next_scheduled()
            if due_ms > now.utc_ms or number > self.published:
                break  # one that is not durable yet holds up the later ones: order goes first
            message = self._main.table.get(number)
            assert message is not None
            left -= message.length
            self._main.remove(message)
            due.append(message)
        return due

    def fan_out_due(self, messages: list[Message], bodies: list[bytes], now: Now) -> None:
        """Send on what `take_due` has handed out, under new numbers.

        One with more copies than a piece can hold stays in the topic, and the later ones behind it:
        each round makes a piece, and states with it how far it has come.  So a crash in between
        neither loses copies nor makes them twice.
        """
        self.copied_size_bytes = 0
        fan = FanOut(self)
        for index, message in enumerate(messages):
            new = _due(message, bodies[index])
            self.last_sequence_number += 1
            number = self.last_sequence_number
            size_max = self._piece_size_bytes
            copies, done_id = self._copies(new, message.delivery_count, size_max)
            for piece in pieces(copies, 2 * size_max):
                if fan.size_bytes > size_max:
                    fan.state()
                    fan = FanOut(self)
                fan.add(number, piece, now)
            if done_id == 0:
                fan.removed.append(message.sequence_number)
                continue
            fan.unfinished = self._note_progress(message, done_id, number)
            for waiting in messages[index:]:
                waiting.state = SCHEDULED
                self._main.put(waiting)
            break
        fan.state()

    def _note_progress(self, message: Message, done_id: int, number: int) -> Rescheduled:
        """Subscriptions up to this one have their copies; the others' will name the same number.

        Nothing is delivered from a topic, so the delivery count is free to say it.
        """
        message.delivery_count = done_id
        message.overlay = merge_overlays(Overlay(enqueued_sequence_number=number), message.overlay)
        return Rescheduled(
            self.entity_id, message.sequence_number, done_id, message.enqueued_ms, message.overlay
        )

    def next_due_ms(self, now: Now) -> int:
        due_ms = super().next_due_ms(now)
        return due_ms if due_ms < 0 else max(due_ms, DUE_INTERVAL_MS)

    def tick(self, now: Now) -> None:
        """Nothing: what is due needs its body, which the broker brings along (`take_due`)."""

    # -- deciding who gets what -----------------------------------------------------------------

    def _copies(
        self, new: NewMessage, after_id: int, size_bytes_max: int
    ) -> tuple[list[Copy], int]:
        """What the subscriptions with a higher id than this get of one message.  Changes nothing.

        After a subscription with which it becomes more than so many bytes it ends; the id of that
        one is returned, too, or 0 when everybody has had his turn.
        """
        codec = self.codec
        assert codec is not None
        rules = self.rules
        fields = codec.read_fields(new.body) if rules.needs_fields else None
        plain = NewMessage(new.body)
        plain.time_to_live_ms = min(new.time_to_live_ms, self.description.default_time_to_live_ms)
        plain.overlay = new.overlay
        shared = Letter(plain, False, False)
        keyed: Letter | None = None  # the same with its session id
        copies: list[Copy] = []
        size_bytes = 0
        done_id = after_id
        for match in rules.match(fields, codec.new_id):
            if match.subscription_id <= after_id:
                continue
            if size_bytes > size_bytes_max and match.subscription_id != done_id:
                return copies, done_id
            done_id = match.subscription_id
            subscription = self.subscriptions.get(match.subscription_id)
            if subscription is None or not subscription.takes_copies():
                continue
            letter = shared
            if match.error is not None:
                if not subscription.description.dead_lettering_on_filter_evaluation_exceptions:
                    continue
                letter = as_dead(plain, FILTER_ERROR_REASON, str(match.error))
            elif match.changes is not None:
                letter = as_changed(codec, plain, match.changes)
            if subscription.needs_keys and not letter.is_dead:  # a subscription's key: sessions
                if letter is shared:
                    if keyed is None:
                        keyed = Letter(with_key(codec, plain, new.session_id), False, False)
                    letter = keyed
                else:
                    letter = Letter(with_key(codec, letter.messages[0], None), True, False)
                if letter.messages[0].session_id is None:
                    letter = as_dead(plain, REASON_NO_SESSION, _NO_SESSION)
            size_bytes += letter.size_bytes
            copies.append(Copy(subscription, letter))
        return copies, 0

    def _check_together(self, messages: list[NewMessage], plan: list[list[Copy]]) -> None:
        """Refuse what is too much to be written at once."""
        is_whole = self.must_be_whole(messages)
        together = 0
        for new, copies in zip(messages, plan, strict=True):
            if not is_whole:
                together = 0  # each message stands for itself
            together += len(new.body) + COPY_BYTES + overlay_bytes(new.overlay)
            for copy in copies:
                together += copy.letter.size_bytes
            if together > self._together_size_max:
                raise QuotaExceeded(
                    f"With its copies it takes {together} bytes or more; "
                    f"{self._together_size_max} can be written at once. "
                    "Send fewer messages at a time, or smaller ones."
                )

    def _check_subscriptions(self, plan: list[list[Copy]]) -> None:
        """Refuse what does not fit into a subscription."""
        sizes: dict[int, int] = {}
        for copies in plan:
            for copy in copies:
                entity_id = copy.subscription.entity_id
                sizes[entity_id] = sizes.get(entity_id, 0) + len(copy.letter.messages[0].body)
        for entity_id, size in sizes.items():
            self._check_subscription(self.subscriptions[entity_id], size)

    def _check_subscription(self, subscription: Queue, size: int) -> None:
        if subscription.size_bytes() + size > self._size_bytes_max:
            raise QuotaExceeded(
                f"The subscription '{subscription.shown_name}' has reached the maximum size "
                f"of its topic, {self.description.max_size_megabytes} MB; receive messages "
                "from it."
            )


def _due(message: Message, body: bytes) -> NewMessage:
    """A scheduled message as it is sent on; its life begins now."""
    new = NewMessage(body, session_id=message.session_id)
    if message.expires_ms != NEVER_MS:
        new.time_to_live_ms = message.expires_ms - message.enqueued_ms
    new.overlay = message.overlay
    return new


class FanOut:
    """Puts copies into their subscriptions and states the facts of it, all of them together."""

    __slots__ = (
        "_fanned",
        "_mark",
        "_number",
        "_stored",
        "_topic",
        "_waiting",
        "removed",
        "size_bytes",
        "unfinished",
    )

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._mark = len(topic.facts)
        self._number = 0  # the highest of the topic's numbers that a fact names
        self._fanned: list[Fact] = []
        # One fact for all messages of one part: (subscription, part) → messages.
        self._stored: dict[tuple[int, int], list[Message]] = {}
        self.size_bytes = 0  # of the facts, at most
        self._waiting: list[Message] = []  # scheduled messages, which the topic keeps
        self.removed: list[int] = []  # numbers of those it does not keep any longer
        self.unfinished: Fact | None = None  # how far the last message has come, if not to the end

    def wait(self, message: Message) -> None:
        """Keep a scheduled message in the topic."""
        self._waiting.append(message)
        self.size_bytes += message.length + COPY_BYTES + overlay_bytes(message.overlay)

    def add(self, number: int, copies: list[Copy], now: Now) -> None:
        """Put in the copies of one message, which has this number in the topic."""
        ids: list[int] = []
        messages: list[Message] = []
        shares = 0
        for copy in copies:
            self.size_bytes += copy.letter.size_bytes
            if not copy.letter.is_own:
                shares += 1
        # Copies whose own number is another share one overlay that says which the topic's was.
        numbered: Overlay | None = None
        source: Overlay | None = None
        for copy in copies:
            subscription = copy.subscription
            letter = copy.letter
            if letter.is_dead:
                message = subscription.enqueue_dead(letter.messages[0], now)
            else:
                message = subscription.enqueue(letter.messages, now)[0]
            overlay = message.overlay
            if message.sequence_number != number and (
                overlay is None or overlay.enqueued_sequence_number == 0
            ):
                if numbered is None or overlay is not source:
                    source = overlay
                    numbered = merge_overlays(overlay, Overlay(enqueued_sequence_number=number))
                message.overlay = numbered
            if letter.is_own or shares == 1:
                key = (subscription.entity_id, DEAD_LETTER if letter.is_dead else MAIN)
                self._stored.setdefault(key, []).append(message)
            else:
                ids.append(subscription.entity_id)
                messages.append(message)
        if messages:
            self._fanned.append(FannedOut(self._topic.entity_id, number, ids, messages))
            self._number = number
            self.size_bytes += messages[0].length

    def state(self) -> None:
        """State what was added, and which number the topic has given out last.

        That is stated even if nobody wants a message: why not (a rule was removed) may be on its
        way to the disk still, and until it is there nobody may hear that the message was accepted.
        """
        topic = self._topic
        topic.copied_size_bytes += self.size_bytes
        facts = topic.facts
        if self.removed:
            facts.append(Removed(topic.entity_id, MAIN, self.removed))
        if self.unfinished is not None:
            facts.append(self.unfinished)
        if self._waiting:
            facts.append(Stored(topic.entity_id, MAIN, self._waiting))
        facts.extend(self._fanned)
        for (entity_id, subqueue), messages in self._stored.items():
            facts.append(Stored(entity_id, subqueue, messages))
        if self._number < topic.last_sequence_number:
            facts.append(LastNumber(topic.entity_id, topic.last_sequence_number))
        gather(facts, self._mark)
