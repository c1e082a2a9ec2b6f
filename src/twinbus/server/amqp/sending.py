"""A sending link: the client's deliveries in, one command per read, outcomes back in ranges."""

from typing import Final, Protocol, cast

from twinbus.amqp.composites import ACCEPTED, TransactionalState, transactional
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryReceived, DeliveryTooLarge, IngressLink
from twinbus.amqp.types import Symbol
from twinbus.entities.commands import Reply, Send
from twinbus.entities.message import NewMessage
from twinbus.errors import (
    ArgumentInvalid,
    EntityNotFound,
    InvalidOperation,
    MessageSizeExceeded,
    RemoteProtocolError,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.counting.counters import measure
from twinbus.gateway.directory.addresses import Address, parse_address
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.sends import deal
from twinbus.message.incoming import new_message
from twinbus.message.plain import BATCH_FORMAT, split_batch
from twinbus.message.short_scan import PlainSends
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.coordinator import add_to_transaction, fail_transaction
from twinbus.server.amqp.settlement import refused

TRANSFER_DESTINATION: Final = Symbol("com.microsoft:transfer-destination-address")


class SendingLink:
    """A client sends to an entity through this link.

    With a transfer destination (send-via) the messages go there: the client may send to both, and
    the link's own address is only the way.
    """

    def __init__(self, conversation: Conversation, link: IngressLink, address: Address) -> None:
        self._conversation = conversation
        self._traffic = conversation.traffic
        self._link = link
        entity = _sendable(conversation, address)
        destination = (link.properties or {}).get(TRANSFER_DESTINATION)
        self.properties: dict[object, object] = {}  # beyond what every sending link gets
        self.via_path = ""  # where the client must go on being allowed to send, beside `path`
        if destination is not None:
            self.properties[TRANSFER_DESTINATION] = destination
            self.via_path = address.path
            address = parse_address(str(destination))
            conversation.access.require("Send", address.path)
            entity = _sendable(conversation, address)
        self._entity = entity
        self._entity_id = entity.entity_id
        self._metrics = entity.metrics
        self._meter = conversation.namespace.meter_of(entity)
        self._latency = conversation.namespace.gateway.metrics.send_latency
        self.path = address.path
        self.right = "Send"
        self._plain = PlainSends(
            conversation.message_ids, entity.description.default_time_to_live_ms
        )
        self._messages: list[NewMessage] = []
        self._delivery_ids: list[int] = []
        self._counts: list[int] = []  # messages per delivery: more than one in a batch

    @property
    def message_size_bytes_max(self) -> int:
        return self._entity.description.max_message_size_kilobytes * 1_024

    def received(self, event: DeliveryReceived) -> None:
        """One delivery; it is handed on with the rest of this read by `flush`."""
        if event.state is not None:
            self._received_with_state(event)
            return
        try:
            if event.message_format == BATCH_FORMAT:
                new = self._read(split_batch(event.data))
                self._messages += new
                count = len(new)
            else:
                message = None if self._entity.needs_keys else self._plain.take(event.data)
                self._messages.append(message or self._read_any(event.data))
                count = 1
        except RemoteProtocolError as error:
            self._refuse(event, ArgumentInvalid(f"The message cannot be read: {error}"))
            return
        except ServiceError as error:
            self._refuse(event, error)
            return
        if not self._delivery_ids:
            self._traffic.flush_link_soon(self)
        self._delivery_ids.append(-1 if event.settled else event.delivery_id)
        self._counts.append(count)

    def _read(self, parts: list[bytes]) -> list[NewMessage]:
        if self._entity.needs_keys:
            return [self._read_any(data) for data in parts]
        return [self._plain.take(data) or self._read_any(data) for data in parts]

    def _read_any(self, data: bytes) -> NewMessage:
        entity = self._entity
        ttl_ms_max = entity.description.default_time_to_live_ms
        return new_message(data, self._conversation.message_ids, ttl_ms_max, entity.needs_keys)

    def _received_with_state(self, event: DeliveryReceived) -> None:
        """A delivery that belongs to a transaction; any other state means nothing to us."""
        state = event.state
        if not isinstance(state, TransactionalState):
            event.state = None
            self.received(event)
            return
        try:
            batch = event.message_format == BATCH_FORMAT
            messages = self._read(split_batch(event.data) if batch else [event.data])
            add_to_transaction(self._conversation, state.txn_id, Send(self._entity_id, messages))
        except RemoteProtocolError as error:
            self._refuse(event, ArgumentInvalid(f"The message cannot be read: {error}"))
        except ServiceError as error:
            self._refuse(event, error)
        else:
            if not event.settled:
                outcome = transactional(state.txn_id, ACCEPTED)
                self._link.settle(event.delivery_id, event.delivery_id, outcome)

    def _refuse(self, event: DeliveryReceived | DeliveryTooLarge, error: ServiceError) -> None:
        if not event.settled:
            self._link.settle(event.delivery_id, event.delivery_id, refused(error))
        elif isinstance(event.state, TransactionalState):
            fail_transaction(self._conversation, event.state.txn_id, error)

    def too_large(self, event: DeliveryTooLarge) -> None:
        error = MessageSizeExceeded(
            f"The message of {event.size} bytes exceeds the limit of "
            f"{self.message_size_bytes_max} bytes of '{self.path[:64]}'."
        )
        self._refuse(event, error)

    def flush(self) -> None:
        """Hand on everything that came with this read as one command."""
        messages, ids, counts = self._messages, self._delivery_ids, self._counts
        self._messages, self._delivery_ids, self._counts = [], [], []
        # Limits may have changed since the attach; from the next read on they are these.
        description = self._entity.description
        self._link.max_message_size = description.max_message_size_kilobytes * 1_024
        self._plain.limit(description.default_time_to_live_ms)
        if self._entity.is_partitioned:
            self._submit_by_partition(messages, ids, counts)
        else:
            send = Send(self._entity_id, messages, (self, (ids, counts)))
            self._latency.begin(send)
            self._traffic.submit(send)

    def _submit_by_partition(
        self, messages: list[NewMessage], ids: list[int], counts: list[int]
    ) -> None:
        """One command for each partition; a delivery is never divided."""
        deliveries: list[list[NewMessage]] = []
        first = 0
        for count in counts:
            deliveries.append(messages[first : first + count])
            first += count
        links = self._conversation.namespace.gateway.links
        for partition, indices in deal(links, self._entity, deliveries):
            together: list[NewMessage] = []
            for index in indices:
                together += deliveries[index]
            context = ([ids[index] for index in indices], [counts[index] for index in indices])
            send = Send(self._entity_id, together, (self, context))
            send.partition = partition
            self._traffic.submit(send)

    def replied(self, reply: Reply, context: tuple[list[int], list[int]]) -> None:
        ids, counts = context
        error = reply.error
        command = reply.command
        assert isinstance(command, Send)
        self._latency.end(command)
        if error is None:
            settle_ranges(self._link, ids, ACCEPTED)
            self._metrics.answered(None)
            size, units, pings = measure(command.messages)
            count = len(command.messages) - pings
            self._metrics.sent(count, size)
            self._meter.sent(count, units, pings)
        elif len(ids) == 1 or isinstance(error, EntityNotFound | Unavailable | ServerBusy):
            settle_ranges(self._link, ids, refused(error))
            self._metrics.answered(error)
        else:
            # Deliveries stand for themselves: together they were refused, so try them one by one.
            first = 0
            for delivery_id, count in zip(ids, counts, strict=True):
                part = command.messages[first : first + count]
                first += count
                self._traffic.submit(Send(self._entity_id, part, (self, ([delivery_id], [count]))))
        self._traffic.flush_soon()

    def closed(self) -> None:
        """Nothing to give back: what was sent is on its way."""


def _sendable(conversation: Conversation, address: Address) -> Entity:
    """The entity at this address, if anything can be sent to it."""
    entity = conversation.namespace.find_entity(address.name)
    if address.subqueue:
        raise InvalidOperation("Nothing can be sent to a dead-letter queue.")
    if entity.kind == "subscription":
        raise InvalidOperation("Nothing can be sent to a subscription; send to its topic.")
    entity.check_sendable()
    return entity


class DeliveryTaker(Protocol):
    """A link's context that takes deliveries."""

    def received(self, event: DeliveryReceived) -> None: ...


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
            cast(DeliveryTaker, taker).received(event)
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
