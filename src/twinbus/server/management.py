"""The $management node of an entity: what the SDKs ask beside sending and receiving.

One function per operation: it reads the request's map strictly, and either answers or submits a
command whose reply is the answer.  Every operation checks its own claim, so a link that was
attached with one right cannot use another.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from twinbus.amqp.plain import DecodedMessage
from twinbus.amqp.stored import encode_delivered
from twinbus.amqp.types import Array, Int, Symbol, Timestamp
from twinbus.broker.namespace import Address
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    CancelScheduled,
    Command,
    Delivered,
    Lock,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.message import NewMessage, Overlay
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    NotSupported,
    RemoteProtocolError,
    ServiceError,
)
from twinbus.limits import (
    DEAD_LETTER_TEXT_CHARS_MAX,
    MESSAGE_SIZE_BYTES_MAX,
    SEQUENCE_NUMBERS_MAX,
)
from twinbus.server.lock_tokens import lock_token, parse_lock_token
from twinbus.server.outcomes import encode_changes
from twinbus.server.requests import Node
from twinbus.server.sending import new_message

if TYPE_CHECKING:
    from twinbus.server.endpoint import AmqpEndpoint

Body = dict[str, object]

_DISPOSITIONS: Final = {
    "completed": COMPLETE,
    "abandoned": ABANDON,
    "defered": DEFER,  # sic, on the wire
    "suspended": DEAD_LETTER,
}


class ManagementNode(Node):
    """The management node of one entity (or its dead-letter queue) on one AMQP session."""

    def __init__(self, endpoint: "AmqpEndpoint", address: Address) -> None:
        super().__init__(endpoint)
        # A claim for the entity covers this; the Node SDK brings one for just this node.
        self._path = f"{address.path}/$management"
        # First the claim: a stranger must not learn which names exist.
        if not endpoint.allowed("Send", self._path):
            endpoint.require("Listen", self._path)
        self.queue = endpoint.namespace.find_queue(address.name)
        self.entity_id = self.queue.entity_id
        self.subqueue = address.subqueue

    def request(self, request: DecodedMessage) -> None:
        try:
            command = self._command(request)
        except ServiceError as error:
            self._refuse(request, error)
            return
        command.context = (self, request)
        self.endpoint.submit(command)

    def _command(self, request: DecodedMessage) -> Command:
        operation = request.application_properties.get("operation")
        if not isinstance(operation, str):
            raise ArgumentInvalid("The request names no operation.")
        found = _OPERATIONS.get(operation)
        if found is None:
            raise NotSupported(f"The operation '{operation[:64]}' is not supported.")
        right, read = found
        self.endpoint.require(right, self._path)
        body = request.body
        if not isinstance(body, dict):
            raise ArgumentInvalid("The body of the request is not a map.")
        return read(self, {str(key): value for key, value in body.items()})

    def replied(self, reply: Reply, request: DecodedMessage) -> None:
        error = reply.error
        if error is None and isinstance(reply.command, Settle) and reply.result is not None:
            failed: list[ServiceError | None] = reply.result  # type: ignore[assignment]
            error = next((one for one in failed if one is not None), None)
        if error is not None:
            self._refuse(request, error)
            return
        status, body = _answer(reply)
        description = "OK" if body else "No content"
        properties: Body = {"statusCode": Int(status), "statusDescription": description}
        self.respond(request, properties, body)

    def _refuse(self, request: DecodedMessage, error: ServiceError) -> None:
        properties: Body = {
            "statusCode": Int(error.http_status),
            "statusDescription": str(error),
            "errorCondition": Symbol(error.amqp_condition),
        }
        self.respond(request, properties, {})


# -- reading requests ------------------------------------------------------------------------------


def _peek(node: ManagementNode, body: Body) -> Command:
    from_number = _whole(body, "from-sequence-number")
    count = _whole(body, "message-count")
    if count < 0:
        raise ArgumentOutOfRange("message-count must not be negative.")
    return Peek(node.entity_id, node.subqueue, max(0, from_number), count)


def _receive_deferred(node: ManagementNode, body: Body) -> Command:
    numbers = _sequence_numbers(body)
    mode = _whole(body, "receiver-settle-mode")
    if mode not in (0, 1):
        raise ArgumentOutOfRange("receiver-settle-mode is 0 (receive and delete) or 1 (peek-lock).")
    receive_mode = PEEK_LOCK if mode == 1 else RECEIVE_AND_DELETE
    return ReceiveDeferred(node.entity_id, node.subqueue, numbers, receive_mode)


def _update_disposition(node: ManagementNode, body: Body) -> Command:
    status = body.get("disposition-status")
    outcome = _DISPOSITIONS.get(status) if isinstance(status, str) else None
    if outcome is None:
        raise ArgumentInvalid("disposition-status must be one of " + ", ".join(_DISPOSITIONS))
    overlay = None
    changes = body.get("properties-to-modify")
    if outcome != COMPLETE:
        overlay = Overlay(
            reason=_text(body, "deadletter-reason"),
            description=_text(body, "deadletter-description"),
            properties=encode_changes(changes) if isinstance(changes, dict) and changes else None,
        )
    return Settle(node.entity_id, node.subqueue, _locks(body), outcome, overlay)


def _renew_lock(node: ManagementNode, body: Body) -> Command:
    return RenewLocks(node.entity_id, node.subqueue, _locks(body))


def _schedule(node: ManagementNode, body: Body) -> Command:
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise ArgumentInvalid("'messages' must be a list with at least one message.")
    if node.subqueue:
        raise InvalidOperation("Nothing can be scheduled on a dead-letter queue.")
    return Send(node.entity_id, [_scheduled(node, entry) for entry in entries])


def _scheduled(node: ManagementNode, entry: object) -> NewMessage:
    encoded = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(encoded, bytes):
        raise ArgumentInvalid("Each of 'messages' needs its encoded 'message' as binary.")
    if len(encoded) > MESSAGE_SIZE_BYTES_MAX:
        raise ArgumentOutOfRange(f"A message has at most {MESSAGE_SIZE_BYTES_MAX} bytes.")
    try:
        message = new_message(
            encoded,
            node.endpoint.message_ids,
            node.queue.description.default_time_to_live_ms,
        )
    except RemoteProtocolError as error:
        raise ArgumentInvalid(f"The message cannot be read: {error}") from None
    if not message.scheduled_ms:
        raise ArgumentInvalid("A scheduled message needs x-opt-scheduled-enqueue-time.")
    return message


def _cancel(node: ManagementNode, body: Body) -> Command:
    return CancelScheduled(node.entity_id, _sequence_numbers(body))


_OPERATIONS: Final[dict[str, tuple[str, Callable[[ManagementNode, Body], Command]]]] = {
    "com.microsoft:peek-message": ("Listen", _peek),
    "com.microsoft:receive-by-sequence-number": ("Listen", _receive_deferred),
    "com.microsoft:update-disposition": ("Listen", _update_disposition),
    "com.microsoft:renew-lock": ("Listen", _renew_lock),
    "com.microsoft:schedule-message": ("Send", _schedule),
    "com.microsoft:cancel-scheduled-message": ("Send", _cancel),
}


def _whole(body: Body, key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' must be a whole number.")
    return int(value)


def _text(body: Body, key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentInvalid(f"'{key}' must be a string.")
    return value[:DEAD_LETTER_TEXT_CHARS_MAX]


def _elements(body: Body, key: str) -> list[object]:
    value = body.get(key)
    elements = value
    if not isinstance(elements, list) or not elements:
        raise ArgumentInvalid(f"'{key}' must be an array with at least one element.")
    if len(elements) > SEQUENCE_NUMBERS_MAX:
        raise ArgumentOutOfRange(f"'{key}' has more than {SEQUENCE_NUMBERS_MAX} elements.")
    return elements


def _sequence_numbers(body: Body) -> list[int]:
    numbers: list[int] = []
    for value in _elements(body, "sequence-numbers"):
        if not isinstance(value, int):
            raise ArgumentInvalid("'sequence-numbers' must hold whole numbers.")
        numbers.append(int(value))
    return numbers


def _locks(body: Body) -> list[Lock]:
    locks: list[Lock] = []
    for value in _elements(body, "lock-tokens"):
        if not isinstance(value, UUID):
            raise ArgumentInvalid("'lock-tokens' must hold uuids.")
        locks.append(parse_lock_token(value))
    return locks


# -- writing answers -------------------------------------------------------------------------------


def _answer(reply: Reply) -> tuple[int, Body]:
    command, result = reply.command, reply.result
    if isinstance(command, Peek | ReceiveDeferred):
        delivered: list[Delivered] = result  # type: ignore[assignment]
        if not delivered:
            return 204, {}
        return 200, {"messages": [_message_entry(one) for one in delivered]}
    if isinstance(command, RenewLocks):
        expirations: list[int] = result  # type: ignore[assignment]
        return 200, {"expirations": Array([Timestamp(ms) for ms in expirations])}
    if isinstance(command, Send):
        numbers: list[int] = result  # type: ignore[assignment]
        return 200, {"sequence-numbers": Array(numbers)}
    return 200, {}


def _message_entry(delivered: Delivered) -> Body:
    message = delivered.message
    overlay = message.overlay or Overlay()
    locked = delivered.locked_until_utc_ms != 0
    token = lock_token(message.sequence_number, message.grant) if locked else None
    encoded = encode_delivered(
        delivered.body,
        message.sequence_number,
        message.enqueued_ms,
        message.delivery_count,
        delivered.locked_until_utc_ms,
        message.state,
        overlay.properties,
        overlay.reason,
        overlay.description,
        overlay.source,
        token.bytes if token else None,
    )
    entry: Body = {"message": encoded}
    if token:
        entry["lock-token"] = token
    return entry
