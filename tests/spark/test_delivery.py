"""The proof: source → sink loses nothing and sends nothing twice, whoever dies.

Drivers in processes of their own, with all their Spark, are killed with -9 at random moments and
started again from their checkpoints; a Python worker is killed; the bus is killed and comes back.
In the end every message is at its destination once, each session in its order, and the queues
that were read are empty.  `TWINBUS_TEST_SIZE=nightly` does more of it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.spark.delivery_driver import FLOWS
from twinbus.message.plain import decode_message
from twinbus.pipeline.bus import pool
from twinbus.pipeline.sink.options import SinkOptions
from twinbus.pipeline.sink.writers import SinkTask
from twinbus.testing.server import ServerProcess

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("delivery_driver.py")
NIGHTLY = os.environ.get("TWINBUS_TEST_SIZE") == "nightly"
MESSAGES = 100_000 if NIGHTLY else 6_000
SESSIONS = 50
SEED = 20_261_116
DRIVER_KILLS = 8 if NIGHTLY else 2
WORKER_KILLS = 5 if NIGHTLY else 1
BUS_KILLS = 4 if NIGHTLY else 1
RUNS_MAX = 30
RUN_DURATION_S_MAX = 240.0

pytestmark = [
    pytest.mark.proves("D-1", "D-2"),
    pytest.mark.feature("pipeline.source", "pipeline.sink"),
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A bus with messages in both queues: one has partitions, and goes to one that has."""
    with ServerProcess(tmp_path_factory.mktemp("delivery") / "data") as bus:
        for partitioned, (source, (destination, _)) in enumerate(reversed(FLOWS.items())):
            for queue in (source, destination):
                bus.create_queue(
                    queue, enable_partitioning=bool(partitioned), requires_session=True
                )
            fill(bus, source)
        yield bus
        pool.close_all()
    assert "Traceback" not in bus.log, bus.log


def fill(bus: ServerProcess, queue: str) -> None:
    rows = range(MESSAGES)
    schema = StructType(
        [StructField("body", BinaryType()), StructField("session_id", StringType())]
    )
    batch = pa.record_batch(
        [
            pa.array([b"%08d" % row for row in rows], pa.binary()),
            pa.array([f"s{row * row % SESSIONS}" for row in rows]),
        ],
        names=schema.fieldNames(),
    )
    options = SinkOptions.parse({"connectionString": bus.connection_string, "entityPath": queue})
    SinkTask(options, schema, "fill", 0, 0).write(iter([batch]))


def count_of(bus: ServerProcess, queue: str) -> int:
    partitions = pool.bus_for(bus.connection_string).entity(queue).partitions
    return sum(partition.count for partition in partitions)


def moved(bus: ServerProcess) -> int:
    return sum(count_of(bus, destination) for destination, _ in FLOWS.values())


class Driver:
    """A driver under way."""

    def __init__(self, bus: ServerProcess, folder: Path) -> None:
        self._log = folder / "driver.log"
        places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), bus.connection_string, str(folder)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
            )
        self._end = time.monotonic() + RUN_DURATION_S_MAX

    @property
    def log(self) -> str:
        return self._log.read_text()

    def is_running(self) -> bool:
        assert time.monotonic() < self._end, f"the driver hangs:\n{self.log[-5_000:]}"
        return self._process.poll() is None

    def wait_for_more(self, bus: ServerProcess, count: int) -> bool:
        """Until so many messages have been moved; False if the driver ended before."""
        while moved(bus) < count:
            if not self.is_running():
                return False
            time.sleep(0.1)
        return self.is_running()

    def wait(self) -> int:
        while self.is_running():
            time.sleep(0.05)
        return self._process.wait()

    def kill(self) -> None:
        """The driver and its JVM; Python workers notice it, as they would on a real machine."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """One of the processes that run tasks, forked by their daemon; not one that plans."""
        while self.is_running():
            below = processes_below(self._process.pid)
            workers = [
                pid for pid, parent in below.items() if runs_tasks(pid) and runs_tasks(parent)
            ]
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
            except (IndexError, ProcessLookupError):  # none at this moment, or gone meanwhile
                time.sleep(0.05)
            else:
                return True
        return False


def runs_tasks(pid: int) -> bool:
    """Whether it is the daemon of the workers that run tasks, or one of them: they look alike."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:  # it has ended meanwhile
        return False
    return words[-2:] == ["pyspark.daemon", "pyspark.worker"]


def processes_below(pid: int) -> dict[int, int]:
    """All descendants of a process, and the parent of each."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found = {}
    for child, parent in parents.items():
        above = parent
        while above in parents and above != pid:
            above = parents[above]
        if above == pid:
            found[child] = parent
    return found


def judge(bus: ServerProcess, queue: str) -> None:
    """Every message once, each session in its order."""
    client = pool.bus_for(bus.connection_string)
    sessions: dict[str | None, list[int]] = defaultdict(list)
    for partition in client.entity(queue).partitions:
        for messages in client.browse(queue, partition.first, partition.next):
            for message in map(decode_message, messages):
                assert isinstance(message.body, bytes)
                sessions[message.properties.group_id].append(int(message.body))
    found = sorted(row for rows in sessions.values() for row in rows)
    lost = sorted(set(range(MESSAGES)) - set(found))
    assert not lost, f"{queue}: {len(lost)} lost, such as {lost[:5]}"
    assert len(found) == MESSAGES, f"{queue}: {len(found) - MESSAGES} are there twice"
    for name, rows in sessions.items():
        assert rows == sorted(rows), f"{queue}: session {name} is out of order"


@pytest.mark.proves("D-1", "D-2")
@pytest.mark.slow
@pytest.mark.timeout(2_400 if NIGHTLY else 600)
def test_nothing_is_lost_and_nothing_comes_twice(stage: ServerProcess, tmp_path: Path) -> None:
    """Kill -9 of the driver, of a Python worker and of the bus."""
    chance = random.Random(SEED)
    kinds = ["driver"] * DRIVER_KILLS + ["worker"] * WORKER_KILLS + ["bus"] * BUS_KILLS
    # How much has been moved when each of them falls; the last batches are left alone.
    blows = sorted(((chance.randrange(int(1.4 * MESSAGES)), kind) for kind in kinds), reverse=True)
    runs = 0
    is_done = False
    while not is_done:
        runs += 1
        assert runs <= RUNS_MAX
        driver = Driver(stage, tmp_path)
        first = moved(stage) + 1  # each run gets something done: starting is the dull part
        try:
            while blows and driver.wait_for_more(stage, max(first, blows[-1][0])):
                kind = blows[-1][1]
                if kind == "worker" and not driver.kill_worker(chance):
                    continue  # the driver has just ended: in the next run
                blows.pop()
                if kind == "driver":
                    driver.kill()
                    break
                if kind == "bus":
                    stage.kill()
                    stage.restart()
            else:
                is_done = driver.wait() == 0
        finally:
            if driver.is_running():
                driver.kill()
    assert not blows, f"all was moved before {blows} could fall"
    for source, (destination, _) in FLOWS.items():
        judge(stage, destination)
        assert count_of(stage, source) == 0, driver.log[-3_000:]
