"""Entity management without a network: a router on a real namespace, on a simulated disk."""

import asyncio
from xml.etree.ElementTree import fromstring

from tests.unit.broker.harness import BrokerHarness
from twinbus.client.sas import make_sas_token
from twinbus.errors import ServiceError
from twinbus.gateway.access.shared_access import LISTEN, MANAGE, SEND, AuthorizationRule, Authorizer
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.limits import PROFILE_DEFAULT, Limits
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.atom.entities import AtomRouter
from twinbus.server.http.atom.feeds import ATOM
from twinbus.server.http.exchange import Request, Response, error_response
from twinbus.testing.clock import START_UTC_MS

NOW_S = START_UTC_MS // 1_000
SUPPLEMENTARY = "servicebussupplementaryauthorization"
DLQ_SUPPLEMENTARY = "servicebusdlqsupplementaryauthorization"


def sign(path: str = "", rule: str = "Root", key: str = "key", expires_s: int = NOW_S + 60) -> str:
    return make_sas_token(f"https://h/{path}", rule, key, expires_s)


class Client:
    """Asks the router what a client would ask over HTTP.

    There are two namespaces; which one is asked, the key decides.
    """

    def __init__(self, limits: Limits = PROFILE_DEFAULT) -> None:
        self.harness = BrokerHarness()
        clock = self.harness.clock
        rules = [
            AuthorizationRule("Root", [MANAGE], "key", "spare"),
            AuthorizationRule("worker", [SEND, LISTEN], "key", "spare"),
        ]
        self.namespace = Namespace(
            "main",
            self.harness.gateway,
            self.harness.changes,
            Authorizer(rules),
            clock,
            clock.now().utc_ms,
            "",
            limits,
        )
        other_rules = [AuthorizationRule("Other", [MANAGE], "other key", "spare")]
        self.other = Namespace(
            "other",
            self.harness.gateway,
            self.harness.changes,
            Authorizer(other_rules),
            clock,
            0,
            "other:",
            limits,
        )
        access = HttpAccess(Namespaces([self.namespace, self.other]), clock)
        self.router = AtomRouter(access, clock)
        self.token: str | None = sign()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        update: bool = False,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """The answer, or the ServiceError that would become one."""
        sent = {**(headers or {}), **({"if-match": "*"} if update else {})}
        request = self.request(method, path, body, sent, query)
        answer = asyncio.ensure_future(self.router.answer(request))
        await asyncio.sleep(0)  # up to where it waits for the disk
        self.harness.run()
        return await answer

    def request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> Request:
        sent = {"host": "h:5672", **(headers or {})}
        if self.token is not None:
            sent["authorization"] = self.token
        return Request(method, path, query or {}, sent, body)

    async def refused(
        self, method: str, path: str, body: bytes = b"", *, update: bool = False
    ) -> tuple[int, str]:
        """Status and text of a refusal, as HTTP shows them."""
        try:
            response = await self.ask(method, path, body, update=update)
        except ServiceError as error:
            response = error_response(error.http_status, str(error))
        document = fromstring(response.body)
        assert document.findtext("Code") == str(response.status)
        return response.status, document.findtext("Detail") or ""

    async def listed(self, path: str, **query: str) -> list[str | None]:
        """The titles in a page."""
        page = await self.ask("GET", path, query={f"${key}": text for key, text in query.items()})
        entries = fromstring(page.body).findall(f"{{{ATOM}}}entry")
        return [entry.findtext(f"{{{ATOM}}}title") for entry in entries]
