"""Events that a connection reports to its shell: plain objects, in the order of the bytes.

Several events of one chunk are handed over together, so an answer to an early one (`refuse`,
`detach`, `close`) may come when later ones of the same link are already in the list.  Methods of a
link that is gone do nothing, so the shell may go on; it drops deliveries of links it has refused.

Deliveries are events, too: `DeliveryReceived` and `DeliveryTooLarge` (ingress.py).
"""

from twinbus.amqp.composites import AmqpError, DeliveryState
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link, SessionEndpoint
from twinbus.amqp.frames import Event


class SaslInitReceived(Event):
    """The client has chosen a mechanism: answer with `sasl_accept()` or `sasl_refuse()`."""

    __slots__ = ("hostname", "mechanism", "response")

    def __init__(self, mechanism: str, response: bytes, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


class ConnectionOpened(Event):
    """Both sides have sent `open`; `connection.peer` describes the peer."""

    __slots__ = ()


class ConnectionClosed(Event):
    """The last event of a connection: send what is queued, then hang up.

    `error` is why; None after an orderly close.  `by_peer` says whose error it is.
    """

    __slots__ = ("by_peer", "error")

    def __init__(self, error: AmqpError | None, by_peer: bool) -> None:
        self.error = error
        self.by_peer = by_peer


class SessionBegun(Event):
    """Both sides have sent `begin`."""

    __slots__ = ("session",)

    def __init__(self, session: SessionEndpoint) -> None:
        self.session = session


class SessionEnded(Event):
    """The session and all its links are gone; there is no LinkDetached for each of them.

    Already answered.  Not sent for a session that the shell itself has ended.
    """

    __slots__ = ("error", "session")

    def __init__(self, session: SessionEndpoint, error: AmqpError | None) -> None:
        self.session = session
        self.error = error


class LinkAttached(Event):
    """The peer has attached.  A server answers with `link.accept(...)` or `link.refuse(error)`;
    for a client this is the answer to its own attach."""

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class LinkDetached(Event):
    """The link is gone, by the peer's wish or (with an error) because the peer broke a rule.

    Already answered.  Not sent for a link that the shell itself has refused or detached.  `closed`
    is False when the peer might come back to it; we never keep anything for that.
    """

    __slots__ = ("closed", "error", "link")

    def __init__(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        self.link = link
        self.closed = closed
        self.error = error


class CreditChanged(Event):
    """The peer's flow for a link.  Egress: see `link.credit` and `link.drain`.  Ingress: the sender
    has answered our drain and `link.credit` is what is left.

    `credit` and `drain` are those of this very flow; the link's are of the last one by now.
    """

    __slots__ = ("credit", "drain", "link")

    def __init__(self, link: Link, credit: int = 0, drain: bool = False) -> None:
        self.link = link
        self.credit = credit
        self.drain = drain


class DispositionReceived(Event):
    """The receiver's first word on deliveries of ours; a delivery is reported once.

    With `settled` they are forgotten already, else they wait for `link.settle(...)`.
    """

    __slots__ = ("contexts", "delivery_ids", "link", "settled", "state")

    def __init__(
        self,
        link: EgressLink,
        delivery_ids: list[int],
        contexts: list[object],
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        self.link = link
        self.delivery_ids = delivery_ids
        self.contexts = contexts
        self.settled = settled
        self.state = state


class IncomingSettled(Event):
    """The sender's word on deliveries it sent us, by session-wide ids as they came.  A range may
    name far more ids than there ever were: look up what you wait for, do not walk the range."""

    __slots__ = ("first", "last", "session", "settled", "state")

    def __init__(
        self,
        session: SessionEndpoint,
        first: int,
        last: int,
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        self.session = session
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state
