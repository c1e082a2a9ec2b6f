"""A backlog knows its primary: several primaries with one secondary, real servers, the SDK (P-19).

The primaries have host names of which the first part is the same; `bus.dc1.test` and the like are
made up here, and are this machine.  Clients are the SDK's with its defaults.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.interop.pairs import Pair, pair_servers, take, texts, until
from twinbus.cli.main import main
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace
from twinbus.pairing.events import StrangersLeft
from twinbus.pairing.rewriting import rewrite
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("P-19"), pytest.mark.feature("pairing.backlog", "pairing.syphon")]


@dataclass
class Place:
    """Two primaries and their one secondary."""

    one: ServerProcess
    two: ServerProcess
    secondary: ServerProcess

    @property
    def names(self) -> tuple[str, str]:
        """In the names of their backlog queues."""
        return f"bus.dc1.test-{self.one.port}", f"bus.dc2.test-{self.two.port}"

    @property
    def texts(self) -> tuple[str, str]:
        """Connection strings."""
        return at("bus.dc1.test", self.one), at("bus.dc2.test", self.two)

    def waiting(self, queue: str) -> int:
        return int(self.secondary.admin.get_queue(queue).properties["ActiveMessageCount"])

    def queues(self) -> list[str]:
        return [each.name for each in self.secondary.admin.list_queues()]

    def put(self, queue: str, *messages: AmqpAnnotatedMessage) -> None:
        text = self.secondary.connection_string
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages(list(messages))


def at(host: str, server: ServerProcess) -> str:
    text, count = re.subn(r"sb://[^:;]+", f"sb://{host}", server.connection_string)
    assert count == 1
    return text


def waiting(body: str, mark: str | None, path: str = "orders") -> AmqpAnnotatedMessage:
    return rewrite(ServiceBusMessage(body).raw_amqp_message, path, None, mark)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("primaries")
    with ExitStack() as opened:
        started = [
            opened.enter_context(ServerProcess(directory / name))
            for name in ("one", "two", "secondary")
        ]
        for server in started[:2]:
            server.create_queue("orders")
        yield Place(*started)
    for server in started:
        assert "Traceback" not in server.log, server.log


@pytest.fixture
def place(servers: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    resolve: Callable[..., Any] = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        text = host.decode() if isinstance(host, bytes) else host
        is_made_up = isinstance(text, str) and text.endswith(".test")
        return resolve("127.0.0.1" if is_made_up else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield servers
    for server in (servers.one, servers.two):
        take(server, "orders")
    for name in servers.queues():
        servers.secondary.admin.delete_queue(name)


def strangers_in(log: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    """Queue, primary and count of every line that tells of messages of others."""
    lines = [each.getMessage() for each in log.records]
    found = [
        re.match(r"strangers-left queue=(\S+) primary=(\S+) count=(\d+):", each) for each in lines
    ]
    return [
        (each[1], each[2].replace("unknown", ""), int(each[3]))
        for each in found
        if each is not None
    ]


async def pair_of(flavour: str, place: Place, text: str, **options: Any) -> Pair:
    secondary = place.secondary.connection_string
    made = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary, 2, **options)
    return await pair_servers(flavour, text, made)


@pytest.mark.asyncio
async def test_each_message_comes_home_to_its_own(place: Place, flavour: str) -> None:
    """Both syphons run while both are failed over."""
    pairs = [await pair_of(flavour, place, text, enable_syphon=True) for text in place.texts]
    try:
        for pair in pairs:
            pair.sdk.force_failover("orders")
        for which, pair in enumerate(pairs):
            async with pair.sender("orders") as sender:
                for number in range(10):
                    await sender.send_messages(ServiceBusMessage(f"{which}/{number}"))
        for which, server in enumerate((place.one, place.two)):
            arrived = await asyncio.to_thread(take, server, "orders", 10)
            assert sorted(texts(arrived)) == sorted(f"{which}/{n}" for n in range(10))
            assert all(not message.application_properties for message in arrived)
        for pair, name in zip(pairs, place.names, strict=True):
            assert pair.seen(StrangersLeft) == []
            assert list(pair.sdk.status().backlog_queues) == [
                f"{name}/x-servicebus-transfer/{index}" for index in range(2)
            ]
    finally:
        for pair in pairs:
            await pair.close()


@pytest.mark.asyncio
async def test_ports_tell_primaries_of_one_host_apart(place: Place, flavour: str) -> None:
    texts_of = [at("bus.dc1.test", server) for server in (place.one, place.two)]
    for text in texts_of:
        await (await pair_of(flavour, place, text)).close()
    assert sorted(place.queues()) == sorted(
        f"bus.dc1.test-{server.port}/x-servicebus-transfer/{index}"
        for server in (place.one, place.two)
        for index in range(2)
    )


@pytest.mark.asyncio
async def test_every_message_says_whose_it_is(place: Place, flavour: str) -> None:
    """Also with a name that was given."""
    for text, options, mark in (
        (place.texts[0], {}, place.names[0]),
        (place.one.connection_string, {}, f"127.0.0.1-{place.one.port}"),
        (place.one.connection_string, {"primary_name": "shop"}, "shop"),
    ):
        pair = await pair_of(flavour, place, text, **options)
        pair.sdk.force_failover("orders")
        async with pair.sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("?"))
        await pair.close()
        found = [
            message
            for index in range(2)
            for message in take(place.secondary, f"{mark}/x-servicebus-transfer/{index}")
        ]
        assert [message.application_properties[b"x-twinbus-primary"] for message in found] == [
            mark.encode()
        ]


@pytest.mark.asyncio
async def test_an_old_queue_that_primaries_share(
    place: Place, flavour: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each syphon takes what is its own; what says nothing waits until somebody says whose."""
    old = "bus/x-servicebus-transfer/0"
    place.secondary.create_queue(old, lock_duration="PT5S", max_delivery_count=3)
    one, two = place.names
    place.put(
        old,
        *(waiting(f"two/{n}", two) for n in range(3)),
        *(waiting(f"?/{n}", None) for n in range(4)),
        *(waiting(f"one/{n}", one) for n in range(5)),
    )
    pair = await pair_of(flavour, place, place.texts[0], enable_syphon=True)
    try:
        assert sorted(texts(await asyncio.to_thread(take, place.one, "orders", 5))) == [
            f"one/{n}" for n in range(5)
        ]
        await until(lambda: pair.backlog_queue(old).strangers == 7, "others are not counted")
        assert strangers_in(caplog) == [(old, two, 3), (old, "", 4)]
        assert pair.sdk.status().backlog_queues[old].moved == 5
    finally:
        await pair.close()
    assert place.waiting(old) == 7
    pair = await pair_of(flavour, place, place.texts[1], enable_syphon=True, adopt_unmarked=True)
    try:
        arrived = await asyncio.to_thread(take, place.two, "orders", 7)
        assert sorted(texts(arrived)) == sorted(
            [*(f"?/{n}" for n in range(4)), *(f"two/{n}" for n in range(3))]
        )
        await until(lambda: place.waiting(old) == 0, "something is left")
    finally:
        await pair.close()
    properties = place.secondary.admin.get_queue(old).properties
    assert properties["DeadLetterMessageCount"] == "0"


@pytest.mark.asyncio
async def test_damage_is_dead_lettered_only_where_it_is_ones_own(
    place: Place, flavour: str
) -> None:
    old, own = "bus/x-servicebus-transfer/0", f"{place.names[0]}/x-servicebus-transfer/0"
    strangers = waiting("?", place.names[1])
    foreign = ServiceBusMessage("of nobody").raw_amqp_message
    unreadable = waiting("?", None)
    assert strangers.application_properties is not None
    assert unreadable.application_properties is not None
    strangers.application_properties["x-ms-sessionid"] = 7
    unreadable.application_properties["x-twinbus-primary"] = 7
    for queue in (old, own):
        place.secondary.create_queue(queue)
        place.put(queue, strangers, foreign, unreadable, waiting("ours", place.names[0]))
    pair = await pair_of(flavour, place, place.texts[0], enable_syphon=True)
    try:
        assert texts(await asyncio.to_thread(take, place.one, "orders", 2)) == ["ours", "ours"]
        await until(lambda: pair.backlog_queue(old).strangers == 3, "others are not counted")
        await until(lambda: pair.backlog_queue(own).strangers == 1, "others are not counted")
    finally:
        await pair.close()
    reasons = [
        message.dead_letter_reason for message in take(place.secondary, own, sub_queue="deadletter")
    ]
    assert sorted(reasons) == ["DamagedBacklogMessage", "NoDestinationPath"]
    assert (place.waiting(own), place.waiting(old)) == (1, 3)


@pytest.mark.asyncio
async def test_a_namespace_is_not_paired_with_itself(place: Place, flavour: str) -> None:
    """By whatever name."""
    text = at("localhost", place.secondary)
    with pytest.raises(ValueError, match="paired with itself"):
        await pair_of(flavour, place, text)
    assert place.queues() == []


# --- the command line -----------------------------------------------------------------------------


def drain(place: Place, which: int, *given: str, action: str = "drain") -> int:
    pair = ["--primary", place.texts[which], "--secondary", place.secondary.connection_string]
    return main(["pair", action, *pair, *given])


@pytest.mark.feature("pairing.cli")
def test_drain(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is this primary's; it says what to do about the rest."""
    old = "bus/x-servicebus-transfer/0"
    place.secondary.create_queue(old)
    one, two = place.names
    place.put(old, waiting("ours", one), waiting("theirs", two), waiting("?", None))
    assert drain(place, 0, action="status") == 0
    assert f"not this primary's: {two} (1), (unmarked) (1)" in capsys.readouterr().out
    assert drain(place, 0) == 3
    said = capsys.readouterr()
    assert "moved 1, dead-lettered 0, left 2" in said.out
    assert said.err.count(f"1 messages of {two} are left: they belong to another primary") == 1
    assert said.err.count("1 messages without a mark are left") == 1
    assert "run `twinbus pair drain --adopt-unmarked`" in said.err
    assert drain(place, 0, "--adopt-unmarked") == 3
    assert drain(place, 1) == 0
    assert sorted(texts(take(place.one, "orders"))) == ["?", "ours"]
    assert texts(take(place.two, "orders")) == ["theirs"]


@pytest.mark.feature("pairing.cli")
def test_a_primary_that_has_changed_its_name(place: Place) -> None:
    """Its backlog goes by the old name, until somebody says that this is the same."""
    secondary = place.secondary.connection_string
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(secondary, 1)
    with (
        pair_namespace(at("old.test", place.one), options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        pair.force_failover("orders")
        sender.send_messages(ServiceBusMessage("from before"))
    assert drain(place, 0) == 1, "there is no backlog of this name"
    assert drain(place, 0, "--primary-name", f"old.test-{place.one.port}") == 0
    assert texts(take(place.one, "orders")) == ["from before"]


@pytest.mark.feature("pairing.cli")
def test_drain_into_the_secondary(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    text = place.secondary.connection_string
    arguments = ["pair", "drain", "--primary", at("localhost", place.secondary)]
    assert main([*arguments, "--secondary", text]) == 1
    assert "cannot be paired with itself" in capsys.readouterr().err
