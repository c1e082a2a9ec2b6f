"""Links that are stolen, links and connections that idle."""

import asyncio

import pytest
import pytest_asyncio

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import ConnectionClosed, LinkDetached
from twinbus.entities.queue import Queue
from twinbus.message.plain import data_section, encode_message
from twinbus.server.amqp.idle import Deadlines

pytestmark = pytest.mark.asyncio

BODY = encode_message(data_section(b"body"))
MINUTE_MS = 60_000


@pytest_asyncio.fixture
async def scene() -> Scene:
    return Scene()


@pytest_asyncio.fixture
async def queue(scene: Scene) -> Queue:
    return scene.harness.create_queue("orders")


@pytest_asyncio.fixture
async def client(scene: Scene, queue: Queue) -> Client:
    return scene.connect()


def pass_time(client: Client, duration_ms: int, step_ms: int = 10_000) -> None:
    """Time passes, and the endpoint looks at the clock as it does."""
    for _ in range(duration_ms // step_ms):
        client.scene.clock.advance(step_ms)
        client.tick()


# --- stealing -------------------------------------------------------------------------------------


async def test_newer_link_of_the_same_name_steals(client: Client) -> None:
    older = client.attach_sender("orders", name="mine")
    newer = client.attach_sender("orders", name="mine")
    assert client.refusal() == "amqp:link:stolen"
    assert not older.attached
    assert newer.attached
    newer.send(b"tag", BODY, b"", False, None)
    client.pump()
    assert client.scene.harness.store.entities[1].counts().active == 1


async def test_directions_and_connections_have_their_own_names(
    client: Client, scene: Scene
) -> None:
    sender = client.attach_sender("orders", name="mine")
    receiver = client.attach_receiver("orders", name="mine")
    other = scene.connect().attach_sender("orders", name="mine")
    assert sender.attached
    assert receiver.attached
    assert other.attached


async def test_name_is_free_after_a_detach(client: Client) -> None:
    client.attach_sender("orders", name="mine").detach()
    client.pump()
    again = client.attach_sender("orders", name="mine")
    assert again.attached
    assert not [event for event in client.events if isinstance(event, LinkDetached)]


# --- idling ---------------------------------------------------------------------------------------


async def test_idle_links_are_detached(client: Client) -> None:
    idle = client.attach_sender("orders")
    waiting = client.attach_receiver("orders")
    busy = client.attach_sender("orders", name="busy")
    for _ in range(12):
        busy.send(b"tag", BODY, b"", True, None)
        pass_time(client, MINUTE_MS)
    assert client.refusal() == "amqp:link:detach-forced"
    assert (idle.attached, busy.attached) == (False, True)
    assert waiting.attached  # it received them


async def test_link_within_its_time_stays(client: Client) -> None:
    link = client.attach_sender("orders")
    pass_time(client, 9 * MINUTE_MS)
    assert link.attached


async def test_the_same_credit_again_keeps_a_link_in_use(client: Client) -> None:
    """A client that receives every few minutes is there, whatever it gets."""
    receiver = client.attach_receiver("orders", credit=10)
    for _ in range(5):
        pass_time(client, 5 * MINUTE_MS)
        receiver.grant(10)
        client.pump()
    assert receiver.attached
    pass_time(client, 12 * MINUTE_MS)
    assert not receiver.attached


async def test_requests_keep_every_link_in_use(client: Client) -> None:
    """A handler that renews its lock for an hour moves nothing else."""
    receiver = client.attach_receiver("orders", credit=1)
    requests = client.attach_sender("orders/$management")
    for _ in range(20):
        requests.send(b"tag", BODY, b"", True, None)
        pass_time(client, MINUTE_MS)
    assert attached(receiver, requests) == [True, True]
    pass_time(client, 12 * MINUTE_MS)
    assert attached(receiver, requests) == [False, True]


def attached(*links: Link) -> list[bool]:
    return [link.attached for link in links]


def closed_with(client: Client) -> str | None:
    closed = [event for event in client.events if isinstance(event, ConnectionClosed)]
    error = closed[0].error if closed else None
    return None if error is None else error.condition


async def test_connection_without_links_is_closed(client: Client) -> None:
    pass_time(client, MINUTE_MS)
    assert closed_with(client) is None
    pass_time(client, 10_000)
    assert closed_with(client) == "amqp:connection:forced"
    assert client.wire.closed


async def test_connection_outlives_its_last_link_for_longer(client: Client) -> None:
    link = client.attach_sender("orders")
    pass_time(client, 2 * MINUTE_MS)
    link.detach()
    client.pump()
    pass_time(client, 5 * MINUTE_MS)
    assert closed_with(client) is None
    pass_time(client, 10_000)
    assert closed_with(client) == "amqp:connection:forced"


async def test_deadlines_can_be_shortened(scene: Scene, queue: Queue) -> None:
    client = scene.connect(Deadlines(10, 20, first_link_s=1, last_link_s=2, link_idle_s=3))
    link = client.attach_sender("orders")
    pass_time(client, 5_000, step_ms=500)
    assert not link.attached
    pass_time(client, 3_000, step_ms=500)
    assert closed_with(client) == "amqp:connection:forced"


# --- last words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [False, True])
async def test_only_who_does_not_leave_is_thrown_out(
    client: Client, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """asyncio's transport is gone with its connection: aborting it then fails."""
    monkeypatch.setattr("twinbus.server.amqp.traffic.LAST_WORDS_S", 0.0)
    client.endpoint.conversation.traffic.close()
    if leaves:
        client.leave()
    await asyncio.sleep(0.01)
    assert client.wire.aborted != leaves
