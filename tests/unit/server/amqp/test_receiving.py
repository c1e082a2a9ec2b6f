"""A receiving link, when the client changes its mind."""

import pytest

from tests.unit.server.wired import Client, Scene
from twinbus.amqp.composites import Source, Target
from twinbus.amqp.ingress import DeliveryReceived
from twinbus.message.plain import data_section, encode_message

pytestmark = pytest.mark.asyncio

QUEUE = "orders"
SETTLED = 1


def say(client: Client) -> None:
    client.endpoint.data_received(b"".join(client.connection.data_to_send()))


def deliveries(client: Client) -> list[bytes]:
    return [event.data[-1:] for event in client.events if isinstance(event, DeliveryReceived)]


async def test_credit_that_is_taken_back_while_messages_are_being_removed() -> None:
    """They are nowhere else any more, and cannot be sent without credit: they wait for it."""
    scene = Scene()
    scene.harness.create_queue(QUEUE)
    client = scene.connect()
    sender = client.attach_sender(QUEUE)
    for text in (b"1", b"2", b"3"):
        sender.send(b"tag" + text, encode_message(data_section(text)), b"", True, None)
    link = client.session.attach_receiver(
        "receiver", Source(QUEUE), Target("me"), snd_settle_mode=SETTLED
    )
    client.pump()
    link.grant(3)
    say(client)
    commit = scene.harness.turn()
    assert commit is not None, "they are being removed"
    link.grant(1)
    say(client)
    scene.harness.write(commit)
    client.pump()
    assert deliveries(client) == [b"1"]
    link.grant(5)
    client.pump()
    assert deliveries(client) == [b"1", b"2", b"3"]
