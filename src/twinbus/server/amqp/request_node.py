"""Request/response nodes ($cbs and $management): requests in on one link, answers out on another.

Both links are on the same AMQP session; that pairs them (clients share one reply address).  An
answer waits for credit; a client that never gives any only fills its own small queue.
"""

from collections import deque
from typing import Final

from twinbus.amqp.composites import ACCEPTED, TransactionalState, transactional
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.errors import ArgumentInvalid, RemoteProtocolError, ServerBusy
from twinbus.message.plain import (
    DecodedMessage,
    Properties,
    decode_message,
    encode_message,
    value_section,
)
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.settlement import refused

WAITING_RESPONSES_MAX: Final = 1_000


class RequestNode:
    """One request/response node of one AMQP session."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.response_link: ResponseLink | None = None
        self.txn_id: bytes | None = None  # the transaction of the request at hand, if it has one

    def request(self, request: DecodedMessage) -> None:
        """Handle one request; the answer goes out by `respond`, now or later."""
        raise NotImplementedError

    def respond(self, request: DecodedMessage, properties: dict[str, object], body: object) -> None:
        self.respond_parts(request, properties, [value_section(body)])

    def respond_parts(
        self, request: DecodedMessage, properties: dict[str, object], body_parts: list[bytes]
    ) -> None:
        """The same with a body that is encoded already."""
        if self.response_link is not None:
            correlated = Properties(correlation_id=request.properties.message_id)
            head = encode_message(b"", correlated, properties)
            self.response_link.send(b"".join([head, *body_parts]))


class RequestLink:
    """Requests come in here."""

    path = ""
    right = ""

    def __init__(self, link: IngressLink, node: RequestNode) -> None:
        self._link = link
        self._node = node

    def received(self, event: DeliveryReceived) -> None:
        error: ArgumentInvalid | ServerBusy | None = None
        request: DecodedMessage | None = None
        responses = self._node.response_link
        try:
            request = decode_message(event.data)
        except RemoteProtocolError as reason:
            error = ArgumentInvalid(f"The request cannot be read: {reason}")
        if responses is not None and responses.is_full:
            error = ServerBusy("Too many answers are waiting; give the reply link credit.")
        txn_id = event.state.txn_id if isinstance(event.state, TransactionalState) else None
        if not event.settled:
            state = ACCEPTED if error is None else refused(error)
            if txn_id is not None and error is None:
                state = transactional(txn_id, ACCEPTED)
            self._link.settle(event.delivery_id, event.delivery_id, state)
        if request is not None and error is None:
            self._node.txn_id = txn_id
            self._node.request(request)

    def closed(self) -> None:
        """Requests already taken are still answered."""


class ResponseLink:
    """Answers go out here."""

    path = ""
    right = ""

    def __init__(self, conversation: Conversation, link: EgressLink, node: RequestNode) -> None:
        self._traffic = conversation.traffic
        self._link = link
        self._node = node
        self._waiting: deque[bytes] = deque()
        self._tag = 0
        node.response_link = self

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_RESPONSES_MAX

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self._waiting))

    def send(self, data: bytes) -> None:
        self._waiting.append(data)
        self.credit_changed()

    def credit_changed(self) -> None:
        while self._waiting and self._link.credit > 0:
            self._tag += 1
            tag = self._tag.to_bytes(8, "big")
            self._link.send(tag, self._waiting.popleft(), b"", True, None)
        if self._link.drain:
            self._link.drained()
        self._traffic.flush_soon()

    def closed(self) -> None:
        if self._node.response_link is self:
            self._node.response_link = None
