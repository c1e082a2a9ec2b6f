"""The flow of a send: to the primary, and to the backlog when the primary's entity is down.

A flow decides and asks for steps; it neither performs one nor reads a clock (P-6 … P-12).  Either
it returns, and the namespace that took the messages has them; or it raises, and the caller has
them.  Nothing else: what is raised after an unknown outcome keeps its producer key.
"""

import datetime as dt
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.message import wire_names
from twinbus.pairing.batch import snapshot
from twinbus.pairing.classification import Verdict, is_wrapped_fault, verdict_of
from twinbus.pairing.core import Pairing
from twinbus.pairing.errors import (
    BacklogMessageSizeExceededError,
    BacklogUnavailableError,
    PairFaultedError,
    PairingError,
    PartitionRefusedError,
    PingRefusedError,
)
from twinbus.pairing.events import State
from twinbus.pairing.failover import Decision, EntityFailover, Way
from twinbus.pairing.parcels import Parcel
from twinbus.pairing.rewriting import encoded_size, rewrite
from twinbus.pairing.stamps import asking, with_stamp
from twinbus.pairing.steps import (
    Flow,
    OpenPrimary,
    Pause,
    ScheduleOnPrimary,
    SendToBacklog,
    SendToPrimary,
    Step,
)

T = TypeVar("T")

BUSY_PAUSE_S: Final = 10.0  # P-8
BUSY_SENDS_MAX: Final = 3
# To ask the primary how large a batch may be: an application that fills one waits for it.
BATCH_OPEN_S_MAX: Final = 10.0
# Less than this is too little to open a link: a queue would be lost for being asked too late.
BACKLOG_TRY_S_MIN: Final = 3.0
BACKLOG_LIMIT_BYTES: Final = 256 * 1024  # of a message or batch: Service Bus's standard tier
# Of a batch: what is left for its own header, and for each message in it.
BATCH_BYTES: Final = 512
BATCHED_MESSAGE_BYTES: Final = 8

_HEALTHY: Final = State.HEALTHY  # to ask the class for it takes longer than all else that is asked


class SenderState:
    """What one paired sender keeps between its sends."""

    def __init__(self, entity: str) -> None:
        self.entity = entity
        self.queue: str | None = None  # the backlog queue it has picked
        # Told by the shell when it knows the links: the largest batch of a backlog queue and of
        # the primary (0: not known yet).
        self.backlog_limit_bytes = BACKLOG_LIMIT_BYTES
        self.primary_batch_bytes = 0


def batch_bytes(pairing: Pairing, sender: SenderState) -> int:
    """For parcels.collect(): 0 if the list is not going to be a batch of the primary."""
    is_over = pairing.entity(sender.entity).state is State.FAILED_OVER
    return 0 if is_over else sender.primary_batch_bytes


def batch_limit(pairing: Pairing, sender: SenderState) -> Flow[int]:
    """How large a batch may be, where the primary has not been asked yet.

    What is wrong with the entity or the key is raised, as the SDK does; an outage is not.
    """
    pairing.check()
    if pairing.entity(sender.entity).state in {State.FAILING, State.FAILED_OVER}:
        return sender.backlog_limit_bytes
    try:
        sender.primary_batch_bytes = yield OpenPrimary(BATCH_OPEN_S_MAX)
    except Exception as error:
        if verdict_of(error, pairing.settings.policy) is Verdict.RAISE:
            raise
        return sender.backlog_limit_bytes
    return sender.primary_batch_bytes


def send(
    pairing: Pairing, sender: SenderState, parcel: Parcel, timeout_s: float | None = None
) -> Flow[None]:
    """Send a parcel one way or the other."""
    yield from _deliver(pairing, sender, parcel, None, timeout_s)


def schedule(
    pairing: Pairing,
    sender: SenderState,
    parcel: Parcel,
    time_utc: dt.datetime,
    timeout_s: float | None = None,
) -> Flow[list[int]]:
    """Schedule a parcel: the sequence numbers, or a 0 for each message if it is in the backlog."""
    return (yield from _deliver(pairing, sender, parcel, time_utc, timeout_s))


def check_cancel(sequence_numbers: int | list[int], timeout_s: float | None) -> None:
    """Only the primary can cancel: what waits in the backlog has no number there yet."""
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError("The timeout must be greater than 0.")
    numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
    if 0 in numbers:
        raise PairingError(
            "A message that was scheduled while its entity was failed over (number 0) cannot "
            "be cancelled: it waits in a backlog queue."
        )


class Shortcut:
    """A single message on its way to a healthy entity, before there is a flow.

    Nearly all sends of a healthy pair are of this kind, and succeed.  Then the flow would have had
    one step and nothing to decide; its making would cost more than the step's own bookkeeping.
    After a failure a flow takes over, and is told of it as the outcome of its first step.
    """

    __slots__ = ("_entity", "_is_asking", "_key", "_pairing", "_raw", "outgoing")

    def __init__(
        self, pairing: Pairing, entity: EntityFailover, message: ServiceBusMessage
    ) -> None:
        self._pairing = pairing
        self._entity = entity
        self._raw = message.raw_amqp_message
        self._key: str | None = None
        self._is_asking = False
        self.outgoing: object = message
        taken = pairing.keys.take_one(entity.entity, self._raw, pairing.now())
        if taken is not None:
            self._key, self._is_asking = taken
            stamp = asking(self._key) if self._is_asking else self._key
            self.outgoing = with_stamp(self._raw, stamp)

    def succeeded(self) -> None:
        if self._entity.state is _HEALTHY:
            self._entity.sent_to_primary += 1
        else:
            self._entity.send_succeeded(self._pairing.now())

    def failed(self, error: BaseException) -> bool:
        """Whether the flow is to hear of it.  If a partition refuses, it just begins again."""
        if self._key is None:
            return True
        keys, is_refused = self._pairing.keys, False
        if isinstance(error, PartitionRefusedError) and self._is_asking:
            if error.is_certain:
                keys.refused(self._entity.entity, [self._key], self._pairing.now())
                return False
            is_refused = True
        # Whatever comes next has the same key: nobody knows whether it has arrived.
        keys.keep([self._raw], [self._key])
        return not is_refused


def shortcut(pairing: Pairing, entity: EntityFailover, message: object) -> Shortcut | None:
    """If the message can take it."""
    if entity.state is not _HEALTHY or not isinstance(message, ServiceBusMessage):
        return None
    return Shortcut(pairing, entity, message)


def after(error: Exception, perform: Callable[[Step], T]) -> Callable[[Step], T]:
    """Performs steps of a flow whose first send to the primary has been tried already."""
    told: list[Exception] = []

    def perform_next(step: Step) -> T:
        if told or not isinstance(step, SendToPrimary):
            return perform(step)
        told.append(error)
        raise error

    return perform_next


class _Call:
    """How much time a call has left."""

    def __init__(self, pairing: Pairing, timeout_s: float | None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise ValueError("The timeout must be greater than 0.")
        self._pairing = pairing
        self.end = math.inf if timeout_s is None else pairing.now() + timeout_s

    def left_s(self) -> float:
        return self.end - self._pairing.now()

    def of_a_try_s(self, has_alternative: bool, least_s: float = 0.0) -> float:
        """A try that may hang leaves half of the time to what comes after it, if that is enough."""
        if self.end == math.inf:
            return self._pairing.settings.send_timeout_s
        left_s = self.left_s()
        return min(left_s, max(left_s / 2, least_s)) if has_alternative else left_s


def _deliver(
    pairing: Pairing,
    sender: SenderState,
    parcel: Parcel,
    time_utc: dt.datetime | None,
    timeout_s: float | None,
) -> Flow[list[int]]:
    call = _Call(pairing, timeout_s)
    pairing.check()
    if not len(parcel):
        return []
    entity = pairing.entity(sender.entity)
    parcel.open(pairing.keys, entity.entity, pairing.now())
    try:
        numbers = yield from _to_primary(pairing, entity, parcel, time_utc, call)
        if numbers is None:
            yield from _to_backlog(pairing, sender, parcel, time_utc, call)
            numbers = [0] * len(parcel)
    except BaseException:
        parcel.close(succeeded=False)
        raise
    parcel.close(succeeded=True)
    return numbers


# --- primary ----------------------------------------------------------------------------------


def _to_primary(
    pairing: Pairing,
    entity: EntityFailover,
    parcel: Parcel,
    time_utc: dt.datetime | None,
    call: _Call,
) -> Flow[list[int] | None]:
    """What the primary answered; None: this goes to the backlog."""
    sends = 0
    while entity.route(pairing.now()) is Way.PRIMARY:
        pairing.check()
        timeout_s = call.of_a_try_s(entity.may_fail_over_by(call.end))
        sends += 1
        try:
            if time_utc is None:
                yield SendToPrimary(parcel.outgoing, timeout_s)
                numbers = []
            else:
                numbers = yield ScheduleOnPrimary(parcel.outgoing, time_utc, timeout_s)
        except Exception as error:
            if isinstance(error, PartitionRefusedError) and parcel.is_asking and call.left_s() > 0:
                parcel.ask_another(error.is_certain, pairing.now())
                continue
            # The stamps may not cost a message that fits without: P-6.
            if isinstance(error, MessageSizeExceededError) and parcel.take_stamps_off():
                continue
            verdict = _verdict_of(error, parcel, pairing)
            decision = entity.send_failed(verdict, error, pairing.now())
            if decision is Decision.RAISE:
                raise
            if decision is Decision.PAUSE:
                if sends >= BUSY_SENDS_MAX or call.left_s() <= BUSY_PAUSE_S:
                    raise
                yield Pause(BUSY_PAUSE_S)
                if call.left_s() <= 0:  # a pause may take longer than was asked for
                    raise
        else:
            entity.send_succeeded(pairing.now(), len(parcel))
            return list(numbers)
    if entity.refusal is not None:
        raise PingRefusedError(
            f"{entity.entity} is failed over and the primary refuses pings: {entity.refusal}"
        ) from entity.refusal
    return None


def _verdict_of(error: Exception, parcel: Parcel, pairing: Pairing) -> Verdict:
    if is_wrapped_fault(error) and not _can_be_encoded(parcel.originals):
        return Verdict.RAISE
    return verdict_of(error, pairing.settings.policy)


def _can_be_encoded(messages: Sequence[AmqpAnnotatedMessage]) -> bool:
    try:
        for message in messages:
            encoded_size(message)
    except Exception:  # noqa: BLE001 - whatever the SDK's encoder raises
        return False
    return True


# --- backlog ----------------------------------------------------------------------------------


def _to_backlog(
    pairing: Pairing, sender: SenderState, parcel: Parcel, time_utc: dt.datetime | None, call: _Call
) -> Flow[None]:
    """Rewritten, in as few sends as they fit in, all to this sender's queue if it takes them."""
    entity = pairing.entity(sender.entity)
    accepted = 0
    for messages in _chunks(_rewritten(pairing, sender, parcel, time_utc), sender):
        yield from _to_some_queue(pairing, sender, messages, accepted, call)
        accepted += len(messages)
        entity.sent_to_backlog += len(messages)


def _rewritten(
    pairing: Pairing, sender: SenderState, parcel: Parcel, time_utc: dt.datetime | None
) -> list[tuple[AmqpAnnotatedMessage, int]]:
    """Each message with its size; raises before anything is sent if one is too large (P-12)."""
    limit = sender.backlog_limit_bytes
    rewritten = []
    keys: Sequence[str | None] = parcel.keys or [None] * len(parcel)
    for original, key in zip(parcel.originals, keys, strict=True):
        if time_utc is not None:
            original = snapshot(original)
            original.annotations = {
                **(original.annotations or {}),
                wire_names.SCHEDULED_TIME: time_utc,
            }
        message = rewrite(original, sender.entity, key, pairing.mark, pairing.namespace)
        size = encoded_size(message)
        if size > limit:
            raise BacklogMessageSizeExceededError(encoded_size(original), size, limit)
        rewritten.append((message, size))
    return rewritten


def _chunks(
    messages: list[tuple[AmqpAnnotatedMessage, int]], sender: SenderState
) -> list[list[AmqpAnnotatedMessage]]:
    """In order; several together fit one batch, one alone is sent as a message of its own."""
    chunks: list[list[AmqpAnnotatedMessage]] = []
    room = 0
    for message, size in messages:
        needed = size + BATCHED_MESSAGE_BYTES
        if not chunks or needed > room:
            chunks.append([])
            room = sender.backlog_limit_bytes - BATCH_BYTES
        chunks[-1].append(message)
        room -= needed
    return chunks


def _to_some_queue(
    pairing: Pairing,
    sender: SenderState,
    messages: list[AmqpAnnotatedMessage],
    accepted: int,
    call: _Call,
) -> Flow[None]:
    """Until a queue takes them; one that does not leaves the rotation for everybody (P-10)."""
    rotation = pairing.rotation
    tried: dict[str, BaseException] = {}
    while True:
        now = pairing.now()
        queue = sender.queue
        if queue is None or queue in tried or not rotation.is_in_use(queue, now):
            queue = rotation.pick(now, tried)
        if queue is None or call.left_s() <= 0:
            raise _unavailable(tried, accepted, ran_out_of_time=queue is not None)
        sender.queue = queue
        others = [each for each in rotation.in_use(now) if each != queue and each not in tried]
        try:
            timeout_s = call.of_a_try_s(bool(others), BACKLOG_TRY_S_MIN)
            yield SendToBacklog(queue, messages, timeout_s)
        except (ValueError, TypeError, PairFaultedError):
            raise  # size errors among them: no queue would take it
        except Exception as error:  # noqa: BLE001 - whatever it was, the queue did not take them
            tried[queue] = error
            rotation.lost(queue, error, pairing.now())
        else:
            rotation.found(queue)
            return


def _unavailable(
    tried: dict[str, BaseException], accepted: int, ran_out_of_time: bool
) -> BacklogUnavailableError:
    text = "No backlog queue has taken the message: "
    text += "the call's time is used up." if ran_out_of_time else "none is left."
    if not tried:
        return BacklogUnavailableError(text, accepted=accepted)
    queue, last = list(tried.items())[-1]
    error = BacklogUnavailableError(
        f"{text} Of {len(tried)} tried the last was {queue}: {last}", accepted=accepted
    )
    error.__cause__ = last
    return error
