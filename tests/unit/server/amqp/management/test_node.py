"""The $management node and its entity, which may go and come again while the links stay."""

import pytest
import pytest_asyncio

from tests.unit.server.asking import Asking
from tests.unit.server.wired import KEY, Client, Scene
from twinbus.amqp.events import LinkDetached
from twinbus.amqp.types import Array, Int
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.queue import Queue
from twinbus.gateway.access.shared_access import AuthorizationRule, Authorizer
from twinbus.message.plain import data_section, decode_message, encode_message

pytestmark = pytest.mark.asyncio

PEEK = "com.microsoft:peek-message"
CANCEL = "com.microsoft:cancel-scheduled-message"
ALL: dict[object, object] = {"from-sequence-number": 0, "message-count": Int(10)}


@pytest_asyncio.fixture
async def scene() -> Scene:
    return Scene()


@pytest_asyncio.fixture
async def queue(scene: Scene) -> Queue:
    return scene.harness.create_queue("orders")


@pytest_asyncio.fixture
async def client(scene: Scene, queue: Queue) -> Client:
    return scene.connect()


def send(client: Client, body: bytes) -> None:
    sender = client.attach_sender("orders")
    sender.send(b"tag", encode_message(data_section(body)), b"", True, None)
    sender.detach()
    client.pump()


def peek(asking: Asking) -> list[object]:
    answer = asking.ask(PEEK, ALL)
    assert answer.status in (200, 204), answer.text
    return [decode_message(entry["message"]).body for entry in answer.body.get("messages", [])]


def has_detached(client: Client) -> bool:
    return any(isinstance(event, LinkDetached) for event in client.events)


async def test_links_go_on_with_the_new_entity_of_the_name(
    scene: Scene, client: Client, queue: Queue
) -> None:
    send(client, b"old")
    asking = Asking(client, "orders")
    assert peek(asking) == [b"old"]
    scene.harness.delete(queue)
    for _ in range(2):
        answer = asking.ask(PEEK, ALL)
        assert (answer.status, answer.condition) == (404, "amqp:not-found")
    assert scene.harness.create_queue("orders").entity_id != queue.entity_id
    assert peek(asking) == []
    send(client, b"new")
    assert peek(asking) == [b"new"]
    assert not has_detached(client)


async def test_what_the_new_entity_is_counts(scene: Scene, client: Client, queue: Queue) -> None:
    """It may have sessions where the old one had none."""
    asking = Asking(client, "orders")
    sessions: dict[object, object] = {"last-updated-time": 0, "skip": Int(0), "top": Int(10)}
    operation = "com.microsoft:get-message-sessions"
    assert asking.ask(operation, sessions).status == 400
    scene.harness.delete(queue)
    scene.harness.create_queue("orders", QueueDescription(requires_session=True))
    assert asking.ask(operation, sessions).status == 204


async def test_links_to_the_dead_letter_queue_go_on_too(
    scene: Scene, client: Client, queue: Queue
) -> None:
    asking = Asking(client, "orders/$DeadLetterQueue")
    scene.harness.delete(queue)
    assert asking.ask(PEEK, ALL).status == 404
    scene.harness.create_queue("orders")
    assert peek(asking) == []


async def test_no_link_to_an_entity_that_is_gone(
    scene: Scene, client: Client, queue: Queue
) -> None:
    """Not even when there are links from before; they stay."""
    asking = Asking(client, "orders")
    scene.harness.delete(queue)
    client.attach_sender("orders/$management", name="late")
    assert client.refusal() == "amqp:not-found"
    assert asking.ask(PEEK, ALL).status == 404


async def test_the_right_comes_before_the_name(scene: Scene, client: Client, queue: Queue) -> None:
    """Whoever may not ask does not learn whether the entity is there."""
    rule = AuthorizationRule("Root", frozenset({"Listen"}), KEY, KEY)
    scene.namespaces.default.authorizer = Authorizer([rule])
    asking = Asking(scene.connect(), "orders")
    cancel: dict[object, object] = {"sequence-numbers": Array([1])}
    assert asking.ask(CANCEL, cancel).status == 401
    scene.harness.delete(queue)
    assert asking.ask(CANCEL, cancel).status == 401
    assert asking.ask(PEEK, ALL).status == 404
