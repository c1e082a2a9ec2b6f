"""Senders and receivers of a BusConnection."""

import asyncio
from collections import deque
from typing import Final, Protocol

from twinbus import errors
from twinbus.amqp.composites import (
    ACCEPTED,
    RELEASED,
    Accepted,
    AmqpError,
    DeliveryState,
    Rejected,
    modified,
    rejected,
)
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import DispositionReceived, IncomingSettled
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.errors import InvalidOperation, ServiceError, TwinbusError
from twinbus.message import wire_names
from twinbus.message.plain import DecodedMessage, data_section, decode_message

# Every message says that it is to be kept: AMQP's header section with `durable` set.
_DURABLE_HEADER: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_ABANDONED: Final = modified(True, False)
_DEFERRED: Final = modified(True, True)
DRAIN_DURATION_S_MAX: Final = 5.0


class ConnectionLost(TwinbusError):
    """The connection is lost; operations in progress may or may not have happened.

    `condition` is the AMQP condition if the bus gave a reason, otherwise empty.
    """

    def __init__(self, text: str, condition: str = "") -> None:
        super().__init__(text)
        self.condition = condition


def _error_classes() -> dict[str, type[ServiceError]]:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    # The last one wins, so the tree is walked from the leaves to the root.
    return {
        found.amqp_condition: found
        for found in reversed(classes)
        if issubclass(found, ServiceError)
    }


_BY_CONDITION: Final = _error_classes()


def service_error(error: AmqpError | None) -> ServiceError:
    """The bus's error as the exception of that name."""
    if error is None:
        return ServiceError("the bus ended the link")
    kind = _BY_CONDITION.get(error.condition, ServiceError)
    return kind(error.description or error.condition)


class Owner(Protocol):
    """What links need of their connection."""

    error: ConnectionLost | None
    writable: bool

    def flush_soon(self) -> None: ...

    def forget(self, link: "Sender | Receiver") -> None: ...


class Received:
    """A received message, locked unless it was received and deleted."""

    __slots__ = ("_message", "data", "delivery_id", "settled")

    def __init__(self, delivery_id: int, data: bytes, settled: bool) -> None:
        self.delivery_id = delivery_id
        self.data = data  # as it stood on the wire
        self.settled = settled
        self._message: DecodedMessage | None = None

    @property
    def message(self) -> DecodedMessage:
        """Decoded on demand: an unreadable message is no reason to close the connection."""
        if self._message is None:
            self._message = decode_message(self.data)
        return self._message

    @property
    def body(self) -> bytes:
        """The data body; empty if the body is of another kind (see `message.body`)."""
        body = self.message.body
        return body if isinstance(body, bytes) else b""

    @property
    def delivery_count(self) -> int:
        return self.message.delivery_count

    @property
    def sequence_number(self) -> int:
        return self._annotation(wire_names.SEQUENCE_NUMBER)

    @property
    def locked_until_ms(self) -> int:
        """UTC; 0 if it is not locked."""
        return self._annotation(wire_names.LOCKED_UNTIL)

    def _annotation(self, name: str) -> int:
        value = self.message.annotations.get(name)
        return value if isinstance(value, int) else 0


class _Link:
    """What both directions have in common."""

    def __init__(self, connection: Owner) -> None:
        self.connection = connection
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: TwinbusError | None = None  # why it is gone; None while it lives

    def raise_if_closed(self) -> None:
        if self.error is not None:
            raise self.error

    def _end(self, error: TwinbusError) -> None:
        self.error = error
        if not self.attached.done():
            self.attached.set_exception(error)


class Sender(_Link):
    """Sends to one queue."""

    def __init__(self, connection: Owner, link: EgressLink) -> None:
        super().__init__(connection)
        self._link = link
        self._waiting: deque[tuple[bytes, int, asyncio.Future[None]]] = deque()
        self._under_way: set[asyncio.Future[None]] = set()
        self._count = 0
        link.context = self

    @property
    def message_size_bytes_max(self) -> int:
        """Maximum size of a message or batch; 0 if the bus states none."""
        return self._link.peer_max_message_size

    @property
    def namespace_id(self) -> str | None:
        """Which namespace this is, whatever its address; None if the bus does not tell."""
        told = (self._link.properties or {}).get(wire_names.NAMESPACE_ID)
        return told if isinstance(told, str) and told else None

    def close(self) -> None:
        """Detach; operations in progress count as lost."""
        if self.error is None:
            self._link.detach()
            self.end(InvalidOperation("the sender is closed"))
            self.connection.forget(self)

    def send(self, body: bytes) -> asyncio.Future[None]:
        """Send a message with this data body; done when the bus has stored it."""
        return self.send_encoded(_DURABLE_HEADER + data_section(body))

    def send_encoded(self, data: bytes, message_format: int = 0) -> asyncio.Future[None]:
        """Send an encoded message, or a batch of them with its message format."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            outcome.set_exception(self.error)
            return outcome
        self._waiting.append((data, message_format, outcome))
        self.send_waiting()
        return outcome

    def send_waiting(self) -> None:
        """Send waiting messages, as far as credit and the socket allow."""
        link, waiting = self._link, self._waiting
        while waiting and link.credit > 0 and self.connection.writable:
            data, message_format, outcome = waiting.popleft()
            self._count += 1
            tag = self._count.to_bytes(8)
            self._under_way.add(outcome)
            link.send(tag, data, b"", False, outcome, message_format)
            self.connection.flush_soon()

    def agreed(self) -> None:
        """The bus has answered our attach."""
        _finish(self.attached, None)

    def disposed(self, event: DispositionReceived) -> None:
        """The bus accepted or refused some of our messages."""
        error = _refusal(event.state)
        for context in event.contexts:
            assert isinstance(context, asyncio.Future)
            self._under_way.discard(context)
            _finish(context, error)

    def end(self, error: TwinbusError) -> None:
        """The link is gone: no more answers will come."""
        self._end(error)
        for outcome in self._under_way:
            _finish(outcome, ConnectionLost(f"outcome unknown: {error}"))
        for _, _, outcome in self._waiting:
            _finish(outcome, ConnectionLost(f"not sent: {error}"))
        self._under_way.clear()
        self._waiting.clear()


class Receiver(_Link):
    """Receives from one queue."""

    def __init__(self, connection: Owner, link: IngressLink, credit: int) -> None:
        super().__init__(connection)
        self._link = link
        self._credit = credit
        self._arrived: deque[Received] = deque()
        self._waiters: deque[asyncio.Future[Received | None]] = deque()
        self._settling: dict[int, asyncio.Future[None]] = {}
        self._draining: asyncio.Future[None] | None = None
        link.context = self

    def close(self) -> None:
        """Detach; unsettled messages stay locked until their locks expire: release them first."""
        if self.error is None:
            self._link.detach()
            self.end(InvalidOperation("the receiver is closed"))
            self.connection.forget(self)

    async def receive(self, wait_s: float | None = None) -> Received | None:
        """The next message; None if none arrived in time (without a timeout it waits forever)."""
        self.raise_if_closed()
        if self._arrived:
            return self._arrived.popleft()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Received | None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if wait_s is None else loop.call_later(wait_s, _give_up, waiter)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def complete(self, received: Received) -> asyncio.Future[None]:
        """Done with it: the bus deletes it.  This and the rest return when the bus confirms."""
        return self._settle(received, ACCEPTED)

    def abandon(self, received: Received) -> asyncio.Future[None]:
        """Give it back; its delivery count rises."""
        return self._settle(received, _ABANDONED)

    def defer(self, received: Received) -> asyncio.Future[None]:
        """Set it aside; only its sequence number finds it again."""
        return self._settle(received, _DEFERRED)

    def release(self, received: Received) -> asyncio.Future[None]:
        """Give it back unseen; its delivery count stays."""
        return self._settle(received, RELEASED)

    def dead_letter(
        self, received: Received, reason: str, description: str
    ) -> asyncio.Future[None]:
        """Move it to the dead-letter queue."""
        info: dict[object, object] = {
            wire_names.DEAD_LETTER_REASON: reason,
            wire_names.DEAD_LETTER_DESCRIPTION: description,
        }
        state = rejected(AmqpError("com.microsoft:dead-letter", description, info))
        return self._settle(received, state)

    def _settle(self, received: Received, state: bytes) -> asyncio.Future[None]:
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            outcome.set_exception(self.error)
            return outcome
        if received.settled:  # the bus would not even answer
            outcome.set_exception(InvalidOperation("the message is settled already"))
            return outcome
        received.settled = True
        self._settling[received.delivery_id] = outcome
        self._link.settle(received.delivery_id, received.delivery_id, state, settled=False)
        self.connection.flush_soon()
        return outcome

    def agreed(self) -> None:
        """The bus has answered our attach: ask for messages."""
        self.set_credit(self._credit)
        _finish(self.attached, None)

    def set_credit(self, credit: int) -> None:
        """How many messages may be here unsettled from now on."""
        self._link.credit_window = credit
        self._link.grant(max(0, credit - self._link.unsettled_count))
        self.connection.flush_soon()

    def ask_for(self, count: int) -> None:
        """Request this many more messages, and no others, whatever is settled.

        For a receiver opened without credit.
        """
        self._link.credit_window = 0
        self._link.grant(count)
        self.connection.flush_soon()

    async def drain(self) -> list[Received]:
        """Withdraw the requests; return the messages that arrived anyway.

        After that nothing more comes: nothing is deleted or locked for a receiver that has gone.
        """
        if self.error is None and self._link.credit > 0:
            self._draining = asyncio.get_running_loop().create_future()
            self._link.credit_window = 0
            self._link.grant(self._link.credit, drain=True)
            self.connection.flush_soon()
            await asyncio.wait([self._draining], timeout=DRAIN_DURATION_S_MAX)
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def drained(self) -> None:
        """The bus has used up our credit, or returned it."""
        if self._draining is not None:
            _finish(self._draining, None)

    def delivered(self, event: DeliveryReceived) -> None:
        received = Received(event.delivery_id, event.data, event.settled)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(received)
                return
        self._arrived.append(received)

    def confirmed(self, event: IncomingSettled) -> None:
        """The bus confirmed settlements; the range may include deliveries of other links."""
        error = _refusal(event.state, rejected_is_confirmed=True)
        settling = self._settling
        if event.first == event.last:
            found = [event.first] if event.first in settling else []
        else:
            found = [number for number in settling if event.first <= number <= event.last]
        for number in found:
            _finish(settling.pop(number), error)
            self._link.unsettled_count -= 1
        if found:
            self._link.top_up()

    def end(self, error: TwinbusError) -> None:
        """The link is gone: no more messages or confirmations will come."""
        self._end(error)
        for outcome in self._settling.values():
            _finish(outcome, ConnectionLost(f"outcome unknown: {error}"))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.drained()
        self._settling.clear()
        self._waiters.clear()
        self._arrived.clear()


def _refusal(
    state: DeliveryState | None, *, rejected_is_confirmed: bool = False
) -> ServiceError | None:
    """Why the bus refused; None if it accepted.  It confirms a dead-letter with `rejected`."""
    if isinstance(state, Accepted):
        return None
    if isinstance(state, Rejected):
        return None if rejected_is_confirmed and state.error is None else service_error(state.error)
    return None if rejected_is_confirmed else ServiceError("the bus did not take the message")


def _finish(outcome: asyncio.Future[None], error: TwinbusError | None) -> None:
    if outcome.done():
        return  # its owner has given up waiting
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _give_up(waiter: "asyncio.Future[Received | None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
