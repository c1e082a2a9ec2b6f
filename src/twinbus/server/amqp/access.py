"""What the client of one connection may do: its namespace, and its claims."""

import asyncio
import logging

from twinbus.amqp.events import SaslInitReceived
from twinbus.amqp.places import Places
from twinbus.amqp.sasl import split_plain
from twinbus.errors import QuotaExceeded, Unauthorized
from twinbus.gateway.access.claims import Claims
from twinbus.gateway.access.shared_access import Grant
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.server.port.client_certificates import ClientCertificates, asked_host

log = logging.getLogger("twinbus.server")


class ConnectionAccess:
    """The first credential or host name decides for which namespace the connection is."""

    def __init__(
        self, namespaces: Namespaces, client_certificates: ClientCertificates, places: Places
    ) -> None:
        self._namespaces = namespaces
        self._client_certificates = client_certificates
        self._places = places
        self._claims = Claims()
        self._is_settled = False
        self.namespace: Namespace = namespaces.default  # until it is settled which one
        self.peer = ""  # address and port, once it is connected

    @property
    def settled_namespace(self) -> str | None:
        """The namespace's name in lower case; None while it is open which one."""
        return self.namespace.name.lower() if self._is_settled else None

    def about(self, entity: str = "") -> dict[str, object]:
        """For the log: whom a line is about."""
        about: dict[str, object] = {"connection": self.peer}
        if self._is_settled:
            about["namespace"] = self.namespace.name
        if entity:
            about["entity"] = entity
        return about

    # -- credentials -------------------------------------------------------------------------------

    def authenticate(self, event: SaslInitReceived, transport: asyncio.Transport | None) -> None:
        """PLAIN and EXTERNAL bring their claim along; the others put tokens on $cbs."""
        hostname = self._hostname(event.hostname, transport)
        if event.mechanism == "PLAIN":
            pair = split_plain(event.response)
            if pair is None:
                raise Unauthorized("The PLAIN response is malformed.")
            namespace, grant = self._namespaces.check_plain(*pair, hostname)
        elif event.mechanism == "EXTERNAL":
            assert transport is not None
            grant = self._client_certificates.grant(transport.get_extra_info("peercert"))
            namespace = self._namespaces.by_host(hostname) or self._namespaces.default
        else:
            return
        self._settle_namespace(namespace)
        self._claim(grant)

    def put_token(self, token: str, audience: str) -> None:
        """Judge a token, which may settle for which namespace this connection is."""
        hostname = self.namespace.name if self._is_settled else None
        try:
            namespace, grant = self._namespaces.check_token(token, audience, hostname, self._now_s)
            self._settle_namespace(namespace)
        except Unauthorized as error:
            log.info("token refused: %s", error, extra=self.about())
            raise
        self._claim(grant)

    def settle_by_host(self, said: str | None, transport: asyncio.Transport | None) -> None:
        named = self._namespaces.by_host(self._hostname(said, transport))
        if named is not None:
            self._settle_namespace(named)

    def _hostname(self, said: str | None, transport: asyncio.Transport | None) -> str | None:
        """What the client calls us: in the frame at hand, else when it began to speak TLS."""
        if self._namespaces.by_host(said) is None and transport is not None:
            return asked_host(transport)
        return said

    def _settle_namespace(self, namespace: Namespace) -> None:
        if self._is_settled and namespace is not self.namespace:
            raise Unauthorized("This connection is for another namespace.")
        self.namespace = namespace
        self._is_settled = True

    def _claim(self, grant: Grant) -> None:
        self._places.know()
        is_new = grant.scope not in self._claims
        refusal = self._places.refusal() if is_new else ""
        if refusal:
            raise QuotaExceeded(f"No more tokens: {refusal}.")
        self._claims.put(grant)
        if is_new:
            self._places.take()

    # -- claims ------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> int:
        return self.namespace.clock.now().utc_ms // 1_000

    def allowed(self, right: str, path: str) -> bool:
        return self._claims.allow(right, path, self._now_s, self.namespace.authorizer.stands)

    def require(self, right: str, path: str) -> None:
        if not self.allowed(right, path):
            raise Unauthorized(
                f"Unauthorized access. '{right}' claim is required to use '{path[:64]}'. Put a "
                "token for it on $cbs, or use a key that has this right."
            )

    def have_claims_shrunk(self) -> bool:
        """Has a claim expired, or the rule gone that it came from?"""
        return self._claims.have_shrunk(self._now_s, self.namespace.authorizer.stands)

    def drop_expired_claims(self) -> None:
        for _ in range(self._claims.drop_expired(self._now_s)):
            self._places.give()
