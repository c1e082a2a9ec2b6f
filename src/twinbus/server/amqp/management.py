"""The $management node of an entity: what the SDKs ask beside sending and receiving.

One function per operation: it reads the request's map strictly, and either answers or submits a
command whose reply is the answer.  Every operation checks its own claim, so a link that was
attached with one right cannot use another.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Symbol, Timestamp
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    Browse,
    CancelScheduled,
    Command,
    Delivered,
    GetSessionState,
    ListPartitions,
    ListRules,
    ListSessions,
    PartitionState,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    RenewSession,
    Reply,
    Selected,
    SelectionCommand,
    Send,
    SetSessionState,
    Settle,
)
from twinbus.entities.message import NewMessage, Overlay
from twinbus.entities.rules import RuleDescription
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    NotSupported,
    RemoteProtocolError,
    ServiceError,
    SessionLockLost,
    Unavailable,
)
from twinbus.gateway.directory.addresses import Address
from twinbus.limits import MESSAGE_SIZE_BYTES_MAX
from twinbus.message.incoming import new_message
from twinbus.message.lock_tokens import lock_token
from twinbus.message.outgoing import encode_overlaid
from twinbus.message.plain import DecodedMessage
from twinbus.server.amqp.coordinator import enlist_request, is_enlisted
from twinbus.server.amqp.management_bulk import (
    answer_partitions,
    answer_selected,
    read_batch_delete,
    read_browse,
    read_numbers,
    read_partitions,
    read_purge,
    read_resubmit,
    read_settle,
    read_undefer,
)
from twinbus.server.amqp.management_ranges import RangeAnswer, said
from twinbus.server.amqp.management_rules import (
    answer_rules,
    read_add_rule,
    read_enumerate_rules,
    read_remove_rule,
)
from twinbus.server.amqp.request_fields import (
    Body,
    by_name,
    dead_letter_text,
    lock_tokens,
    optional_text,
    required_text,
    sequence_numbers,
    whole,
)
from twinbus.server.amqp.request_node import Node
from twinbus.server.amqp.settlement import encode_changes, read_delay

if TYPE_CHECKING:
    from twinbus.server.amqp.endpoint import AmqpEndpoint

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
        self.entity = endpoint.namespace.find_entity(address.name)
        self.entity_id = self.entity.entity_id
        self.subqueue = address.subqueue
        self._meter = endpoint.namespace.meter_of(self.entity, address.subqueue)

    def request(self, request: DecodedMessage) -> None:
        try:
            command = self._command(request)
            if self.txn_id is not None and is_enlisted(command):
                result = enlist_request(self.endpoint, self.txn_id, command)
                self.replied(Reply(command, result, None), request)
                return
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
        return read(self, by_name(request.body, "The body of the request"))

    def session_grant(self, session_id: str) -> int:
        """The lock by which a receiving link of this connection holds the session."""
        self.require_sessions()
        lock = self.endpoint.session_locks.get((self.entity_id, session_id))
        if lock is None:
            raise SessionLockLost(
                f"No receiver of this connection holds the session '{session_id[:64]}'."
            )
        return lock.grant

    def require_sessions(self) -> None:
        """Refuse what only a session entity can do."""
        if self.subqueue or not self.entity.description.requires_session:
            raise InvalidOperation(f"'{self._path[:64]}' has no sessions.")

    def replied(self, reply: Reply, request: DecodedMessage) -> None:
        if isinstance(reply.command, ListPartitions) and isinstance(reply.error, Unavailable):
            # Whether it is up is part of the question.
            reply = Reply(reply.command, [PartitionState(0, False, 0, 0, 0)], None)
        self.entity.metrics.replied(reply)
        self._meter.replied(reply)
        error = reply.error
        if error is None and isinstance(reply.command, Settle) and reply.result is not None:
            failed: list[ServiceError | None] = reply.result  # type: ignore[assignment]
            error = next((one for one in failed if one is not None), None)
        if error is not None:
            self._refuse(request, error)
            return
        command = reply.command
        if isinstance(command, Browse) and command.is_range:
            selected: Selected = reply.result  # type: ignore[assignment]
            if selected.count:
                RangeAnswer(self, request, selected).go_on()
                return
        if isinstance(command, ListPartitions):
            states: list[PartitionState] = reply.result  # type: ignore[assignment]
            status, body = answer_partitions(self.entity.description.created_utc_ms, states)
        else:
            status, body = _answer(reply)
        self.respond(request, said(status, body), body)

    def _refuse(self, request: DecodedMessage, error: ServiceError) -> None:
        properties: Body = {
            "statusCode": Int(error.http_status),
            "statusDescription": str(error),
            "errorCondition": Symbol(error.amqp_condition),
        }
        self.respond(request, properties, {})


# -- reading requests ------------------------------------------------------------------------------


def _peek(node: ManagementNode, body: Body) -> Command:
    from_number = whole(body, "from-sequence-number")
    count = whole(body, "message-count")
    if count < 0:
        raise ArgumentOutOfRange("message-count must not be negative.")
    peek = Peek(node.entity_id, node.subqueue, max(0, from_number), count)
    peek.session_id = optional_text(body, "session-id")
    return peek


def _receive_deferred(node: ManagementNode, body: Body) -> Command:
    numbers = sequence_numbers(body)
    mode = whole(body, "receiver-settle-mode")
    if mode not in (0, 1):
        raise ArgumentOutOfRange("receiver-settle-mode is 0 (receive and delete) or 1 (peek-lock).")
    receive_mode = PEEK_LOCK if mode == 1 else RECEIVE_AND_DELETE
    receive = ReceiveDeferred(node.entity_id, node.subqueue, numbers, receive_mode)
    receive.session_id = optional_text(body, "session-id")
    if receive.session_id is not None:
        receive.session_grant = node.session_grant(receive.session_id)
    return receive


def _update_disposition(node: ManagementNode, body: Body) -> Command:
    status = body.get("disposition-status")
    outcome = _DISPOSITIONS.get(status) if isinstance(status, str) else None
    if outcome is None:
        raise ArgumentInvalid("disposition-status must be one of " + ", ".join(_DISPOSITIONS))
    settle = Settle(node.entity_id, node.subqueue, lock_tokens(body), outcome)
    changes = body.get("properties-to-modify")
    if outcome != COMPLETE:
        properties = None
        if isinstance(changes, dict) and changes:
            settle.delay_ms = read_delay(changes, outcome)
            properties = encode_changes(changes)
        settle.overlay = Overlay(
            reason=dead_letter_text(body, "deadletter-reason"),
            description=dead_letter_text(body, "deadletter-description"),
            properties=properties,
        )
    if optional_text(body, "session-id") is not None:
        node.require_sessions()  # which session it is, the locks say
    return settle


def _renew_lock(node: ManagementNode, body: Body) -> Command:
    return RenewLocks(node.entity_id, node.subqueue, lock_tokens(body))


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
            node.entity.description.default_time_to_live_ms,
            node.entity.needs_keys,
        )
    except RemoteProtocolError as error:
        raise ArgumentInvalid(f"The message cannot be read: {error}") from None
    if not message.scheduled_ms:
        raise ArgumentInvalid("A scheduled message needs x-opt-scheduled-enqueue-time.")
    return message


def _cancel(node: ManagementNode, body: Body) -> Command:
    return CancelScheduled(node.entity_id, sequence_numbers(body))


def _renew_session(node: ManagementNode, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    return RenewSession(node.entity_id, session_id, node.session_grant(session_id))


def _get_session_state(node: ManagementNode, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    return GetSessionState(node.entity_id, session_id, node.session_grant(session_id))


def _set_session_state(node: ManagementNode, body: Body) -> Command:
    session_id = required_text(body, "session-id")
    state = body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("'session-state' must be binary, or null to clear the state.")
    grant = node.session_grant(session_id)
    return SetSessionState(node.entity_id, session_id, grant, state)


def _list_sessions(node: ManagementNode, body: Body) -> Command:
    node.require_sessions()
    since_ms = whole(body, "last-updated-time")
    skip, top = whole(body, "skip"), whole(body, "top")
    return ListSessions(node.entity_id, since_ms, skip, top)


_OPERATIONS: Final[dict[str, tuple[str, Callable[[ManagementNode, Body], Command]]]] = {
    "com.microsoft:peek-message": ("Listen", _peek),
    "com.microsoft:receive-by-sequence-number": ("Listen", _receive_deferred),
    "com.microsoft:update-disposition": ("Listen", _update_disposition),
    "com.microsoft:renew-lock": ("Listen", _renew_lock),
    "com.microsoft:schedule-message": ("Send", _schedule),
    "com.microsoft:cancel-scheduled-message": ("Send", _cancel),
    "com.microsoft:renew-session-lock": ("Listen", _renew_session),
    "com.microsoft:get-session-state": ("Listen", _get_session_state),
    "com.microsoft:set-session-state": ("Listen", _set_session_state),
    "com.microsoft:get-message-sessions": ("Listen", _list_sessions),
    # The SDKs say of their rule managers that they need Listen and no more.
    "com.microsoft:add-rule": ("Listen", read_add_rule),
    "com.microsoft:remove-rule": ("Listen", read_remove_rule),
    "com.microsoft:enumerate-rules": ("Listen", read_enumerate_rules),
    "com.microsoft:batch-delete-messages": ("Listen", read_batch_delete),
    # Ours.  What changes many messages at a stroke is for whoever manages the entity; what settles
    # them by number is for whoever might receive and settle them one by one.
    "twinbus:browse": ("Listen", read_browse),
    "twinbus:partitions": ("Listen", read_partitions),
    "twinbus:numbers": ("Listen", read_numbers),
    "twinbus:settle": ("Listen", read_settle),
    "twinbus:purge": ("Manage", read_purge),
    "twinbus:undefer": ("Manage", read_undefer),
    "twinbus:resubmit": ("Manage", read_resubmit),
}


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
    if isinstance(command, RenewSession):
        until_ms: int = result  # type: ignore[assignment]
        return 200, {"expiration": Timestamp(until_ms)}
    if isinstance(command, GetSessionState):
        return 200, {"session-state": result}
    if isinstance(command, ListSessions):
        ids: list[str] = result  # type: ignore[assignment]
        if not ids:
            return 204, {}
        return 200, {"skip": Int(command.skip + len(ids)), "sessions-ids": Array(ids)}
    if isinstance(command, ListRules):
        rules: list[RuleDescription] = result  # type: ignore[assignment]
        return answer_rules(rules)
    if isinstance(command, SelectionCommand):
        selected: Selected = result  # type: ignore[assignment]
        status, body = answer_selected(selected)
        if selected.delivered:
            body["messages"] = [_message_entry(one) for one in selected.delivered]
        return status, body
    if isinstance(command, Send):
        numbers: list[int] = result  # type: ignore[assignment]
        return 200, {"sequence-numbers": Array(numbers)}
    return 200, {}


def _message_entry(delivered: Delivered) -> Body:
    message = delivered.message
    until_ms = delivered.locked_until_utc_ms
    if not until_ms:
        return {"message": encode_overlaid(message, delivered.body, 0)}
    token = lock_token(message.sequence_number, message.grant)
    encoded = encode_overlaid(message, delivered.body, until_ms, token.bytes)
    return {"message": encoded, "lock-token": token}
