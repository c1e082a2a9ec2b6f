"""Raw $management requests over a wired client, and their answers."""

from typing import Any

from tests.unit.server.wired import Client
from twinbus.amqp.ingress import DeliveryReceived
from twinbus.message.plain import Properties, decode_message, encode_message, value_section


class Answer:
    """What came back."""

    def __init__(self, data: bytes) -> None:
        message = decode_message(data)
        said = message.application_properties
        self.status = said["statusCode"]
        self.text = str(said["statusDescription"])
        self.condition = said.get("errorCondition")
        self.correlation_id = message.properties.correlation_id
        assert isinstance(message.body, dict)
        self.body: dict[object, Any] = message.body


class Asking:
    """The pair of links to an entity's $management node."""

    def __init__(self, client: Client, entity: str) -> None:
        address = f"{entity}/$management"
        self._client = client
        self._requests = client.attach_sender(address)
        self._answers = client.attach_receiver(address, credit=1_000)
        self._count = 0

    def send(self, operation: object, body: object) -> None:
        self._count += 1
        properties = Properties(message_id=f"request-{self._count}")
        data = encode_message(value_section(body), properties, {"operation": operation})
        self._requests.send(b"%d" % self._count, data, b"", True, None)

    def ask(self, operation: object, body: object) -> Answer:
        self.send(operation, body)
        [answer] = self.answers()
        assert answer.correlation_id == f"request-{self._count}"
        return answer

    def answers(self) -> list[Answer]:
        events = self._client.pump()
        return [
            Answer(event.data)
            for event in events
            if isinstance(event, DeliveryReceived) and event.link is self._answers
        ]
