"""Who may do what over HTTP: a token in the Authorization header, and the namespace it opens.

    Authorization: SharedAccessSignature sr=…&sig=…&se=…&skn=…
    Authorization: Bearer <JSON web token, or such a signature>

Nothing of a request is looked at before this has said yes, and nothing of its body is read: each
route says by the head what a request needs (`Claim`), and that is asked for first.
"""

from typing import Final, NamedTuple
from urllib.parse import quote

from twinbus.clock import Clock
from twinbus.errors import ServiceError, Unauthorized
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.limits import HTTP_BODY_BYTES_MAX, STRANGER_BYTES_MAX
from twinbus.server.http.exchange import Request

# azure-servicebus 7.15 renews its HTTP token 60 s after it has expired, not before.
TOKEN_LEEWAY_S: Final = 120

AUTHORIZATION: Final = "authorization"


class Claim(NamedTuple):
    """What a request needs before anything of its body is kept."""

    right: str
    path: str  # the entity's; "" for the namespace
    # The body names the entity.  A token for less than `path` cannot be judged before that is here,
    # so whoever has one may send a stranger's share of it.
    is_in_body: bool = False


class HttpAccess:
    """Checks every request of the server's port that is not public."""

    def __init__(self, namespaces: Namespaces, clock: Clock) -> None:
        self._namespaces = namespaces
        self._clock = clock

    def body_max(self, request: Request, claim: Claim | None) -> int:
        """How many bytes of its body a request may bring; None claims nothing, so it is 0."""
        if claim is None:
            return 0
        try:
            self.authorize(request, claim.right, claim.path)
        except ServiceError:
            may_try = claim.is_in_body and AUTHORIZATION in request.headers
            return STRANGER_BYTES_MAX if may_try else 0
        return HTTP_BODY_BYTES_MAX

    def authorize(
        self, request: Request, right: str, path: str, header: str = AUTHORIZATION
    ) -> Namespace:
        """The namespace that the request is for, or Unauthorized.

        `path` is the entity's, as it stands in the broker ("" for the namespace); `header` names
        another one for what a request needs beyond its own target.
        """
        token = request.headers.get(header)
        if token is None:
            raise Unauthorized(f"A token with the {right} claim is required in {header.title()}.")
        # Where the SDK is given a ready-made signature, it writes it as a bearer token.
        token = token.removeprefix("Bearer ")
        now_s = self._clock.now().utc_ms // 1_000
        hostname = request.headers.get("host")
        audience = f"https://{self._namespaces.default.name}/{quote(path)}"
        namespace, grant = self._namespaces.check_token(
            token, audience, hostname, now_s, TOKEN_LEEWAY_S
        )
        if not grant.allows(right, path, now_s - TOKEN_LEEWAY_S):
            raise Unauthorized(f"The {right} claim is required for this operation.")
        if request.when_settled is not None:
            request.when_settled(namespace.name.lower())
        return namespace
