"""Receiving one message for one request: handed out, given back, never dropped."""

import asyncio
import json

import pytest

from tests.unit.broker.harness import BrokerHarness
from twinbus.entities.commands import PEEK_LOCK, RECEIVE_AND_DELETE, Send
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import EntityNotFound
from twinbus.gateway.directory.addresses import parse_address
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.message.plain import data_section, encode_message
from twinbus.server.http.addressed_entity import AddressedEntity
from twinbus.server.http.rest.receiving import ReceivedMessage, WaitingRequest

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.asyncio]

IDS = MessageIds(1)


class Scene:
    """A queue, and requests that wait at it."""

    def __init__(self) -> None:
        self.harness = BrokerHarness()
        self.broker = self.harness.broker
        self.queue = self.harness.create_queue("q")
        gateway = self.harness.gateway
        meter = gateway.meter.of("twinbus", "q")
        self.addressed = AddressedEntity(
            gateway, gateway.directory.names["q"], parse_address("q"), meter
        )

    def send(self, body: bytes) -> None:
        data = encode_message(data_section(body))
        self.put(new_message(data, IDS, NEVER_MS))

    def put(self, message: NewMessage) -> None:
        self.broker.submit([Send(self.queue.entity_id, [message])])
        self.harness.run()

    async def start(
        self, wait_s: float, mode: int = PEEK_LOCK
    ) -> tuple[WaitingRequest, "asyncio.Task[ReceivedMessage | None]"]:
        waiting = WaitingRequest(self.addressed, mode)
        task = asyncio.get_running_loop().create_task(waiting.wait(wait_s))
        await asyncio.sleep(0)
        return waiting, task

    async def receive(self, wait_s: float = 0, mode: int = PEEK_LOCK) -> ReceivedMessage | None:
        _, task = await self.start(wait_s, mode)
        self.harness.run()
        return await asyncio.wait_for(task, 10)

    async def delivery_count(self) -> int:
        """Of the next message, as a receiver is told."""
        received = await self.receive()
        assert received is not None
        return int(shown(received)["DeliveryCount"])


def shown(received: ReceivedMessage) -> dict[str, int]:
    headers = dict(received.response(201, {}, ()).headers)
    properties: dict[str, int] = json.loads(headers["BrokerProperties"])
    return properties


@pytest.mark.proves("M-11")
async def test_looks_once() -> None:
    scene = Scene()
    assert await scene.receive() is None
    scene.send(b"x")
    received = await scene.receive()
    assert received is not None
    assert received.response(201, {}, ()).body == b"x"
    assert await scene.receive() is None


@pytest.mark.proves("M-11")
async def test_waits_until_its_time_is_up() -> None:
    scene = Scene()
    waiting, task = await scene.start(1_000)
    scene.harness.run()
    await asyncio.sleep(0)
    assert not task.done()
    waiting._drain()  # what the timer calls
    scene.harness.run()
    assert await task is None
    scene.send(b"too late for it")
    assert await scene.delivery_count() == 1


async def test_a_message_taken_when_time_is_up_is_handed_out() -> None:
    scene = Scene()
    waiting, task = await scene.start(1_000, RECEIVE_AND_DELETE)
    scene.send(b"x")
    waiting._drain()
    waiting.drained()
    received = await task
    assert received is not None
    assert received.response(200, {}, ()).body == b"x"


async def test_nobody_waits_any_more() -> None:
    scene = Scene()
    waiting, task = await scene.start(1_000)
    waiting.give_up()
    scene.send(b"x")
    assert await task is None
    assert await scene.delivery_count() == 1


@pytest.mark.parametrize("mode", [PEEK_LOCK, RECEIVE_AND_DELETE])
async def test_a_message_that_is_on_its_way_when_nobody_waits_any_more(mode: int) -> None:
    """Locked, it is given back; removed, it is at least handed to whoever writes the answer."""
    scene = Scene()
    scene.send(b"x")
    waiting, task = await scene.start(1_000, mode)
    commit = scene.harness.turn()
    waiting.give_up()
    if commit is not None:
        scene.harness.write(commit)
    scene.harness.run()
    received = await task
    assert received is not None
    if mode == PEEK_LOCK:
        received.release()
        scene.harness.run()
        assert await scene.delivery_count() == 1
    else:
        assert received.response(200, {}, ()).body == b"x"


async def test_what_comes_after_the_end_is_given_back() -> None:
    scene = Scene()
    waiting, task = await scene.start(1_000)
    waiting.drained()
    scene.send(b"x")  # the receiver is still open: its request has not had its turn
    assert waiting.full()
    assert await task is None
    assert await scene.delivery_count() == 1


@pytest.mark.proves("M-11")
async def test_released_is_as_if_never_received() -> None:
    scene = Scene()
    scene.send(b"x")
    for _ in range(3):
        received = await scene.receive()
        assert received is not None
        assert shown(received)["DeliveryCount"] == 1
        received.release()
        scene.harness.run()


async def test_the_entity_goes() -> None:
    scene = Scene()
    waiting, task = await scene.start(1_000)
    scene.harness.delete(scene.queue)
    waiting.lost(EntityNotFound("again"))
    with pytest.raises(EntityNotFound):
        await task


async def test_a_message_that_nobody_can_read_comes_out_as_it_is() -> None:
    scene = Scene()
    broken = encode_message(b"\x00\x53\x77\xa1\x02\xff\xfe")  # a text that is not UTF-8
    scene.put(new_message(broken, IDS, NEVER_MS))
    received = await scene.receive()
    assert received is not None
    response = received.response(201, {}, ())
    assert response.body.endswith(b"\x00\x53\x77\xa1\x02\xff\xfe")
    assert response.content_type == "application/octet-stream"
