"""Requests to the $management node of an entity, and their answers.

    async with await BusConnection.open(connection_string) as connection:
        node = await ManagementNode.open(connection, "orders")
        answer = await node.request("twinbus:browse", {"message-count": Int(10)})

docs/reference/management-operations.md lists the operations.  Any number of requests may run at
once; each gets the answer that names it.  A refusal is raised as the error it names.
"""

import asyncio
from typing import Final, Self

from twinbus.amqp.composites import AmqpError
from twinbus.client.answers import read_map
from twinbus.client.connection import BusConnection
from twinbus.client.links import Receiver, Sender, service_error
from twinbus.errors import OperationTimeout, ServiceError, TwinbusError
from twinbus.message.plain import Properties, encode_message, read_properties, value_section
from twinbus.message.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, Outline

ANSWER_DURATION_S_MAX: Final = 120.0
NODES_MAX: Final = 64  # that stay open; a pattern may name thousands of entities
_REFUSED: Final = 400


class ManagementNode:
    """The pair of links to one entity's $management."""

    def __init__(self, address: str, requests: Sender, answers: Receiver) -> None:
        self._address = address
        self._requests = requests
        self._answers = answers
        self._count = 0
        self._asked: dict[str, asyncio.Future[_Answer]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read_answers())

    @classmethod
    async def open(cls, connection: BusConnection, entity: str) -> Self:
        """Raises why when the bus refuses the links."""
        address = f"{entity}/$management"
        requests = await connection.open_sender(address)
        answers = await connection.open_receiver(address, receive_and_delete=True)
        return cls(address, requests, answers)

    async def request(
        self, operation: str, body: dict[object, object], wait_s: float = ANSWER_DURATION_S_MAX
    ) -> dict[str, object]:
        """Ask, and return the map of the answer; it may be empty."""
        answer = await self._ask(operation, body, wait_s)
        return read_map(answer.data, answer.body_at, answer.body_end)[0]

    async def request_messages(
        self, operation: str, body: dict[object, object], wait_s: float = ANSWER_DURATION_S_MAX
    ) -> tuple[list[bytes], dict[str, object]]:
        """Like `request`, with the answer's messages apart: encoded, and not looked into."""
        answer = await self._ask(operation, body, wait_s)
        read, messages = read_map(answer.data, answer.body_at, answer.body_end, apart=True)
        return messages, read

    @property
    def is_closed(self) -> bool:
        return self._requests.error is not None or self._answers.error is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._asked

    def close(self) -> None:
        """Detach both links; requests in progress end with an error."""
        self._requests.close()
        self._answers.close()

    async def _ask(self, operation: str, body: dict[object, object], wait_s: float) -> "_Answer":
        self._answers.raise_if_closed()
        self._count += 1
        message_id = f"{self._address}-{self._count}"
        properties = Properties(message_id=message_id, reply_to=self._address)
        data = encode_message(value_section(body), properties, {"operation": operation})
        asked: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._asked[message_id] = asked
        try:
            async with asyncio.timeout(wait_s):
                await self._requests.send_encoded(data)
                answer = await asked
        except TimeoutError:
            raise OperationTimeout(f"'{self._address[:64]}' did not answer in time.") from None
        finally:
            self._asked.pop(message_id, None)
            asked.cancel()  # nobody is left who would read it
        status = answer.said.get("statusCode")
        if not isinstance(status, int) or status >= _REFUSED:
            raise _refusal(answer.said)
        return answer

    async def _read_answers(self) -> None:
        """Hand each answer to its request, as long as the link lives."""
        error: TwinbusError
        try:
            while True:
                received = await self._answers.receive()
                assert received is not None  # only a time to wait for ends in nothing
                answer = _Answer(received.data)
                asked = self._asked.get(str(answer.correlation_id))
                if asked is not None and not asked.done():  # others have been given up
                    asked.set_result(answer)
        except TwinbusError as ended:
            error = ended
        self._requests.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)


class ManagementNodes:
    """The nodes of one connection, each opened once: the bus allows one per entity and session.

    When there are too many, the least recently used are closed.
    """

    def __init__(self, connection: BusConnection) -> None:
        self.connection = connection
        self._nodes: dict[str, ManagementNode] = {}
        self._opening = asyncio.Lock()

    async def get(self, entity: str) -> ManagementNode:
        """Raises why when the bus refuses the links."""
        async with self._opening:
            node = self._nodes.pop(entity, None)
            if node is None or node.is_closed:
                node = await ManagementNode.open(self.connection, entity)
            self._nodes[entity] = node  # the one that was used last comes last
            self._close_some()
        return node

    def _close_some(self) -> None:
        idle = [name for name, node in self._nodes.items() if node.is_idle]
        for name in idle[: max(0, len(self._nodes) - NODES_MAX)]:
            self._nodes.pop(name).close()


class _Answer:
    """An answer: the request it belongs to, its status, and where its map is."""

    __slots__ = ("body_at", "body_end", "correlation_id", "data", "said")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.correlation_id: object = None
        self.said: dict[object, object] = {}
        outline = Outline(data)
        self.body_at, self.body_end = outline.borders(VALUE)
        properties = outline.decoded(PROPERTIES)
        if properties is not None:
            self.correlation_id = read_properties(properties).correlation_id
        said = outline.decoded(APPLICATION_PROPERTIES)
        if isinstance(said, dict):
            self.said = said


def _refusal(said: dict[object, object]) -> ServiceError:
    condition = str(said.get("errorCondition", "amqp:internal-error"))
    return service_error(AmqpError(condition, str(said.get("statusDescription", ""))))
