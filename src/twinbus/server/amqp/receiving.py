"""A receiving link: the broker's deliveries out, the client's settlements in."""

from twinbus.amqp.composites import Modified, TransactionalState
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import DispositionReceived
from twinbus.entities.commands import PEEK_LOCK, Lock, Reply, Settle
from twinbus.entities.message import ACTIVE, Message
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.gateway.counting.meter import ReceiveWatch
from twinbus.gateway.directory.addresses import Address
from twinbus.links.store_link import ReceiverDescription
from twinbus.message.lock_tokens import delivery_tag
from twinbus.message.outgoing import encode_overlaid
from twinbus.message.stored import STORED_HEAD_BYTES, delivered_head
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.coordinator import settle_in_transaction
from twinbus.server.amqp.settlement import (
    CONFIRMED,
    UNDECIDED,
    read_delay_of,
    read_outcome,
    refused,
)


class ReceivingLink:
    """A client receives from an entity through this link."""

    def __init__(
        self,
        conversation: Conversation,
        link: EgressLink,
        address: Address,
        receive_mode: int,
        session: SessionLock | None = None,
        is_exclusive: bool = True,
    ) -> None:
        self._conversation = conversation
        self._traffic = conversation.traffic
        self._link = link
        entity = conversation.namespace.find_entity(address.name)
        self._entity_id = entity.entity_id
        self.entity_name = entity.name  # as the stores know it
        self._metrics = entity.metrics
        self._meter = conversation.namespace.meter_of(entity, address.subqueue)
        self.watch = ReceiveWatch(self._meter)  # told of every flow
        self._subqueue = address.subqueue
        self._settled = receive_mode != PEEK_LOCK
        # Removed for a client that has taken its credit back meanwhile; they wait for the next.
        self._kept: list[tuple[Message, bytes]] = []
        self.path = address.path
        self.right = "Listen"
        self._receiver = conversation.namespace.gateway.open_receiver(
            ReceiverDescription(
                self._entity_id, address.subqueue, receive_mode, session, is_exclusive
            ),
            self,
        )
        if session is not None:
            conversation.session_locks[self._entity_id, session.session_id] = session
        self._traffic.receivers[self] = None

    # -- what the broker calls (a Sink) ------------------------------------------------------------

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        send = self._link.send
        settled = self._settled
        if settled and len(messages) > self._link.link_credit:
            credit = self._link.link_credit
            self._kept += list(zip(messages[credit:], bodies[credit:], strict=True))
            messages, bodies = messages[:credit], bodies[:credit]
        if not messages:
            return
        size = 0
        for message, body in zip(messages, bodies, strict=True):
            number = message.sequence_number
            if message.overlay is None and message.state == ACTIVE:
                head = delivered_head(
                    body, number, message.enqueued_ms, message.delivery_count, locked_until_utc_ms
                )
                rest = body[STORED_HEAD_BYTES:]
            else:
                head = encode_overlaid(message, body, locked_until_utc_ms)
                rest = b""
            size += len(head) + len(rest)
            lock = (number, message.grant)
            send(delivery_tag(number, message.grant), head, rest, settled, lock)
        self._metrics.delivered(len(messages), size)
        self._meter.delivered(bodies, size)
        self.watch.delivered(len(messages))
        self._traffic.flush_soon()

    def full(self) -> bool:
        return self._traffic.holds_back()

    def drained(self) -> None:
        self.watch.ended()
        self._link.drained()
        self._traffic.flush_soon()

    def removed(self) -> None:
        self._conversation.detach(self._link, EntityNotFound("The messaging entity was deleted."))

    def lost(self, error: ServiceError) -> None:
        self._conversation.detach(self._link, error)

    # -- what the endpoint calls -------------------------------------------------------------------

    def credit_changed(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            self.deliver([message for message, _ in kept], [body for _, body in kept], 0)
        self._receiver.set_credit(self._link.credit, self._link.drain)

    def writable(self) -> None:
        """The connection has room again."""
        self._receiver.resume()

    def settle(self, event: DispositionReceived) -> None:
        if self._settled:
            return
        outcome, overlay = read_outcome(event.state, event.settled)
        if outcome == UNDECIDED:  # not terminal (received), or for a transaction to decide
            if isinstance(event.state, TransactionalState):
                settle_in_transaction(self._conversation, event, self._entity_id, self._subqueue)
            return
        locks: list[Lock] = event.contexts  # type: ignore[assignment]  # what deliver() put there
        ids = None if event.settled else event.delivery_ids
        settle = Settle(self._entity_id, self._subqueue, locks, outcome, overlay, (self, ids))
        if isinstance(event.state, Modified):
            try:
                settle.delay_ms = read_delay_of(event.state, outcome)
            except ServiceError as error:
                self.replied(Reply(settle, None, error), ids)
                return
        self._traffic.submit(settle)

    def replied(self, reply: Reply, ids: list[int] | None) -> None:
        self._metrics.replied(reply)
        if ids is None:
            return  # the client settled without waiting
        command = reply.command
        assert isinstance(command, Settle)
        confirmed = CONFIRMED[command.outcome]
        if reply.error is None and reply.result is None:
            self._link.settle(ids, confirmed)
        elif reply.error is not None:
            self._link.settle(ids, refused(reply.error))
        else:
            errors: list[ServiceError | None] = reply.result  # type: ignore[assignment]
            for delivery_id, error in zip(ids, errors, strict=True):
                state = confirmed if error is None else refused(error)
                self._link.settle([delivery_id], state)
        self._traffic.flush_soon()

    def closed(self) -> None:
        """Message locks run on to their expiry, but a session is free at once."""
        self.watch.ended()
        self._traffic.receivers.pop(self, None)
        session = self._receiver.session
        if session is not None:
            locks = self._conversation.session_locks
            key = (self._entity_id, session.session_id)
            if locks.get(key) is session:
                del locks[key]
        self._receiver.close()
