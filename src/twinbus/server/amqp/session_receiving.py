"""Attaching to a session: what the filter asks for, the wait, and the answer.

A client asks for a session by a filter on the link's source: a session id, or nothing for the next
available one.  The attach stays unanswered until there is a session for it.  A link that the client
has given up meanwhile is never answered: its end cancels the wait.

    com.microsoft:session-filter                       "id", null, or either of them described
    com.microsoft:non-exclusive-session-filter:list    [id or null, lock token or null]
"""

from typing import Final
from uuid import UUID

from twinbus.amqp.composites import Source
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.types import Described, Symbol
from twinbus.entities.facts import MAIN
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import ArgumentInvalid, InvalidOperation, OperationTimeout, ServiceError
from twinbus.gateway.directory.addresses import Address
from twinbus.limits import ACCEPT_SESSION_MS_DEFAULT, ACCEPT_SESSION_MS_MAX, MESSAGE_SIZE_BYTES_MAX
from twinbus.links.store_link import Accepting
from twinbus.message.lock_tokens import lock_token, parse_lock_token
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.receiving import ReceivingLink

EXCLUSIVE: Final = Symbol("com.microsoft:session-filter")
NON_EXCLUSIVE: Final = Symbol("com.microsoft:non-exclusive-session-filter:list")
TIMEOUT: Final = Symbol("com.microsoft:timeout")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
_TICKS_TO_1970: Final = 621_355_968_000_000_000  # of 100 ns, from the year 1 on
_TICKS_PER_MS: Final = 10_000


class SessionFilter:
    """What an attach asks for."""

    __slots__ = ("grant", "is_exclusive", "name", "session_id", "value")

    def __init__(self, name: Symbol, value: object) -> None:
        self.name = name
        self.value = value  # as it came: the answer has the same form
        self.is_exclusive = name == EXCLUSIVE
        self.session_id: str | None = None
        self.grant = 0  # of a lock to take over
        content = value.value if isinstance(value, Described) else value
        if self.is_exclusive:
            self.session_id = _session_id(content)
        else:
            self._read_list(content)

    def _read_list(self, content: object) -> None:
        fields: list[object] = content if isinstance(content, list) else [content]
        self.session_id = _session_id(fields[0] if fields else None)
        token = fields[1] if len(fields) > 1 else None
        if token is None:
            return
        if not isinstance(token, UUID) or self.session_id is None:
            raise ArgumentInvalid(
                f"{NON_EXCLUSIVE} is a list of the session id and, to take a session over, the "
                "lock token (a uuid) that its holder was given."
            )
        self.grant = parse_lock_token(token)[1]

    def granted(self, lock: SessionLock) -> object:
        """The filter's value in the answer."""
        content: object = lock.session_id
        if not self.is_exclusive:
            content = [lock.session_id, lock_token(0, lock.grant)]
        if isinstance(self.value, Described):
            return Described(self.value.descriptor, content)
        return content


def _session_id(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid("A session filter holds the session id as a string, or null.")
    return None if value is None else str(value)


def read_session_filter(source: Source | None) -> SessionFilter | None:
    """The session that a receiver asks for; None when it is a plain receiver."""
    filters = source.filter if source is not None else None
    for name in (EXCLUSIVE, NON_EXCLUSIVE):
        if filters and name in filters:
            return SessionFilter(name, filters[name])
    return None


class AcceptingLink:
    """A receiving link that waits for its session; then a ReceivingLink takes its place."""

    def __init__(
        self,
        conversation: Conversation,
        link: EgressLink,
        address: Address,
        receive_mode: int,
        asked: SessionFilter,
    ) -> None:
        if address.subqueue != MAIN:
            raise InvalidOperation("A dead-letter queue has no sessions; leave out the filter.")
        self._conversation = conversation
        self._link = link
        self._address = address
        self._receive_mode = receive_mode
        self._asked = asked
        self._gateway = conversation.namespace.gateway
        entity = conversation.namespace.find_entity(address.name)
        self._entity_id = entity.entity_id
        self._meter = conversation.namespace.meter_of(entity)
        self.path = address.path
        self.right = "Listen"
        self._is_attaching = True
        self.result: ReceivingLink | ServiceError | None = None  # as soon as it is known
        self._accepting: Accepting = self._gateway.accept_session(
            self._entity_id, asked.session_id, _timeout_ms(link), asked.grant, self._answered
        )
        self._is_attaching = False

    def _answered(self, result: SessionLock | ServiceError) -> None:
        if isinstance(result, SessionLock):
            self.result = self._receive(result)
        else:
            self.result = result
            if isinstance(result, OperationTimeout):
                self._meter.received_nothing()
        if self._is_attaching:
            return  # whoever attaches takes the result from here
        if isinstance(self.result, ReceivingLink):
            self._link.context = self.result
            self._link.forget_terms()
            self.result.watch.flowed(self._link.link_credit, self._link.drain)
            self.result.credit_changed()
            self._conversation.traffic.flush_soon()
        else:
            self._conversation.detach(self._link, self.result)

    def _receive(self, lock: SessionLock) -> ReceivingLink | ServiceError:
        source = self._link.source
        assert source is not None
        try:
            receiving = ReceivingLink(
                self._conversation,
                self._link,
                self._address,
                self._receive_mode,
                lock,
                self._asked.is_exclusive,
            )
        except ServiceError as error:
            self._gateway.release_session(self._entity_id, lock)
            return error
        source.filter = {**(source.filter or {}), self._asked.name: self._asked.granted(lock)}
        ticks = lock.locked_until_utc_ms * _TICKS_PER_MS + _TICKS_TO_1970
        self._link.accept(max_message_size=MESSAGE_SIZE_BYTES_MAX, properties={LOCKED_UNTIL: ticks})
        return receiving

    def closed(self) -> None:
        """The client has given up."""
        if self.result is None:
            self._meter.received_nothing()
        self._accepting.cancel()


def _timeout_ms(link: EgressLink) -> int:
    """How long the client is going to wait."""
    value = (link.properties or {}).get(TIMEOUT)
    if not isinstance(value, int) or isinstance(value, bool):
        return ACCEPT_SESSION_MS_DEFAULT
    return max(0, min(int(value), ACCEPT_SESSION_MS_MAX))
