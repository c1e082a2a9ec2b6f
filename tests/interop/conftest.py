"""Fixtures of the interop suite: one server a module, one queue a test, both SDK flavours."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.interop.sdk import Client, open_client

from twinbus.testing.server import ServerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "queue(**settings): what the test's queue is created with")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; it must end cleanly and have met no surprise."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process
    assert "Traceback" not in process.log, process.log


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


@pytest_asyncio.fixture
async def new_client(server: ServerProcess, flavour: str) -> AsyncIterator[Callable[..., Client]]:
    """Makes clients, by the server's own connection string if no other is given."""
    async with AsyncExitStack() as clients:

        def make(connection_string: str = server.connection_string, **options: Any) -> Client:
            client = open_client(flavour, connection_string, **options)
            clients.push_async_callback(client.close)
            return client

        yield make


@pytest.fixture
def client(new_client: Callable[..., Client]) -> Client:
    return new_client()


@pytest.fixture
def sender(client: Client, queue: str) -> Any:
    """A sender to the test's queue; the SDK connects on first use."""
    return client.sender(queue)


@pytest.fixture
def receiver(client: Client, queue: str) -> Any:
    """A peek-lock receiver without prefetch on the test's queue."""
    return client.receiver(queue)


@pytest.fixture
def dead_letters(client: Client, queue: str) -> Any:
    """A receiver on the dead-letter queue of the test's queue."""
    return client.dead_letter_receiver(queue)
