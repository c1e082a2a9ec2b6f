"""Receiving one message for one HTTP request: wait, hand it out, or give it back.

A request that waits ends with its timeout, with its peer or with the server.  What has been taken
for it by then is never dropped: it is handed out, or, if it was only locked, released unseen.
"""

import asyncio

from twinbus.entities.commands import PEEK_LOCK, RELEASE, Settle
from twinbus.entities.message import Message
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.links.store_link import ReceiverDescription
from twinbus.message.outgoing import decode_outgoing, encode_overlaid
from twinbus.server.http.addressed_entity import AddressedEntity
from twinbus.server.http.exchange import Response
from twinbus.server.http.rest.messages import (
    body_of,
    broker_facts,
    broker_properties,
    property_headers,
)


class ReceivedMessage:
    """One message handed out, encoded while it was the queue's to read."""

    def __init__(
        self, addressed: AddressedEntity, message: Message, body: bytes, locked_until_utc_ms: int
    ) -> None:
        self._addressed = addressed
        self.sequence_number = message.sequence_number
        self.grant = message.grant
        self.locked_until_utc_ms = locked_until_utc_ms
        self._facts = broker_facts(
            message.sequence_number, message.enqueued_ms, message.delivery_count, message.state
        )
        self.body = body  # as it is stored
        self._data = encode_overlaid(message, body, locked_until_utc_ms)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def response(
        self, status: int, locked: dict[str, object], headers: tuple[tuple[str, str], ...]
    ) -> Response:
        message = decode_outgoing(self._data)
        body, content_type = body_of(message)
        properties = broker_properties(message, {**self._facts, **locked})
        shown = (("BrokerProperties", properties), *property_headers(message))
        return Response(status, body, content_type, (*headers, *shown))

    def release(self) -> None:
        """Nobody has seen it: free again, and it does not count as a delivery."""
        addressed = self._addressed
        lock = (self.sequence_number, self.grant)
        entity_id = addressed.entity.entity_id
        addressed.gateway.submit([Settle(entity_id, addressed.address.subqueue, [lock], RELEASE)])


class WaitingRequest:
    """A receiver for one message (a Sink): it is given one, or gives up."""

    def __init__(self, addressed: AddressedEntity, receive_mode: int) -> None:
        self._addressed = addressed
        self._mode = receive_mode
        self._result: asyncio.Future[ReceivedMessage | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._receiver = addressed.gateway.open_receiver(
            ReceiverDescription(
                addressed.entity.entity_id, addressed.address.subqueue, receive_mode
            ),
            self,
        )

    async def wait(self, wait_s: float) -> ReceivedMessage | None:
        """The message; None when none has come in time or the peer is gone."""
        receiver = self._receiver
        timer: asyncio.TimerHandle | None = None
        if wait_s > 0:
            timer = asyncio.get_running_loop().call_later(wait_s, self._drain)
        receiver.set_credit(1, drain=wait_s == 0)
        try:
            return await self._result
        finally:
            if timer is not None:
                timer.cancel()
            receiver.close()

    def give_up(self) -> None:
        """Nobody waits any more.  A message already taken from the queue is still waited for."""
        if not self._result.done():
            self._receiver.set_credit(0, drain=True)

    def _drain(self) -> None:
        """Time is up, but what has been taken for us by now is ours."""
        if not self._result.done():
            self._receiver.set_credit(1, drain=True)

    # -- what the broker calls (a Sink) ------------------------------------------------------

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        for message, body in zip(messages, bodies, strict=True):
            received = ReceivedMessage(self._addressed, message, body, locked_until_utc_ms)
            if not self._result.done():
                self._result.set_result(received)
            elif self._mode == PEEK_LOCK:
                received.release()

    def full(self) -> bool:
        return self._result.done()

    def drained(self) -> None:
        if not self._result.done():
            self._result.set_result(None)

    def removed(self) -> None:
        if not self._result.done():
            self._result.set_exception(EntityNotFound("The messaging entity was deleted."))

    def lost(self, error: ServiceError) -> None:
        if not self._result.done():
            self._result.set_exception(error)
