"""The node: reads requests into commands, whose replies are the answers.

Every operation checks its own claim, so a link that was attached with one right cannot use another.
And each looks for the entity by its name: links live longer than an entity that is deleted and
made again.
"""

from collections.abc import Callable
from typing import Final

from twinbus.amqp.types import Int, Symbol
from twinbus.entities.commands import Command, ListPartitions, PartitionState, Reply, Settle
from twinbus.entities.selections import Browse, Selected
from twinbus.errors import ArgumentInvalid, NotSupported, ServiceError, Unavailable
from twinbus.gateway.directory.addresses import Address
from twinbus.message.plain import DecodedMessage
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.coordinator import enlist_request, is_enlisted
from twinbus.server.amqp.management import bulk, requests, rules
from twinbus.server.amqp.management.answers import answer, properties_of
from twinbus.server.amqp.management.entity import ManagedEntity
from twinbus.server.amqp.management.fields import Body, by_name
from twinbus.server.amqp.management.ranges import RangeAnswer
from twinbus.server.amqp.request_node import RequestNode

# By name: the right that it takes, and what reads it.
OPERATIONS: Final[dict[str, tuple[str, Callable[[ManagedEntity, Body], Command]]]] = {
    "com.microsoft:peek-message": ("Listen", requests.read_peek),
    "com.microsoft:receive-by-sequence-number": ("Listen", requests.read_receive_deferred),
    "com.microsoft:update-disposition": ("Listen", requests.read_update_disposition),
    "com.microsoft:renew-lock": ("Listen", requests.read_renew_lock),
    "com.microsoft:schedule-message": ("Send", requests.read_schedule),
    "com.microsoft:cancel-scheduled-message": ("Send", requests.read_cancel),
    "com.microsoft:renew-session-lock": ("Listen", requests.read_renew_session),
    "com.microsoft:get-session-state": ("Listen", requests.read_get_session_state),
    "com.microsoft:set-session-state": ("Listen", requests.read_set_session_state),
    "com.microsoft:get-message-sessions": ("Listen", requests.read_list_sessions),
    # The SDKs say of their rule managers that they need Listen and no more.
    "com.microsoft:add-rule": ("Listen", rules.read_add_rule),
    "com.microsoft:remove-rule": ("Listen", rules.read_remove_rule),
    "com.microsoft:enumerate-rules": ("Listen", rules.read_enumerate_rules),
    "com.microsoft:batch-delete-messages": ("Listen", bulk.read_batch_delete),
    # Ours.  What changes many messages at a stroke is for whoever manages the entity; what settles
    # them by number is for whoever might receive and settle them one by one.
    "twinbus:browse": ("Listen", bulk.read_browse),
    "twinbus:partitions": ("Listen", bulk.read_partitions),
    "twinbus:numbers": ("Listen", bulk.read_numbers),
    "twinbus:settle": ("Listen", bulk.read_settle),
    "twinbus:purge": ("Manage", bulk.read_purge),
    "twinbus:undefer": ("Manage", bulk.read_undefer),
    "twinbus:resubmit": ("Manage", bulk.read_resubmit),
}


class ManagementNode(RequestNode):
    """The management node of one entity (or its dead-letter queue) on one AMQP session."""

    def __init__(self, conversation: Conversation, address: Address) -> None:
        super().__init__(conversation)
        self._address = address
        # A claim for the entity covers this; the Node SDK brings one for just this node.
        self._path = f"{address.path}/$management"
        self._managed: ManagedEntity | None = None  # as the last request found it

    def check_attach(self) -> None:
        """Refuse a link whose client may do nothing here, or that leads nowhere."""
        access = self.conversation.access
        # First the claim: a stranger must not learn which names exist.
        if not access.allowed("Send", self._path):
            access.require("Listen", self._path)
        self._find()

    def _find(self) -> ManagedEntity:
        """What has the name now."""
        entity = self.conversation.namespace.find_entity(self._address.name)
        managed = self._managed
        if managed is None or managed.entity is not entity:
            managed = self._managed = ManagedEntity(self.conversation, self._address, entity)
        return managed

    def request(self, request: DecodedMessage) -> None:
        try:
            managed, command = self._command(request)
            if self.txn_id is not None and is_enlisted(command):
                result = enlist_request(self.conversation, self.txn_id, command)
                self.replied(Reply(command, result, None), (managed, request))
                return
        except ServiceError as error:
            self._refuse(request, error)
            return
        command.context = (self, (managed, request))
        self.conversation.traffic.submit(command)

    def _command(self, request: DecodedMessage) -> tuple[ManagedEntity, Command]:
        operation = request.application_properties.get("operation")
        if not isinstance(operation, str):
            raise ArgumentInvalid("The request names no operation.")
        found = OPERATIONS.get(operation)
        if found is None:
            raise NotSupported(f"The operation '{operation[:64]}' is not supported.")
        right, read = found
        self.conversation.access.require(right, self._path)
        managed = self._find()
        return managed, read(managed, by_name(request.body, "The body of the request"))

    def replied(self, reply: Reply, asked: tuple[ManagedEntity, DecodedMessage]) -> None:
        managed, request = asked
        if isinstance(reply.command, ListPartitions) and isinstance(reply.error, Unavailable):
            # Whether it is up is part of the question.
            reply = Reply(reply.command, [PartitionState(0, False, 0, 0, 0)], None)
        managed.metrics.replied(reply)
        managed.meter.replied(reply)
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
        status, body = answer(managed, reply, request)
        self.respond(request, properties_of(status, body), body)

    def _refuse(self, request: DecodedMessage, error: ServiceError) -> None:
        properties: Body = {
            "statusCode": Int(error.http_status),
            "statusDescription": str(error),
            "errorCondition": Symbol(error.amqp_condition),
        }
        self.respond(request, properties, {})
