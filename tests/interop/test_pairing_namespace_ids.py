"""One address, two namespaces, one after the other: a backlog knows which it was sent to (P-19).

The primary is killed, and another server with a queue of the same name takes its port.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.interop.pairs import Pair, pair_servers, take, texts, until
from twinbus.cli.main import main
from twinbus.client.links import ConnectionLost
from twinbus.message.plain import data_section
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.events import StrangersLeft
from twinbus.pipeline.bus import open_bus
from twinbus.pipeline.bus.protocol import BusSender
from twinbus.pipeline.bus.sending import OtherNamespace
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("P-19"), pytest.mark.feature("pairing.backlog", "pairing.syphon")]


@dataclass
class Place:
    """Two servers that have the same port and key, and a secondary."""

    first: ServerProcess
    second: ServerProcess
    secondary: ServerProcess

    @property
    def mark(self) -> str:
        return f"127.0.0.1-{self.first.port}"

    @property
    def queue(self) -> str:
        return f"{self.mark}/x-servicebus-transfer/0"

    def change(self, before: ServerProcess, after: ServerProcess) -> None:
        before.kill()
        after.restart()

    def id_of(self, server: ServerProcess) -> str:
        document = json.loads((server.data_dir / "server.json").read_text())
        return str(document["namespaces"][0]["id"])

    def waiting(self) -> int:
        properties = self.secondary.admin.get_queue(self.queue).properties
        return int(properties["ActiveMessageCount"])

    async def pair(self, flavour: str, **options: Any) -> Pair:
        made = SendAvailabilityPairedNamespaceOptions.from_connection_string(
            self.secondary.connection_string, 1, **{"ping_primary_interval": 1, **options}
        )
        return await pair_servers(flavour, self.first.connection_string, made)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The first of the two is running."""
    with ExitStack() as opened:
        first, secondary = (
            opened.enter_context(ServerProcess(tmp_path / name)) for name in ("first", "secondary")
        )
        first.create_queue("orders")
        first.stop()
        key = json.loads((first.data_dir / "server.json").read_text())
        rule = key["namespaces"][0]["rules"][0]["primary_key"]
        second = ServerProcess(tmp_path / "second", port=first.port, arguments=[f"--key={rule}"])
        opened.enter_context(second)
        second.create_queue("orders")
        second.stop()
        first.restart()
        yield Place(first, second, secondary)
    for server in (first, second, secondary):
        assert "Traceback" not in server.log, server.log


async def send(pair: Pair, *bodies: str) -> None:
    async with pair.sender("orders") as sender:
        for each in bodies:
            await sender.send_messages(ServiceBusMessage(each))


async def fill(place: Place, flavour: str) -> None:
    """A message at the primary, and three in its backlog that say who the primary was."""
    pair = await place.pair(flavour)
    await send(pair, "straight")
    pair.sdk.force_failover("orders")
    await send(pair, "a", "b", "c")
    await pair.close()


@pytest.mark.asyncio
async def test_another_server_at_the_same_address(place: Place, flavour: str) -> None:
    """Gets nothing that was sent to the one before; which gets all of it when it is back."""
    await fill(place, flavour)
    before = place.id_of(place.first)
    await asyncio.to_thread(place.change, place.first, place.second)
    assert place.id_of(place.second) != before
    pair = await place.pair(flavour, enable_syphon=True)
    try:
        left = await pair.sees(StrangersLeft)
        assert left == StrangersLeft(place.queue, f"{place.mark}#{before}", 3)
        assert pair.backlog_queue(place.queue).strangers == 3
        assert (place.waiting(), take(place.second, "orders")) == (3, [])
        await asyncio.to_thread(place.change, place.second, place.first)
        assert place.id_of(place.first) == before, "it is kept"
        arrived = await asyncio.to_thread(take, place.first, "orders", 4)
        assert sorted(texts(arrived)) == ["a", "b", "c", "straight"]
        assert all(not message.application_properties for message in arrived)
    finally:
        await pair.close()


@pytest.mark.asyncio
async def test_a_change_under_an_open_link(place: Place, flavour: str) -> None:
    """The SDK opens links again by itself, in the middle of a send."""
    pair = await place.pair(flavour, enable_syphon=True)
    try:
        await send(pair, "straight")
        pair.sdk.force_failover("orders")
        await send(pair, "a")  # the syphon's own link is open now
        assert len(await asyncio.to_thread(take, place.first, "orders", 2)) == 2
        before = place.id_of(place.first)
        other = await place.pair(flavour)
        await send(other, "straight")
        other.sdk.force_failover("orders")
        await asyncio.to_thread(place.change, place.first, place.second)
        await send(other, "b", "c")
        left = await pair.sees(StrangersLeft)
        assert left.primary == f"{place.mark}#{before}"
        await until(lambda: pair.backlog_queue(place.queue).strangers == 2, "not counted")
        await other.close()
        assert take(place.second, "orders") == []
    finally:
        await pair.close()


@pytest.mark.asyncio
async def test_pairs_that_know_it_and_pairs_that_do_not(place: Place, flavour: str) -> None:
    """One was made while the primary was down: both are the same primary's."""
    await fill(place, flavour)
    await asyncio.to_thread(place.first.kill)
    pair = await place.pair(flavour, failover_interval=0)
    pair.sdk.force_failover("orders")
    await send(pair, "d", "e")
    await pair.close()
    found = take_properties(place)
    assert [(each.get("x-twinbus-primary"), "x-twinbus-namespace" in each) for each in found] == [
        *[(place.mark, True)] * 3,
        *[(place.mark, False)] * 2,
    ]
    await asyncio.to_thread(place.first.restart)
    pair = await place.pair(flavour, enable_syphon=True)
    try:
        arrived = await asyncio.to_thread(take, place.first, "orders", 6)
        assert sorted(texts(arrived)) == ["a", "b", "c", "d", "e", "straight"]
        assert pair.seen(StrangersLeft) == []
    finally:
        await pair.close()


def take_properties(place: Place) -> list[dict[str, str]]:
    """Of what waits, as it is; nothing is taken."""
    text = place.secondary.connection_string
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_receiver(place.queue) as receiver,
    ):
        found = [each.application_properties or {} for each in receiver.peek_messages(100)]
    return [{_text(name): _text(value) for name, value in each.items()} for each in found]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.feature("pairing.cli")
def test_a_primary_that_was_set_up_anew(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody has to say that it is to have what was sent to the one before."""
    asyncio.run(fill(place, "sync"))
    place.change(place.first, place.second)
    given = ["--primary", place.first.connection_string]
    given += ["--secondary", place.secondary.connection_string]
    assert main(["pair", "drain", *given]) == 3
    said = capsys.readouterr()
    assert "moved 0, dead-lettered 0, left 3" in said.out
    assert said.err.count("another namespace answers at this address now") == 1
    assert f"run `twinbus pair drain --primary-name {place.mark}`" in said.err
    assert main(["pair", "drain", *given, "--primary-name", place.mark]) == 0
    assert sorted(texts(take(place.second, "orders"))) == ["a", "b", "c"]


@pytest.mark.parametrize("pinned", [True, False])
def test_a_pinned_sender_of_the_pipeline(place: Place, pinned: bool) -> None:
    """As the syphon on Spark has it; another sender goes on with whoever answers."""
    message = data_section(b"x")
    with (
        closing(open_bus(place.first.connection_string)) as bus,
        bus.open_sender("orders", pinned=pinned) as sender,
    ):
        sender.submit([message]).wait()
        assert sender.namespace_id == place.id_of(place.first)
        place.change(place.first, place.second)
        if pinned:
            with pytest.raises(OtherNamespace):
                send_again(sender, message)
        else:
            send_again(sender, message)
            assert sender.namespace_id == place.id_of(place.second)
    assert len(take(place.second, "orders")) == (0 if pinned else 1)


def send_again(sender: BusSender, message: bytes) -> None:
    """The first one after the connection was lost may fail with it, and nothing is stored."""
    with suppress(ConnectionLost):
        return sender.submit([message]).wait()
    return sender.submit([message]).wait()
