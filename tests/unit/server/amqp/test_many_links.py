"""A connection with many sessions and links: what one of them does is no matter of the others."""

import pytest
import pytest_asyncio

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import ACCEPTED, Source, Target
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.limits import CONNECTION_UNSETTLED_MAX
from twinbus.message.plain import data_section, encode_message

pytestmark = pytest.mark.asyncio

BODY = encode_message(data_section(b"body"))


@pytest_asyncio.fixture
async def client() -> Client:
    scene = Scene()
    scene.harness.create_queue("orders")
    return scene.connect()


def deliveries(events: list[Event]) -> list[DeliveryReceived]:
    return [event for event in events if isinstance(event, DeliveryReceived)]


async def test_the_end_of_a_session_closes_its_links_and_no_others(client: Client) -> None:
    sessions = [client.connection.begin() for _ in range(100)]
    links = [
        session.attach_receiver(f"r{number}", Source("orders"), Target("me"))
        for number, session in enumerate(sessions)
    ]
    client.pump()
    places = client.endpoint.connection.places
    assert (places.link_count, len(client.endpoint.conversation.links)) == (100, 100)
    for session in sessions[::2]:
        session.end()
    client.pump()
    assert (places.link_count, len(client.endpoint.conversation.links)) == (50, 50)
    assert [link.attached for link in links] == [False, True] * 50
    client.leave()
    assert places.taken == 0


async def test_terms_of_an_attach_are_not_kept_with_its_link(client: Client) -> None:
    client.attach_sender("orders", properties={"k": "v" * 1_000})
    client.attach_receiver("orders")
    client.attach_sender("missing")
    for link in client.endpoint.connection.channels.sessions[0].links.values():
        assert (link.source, link.target, link.properties) == (None, None, None)


async def test_unsettled_deliveries_of_a_connection_are_bounded(client: Client) -> None:
    sender = client.attach_sender("orders")
    first = client.attach_receiver("orders", credit=2, name="first")
    client.attach_receiver("orders", credit=0, name="second")
    for number in range(4):
        sender.send(bytes([number]), BODY, b"", False, None)
    taken = deliveries(client.pump())
    assert [event.link for event in taken] == [first, first]
    wire = client.endpoint.connection._wire
    assert wire.unsettled_count == 2
    wire.unsettled_count += CONNECTION_UNSETTLED_MAX - 2  # as if other links had as many
    second = next(
        link
        for link in client.session._handles.values()
        if isinstance(link, IngressLink) and link.name == "second"
    )
    second.grant(5)
    assert deliveries(client.pump()) == []
    for event in taken:
        event.link.settle(event.delivery_id, event.delivery_id, ACCEPTED)
    assert [event.link for event in deliveries(client.pump())] == [second, second]
    wire.unsettled_count -= CONNECTION_UNSETTLED_MAX - 2
    assert wire.unsettled_count == 2
    second.detach()
    client.pump()
    assert wire.unsettled_count == 0


async def test_a_client_whose_tokens_have_expired_is_no_stranger(client: Client) -> None:
    """Its links are detached; the connection stays, and a new token brings them back."""
    client.attach_sender("orders")
    grant = next(iter(client.endpoint.conversation.access._claims._by_scope.values()))
    grant.expires_s = client.scene.clock.now().utc_ms // 1_000
    client.scene.clock.advance(30_000)
    client.tick()
    assert client.refusal() == "amqp:unauthorized-access"
    client.scene.clock.advance(30_000)
    client.tick()
    assert not [event for event in client.events if isinstance(event, ConnectionClosed)]
    assert client.endpoint.connection.places.is_known
