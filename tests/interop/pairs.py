"""Two namespaces and a pair of them, for tests of pairing: real servers, either flavour.

    with run_servers(directory) as servers:            # .primary, .secondary: a process each
        async with open_pair("sync", servers, failover_interval=0) as pair:
            await pair.sender("orders").send_messages(ServiceBusMessage("one"))
            servers.primary.kill()

Tests speak the async flavour's language, as in sdk.py.  They wait for what `status()` or an event
says, never for a number of seconds.  A pair of a name of its own has backlog queues of its own, so
tests can share two servers.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusClient

import twinbus.pairing
import twinbus.pairing.aio
from tests.interop.sdk import Client, body
from twinbus.client import admin
from twinbus.client.faults import FaultClient
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.events import BacklogQueueStatus, EntityStatus, Event, State
from twinbus.testing.server import ServerProcess

WAIT_S_MAX: Final = 60.0  # what has not happened by then never will
LOCKED_S_MAX: Final = 5.0  # what can be seen and does not come is locked by somebody else
SUBSCRIPTION: Final = "all"


@dataclass
class Servers:
    """The two namespaces of a pair, a process each."""

    primary: ServerProcess
    secondary: ServerProcess

    @property
    def faults(self) -> FaultClient:
        """What can be done to the primary."""
        return FaultClient(self.primary.connection_string)

    @property
    def secondary_faults(self) -> FaultClient:
        return FaultClient(self.secondary.connection_string)

    def create_queue(self, name: str, **settings: str | int) -> str:
        """On the primary; `requires_session=True` for one of sessions."""
        self.primary.create_queue(name, **settings)
        return name

    def create_topic(self, name: str) -> str:
        """On the primary, with a subscription that takes everything."""
        self.primary.admin.create(admin.TOPIC, [name], {})
        self.primary.admin.create(admin.SUBSCRIPTION, [name, SUBSCRIPTION], {})
        return name

    def backlog(self, name: str) -> list[str]:
        """The backlog queues on the secondary for the pair of this name, in order."""
        queues = self.secondary.admin.list_queues()
        return sorted(each.name for each in queues if each.name.startswith(f"{name}/"))


@contextmanager
def run_servers(directory: Path, *, arguments: Iterable[str] = ()) -> Iterator[Servers]:
    """Both must end cleanly, if they still run, and have met no surprise."""
    given = list(arguments)
    with (
        ServerProcess(directory / "primary", arguments=given) as primary,
        ServerProcess(directory / "secondary", arguments=given) as secondary,
    ):
        yield Servers(primary, secondary)
    for server in (primary, secondary):
        assert "Traceback" not in server.log, server.log


@dataclass
class Pair(Client):
    """A paired client of either flavour; `sdk` is the paired client itself."""

    events: list[Event] = field(default_factory=list)

    def entity(self, name: str) -> EntityStatus:
        status: EntityStatus = self.sdk.status().entities[name]
        return status

    def state(self, name: str) -> State:
        return self.entity(name).state

    def backlog_queue(self, name: str) -> BacklogQueueStatus:
        status: BacklogQueueStatus = self.sdk.status().backlog_queues[name]
        return status

    def seen(self, kind: type[Any]) -> list[Any]:
        """The events of one kind that have come so far."""
        return [event for event in self.events if isinstance(event, kind)]

    async def reaches(self, name: str, state: State) -> None:
        await until(lambda: self.state(name) is state, f"{name} does not become {state.value}")

    async def sees(self, kind: type[Any]) -> Any:
        """Wait for the first event of a kind."""
        await until(lambda: self.seen(kind), f"no {kind.__name__}")
        return self.seen(kind)[0]


@asynccontextmanager
async def open_pair(
    flavour: str,
    servers: Servers,
    *,
    name: str = "primary",
    backlog_queue_count: int = 2,
    primary_options: dict[str, Any] | None = None,
    client_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """Pair the servers; without further options no send is tried again by the SDK itself."""
    once = {"retry_total": 0}
    pair = await pair_servers(
        flavour,
        primary_of(flavour, servers, **(once if primary_options is None else primary_options)),
        SendAvailabilityPairedNamespaceOptions.from_connection_string(
            servers.secondary.connection_string,
            backlog_queue_count,
            client_options=once if client_options is None else client_options,
            primary_name=name,
            **{"ping_primary_interval": 1, **options},
        ),
    )
    try:
        yield pair
    finally:
        await pair.close()


async def pair_servers(flavour: str, primary: Any, options: Any) -> Pair:
    sdk: Any
    if flavour == "sync":
        sdk = await asyncio.to_thread(twinbus.pairing.pair_namespace, primary, options)
    else:
        sdk = await twinbus.pairing.aio.pair_namespace(primary, options)
    pair = Pair(flavour, sdk)
    sdk.on_event(pair.events.append)
    return pair


def primary_of(flavour: str, servers: Servers, **options: Any) -> Any:
    return client_of(flavour, servers.primary.connection_string, **options)


def client_of(flavour: str, connection_string: str, **options: Any) -> Any:
    """The SDK's own client."""
    module = azure.servicebus if flavour == "sync" else azure.servicebus.aio
    return module.ServiceBusClient.from_connection_string(connection_string, **options)


async def until(condition: Callable[[], object], why: str) -> None:
    """Wait for something that comes by itself."""
    end_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end_s, f"in vain: {why}"
        await asyncio.sleep(0.02)


def take(server: ServerProcess, queue: str, count: int | None = None, **options: Any) -> list[Any]:
    """So many messages of a queue, or all that are there, received and completed."""
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue, **options) as receiver,
    ):
        messages: list[Any] = []
        while count is None or len(messages) < count:
            # Whether something is there is asked, not guessed from a silence: machines are slow.
            if count is None and not receiver.peek_messages():
                break
            more = receiver.receive_messages(
                100 if count is None else count - len(messages),
                max_wait_time=LOCKED_S_MAX if count is None else WAIT_S_MAX,
            )
            if not more and count is None:
                break
            assert more, f"{len(messages)} of {count} came"
            for message in more:
                receiver.complete_message(message)
            messages += more
    return messages


def take_subscription(server: ServerProcess, topic: str, count: int) -> list[Any]:
    return take(server, f"{topic}/Subscriptions/{SUBSCRIPTION}", count)


def take_session(server: ServerProcess, queue: str, session_id: str, count: int) -> list[Any]:
    return take(server, queue, count, session_id=session_id)


def texts(messages: Iterable[Any]) -> list[str]:
    return [body(message).decode() for message in messages]
