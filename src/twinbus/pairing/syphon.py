"""The syphon: takes messages out of backlog queues and sends them where they were going (P-14).

One flow for each backlog queue.  A cycle receives up to 100 messages, restores them, sends them to
their destinations in the order of the backlog, and completes what was sent:

    sent                                    completed
    damaged, expired, too large, refused,
    destination gone                        dead-lettered, each for its own fault only
    destination down or busy, wrong key     left locked; it comes again when its lock ends
    another primary's, or perhaps so        left, and reported once (primary.py)

Where messages of others have been met, and in queues of older versions, which primaries may share,
the flow looks before it receives, and does not receive what is nobody's here: to lock it would keep
it from its own syphon.

Must never complete what was not sent, never send another primary's message, never send a message of
a session past one that is held, and never let one destination hold up another.  Several syphons may
run on the same queues (P-15): what two of them send is the same message with the same producer key.
"""

import datetime as dt
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from twinbus.pairing import rules
from twinbus.pairing.classification import Fate, Verdict, can_be_sent, fate_of, verdict_of
from twinbus.pairing.errors import (
    OtherNamespaceError,
    PartitionRefusedError,
    UnrestorableMessageError,
)
from twinbus.pairing.events import Event, StrangersLeft, SyphonCounts, SyphonProgress, SyphonResting
from twinbus.pairing.held import Held, SentBefore
from twinbus.pairing.namespace_ids import ANY
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.primary import Owner, Primary
from twinbus.pairing.producer_keys import block_of, place_of
from twinbus.pairing.rests import BUSY_REST_S, REST_S_MAX, REST_S_MIN, Backoff, Rests
from twinbus.pairing.rewriting import Restored, marks_of, path_of, restore
from twinbus.pairing.steps import (
    Abandon,
    AskNamespace,
    Complete,
    DeadLetter,
    Flow,
    Pause,
    Peek,
    Receive,
    SendRestored,
)

CYCLE_COUNT_MAX: Final = 100
POLL_S: Final = 15 * 60.0
DRAIN_POLL_S: Final = 5.0  # when the flow ends as soon as nothing comes
# Locks last a minute: what is in hand for longer is not sent, so that a send still ends in time.
IN_HAND_S_MAX: Final = 40.0
SEND_TIMEOUT_S: Final = 20.0
# How far a syphon looks past messages for destinations that rest, for others.
READ_AHEAD_COUNT_MAX: Final = 10_000
PEEK_TIMEOUT_S: Final = 60.0
STRANGER_COUNT_MAX: Final = 1_000  # that are kept to be given back
MARK_COUNT_MAX: Final = 100  # of other primaries that are reported, of one queue
MARK_CHARS_MAX: Final = 260
RESTART_S: Final = 1.0  # after an error that nobody has thought of
# Each path's sender is a connection.  Far more than queues, so none is closed while it is in use.
PATH_COUNT_MAX: Final = 100


class SyphonSettings(Protocol):
    @property
    def restored_time_to_live(self) -> RestoredTimeToLive: ...

    @property
    def identity(self) -> Primary: ...


@dataclass(frozen=True, slots=True)
class _Taken:
    """A message in hand."""

    received: ServiceBusReceivedMessage
    restored: Restored
    number: int

    @property
    def key(self) -> str | None:
        """What decides on its partition, where the destination has partitions."""
        return self.restored.session_id or self.restored.partition_key


@dataclass(slots=True)
class _Cycle:
    queue: str
    begun: float
    moved: int = 0
    dead_lettered: int = 0
    completed: int = 0


@dataclass(slots=True)
class _Queue:
    """What is known of one backlog queue."""

    owner: Owner
    is_shared: bool  # others' messages may be here: look before receiving
    looks: Backoff
    reported: set[str] = field(default_factory=set)  # marks of other primaries
    was_seen_whole: bool = False
    # Messages of others when it was last looked at, by whose they are.
    strangers: Counter[str] = field(default_factory=Counter)
    # The path of one that would be this primary's, did not another namespace answer there.
    elsewhere: str | None = None
    # Those of others that were received beside this primary's, and when.
    strangers_in_hand: list[tuple[float, ServiceBusReceivedMessage]] = field(default_factory=list)
    held: Held = field(default_factory=Held)
    sent: SentBefore = field(default_factory=SentBefore)
    # Of the messages held since the last pause or the last one that was moved.
    passed: set[int] = field(default_factory=set)


class Syphon:
    """The backlog queues of one pair; how their destinations are is known to all flows."""

    def __init__(
        self, settings: SyphonSettings, now: Callable[[], float], utc_now: Callable[[], dt.datetime]
    ) -> None:
        self._settings = settings
        self._primary = settings.identity
        self._here: str | None = None  # the id that the primary has told, when it had to
        self._now = now
        self._utc_now = utc_now
        self._rests = Rests()
        # Destinations that take only messages of one key together: those that have partitions.
        self._by_key: set[str] = set()
        self._queues: dict[str, _Queue] = {}
        self._events: list[Event] = []
        self.moved: dict[str, int] = {}
        self.dead_lettered: dict[str, int] = {}

    @property
    def held(self) -> dict[str, int]:
        """Messages that wait for destinations, of each queue."""
        return {name: len(queue.held) for name, queue in self._queues.items()}

    @property
    def counts(self) -> dict[str, SyphonCounts]:
        """Of each queue."""
        held = self.held
        return {
            queue: SyphonCounts(
                moved,
                self.dead_lettered[queue],
                held[queue],
                self._queues[queue].strangers.total(),
                dict(self._queues[queue].strangers.most_common(MARK_COUNT_MAX)),
            )
            for queue, moved in self.moved.items()
        }

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def empty(self, queue: str, until_empty: bool = False) -> Flow[None]:
        """Move what is in the backlog queue; for ever, or until nothing comes or is held."""
        known = self._known(queue)
        self.moved.setdefault(queue, 0)
        self.dead_lettered.setdefault(queue, 0)
        wait_s = DRAIN_POLL_S if until_empty else POLL_S
        backoff = Backoff()
        while True:
            try:
                has_ours = not known.is_shared or (yield from self._look(queue, known))
                received = (yield Receive(queue, CYCLE_COUNT_MAX, wait_s)) if has_ours else []
            except Exception as error:  # noqa: BLE001 - the backlog may be down like any other
                is_gone = isinstance(error, MessagingEntityNotFoundError)
                if is_gone and not self._primary.is_own(queue):
                    return  # its owner has deleted it
                is_busy = verdict_of(error, "documented") is Verdict.BUSY
                rest_s = backoff.next(BUSY_REST_S if is_busy else 0.0)
                self._events.append(SyphonResting(queue, error, rest_s))
                yield Pause(rest_s)
                continue
            backoff.reset()
            known.held.forget(self._now())
            if received:
                yield from self._cycle(queue, received)
            elif until_empty and not (has_ours and known.held):
                return
            elif not has_ours:
                yield Pause(known.looks.next())

    def _known(self, queue: str) -> _Queue:
        known = self._queues.get(queue)
        if known is None:
            is_own = self._primary.is_own(queue)
            looks = Backoff(REST_S_MIN, REST_S_MAX if is_own else POLL_S)
            known = _Queue(self._primary.owner_of(queue), not is_own, looks)
            self._queues[queue] = known
        return known

    def _look(self, queue: str, known: _Queue) -> Flow[bool]:
        """Whether something is there that may be moved; what may not is reported."""
        if known.elsewhere is not None:
            yield from self._ask(known.elsewhere)
            known.elsewhere = None
        strangers: Counter[str] = Counter()
        has_ours = False
        first = 1
        while True:
            messages = yield Peek(queue, first, CYCLE_COUNT_MAX, PEEK_TIMEOUT_S)
            for message in messages:
                marks = marks_of(message.raw_amqp_message)
                if known.owner.owns(*marks, self._here):
                    has_ours = True
                    continue
                strangers[known.owner.whose(*marks)[:MARK_CHARS_MAX]] += 1
                if known.owner.owns(*marks):
                    known.elsewhere = path_of(message.raw_amqp_message)
            following = max((_number(message) + 1 for message in messages), default=0)
            if following <= first or (has_ours and known.was_seen_whole):
                break
            first = following
        known.was_seen_whole = True
        for mark, count in strangers.items():
            if mark not in known.reported and len(known.reported) < MARK_COUNT_MAX:
                known.reported.add(mark)
                self._events.append(StrangersLeft(queue, mark, count))
        if has_ours:
            known.looks.reset()
        else:
            known.strangers = strangers
            yield from self._give_back(queue, known)
        return has_ours

    def _ask(self, path: str) -> Flow[None]:
        """Who answers at the primary's address now?  Perhaps the one that was there before."""
        try:
            self._here = yield AskNamespace(path, SEND_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - nobody answers: what was told last is what is known
            return

    def _give_back(self, queue: str, known: _Queue) -> Flow[None]:
        """Not before this primary's are moved: those of others would only be received again."""
        least = self._now() - IN_HAND_S_MAX  # what is older may have lost its lock
        free = [message for since, message in known.strangers_in_hand if since >= least]
        known.strangers_in_hand.clear()
        if free:
            try:
                yield Abandon(queue, free)
            except Exception:  # noqa: BLE001 - their locks end by themselves
                return

    def _cycle(self, queue: str, received: list[ServiceBusReceivedMessage]) -> Flow[None]:
        cycle = _Cycle(queue, self._now())
        known = self._queues[queue]
        for message in received:
            known.held.release(_number(message))  # it is in hand again
        by_path = yield from self._restored(cycle, received)
        for path, taken in by_path.items():
            yield from self._to_destination(cycle, path, taken)
        if cycle.moved or cycle.dead_lettered:
            self._events.append(
                SyphonProgress(
                    queue, cycle.moved, cycle.dead_lettered, len(known.held), self.moved[queue]
                )
            )
        if cycle.dead_lettered or cycle.completed:
            known.passed.clear()
            return
        # All of them are for destinations that rest, or another primary's.  Others may come after
        # them, so the flow looks on; it pauses when it meets the first ones again.
        numbers = {_number(message) for message in received}
        met_again = not known.passed.isdisjoint(numbers)
        known.passed |= numbers
        if met_again or len(known.passed) >= READ_AHEAD_COUNT_MAX:
            known.passed.clear()
            yield Pause(self._rests.wait_s(by_path, self._now()))

    def _restored(
        self, cycle: _Cycle, received: list[ServiceBusReceivedMessage]
    ) -> Flow[dict[str, list[_Taken]]]:
        """By destination, in the order of the backlog.  What cannot be restored is dealt with."""
        known = self._queues[cycle.queue]
        by_path: dict[str, list[_Taken]] = {}
        for message in sorted(received, key=_number):
            number = _number(message)
            if (number, message.enqueued_time_utc) in known.sent:
                yield from self._complete(cycle, [message])
                continue
            restored, (reason, description) = self._restore(message)
            if not known.owner.owns(*marks_of(message.raw_amqp_message), self._here):
                self._leave(cycle, message)
            elif restored is None:
                yield from self._dead_letter(cycle, message, reason, description)
            else:
                taken = _Taken(message, restored, number)
                by_path.setdefault(restored.path, []).append(taken)
        return by_path

    def _leave(self, cycle: _Cycle, message: ServiceBusReceivedMessage) -> None:
        """Another primary's: it stays as it is, and the next look tells of it."""
        known = self._queues[cycle.queue]
        known.is_shared = True
        if len(known.strangers_in_hand) < STRANGER_COUNT_MAX:
            known.strangers_in_hand.append((cycle.begun, message))

    def _restore(
        self, message: ServiceBusReceivedMessage
    ) -> tuple[Restored | None, tuple[str, str]]:
        """The message as it was; or None, with reason and description."""
        mode = self._settings.restored_time_to_live
        try:
            return restore(message.raw_amqp_message, self._utc_now(), mode), ("", "")
        except UnrestorableMessageError as error:
            return None, (error.reason, error.description)
        except Exception as error:  # noqa: BLE001 - no message may stop the ones behind it
            return None, (rules.DAMAGED, f"{error!r}")

    def _to_destination(self, cycle: _Cycle, path: str, taken: list[_Taken]) -> Flow[None]:
        free = []
        for each in taken:
            held = self._queues[cycle.queue].held
            if held.must_wait(each.number, path, each.restored.session_id):
                self._hold(cycle, [each])
            else:
                free.append(each)
        parts = deque(self._parts(path, free))
        while parts:
            part = parts.popleft()
            # What can rest by itself: the partition of these messages, if they are all of one.
            place = place_of(path, [each.restored.key for each in part])
            now = self._now()
            is_resting = self._rests.is_resting(path, now) or self._rests.is_resting(place, now)
            if is_resting or now - cycle.begun > IN_HAND_S_MAX:
                self._hold(cycle, part)
                continue
            messages = [each.restored.message for each in part]
            try:
                yield SendRestored(path, messages, SEND_TIMEOUT_S, self._namespaces(part))
            except OtherNamespaceError as error:
                self._here = error.told
                ours = self._sorted_out(cycle, part)
                if ours:
                    parts.appendleft(ours)
            except PartitionRefusedError as error:
                self._by_key.add(path)  # from now on those of one partition go by themselves
                smaller = list(self._parts(path, part))
                if len(smaller) > 1:
                    parts.extendleft(reversed(smaller))
                else:
                    self._rest(path, error, place)
                    self._hold(cycle, part)
            except Exception as error:  # noqa: BLE001 - every error has its place in fate_of
                match fate_of(error, messages):
                    case Fate.REST:
                        self._rest(path, error)
                        self._hold(cycle, part)
                    case Fate.PERMANENT if len(part) > 1:
                        parts.extendleft(reversed(self._split(path, part, error)))
                    case _:
                        for each in part:
                            yield from self._refuse(cycle, each, error)
            else:
                self._rests.end(path)
                self._rests.end(place)
                cycle.moved += len(part)
                self.moved[cycle.queue] += len(part)
                yield from self._complete(cycle, [each.received for each in part])

    def _namespaces(self, part: list[_Taken]) -> frozenset[str]:
        """Which one the primary has to be, so that these may go there."""
        if not self._primary.compares_ids:
            return ANY
        return frozenset(each.restored.namespace for each in part if each.restored.namespace)

    def _sorted_out(self, cycle: _Cycle, part: list[_Taken]) -> list[_Taken]:
        """Those that are for whoever answers at the primary's address; the others are left."""
        owner = self._queues[cycle.queue].owner
        ours = []
        for each in part:
            if owner.owns(each.restored.primary, each.restored.namespace, self._here):
                ours.append(each)
            else:
                self._leave(cycle, each.received)
        return ours

    def _parts(self, path: str, taken: list[_Taken]) -> Iterator[list[_Taken]]:
        """What may be sent together: copies of it must end up in the same partition again.

        Messages may be mixed until the destination says otherwise.  But with keys of an earlier
        version those without another key go where the number of the first one leads, so they are
        sent with those of their producer and block.
        """
        is_by_key = path in self._by_key
        parts: dict[object, list[_Taken]] = {}
        for each in taken:
            if each.key is not None:
                together: object = (each.key,) if is_by_key else ()
            else:
                together = block_of(each.restored.key, is_by_key)
            parts.setdefault(together, []).append(each)
        return iter(parts.values())

    def _split(self, path: str, part: list[_Taken], error: Exception) -> list[list[_Taken]]:
        """Smaller parts of one that was refused, until the message that is at fault is alone."""
        is_mixed = len({each.key for each in part}) > 1
        if is_mixed and not isinstance(error, MessageSizeExceededError):
            self._by_key.add(path)
            return list(self._parts(path, part))
        middle = len(part) // 2
        return [part[:middle], part[middle:]]

    def _refuse(self, cycle: _Cycle, taken: _Taken, error: Exception) -> Flow[None]:
        if isinstance(error, MessagingEntityNotFoundError):
            reason = rules.DESTINATION_NOT_FOUND
        elif isinstance(error, MessageSizeExceededError):
            reason = rules.TOO_LARGE
        elif isinstance(error, ServiceBusError) and can_be_sent(taken.restored.message):
            reason = rules.REFUSED
        else:
            reason = rules.DAMAGED
        description = f"{taken.restored.path}: {error}"
        yield from self._dead_letter(cycle, taken.received, reason, description)

    def _dead_letter(
        self, cycle: _Cycle, message: ServiceBusReceivedMessage, reason: str, description: str
    ) -> Flow[None]:
        try:
            yield DeadLetter(
                cycle.queue, message, reason, description[: rules.DESCRIPTION_LENGTH_MAX]
            )
        except Exception:  # noqa: BLE001 - its lock is lost or the backlog is: it comes again
            return
        cycle.dead_lettered += 1
        self.dead_lettered[cycle.queue] += 1

    def _complete(self, cycle: _Cycle, messages: list[ServiceBusReceivedMessage]) -> Flow[None]:
        """A message that cannot be completed comes again and is then completed without a send."""
        known = self._queues[cycle.queue]
        # Noted first: whatever becomes of the step, these are at their destination.
        for message in messages:
            known.sent.add(_number(message), message.enqueued_time_utc)
        try:
            failed = yield Complete(cycle.queue, messages)
        except Exception:  # noqa: BLE001 - a lost lock is no error, a lost backlog shows next
            return
        if not failed:
            cycle.completed += len(messages)
            for message in messages:
                known.sent.discard(_number(message), message.enqueued_time_utc)

    def _hold(self, cycle: _Cycle, taken: list[_Taken]) -> None:
        held = self._queues[cycle.queue].held
        for each in taken:
            held.hold(each.number, each.restored.path, each.restored.session_id, self._now())

    def _rest(self, path: str, error: Exception, place: str = "") -> None:
        """All of the destination, or one partition of it."""
        is_busy = verdict_of(error, "documented") is Verdict.BUSY
        rest_s = self._rests.begin(place or path, error, self._now(), is_busy=is_busy)
        if rest_s is not None:  # else another queue's flow has just met the same
            self._events.append(SyphonResting(path, error, rest_s))


def _number(message: ServiceBusReceivedMessage) -> int:
    return message.sequence_number or 0
