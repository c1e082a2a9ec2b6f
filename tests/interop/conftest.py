"""Fixtures of the interop suite: one server a module, one queue a test, both SDK flavours."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.interop.sdk import Client, open_client
from twinbus.testing.server import ServerProcess

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "queue(**settings): what the test's queue is created with")


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


@pytest.fixture
def queue(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    """A fresh queue, named after the test and made as its `queue` marker says."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    marker = request.node.get_closest_marker("queue")
    server.create_queue(name, **(marker.kwargs if marker else {}))
    return name


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


@pytest_asyncio.fixture(loop_scope="module")
async def links(client: Client, queue: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The senders and receivers that a test asks for by name.

    Opened all at once, because the SDK takes half a second for each; they close with the client.
    """
    makers = {
        "sender": client.sender,
        "receiver": client.receiver,
        "dead_letters": client.dead_letter_receiver,
    }
    links = {name: make(queue) for name, make in makers.items() if name in request.fixturenames}
    await asyncio.gather(*(link.__aenter__() for link in links.values()))
    return links


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
