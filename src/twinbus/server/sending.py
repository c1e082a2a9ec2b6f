"""A sending link: the client's deliveries in, one command per read, outcomes back in ranges."""

from typing import TYPE_CHECKING, Final, cast

from twinbus.amqp.composites import ACCEPTED
from twinbus.amqp.events import DeliveryReceived, Event
from twinbus.amqp.link import IngressLink
from twinbus.amqp.message import Scanned, scan
from twinbus.amqp.message_id import (
    MessageIds,
    has_message_id,
    only_message_id,
    with_message_id,
)
from twinbus.amqp.plain import BATCH_FORMAT, split_batch
from twinbus.broker.namespace import Address
from twinbus.entities.commands import Reply, Send
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import (
    ArgumentInvalid,
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    RemoteProtocolError,
    ServiceError,
)
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.server.outcomes import refused
from twinbus.server.requests import RequestLink

if TYPE_CHECKING:
    from twinbus.server.endpoint import AmqpEndpoint

SCHEDULED: Final = "x-opt-scheduled-enqueue-time"


def new_message(data: bytes, ids: MessageIds, ttl_ms_max: int) -> NewMessage:
    """An encoded message as the broker takes it; RemoteProtocolError or ServiceError if not."""
    scanned = scan(data)
    if ttl_ms_max != NEVER_MS and not 0 <= scanned.ttl_ms <= ttl_ms_max:
        scanned.ttl_ms = ttl_ms_max  # receivers are to see the time that it really has
    if scanned.properties_at < 0:
        stored = scanned.stored(only_message_id(ids.next()))
    else:
        if not has_message_id(scanned.bare):
            scanned.bare = with_message_id(scanned.bare, ids.next())
        stored = scanned.stored()
    message = NewMessage(stored)
    if scanned.ttl_ms >= 0:
        message.time_to_live_ms = scanned.ttl_ms
    if scanned.annotation_count:
        _read_annotations(scanned, message)
    return message


def _read_annotations(scanned: Scanned, message: NewMessage) -> None:
    scheduled = scanned.annotation(SCHEDULED)
    if isinstance(scheduled, int):
        message.scheduled_ms = max(0, int(scheduled))


class SendingLink:
    """A client sends to an entity through this link."""

    def __init__(self, endpoint: "AmqpEndpoint", link: IngressLink, address: Address) -> None:
        self._endpoint = endpoint
        self._link = link
        queue = endpoint.namespace.find_queue(address.name)
        if address.subqueue:
            raise InvalidOperation("Nothing can be sent to a dead-letter queue.")
        queue.check_sendable()
        self._queue = queue
        self._entity_id = queue.entity_id
        self.path = address.path
        self.right = "Send"
        self._messages: list[NewMessage] = []
        self._delivery_ids: list[int] = []
        self._counts: list[int] = []  # messages per delivery: more than one in a batch

    def received(self, event: DeliveryReceived) -> None:
        """One delivery; it is handed on with the rest of this read by `flush`."""
        ids = self._endpoint.message_ids
        ttl_ms_max = self._queue.description.default_time_to_live_ms
        try:
            if event.message_format == BATCH_FORMAT:
                new = [new_message(data, ids, ttl_ms_max) for data in split_batch(event.data)]
                self._messages += new
                count = len(new)
            else:
                self._messages.append(new_message(event.data, ids, ttl_ms_max))
                count = 1
        except RemoteProtocolError as error:
            self._refuse(event, ArgumentInvalid(f"The message cannot be read: {error}"))
            return
        except ServiceError as error:
            self._refuse(event, error)
            return
        if not self._delivery_ids:
            self._endpoint.flush_link_soon(self)
        self._delivery_ids.append(-1 if event.settled else event.delivery_id)
        self._counts.append(count)

    def _refuse(self, event: DeliveryReceived, error: ServiceError) -> None:
        if not event.settled:
            self._link.settle(event.delivery_id, event.delivery_id, refused(error))

    def too_large(self, delivery_id: int, size: int, settled: bool) -> None:
        if not settled:
            error = MessageSizeExceeded(
                f"The message of {size} bytes exceeds the limit of {MESSAGE_SIZE_BYTES_MAX} bytes."
            )
            self._link.settle(delivery_id, delivery_id, refused(error))

    def flush(self) -> None:
        """Hand on everything that came with this read as one command."""
        messages, ids, counts = self._messages, self._delivery_ids, self._counts
        self._messages, self._delivery_ids, self._counts = [], [], []
        self._endpoint.submit(Send(self._entity_id, messages, (self, (ids, counts))))

    def replied(self, reply: Reply, context: tuple[list[int], list[int]]) -> None:
        ids, counts = context
        error = reply.error
        command = reply.command
        assert isinstance(command, Send)
        if error is None:
            settle_ranges(self._link, ids, ACCEPTED)
        elif len(ids) == 1 or isinstance(error, EntityNotFound):
            settle_ranges(self._link, ids, refused(error))
        else:
            # Deliveries stand for themselves: together they were refused, so try them one by one.
            first = 0
            for delivery_id, count in zip(ids, counts, strict=True):
                part = command.messages[first : first + count]
                first += count
                self._endpoint.submit(Send(self._entity_id, part, (self, ([delivery_id], [count]))))
        self._endpoint.flush_soon()

    def closed(self) -> None:
        """Nothing to give back: what was sent is on its way."""


def take_deliveries(events: list[Event], at: int) -> int:
    """Hand on the run of deliveries that begins at `at`; returns where it ends."""
    while at < len(events):
        event = events[at]
        if not isinstance(event, DeliveryReceived):
            break
        taker = event.link.context
        if isinstance(taker, SendingLink):
            taker.received(event)
        elif taker is not None:  # else the link was refused or is gone
            cast(RequestLink, taker).received(event)
        at += 1
    return at


def settle_ranges(link: IngressLink, ids: list[int], state: bytes) -> None:
    """Settle deliveries, consecutive numbers in one disposition; −1 marks a settled one."""
    count = len(ids)
    if ids[-1] - ids[0] == count - 1 and ids[0] >= 0:  # the usual case: one unbroken run
        link.settle(ids[0], ids[-1], state)
        return
    start = 0
    while start < count:
        end = start
        while end + 1 < count and ids[end + 1] == ids[end] + 1:
            end += 1
        if ids[start] >= 0:
            link.settle(ids[start], ids[end], state)
        start = end + 1
