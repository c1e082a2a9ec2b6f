"""A client that leaves: what it said before, in the same read, counts and is confirmed first."""

import pytest
import pytest_asyncio

from tests.unit.amqp.wiring import read_frames
from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import ACCEPTED, Accepted, Performative, Rejected
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.performatives import Attach, Detach, End
from twinbus.amqp.transfers import Disposition
from twinbus.amqp.types import Symbol
from twinbus.entities.descriptions import QueueDescription
from twinbus.message.plain import Properties, data_section, encode_message

pytestmark = pytest.mark.asyncio

PLAIN, SESSIONS = "plain", "sessions"
BODY = encode_message(data_section(b"body"), Properties(group_id="s"))
NO_SESSION = encode_message(data_section(b"body"))
NEXT_SESSION: dict[object, object] = {Symbol("com.microsoft:session-filter"): None}
KINDS = pytest.mark.parametrize("queue", [PLAIN, SESSIONS])


@pytest_asyncio.fixture
async def scene() -> Scene:
    scene = Scene()
    scene.harness.create_queue(PLAIN)
    scene.harness.create_queue(SESSIONS, QueueDescription(requires_session=True))
    return scene


@pytest_asyncio.fixture
async def client(scene: Scene) -> Client:
    return scene.connect()


def receive(client: Client, queue: str) -> tuple[IngressLink, int]:
    """A message is there and comes; gives the link and the delivery's id."""
    sender = client.attach_sender(queue, name="before")
    sender.send(b"tag", BODY, b"", True, None)
    link = attach(client, queue)
    client.pump()
    [delivery] = [event for event in client.events if isinstance(event, DeliveryReceived)]
    return link, delivery.delivery_id


def attach(client: Client, queue: str, name: str = "") -> IngressLink:
    filters = NEXT_SESSION if queue == SESSIONS else None
    return client.attach_receiver(queue, name=name, filters=filters)


def say(client: Client) -> list[Performative]:
    """Everything that the client has to say, in one read; gives what is answered at once."""
    client.endpoint.data_received(b"".join(client.connection.data_to_send()))
    return answers(client)


def answers(client: Client) -> list[Performative]:
    client.endpoint.conversation.traffic.flush()
    frames, client.wire.frames = client.wire.frames, []
    return [frame for _, frame, _ in read_frames(b"".join(frames)) if frame is not None]


def answers_when_durable(client: Client) -> list[Performative]:
    client.scene.run()
    return answers(client)


def message_count(scene: Scene) -> int:
    return scene.harness.broker.message_count()


@KINDS
@pytest.mark.parametrize("closed", [True, False])
async def test_settlement_is_confirmed_before_the_detach(
    client: Client, queue: str, closed: bool
) -> None:
    link, delivery_id = receive(client, queue)
    link.settle(delivery_id, delivery_id, ACCEPTED, settled=False)
    link.detach(closed=closed)
    assert say(client) == []
    confirmed, detach = answers_when_durable(client)
    assert isinstance(confirmed, Disposition)
    assert isinstance(confirmed.state, Accepted)
    assert confirmed.settled
    assert isinstance(detach, Detach)
    assert (detach.closed, detach.error) == (closed, None)
    assert message_count(client.scene) == 0


async def test_send_is_accepted_before_the_detach(client: Client) -> None:
    sender = client.attach_sender(PLAIN)
    for _ in range(3):
        sender.send(b"tag", BODY, b"", False, None)
    sender.detach()
    assert say(client) == []
    accepted, detach = answers_when_durable(client)
    assert isinstance(accepted, Disposition)
    assert isinstance(accepted.state, Accepted)
    assert accepted.last is not None
    assert accepted.last - accepted.first == 2
    assert isinstance(detach, Detach)
    assert message_count(client.scene) == 3


async def test_each_of_several_deliveries_has_its_outcome_before_the_detach(client: Client) -> None:
    """Refused together, they are tried one by one; the detach waits for that too."""
    sender = client.attach_sender(SESSIONS)
    for data in (BODY, NO_SESSION, BODY):
        sender.send(b"tag", data, b"", False, None)
    sender.detach()
    said = [*say(client), *answers_when_durable(client)]
    assert isinstance(said.pop(), Detach)
    states = {each.first: each.state for each in said if isinstance(each, Disposition)}
    assert [type(state) for _, state in sorted(states.items())] == [Accepted, Rejected, Accepted]
    assert message_count(client.scene) == 2


@KINDS
async def test_connection_lost_meanwhile(client: Client, queue: str) -> None:
    link, delivery_id = receive(client, queue)
    link.settle(delivery_id, delivery_id, ACCEPTED, settled=False)
    link.detach()
    say(client)
    client.leave()
    assert answers_when_durable(client) == []
    assert message_count(client.scene) == 0


@KINDS
@pytest.mark.parametrize("detached", [True, False])
async def test_end_of_the_session_in_the_same_read(
    client: Client, queue: str, detached: bool
) -> None:
    link, delivery_id = receive(client, queue)
    link.settle(delivery_id, delivery_id, ACCEPTED)
    if detached:
        link.detach()
    client.session.end()
    assert [type(each) for each in say(client)] == [End]
    assert answers_when_durable(client) == []
    assert message_count(client.scene) == 0


async def test_end_of_the_session_before_all_is_durable(client: Client) -> None:
    link, delivery_id = receive(client, PLAIN)
    link.settle(delivery_id, delivery_id, ACCEPTED, settled=False)
    link.detach()
    assert say(client) == []
    client.session.end()
    assert [type(each) for each in say(client)] == [End]
    assert answers_when_durable(client) == []
    assert message_count(client.scene) == 0


@KINDS
async def test_settlement_before_a_link_is_stolen(client: Client, queue: str) -> None:
    link, delivery_id = receive(client, queue)
    link.settle(delivery_id, delivery_id, ACCEPTED)
    attach(client, queue, name=link.name)
    assert client.refusal() == "amqp:link:stolen"
    assert message_count(client.scene) == 0


async def test_detach_while_waiting_for_a_session(client: Client, scene: Scene) -> None:
    link = attach(client, SESSIONS)
    link.detach()
    said = [*say(client), *answers_when_durable(client)]
    answer, detach = said
    assert isinstance(answer, Attach)
    assert answer.source is None
    assert isinstance(detach, Detach)
    assert detach.handle == answer.handle
    other = scene.connect()
    assert receive(other, SESSIONS)[0].attached  # the session went past the one who left


@pytest.mark.proves("M-4")
async def test_released_session_goes_to_the_next(client: Client, scene: Scene) -> None:
    """Settled and left in one read, the session is free, and its message gone for good."""
    link, delivery_id = receive(client, SESSIONS)
    client.attach_sender(SESSIONS, name="more").send(b"tag", BODY, b"", True, None)
    client.pump()
    link.settle(delivery_id, delivery_id, ACCEPTED, settled=False)
    link.detach()
    other = scene.connect()
    waiting = attach(other, SESSIONS)
    assert other.attached() == 0
    client.pump()
    other.pump()
    assert waiting.attached
    [delivery] = [event for event in other.events if isinstance(event, DeliveryReceived)]
    assert delivery.link is waiting
    assert message_count(scene) == 1
