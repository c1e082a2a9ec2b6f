"""The SASL layer that comes before a connection (OASIS AMQP 1.0 part 5.3), both roles.

It carries a name and a secret from client to server and the verdict back; what they are worth is
for the shell to decide.  All our mechanisms are done in one step.  Nothing of AMQP itself may
travel before the outcome, and a server says nothing after it until the client's header has come:
rhea would never read it.
"""

from typing import Final

from twinbus.amqp.composites import Performative
from twinbus.amqp.frames import SASL_FRAME, SASL_HEADER, encode_frame
from twinbus.amqp.sasl_performatives import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from twinbus.amqp.states import (
    ILLEGAL,
    REFUSALS,
    SASL_AWAIT_HEADER,
    SASL_CHALLENGE,
    SASL_CLIENT,
    SASL_DONE,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    SASL_RESPONSE,
    SASL_SERVER,
    SERVER,
    Table,
    advance,
    refusal,
)
from twinbus.amqp.states import SASL_HEADER as HEADER
from twinbus.errors import RemoteProtocolError

OUTCOME_OK: Final = 0
OUTCOME_REFUSED: Final = 1

_UNAUTHORIZED: Final = "amqp:unauthorized-access"

_CODES: Final[dict[type, int]] = {
    SaslMechanisms: SASL_MECHANISMS,
    SaslInit: SASL_INIT,
    SaslChallenge: SASL_CHALLENGE,
    SaslResponse: SASL_RESPONSE,
    SaslOutcome: SASL_OUTCOME,
}


def split_plain(response: bytes) -> tuple[str, str] | None:
    """User name and password of a PLAIN response (RFC 4616), or None when it is not one."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        return None
    try:
        return parts[1].decode("utf-8"), parts[2].decode("utf-8")
    except UnicodeDecodeError:
        return None


class Sasl:
    """One side of the layer.  `output` is to be sent before anything else."""

    __slots__ = (
        "accepted",
        "decided",
        "hostname",
        "init",
        "mechanisms",
        "output",
        "own_state",
        "peer_state",
        "response",
        "role",
    )

    def __init__(
        self, role: int, mechanisms: tuple[str, ...], response: bytes, hostname: str | None
    ) -> None:
        self.role = role
        self.mechanisms = mechanisms  # a server's offer; a client's choice is the first
        self.response = response
        self.hostname = hostname
        self.own_state: int = SASL_AWAIT_HEADER
        self.peer_state: int = SASL_AWAIT_HEADER
        self.output: list[bytes] = []
        self.init: SaslInit | None = None  # server: what the client has sent
        self.decided = False  # the outcome is known
        self.accepted = False

    @property
    def expects_header(self) -> bool:
        """Whether the peer's next bytes are a header: SASL's own, or after it AMQP's."""
        return self.peer_state == SASL_AWAIT_HEADER or self.peer_state == SASL_DONE

    def start(self) -> None:
        """Send our header; a server offers its mechanisms with it."""
        self._sent(HEADER)
        self.output.append(SASL_HEADER)
        if self.role == SERVER:
            self._send(SASL_MECHANISMS, SaslMechanisms(list(self.mechanisms)))

    def receive_header(self) -> None:
        """The peer's SASL header."""
        self._received(HEADER)
        if self.role == SERVER:
            self.start()

    def receive(self, performative: Performative) -> None:
        """A SASL frame; RemoteProtocolError when it is out of place or its offer is of no use."""
        code = _CODES.get(type(performative), -1)
        self._received(code)
        if isinstance(performative, SaslInit):
            if performative.mechanism not in self.mechanisms:
                raise RemoteProtocolError("SASL mechanism was not offered", _UNAUTHORIZED)
            self.init = performative
        elif isinstance(performative, SaslMechanisms):
            mechanism = self.mechanisms[0]
            if mechanism not in performative.mechanisms:
                raise RemoteProtocolError("the server lacks our SASL mechanism", _UNAUTHORIZED)
            self._send(SASL_INIT, SaslInit(mechanism, self.response, self.hostname))
        elif isinstance(performative, SaslOutcome):
            if performative.code != OUTCOME_OK:
                raise RemoteProtocolError("the server refused the SASL response", _UNAUTHORIZED)
            self.decided = True
            self.accepted = True

    def decide(self, accepted: bool) -> None:
        """Server: send the outcome."""
        code = OUTCOME_OK if accepted else OUTCOME_REFUSED
        self.output.append(encode_frame(0, SaslOutcome(code).encode(), b"", SASL_FRAME))
        self.own_state = SASL_DONE
        self.decided = True
        self.accepted = accepted

    def _send(self, code: int, performative: Performative) -> None:
        self._sent(code)
        self.output.append(encode_frame(0, performative.encode(), b"", SASL_FRAME))

    def _sent(self, code: int) -> None:
        table: Table = SASL_SERVER if self.role == SERVER else SASL_CLIENT
        self.own_state = advance(table, self.own_state, code)

    def _received(self, code: int) -> None:
        table: Table = SASL_CLIENT if self.role == SERVER else SASL_SERVER
        state = advance(table, self.peer_state, code)
        if state == ILLEGAL:
            raise RemoteProtocolError(refusal(self.peer_state, code), REFUSALS[self.peer_state])
        self.peer_state = state
