"""Which frames and requests are metered as what."""

import pytest
import pytest_asyncio

from tests.unit.server.amqp.test_coordinator import Person
from tests.unit.server.http.atom.atom_harness import Client as AtomClient
from tests.unit.server.http.atom.xml_bodies import document
from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import Source, Target
from twinbus.amqp.types import Symbol, UInt
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import EntityNotFound
from twinbus.gateway.gateway import Gateway
from twinbus.message.plain import data_section, encode_message

pytestmark = [pytest.mark.proves("C-1", "C-2"), pytest.mark.asyncio]

QUEUE, SESSIONS = "orders", "sessions"
BODY = encode_message(data_section(b"body"))
NEXT_SESSION: dict[object, object] = {Symbol("com.microsoft:session-filter"): None}


@pytest_asyncio.fixture
async def scene() -> Scene:
    scene = Scene()
    scene.harness.create_queue(QUEUE)
    scene.harness.create_queue(SESSIONS, QueueDescription(requires_session=True))
    return scene


@pytest_asyncio.fixture
async def client(scene: Scene) -> Client:
    return scene.connect()


def metered(gateway: Gateway) -> dict[tuple[str, str], int]:
    """Units since the last look, by entity and kind."""
    return {(line.entity, line.kind): line.units for line in gateway.meter.take(0, 1)}


@pytest.mark.proves("C-2")
async def test_flows_that_come_together_are_told_apart(scene: Scene, client: Client) -> None:
    """Attach, a flow without credit and the first receive may be one read."""
    link = client.session.attach_receiver("r", Source(QUEUE), Target("me"))
    link.grant(0)
    link.grant(5)
    client.pump()
    assert metered(scene.harness.gateway) == {}
    link.grant(5)
    client.pump()
    assert metered(scene.harness.gateway) == {(QUEUE, "receive"): 1}
    client.leave()
    assert metered(scene.harness.gateway) == {(QUEUE, "receive"): 1}


@pytest.mark.proves("C-1", "C-2")
async def test_deliveries_and_drains(scene: Scene, client: Client) -> None:
    sender = client.attach_sender(QUEUE)
    for tag in (b"1", b"2"):
        sender.send(tag, BODY, b"", True, None)
    client.pump()
    assert metered(scene.harness.gateway) == {(QUEUE, "send"): 2}
    link = client.attach_receiver(QUEUE, credit=5)
    assert metered(scene.harness.gateway) == {(QUEUE, "receive"): 2}
    link.grant(3, drain=True)
    client.pump()
    assert metered(scene.harness.gateway) == {}
    link.grant(3, drain=True)
    client.pump()
    assert metered(scene.harness.gateway) == {(QUEUE, "receive"): 1}


@pytest.mark.proves("C-1")
async def test_transactions_are_metered_when_they_are_committed(scene: Scene) -> None:
    """What was rolled back has never happened."""
    person = Person(scene)
    sender = person.client.attach_sender(QUEUE)
    for fail, expected in ((True, {}), (False, {(QUEUE, "send"): 1})):
        txn_id = person.declare()
        person.post(sender, BODY, txn_id)
        assert person.discharge(txn_id, fail) == "accepted"
        assert metered(scene.harness.gateway) == expected


@pytest.mark.proves("C-2")
async def test_waiting_for_a_session_in_vain_is_a_receive(scene: Scene, client: Client) -> None:
    """By the server's patience or by the client's."""
    timeout: dict[object, object] = {Symbol("com.microsoft:timeout"): UInt(1_000)}
    source = Source(SESSIONS, filter=NEXT_SESSION)
    client.session.attach_receiver("late", source, Target("me"), properties=timeout)
    client.pump()
    assert metered(scene.harness.gateway) == {}
    scene.harness.pass_time(2_000)
    client.pump()
    assert client.refusal() == "com.microsoft:timeout"
    assert metered(scene.harness.gateway) == {(SESSIONS, "receive"): 1}
    client.session.attach_receiver("left", source, Target("me"), properties=timeout)
    client.pump()
    client.leave()
    assert metered(scene.harness.gateway) == {(SESSIONS, "receive"): 1}


@pytest.mark.proves("C-2")
async def test_a_wait_for_a_session_lasts_as_long_as_the_client_has_said(
    scene: Scene, client: Client
) -> None:
    """It is not idle, so it is one receive even if it is longer than a link may idle."""
    timeout: dict[object, object] = {Symbol("com.microsoft:timeout"): UInt(900_000)}
    source = Source(SESSIONS, filter=NEXT_SESSION)
    client.session.attach_receiver("patient", source, Target("me"), properties=timeout)
    client.pump()
    for _ in range(14):
        scene.clock.advance(60_000)
        client.tick()
    assert metered(scene.harness.gateway) == {}
    scene.harness.pass_time(120_000)
    client.pump()
    assert client.refusal() == "com.microsoft:timeout"
    assert metered(scene.harness.gateway) == {(SESSIONS, "receive"): 1}


@pytest.mark.proves("C-1")
async def test_requests_about_entities_are_metered_at_what_they_name() -> None:
    """Under the name as it was given at birth; what was refused is not metered."""
    client = AtomClient()
    gateway = client.harness.gateway
    await client.ask("PUT", "/Orders", document())
    await client.ask("GET", "/ORDERS")
    await client.ask("PUT", "/News", document("", "TopicDescription"))
    await client.ask("PUT", "/news/subscriptions/All", document("", "SubscriptionDescription"))
    await client.ask("GET", "/NEWS/Subscriptions/all/rules")
    await client.ask("GET", "/news/subscriptions")
    await client.ask("GET", "/$Resources/queues")
    await client.ask("GET", "/$namespaceinfo")
    assert (await client.ask("DELETE", "/$namespaceinfo")).status == 405
    with pytest.raises(EntityNotFound):
        await client.ask("GET", "/nowhere")
    assert metered(gateway) == {
        ("Orders", "management"): 2,
        ("News", "management"): 2,
        ("News/Subscriptions/All", "management"): 2,
        ("", "management"): 2,
    }
    await client.ask("DELETE", "/orders")
    assert metered(gateway) == {("orders", "management"): 1}
