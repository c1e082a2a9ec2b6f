"""The outage drill at size: a large backlog goes home although everything is killed in turn.

The driver of the Spark syphon, its Python workers and both namespaces die by `kill -9` in the
middle of it, and at the end an in-process syphon works beside it.  Then the Spark reconciliation
judges: each message is there once, sessions are in order, the backlog is empty.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from tests.crash.crashing import sized
from tests.crash.pairing_bus import NEWS, ORDERS, PARTS, PLACES, VISITS
from tests.spark.syphon_stage import DRILL, PAIR, Stage, create_entities
from twinbus.cli.main import main
from twinbus.pairing.rewriting import rewrite
from twinbus.pipeline.bus import open_bus
from twinbus.testing.server import ServerProcess

COUNT = sized(20_000, nightly=1_000_000)
PAIRED_COUNT = sized(200, nightly=5_000)  # of these, by the SDK through a pair that has failed over
QUEUES = 3
SESSIONS = 20
END_S_MAX = sized(240, nightly=3_600)
CHUNK_COUNT = 5_000
# What stands for a message's number in a template; as long as every number that is put there.
HOLE = "0000000"

pytestmark = [pytest.mark.proves("D-2"), pytest.mark.feature("pipeline.syphon")]


@pytest.fixture(scope="module")
def secondary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("secondary") / "data") as process:
        yield process


class Kind:
    """Messages that differ by a number only, encoded as the SDK sends them to a backlog queue."""

    def __init__(self, path: str, name: str, message: ServiceBusMessage) -> None:
        self.path = path
        self.name = name
        waiting = rewrite(message.raw_amqp_message, path, f"drill-{name}/{HOLE}")
        outgoing = PyamqpTransport.to_outgoing_amqp_message(waiting)
        self._template = bytes(encode_payload(bytearray(), outgoing))

    def encoded(self, number: int) -> bytes:
        return self._template.replace(HOLE.encode(), f"{number:07}".encode())


def kinds() -> list[Kind]:
    def message(name: str, **given: object) -> ServiceBusMessage:
        properties: dict[str | bytes, object] = {"kind": name, "number": 5}
        return ServiceBusMessage(
            b"b" * 1_024,
            message_id=f"{DRILL}{name}-{HOLE}",
            application_properties=properties,  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )

    found = [
        Kind(ORDERS, "plain", message("plain")),
        Kind(ORDERS, "keyed", message("keyed", partition_key="k")),
        Kind(PARTS, "free", message("free")),
        Kind(PARTS, "part", message("part", partition_key="p")),
        Kind(NEWS, "news", message("news", subject="news")),
    ]
    sessions = [f"s{number}" for number in range(SESSIONS)]
    return found + [Kind(VISITS, name, message(name, session_id=name)) for name in sessions]


def fill(stage: Stage, count: int, ledger: Path) -> None:
    """Into the backlog, and into a ledger: a line for each place where a message is to arrive."""
    stage.fill(PAIRED_COUNT, (ORDERS, VISITS))
    bus = open_bus(stage.secondary.connection_string)
    queues = stage.backlog
    batches: dict[str, list[bytes]] = {queue: [] for queue in queues}
    all_kinds = kinds()
    with ledger.open("w") as lines:
        for number in range(1, count - PAIRED_COUNT + 1):
            kind = all_kinds[number % len(all_kinds)]
            # Sessions keep their order within a backlog queue.
            queue = queues[number % len(all_kinds) % QUEUES]
            batches[queue].append(kind.encoded(number))
            for place in PLACES[kind.path]:
                line = {"message_id": f"{DRILL}{kind.name}-{number:07}", "entity": place}
                if kind.path == VISITS:
                    line["session_id"] = kind.name
                lines.write(json.dumps({**line, "number": number}) + "\n")
            if len(batches[queue]) == CHUNK_COUNT:
                bus.send(queue, batches[queue])
                batches[queue] = []
    for queue, left in batches.items():
        bus.send(queue, left)
    bus.close()


def reconciled(
    ledger: Path, primary: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What `twinbus pipeline reconcile` says; what came by the pair is in no ledger of ours."""
    arguments = ["--sent", str(ledger), "--match-entity", "--allow", "unexpected", "--json"]
    for places in PLACES.values():
        for place in places:
            arguments += ["--arrived", f"entity:{place}"]
    arguments += ["--arrived-connection-string", primary.connection_string]
    capsys.readouterr()
    code = main(["pipeline", "reconcile", *arguments])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0, told
    return told


class Driver:
    """`twinbus pipeline syphon --once` in a process group of its own."""

    def __init__(self, stage: Stage, directory: Path, *command: str) -> None:
        self._log = directory / f"driver-{time.monotonic_ns()}.log"
        arguments = ["--primary", stage.primary.connection_string]
        arguments += ["--secondary", stage.secondary.connection_string, "--primary-name", PAIR]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "twinbus", *command, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def workers(self) -> list[int]:
        """Python processes of Spark's that do the work, by their parent."""
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [int(entry.name) for entry in entries if self._is_worker(entry)]

    def _is_worker(self, entry: Path) -> bool:
        try:
            session = os.getsid(int(entry.name))
            return (
                session == self.process.pid
                and b"pyspark.daemon" in (entry / "cmdline").read_bytes()
            )
        except OSError:
            return False  # gone meanwhile

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def wait(self) -> int:
        try:
            return self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self.log) from None

    @property
    def log(self) -> str:
        return self._log.read_text()


def reaches(stage: Stage, driver: Driver, left: int) -> None:
    """Wait until no more than so many messages wait; the driver must be alive all the time."""
    end_s = time.monotonic() + END_S_MAX
    while stage.waiting() > left:
        assert driver.process.poll() is None, driver.log
        assert time.monotonic() < end_s, driver.log
        time.sleep(0.1)


def settled(stage: Stage) -> int:
    """How many wait when workers that have outlived their driver have noticed that."""
    left = stage.waiting()
    while True:
        time.sleep(1)
        before, left = left, stage.waiting()
        if left == before:
            return left


@pytest.mark.proves("P-15", "D-2", "D-4")
def test_everything_is_killed_in_turn(
    bus: ServerProcess,
    secondary: ServerProcess,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0 lost, 0 duplicated, in order."""
    create_entities(bus)
    stage = Stage(bus, secondary, QUEUES)
    fill(stage, COUNT, tmp_path / "sent.jsonl")
    assert stage.waiting() == COUNT
    syphon = ["pipeline", "syphon", "--once", "--json", "--master", "local[2,4]"]
    syphon += ["--checkpoint", str(tmp_path / "checkpoint"), "--max-per-task", str(COUNT // 40)]

    def start(*command: str) -> Driver:
        driver = Driver(stage, tmp_path, *command)
        request.addfinalizer(_ended(driver))
        return driver

    driver = start(*syphon)
    reaches(stage, driver, COUNT * 9 // 10)
    for worker in driver.workers():
        os.kill(worker, signal.SIGKILL)
    reaches(stage, driver, COUNT * 8 // 10)
    driver.kill()
    left = settled(stage)
    assert left > 0

    driver = start(*syphon)
    reaches(stage, driver, left - 1)
    for server in (bus, secondary):
        server.kill()
        server.restart()
    beside = start("pair", "drain")
    assert driver.wait() == 0, driver.log
    assert beside.wait() == 0, beside.log
    assert stage.waiting() == 0

    told = reconciled(tmp_path / "sent.jsonl", bus, capsys)["total"]
    assert told["sent"] > COUNT - PAIRED_COUNT, "news is for two subscriptions"
    assert (told["lost"], told["duplicated"], told["out_of_order"]) == (0, 0, 0)
    assert told["unexpected"] == PAIRED_COUNT
    assert stage.broken_promises() == {}


def _ended(driver: Driver) -> Callable[[], None]:
    def end() -> None:
        if driver.process.poll() is None:
            driver.kill()

    return end
