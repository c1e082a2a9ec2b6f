"""Namespaces over HTTP: JSON in, JSON out (docs/reference/namespaces.md).

    GET     /$namespaces           list all
    PUT     /$namespaces/{name}    a new one: 201, with its key
    DELETE  /$namespaces/{name}    delete it, with everything in it

Every request needs the Manage right on the first namespace, which is checked before the body is
read.  A request is either fully understood or refused with a reason, and then changes nothing.
"""

import json
from typing import Final

from twinbus.config import Declared, Identity
from twinbus.emulator_config import parse_emulator_config
from twinbus.errors import ArgumentInvalid, ConfigError, EntityNotFound, Unauthorized
from twinbus.gateway.namespaces.lifetime import NamespaceLifetimes
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request, Response, json_response
from twinbus.server.http.operations.operator_requests import OperatorRequests, not_allowed

NAMESPACES: Final = "$namespaces"

_ALLOWED: Final = {1: "GET, HEAD", 2: "PUT, DELETE"}


def is_about_namespaces(segments: list[str]) -> bool:
    return segments[0].lower() == NAMESPACES


class NamespaceRequests(OperatorRequests):
    """Answers everything about namespaces."""

    def __init__(self, access: HttpAccess, lifetimes: NamespaceLifetimes) -> None:
        super().__init__(access)
        self._lifetimes = lifetimes

    async def answer_to(self, namespace: Namespace, request: Request) -> Response:
        if namespace is not self._lifetimes.namespaces.default:
            raise Unauthorized("Namespaces need a key of the first one.")
        segments = request.segments()
        if len(segments) > 2:
            raise EntityNotFound(
                "There is nothing here; namespaces are at /$namespaces and /$namespaces/NAME."
            )
        if len(segments) == 1 and request.method in ("GET", "HEAD"):
            return json_response(200, {"namespaces": self._documents()})
        if len(segments) == 2 and request.method == "PUT":
            identity = await self._lifetimes.create(segments[1], read_declared(request.body))
            return json_response(201, _document(identity))
        if len(segments) == 2 and request.method == "DELETE":
            await self._lifetimes.delete(segments[1])
            return Response(204, b"")
        return not_allowed(_ALLOWED[len(segments)])

    def _documents(self) -> list[dict[str, object]]:
        return [
            {
                "name": namespace.name,
                "created_utc_ms": namespace.created_utc_ms,
                "queues": len(namespace.entities("queue")),
                "topics": len(namespace.entities("topic")),
            }
            for namespace in self._lifetimes.namespaces.all()
        ]


def read_declared(body: bytes) -> Declared:
    """The entities that a request declares: the text of a Config.json with one namespace.

    What that namespace is called does not matter: the request says what the new one is called.
    """
    if not body:
        return Declared()
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body is not JSON.") from None
    if not isinstance(found, dict) or set(found) != {"config"}:
        raise ArgumentInvalid('A namespace is described by {"config": "text of a Config.json"}.')
    if not isinstance(found["config"], str):
        raise ArgumentInvalid("config must be the text of a Config.json.")
    try:
        declared = parse_emulator_config(found["config"], "config").namespaces
    except ConfigError as error:
        raise ArgumentInvalid(str(error)) from error
    if len(declared) != 1:
        raise ArgumentInvalid(f"config has {len(declared)} namespaces; it must have one.")
    return declared[0][1]


def _document(identity: Identity) -> dict[str, object]:
    rule = identity.rules[0]
    return {"name": identity.namespace, "key_name": rule.name, "key": rule.primary_key}
