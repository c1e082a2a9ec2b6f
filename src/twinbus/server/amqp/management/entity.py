"""What a $management request is about."""

from twinbus.errors import InvalidOperation, SessionLockLost
from twinbus.gateway.directory.addresses import Address
from twinbus.gateway.directory.directory import Entity
from twinbus.server.amqp.conversation import Conversation


class ManagedEntity:
    """An entity or its dead-letter queue, as the client of one connection sees it."""

    def __init__(self, conversation: Conversation, address: Address, entity: Entity) -> None:
        self.path = address.path
        self.entity = entity
        self.entity_id = entity.entity_id
        self.subqueue = address.subqueue
        self.metrics = entity.metrics
        self.meter = conversation.namespace.meter_of(entity, address.subqueue)
        self.message_ids = conversation.message_ids
        self._session_locks = conversation.session_locks

    def session_grant(self, session_id: str) -> int:
        """The lock by which a receiving link of this connection holds the session."""
        self.require_sessions()
        lock = self._session_locks.get((self.entity_id, session_id))
        if lock is None:
            raise SessionLockLost(
                f"No receiver of this connection holds the session '{session_id[:64]}'."
            )
        return lock.grant

    @property
    def has_sessions(self) -> bool:
        return not self.subqueue and self.entity.description.requires_session

    def require_sessions(self) -> None:
        """Refuse what only a session entity can do."""
        if not self.has_sessions:
            raise InvalidOperation(f"'{self.path[:64]}' has no sessions.")

    def refuse_topic(self) -> None:
        if self.entity.kind == "topic":
            raise InvalidOperation("A topic has no messages of its own; ask at its subscriptions.")
