"""Requests for which one needs the Manage right on a namespace, answered in JSON."""

from twinbus.errors import ServiceError
from twinbus.gateway.access.shared_access import MANAGE
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.access import Claim, HttpAccess
from twinbus.server.http.exchange import Request, Response, json_response


class OperatorRequests:
    """Base: nothing of a request is read before the Manage right on its namespace is proven."""

    def __init__(self, access: HttpAccess) -> None:
        self._access = access

    def claim(self, request: Request) -> Claim | None:
        return Claim(MANAGE, "")

    async def answer(self, request: Request) -> Response:
        try:
            return await self.answer_to(self._access.authorize(request, MANAGE, ""), request)
        except ServiceError as error:
            return self.refusal(error)

    async def answer_to(self, namespace: Namespace, request: Request) -> Response:
        """The answer to somebody who may manage this namespace."""
        raise NotImplementedError

    def refusal(self, error: ServiceError) -> Response:
        return json_response(error.http_status, {"error": str(error)})


def not_allowed(allowed: str) -> Response:
    return json_response(405, {"error": f"Allowed are {allowed}."}, (("Allow", allowed),))
