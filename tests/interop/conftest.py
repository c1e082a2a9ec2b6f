"""Fixtures of the interop suite: one server a module, one queue a test, both SDK flavours."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.interop.sdk import Client, open_client
from twinbus.testing.server import ServerProcess

HERE = Path(__file__).parent
LINKS: Final = {
    "sender": Client.sender,
    "receiver": Client.receiver,
    "other": Client.receiver,
    "dead_letters": Client.dead_letter_receiver,
}


@dataclass
class Place:
    """Where a test takes place: its queue, and the links that it asks for by name, open."""

    queue: str
    links: dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK forgets to close its sockets when a link is refused or the server goes away.

    That is nothing a server could mend, so it is no failure here.
    """
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; it must end cleanly and have met no surprise."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process
    assert "Traceback" not in process.log, process.log
    gc.collect()  # what the SDK has left open is to be found here, where it is forgiven


def create_queue(server: ServerProcess, item: pytest.Item) -> str:
    """A fresh queue, named after the test and made as its `queue` marker says."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", item.name).strip("-")
    marker = item.get_closest_marker("queue")
    server.create_queue(name, **(marker.kwargs if marker else {}))
    return name


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a test's own pair, and of its queue: nobody else's backlog queues are touched."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_clients(server: ServerProcess) -> AsyncIterator[list[Client]]:
    """The clients of a module's tests, closed together: the SDK takes half a second for each."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(max_workers=64))
    clients: list[Client] = []
    yield clients
    assert server.running
    await asyncio.gather(*(client.close() for client in clients))


@pytest.fixture
def new_client(
    server: ServerProcess, flavour: str, open_clients: list[Client]
) -> Callable[..., Client]:
    """Makes clients, by the server's own connection string if no other is given."""

    def make(connection_string: str = server.connection_string, **options: Any) -> Client:
        open_clients.append(open_client(flavour, connection_string, **options))
        return open_clients[-1]

    return make


@pytest.fixture
def client(new_client: Callable[..., Client]) -> Client:
    return new_client()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places(
    server: ServerProcess, open_clients: list[Client], request: pytest.FixtureRequest
) -> dict[str, Place]:
    """What the tests of the module ask for, by their ids.

    Made for all of them at once: one after the other, the SDK takes half a second for each link.
    """

    async def make(item: pytest.Function) -> Place:
        queue = await asyncio.to_thread(create_queue, server, item)
        names = [name for name in LINKS if name in item.fixturenames]
        if not names:
            return Place(queue, {})
        client = open_client(str(item.callspec.params["flavour"]), server.connection_string)
        open_clients.append(client)
        links = {name: LINKS[name](client, queue) for name in names}
        await asyncio.gather(*(link.__aenter__() for link in links.values()))
        return Place(queue, links)

    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    items = [item for item in items if item.path == request.path and "place" in item.fixturenames]
    made = await asyncio.gather(*(make(item) for item in items))
    return {item.nodeid: place for item, place in zip(items, made, strict=True)}


@pytest.fixture
def place(places: dict[str, Place], request: pytest.FixtureRequest) -> Place:
    return places[request.node.nodeid]


@pytest.fixture
def queue(place: Place) -> str:
    """The name of the test's own queue."""
    return place.queue


@pytest.fixture
def links(place: Place, flavour: str) -> dict[str, Any]:
    """The open links of the test, which runs once with each flavour."""
    assert flavour
    return place.links


@pytest.fixture
def sender(links: dict[str, Any]) -> Any:
    """A sender to the test's queue."""
    return links["sender"]


@pytest.fixture
def receiver(links: dict[str, Any]) -> Any:
    """A peek-lock receiver without prefetch on the test's queue."""
    return links["receiver"]


@pytest.fixture
def dead_letters(links: dict[str, Any]) -> Any:
    """A receiver on the dead-letter queue of the test's queue."""
    return links["dead_letters"]


@pytest.fixture
def other(links: dict[str, Any]) -> Any:
    """Another receiver like the first."""
    return links["other"]
