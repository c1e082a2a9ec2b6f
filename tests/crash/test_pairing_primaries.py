"""Two primaries with one secondary, and everything is killed: each gets its own, nobody else's.

The secondary has two brokers and three stores.  In the backlog queues of each primary some messages
of the other one wait, too, as a mistaken tool might put them there.  Syphons (`twinbus pair
syphon`) and the secondary are killed while they work, again and again.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.interop.pairs import take, texts
from twinbus.pairing import SendAvailabilityPairedNamespaceOptions, pair_namespace
from twinbus.pairing.rewriting import rewrite
from twinbus.testing.server import ServerProcess

pytestmark = [
    pytest.mark.feature("pairing.backlog", "pairing.syphon"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COUNT: Final = 150  # messages of each primary
STRANGERS: Final = 15  # of the other one, between them
QUEUES: Final = 2
ROUNDS: Final = 4
WAIT_S_MAX: Final = 90.0


@dataclass
class Place:
    primaries: list[ServerProcess]
    secondary: ServerProcess
    log: Path
    syphons: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def mark(self, which: int) -> str:
        return f"127.0.0.1-{self.primaries[which].port}"

    def queues(self, which: int) -> list[str]:
        return [f"{self.mark(which)}/x-servicebus-transfer/{index}" for index in range(QUEUES)]

    def counts(self, name: str) -> list[int]:
        """Of all backlog queues."""
        queues = [queue for which in range(2) for queue in self.queues(which)]
        return [int(self.secondary.admin.get_queue(each).properties[name]) for each in queues]

    def start_syphons(self) -> None:
        for primary in self.primaries:
            command = [sys.executable, "-m", "twinbus", "pair", "syphon"]
            command += ["--primary", primary.connection_string]
            command += ["--secondary", self.secondary.connection_string]
            with self.log.open("a") as log:
                self.syphons.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill_syphons(self) -> None:
        for process in self.syphons:
            process.kill()
            process.wait()
        self.syphons.clear()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as opened:
        primaries = [opened.enter_context(ServerProcess(tmp_path / name)) for name in ("1", "2")]
        arguments = ["--brokers", "2"]
        for name in ("a", "b", "c"):
            arguments += ["--store", str(tmp_path / name)]
        secondary = ServerProcess(tmp_path / "s", arguments=arguments, own_group=True)
        opened.enter_context(secondary)
        place = Place(primaries, secondary, tmp_path / "syphons.log")
        opened.callback(place.kill_syphons)
        for which, primary in enumerate(primaries):
            primary.create_queue("orders")
            for queue in place.queues(which):
                # The shortest lock there is: what a killed syphon held comes back soon.
                secondary.create_queue(queue, lock_duration="PT5S", max_delivery_count=10_000)
        yield place


def fill(place: Place, which: int) -> None:
    """Own messages, which carry the primary's id; between them some that are the other one's."""
    primary, queues = place.primaries[which], place.queues(which)
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        place.secondary.connection_string, QUEUES
    )
    with (
        pair_namespace(primary.connection_string, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage(f"{which}/direct"))
        pair.force_failover("orders")
        for number in range(COUNT):
            sender.send_messages(ServiceBusMessage(f"{which}/{number}"))
            if number % (COUNT // STRANGERS) == 0:
                put_stranger(place, queues[number % QUEUES], 1 - which)


def put_stranger(place: Place, queue: str, whose: int) -> None:
    original = ServiceBusMessage(f"{whose}/astray").raw_amqp_message
    text = place.secondary.connection_string
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(rewrite(original, "orders", None, place.mark(whose)))


def until(condition: Callable[[], bool], why: str) -> None:
    end_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end_s, f"in vain: {why}"
        time.sleep(0.1)


def waiting(place: Place) -> int:
    return sum(place.counts("ActiveMessageCount"))


@pytest.mark.proves("P-19")
def test_each_gets_its_own_through_kills(place: Place) -> None:
    for which in range(2):
        fill(place, which)
    astray = waiting(place) - 2 * COUNT
    assert astray > 0
    for number in range(ROUNDS):
        place.start_syphons()
        before = waiting(place)
        until(lambda: waiting(place) < max(before, astray + 1), "nothing moves")  # noqa: B023
        if number % 2:
            place.secondary.kill()
            place.kill_syphons()
            place.secondary.restart()
        else:
            place.kill_syphons()
    place.start_syphons()
    until(lambda: waiting(place) == astray, "something is left")
    place.kill_syphons()
    for which, primary in enumerate(place.primaries):
        expected = [f"{which}/direct", *(f"{which}/{number}" for number in range(COUNT))]
        assert sorted(texts(take(primary, "orders"))) == sorted(expected)
    assert not any(place.counts("DeadLetterMessageCount"))
    told = place.log.read_text()
    for which in range(2):
        assert f"messages of {place.mark(which)} are left" in told
    assert "Traceback" not in told
