"""Requests to the $management node of an entity, and their answers.

    async with await BusConnection.open(connection_string) as connection:
        node = await ManagementNode.open(connection, "orders")
        answer = await node.request("twinbus:browse", {"message-count": Int(10)})

The operations are in docs/reference/management-operations.md.  Requests are answered in the order
in which they are asked here; an answer that says no is raised as the error it names.
"""

from typing import Final, Self

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.plain import Properties, encode_message, value_section
from twinbus.client.connection import BusConnection, Receiver, Sender
from twinbus.client.links import service_error
from twinbus.errors import OperationTimeout, ServiceError

ANSWER_DURATION_S_MAX: Final = 120.0
_REFUSED: Final = 400


class ManagementNode:
    """The pair of links to one entity's $management."""

    def __init__(self, address: str, requests: Sender, answers: Receiver) -> None:
        self._address = address
        self._requests = requests
        self._answers = answers
        self._count = 0

    @classmethod
    async def open(cls, connection: BusConnection, entity: str) -> Self:
        """Raises why when the bus refuses the links."""
        address = f"{entity}/$management"
        requests = await connection.open_sender(address)
        answers = await connection.open_receiver(address, receive_and_delete=True)
        return cls(address, requests, answers)

    async def request(
        self,
        operation: str,
        body: dict[object, object],
        wait_s: float = ANSWER_DURATION_S_MAX,
    ) -> dict[str, object]:
        """Ask, and give the map of the answer; it is empty when there was nothing to tell."""
        self._count += 1
        message_id = f"{self._address}-{self._count}"
        properties = Properties(message_id=message_id, reply_to=self._address)
        data = encode_message(value_section(body), properties, {"operation": operation})
        await self._requests.send_encoded(data)
        while True:
            received = await self._answers.receive(wait_s)
            if received is None:
                raise OperationTimeout(f"'{self._address[:64]}' did not answer in time.")
            message = received.message
            if message.properties.correlation_id == message_id:
                break  # others are late answers to what was given up
        said = message.application_properties
        status = said.get("statusCode")
        if not isinstance(status, int) or status >= _REFUSED:
            raise _refusal(said)
        answer = message.body
        return (
            {str(key): value for key, value in answer.items()} if isinstance(answer, dict) else {}
        )


def _refusal(said: dict[object, object]) -> ServiceError:
    condition = str(said.get("errorCondition", "amqp:internal-error"))
    return service_error(AmqpError(condition, str(said.get("statusDescription", ""))))
