"""Two real servers and what lies between: the primary behind a bad network, the secondary, syphons.

    Bus            the primary with entities of every kind, the secondary with backlog queues
    SyphonProcess  a syphon in a process of its own (pairing_syphon_process.py), to be killed

`Bus.options` makes the options of a pair, for either flavour.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.interop.administration import connect
from twinbus.certificates import ca_certificate
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection import BusConnection
from twinbus.client.faults import FaultClient
from twinbus.client.links import Received
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.testing.proxy import BadNetwork
from twinbus.testing.server import ServerProcess

PRIMARY_NAME: Final = "shop"
BACKLOG_QUEUE_COUNT: Final = 5
LOCK_DURATION: Final = "PT5S"  # the shortest there is: what a killed syphon held comes back soon
POLL_S: Final = 0.1
QUIET_S: Final = 0.3  # a queue from which nothing comes for so long has nothing
NOWHERE: Final = 1  # a port that nobody listens on

ORDERS: Final = "orders"
PARTS: Final = "parts"  # partitioned
NEWS: Final = "news"  # a topic
VISITS: Final = "visits"  # with sessions
READERS: Final = ("reader-a", "reader-b")
ENTITIES: Final = (ORDERS, PARTS, NEWS, VISITS)
PLACES: Final = {
    ORDERS: (ORDERS,),
    PARTS: (PARTS,),
    NEWS: tuple(f"{NEWS}/Subscriptions/{reader}" for reader in READERS),
    VISITS: (VISITS,),
}


async def until(condition: Callable[[], bool], duration_s_max: float) -> bool:
    """Wait for something that comes by itself; whether it has.  Asks in a thread."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + duration_s_max
    while not (fulfilled := await asyncio.to_thread(condition)):
        if loop.time() > deadline:
            break
        await asyncio.sleep(POLL_S)
    return fulfilled


def transfer_queue(primary_name: str, index: int) -> str:
    """The path of a backlog queue."""
    return f"{primary_name}/x-servicebus-transfer/{index}"


def backlog_queue(index: int) -> str:
    return transfer_queue(PRIMARY_NAME, index)


class Bus:
    """The two namespaces of a pair."""

    def __init__(self, directory: Path, backlog_queue_count: int = BACKLOG_QUEUE_COUNT) -> None:
        directory.mkdir(exist_ok=True)
        self.primary = ServerProcess(directory / "primary")
        self.secondary = ServerProcess(directory / "secondary")
        self.backlog_queue_count = backlog_queue_count
        self.network = BadNetwork(0)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(
                asyncio.to_thread(self.primary.start), asyncio.to_thread(self.secondary.start)
            )
            await asyncio.to_thread(self._create_entities)
        except BaseException:
            self.kill()
            raise
        self.network.target_port = self.primary.port
        await self.network.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.network.__aexit__(kind, error, trace)
        if kind is not None:  # the reason must not be covered by ours
            self.kill()
            return
        for server in (self.primary, self.secondary):
            await asyncio.to_thread(server.stop)
            assert "Traceback" not in server.log, server.log

    def kill(self) -> None:
        for server in (self.primary, self.secondary):
            if server.running:
                server.kill()

    def _create_entities(self) -> None:
        # Running out of deliveries is not what is tested.
        plain: dict[str, str | int] = {"lock_duration": LOCK_DURATION, "max_delivery_count": 10_000}
        self.primary.create_queue(ORDERS, **plain)
        self.primary.create_queue(PARTS, enable_partitioning=True, **plain)
        self.primary.create_queue(VISITS, requires_session=True, **plain)
        admin = self.primary.admin
        admin.create(TOPIC, (NEWS,), {})
        for reader in READERS:
            settings = {"LockDuration": LOCK_DURATION, "MaxDeliveryCount": "10000"}
            admin.create(SUBSCRIPTION, (NEWS, reader), settings)
        for index in range(self.backlog_queue_count):
            self.create_backlog_queue(index)  # P-5: they are used as they are

    def create_backlog_queue(self, index: int) -> None:
        settings: dict[str, str | int] = {"lock_duration": LOCK_DURATION}
        self.secondary.create_queue(backlog_queue(index), max_delivery_count=10_000, **settings)

    # -- pairing -----------------------------------------------------------------------------------

    @property
    def through(self) -> str:
        """The primary's connection string, by way of the bad network."""
        text, port = self.primary.connection_string, self.primary.port
        return text.replace(f":{port};", f":{self.network.port};")

    def options(self, **given: Any) -> SendAvailabilityPairedNamespaceOptions:
        """Of a pair that decides fast; the clients' own retries stay as they are."""
        given = {"ping_primary_interval": 1, "primary_name": PRIMARY_NAME, **given}
        return SendAvailabilityPairedNamespaceOptions.from_connection_string(
            self.secondary.connection_string,
            given.pop("backlog_queue_count", self.backlog_queue_count),
            manager_options={"connection_verify": str(ca_certificate(self.secondary.data_dir))},
            **given,
        )

    # -- what is in there --------------------------------------------------------------------------

    @property
    def primary_faults(self) -> FaultClient:
        return FaultClient(self.primary.connection_string)

    @property
    def secondary_faults(self) -> FaultClient:
        return FaultClient(self.secondary.connection_string)

    def waiting(self) -> dict[str, int]:
        """How many messages are where, dead-lettered and scheduled ones too; none where none."""
        found = {queue: _count(self.primary, queue) for queue in (ORDERS, PARTS, VISITS)}
        admin = self.primary.admin
        for place, reader in zip(PLACES[NEWS], READERS, strict=True):
            entry = admin.get(SUBSCRIPTION, (NEWS, reader))
            found[place] = int(entry.properties["MessageCount"])
        with connect(self.primary) as sdk:  # what a topic has scheduled is in no subscription yet
            found[NEWS] = sdk.get_topic_runtime_properties(NEWS).scheduled_message_count or 0
        for index in range(self.backlog_queue_count):
            found[backlog_queue(index)] = self.backlog_count(index)
        return {place: count for place, count in found.items() if count}

    def backlog_count(self, index: int) -> int:
        return _count(self.secondary, backlog_queue(index))


async def take(server: ServerProcess, queue: str) -> list[Received]:
    """Everything that is in a queue, in order, taken out of it."""
    taken: list[Received] = []
    async with await BusConnection.open(server.connection_string) as connection:
        receiver = await connection.open_receiver(queue)
        while (received := await receiver.receive(QUIET_S)) is not None:
            await receiver.complete(received)
            taken.append(received)
    return taken


def _count(server: ServerProcess, queue: str) -> int:
    return int(server.admin.get_queue(queue).properties["MessageCount"])


class SyphonProcess:
    """A syphon for a pair, in a process of its own."""

    def __init__(self, bus: Bus, log: Path, flavour: str = "sync", **options: Any) -> None:
        self._command = [sys.executable, "-m", "tests.crash.pairing_syphon_process", flavour]
        self._command += [bus.through, bus.secondary.connection_string]
        name = options.pop("primary_name", PRIMARY_NAME)
        count = options.pop("backlog_queue_count", bus.backlog_queue_count)
        self._command += [str(ca_certificate(bus.secondary.data_dir)), name, str(count)]
        self._command += [repr(options)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it; over when it is at work."""
        process = self._launch()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", f"{line!r} {self._log.read_text()}"

    def run_until_it_dies(self) -> int:
        """For one that is told to: its exit code, negative for a signal."""
        self._launch().wait(60)
        return self._end(None)

    def _launch(self) -> "subprocess.Popen[str]":
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # it ends when nobody holds the other end
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self._process

    def kill(self) -> None:
        """No last words: what it holds stays locked."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        code = self._end(None)
        assert code == 0, f"exit code {code}: {self._log.read_text()}"

    def _end(self, number: signal.Signals | None) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        if number is not None:
            process.send_signal(number)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            return process.wait(60)
        finally:
            process.kill()
            process.stdout.close()
