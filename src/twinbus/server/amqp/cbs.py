"""The $cbs node: clients put tokens, which are claims for this connection."""

from typing import Final

from twinbus.amqp.types import Int
from twinbus.errors import NotSupported, ServiceError, Unauthorized
from twinbus.message.plain import DecodedMessage
from twinbus.server.amqp.request_node import RequestNode

CBS: Final = "$cbs"


class ClaimsNode(RequestNode):
    """Takes `put-token`.  The token's own text tells its kind; the SDK's `type` does not."""

    def request(self, request: DecodedMessage) -> None:
        try:
            self._put_token(request)
        except ServiceError as error:
            properties: dict[str, object] = {
                "status-code": Int(error.http_status),
                "status-description": str(error),
                "error-condition": error.amqp_condition,
            }
        else:
            properties = {"status-code": Int(200), "status-description": "OK"}
        self.respond(request, properties, None)

    def _put_token(self, request: DecodedMessage) -> None:
        operation = request.application_properties.get("operation")
        if operation != "put-token":
            raise NotSupported("The only operation on $cbs is put-token.")
        token = request.body
        audience = request.application_properties.get("name")
        if not isinstance(token, str) or not isinstance(audience, str):
            raise Unauthorized("A put-token request needs a name and a token as its body.")
        self.conversation.access.put_token(token, audience)
