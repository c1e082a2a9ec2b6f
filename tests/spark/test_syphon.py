"""The syphon on Spark: a backlog of every kind goes home, whatever its destinations do."""

import datetime as dt
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus
from pyspark.sql import SparkSession

from tests.crash.pairing_bus import VISITS, transfer_queue
from tests.interop.administration import connect
from tests.interop.pairs import take
from tests.spark.syphon_stage import PAIR, Stage, create_entities, dead_letters
from twinbus.cli.main import main
from twinbus.client.meter import MeterClient
from twinbus.pairing.rewriting import rewrite
from twinbus.pipeline.jobs.syphon import SyphonSettings, Totals, start_syphon
from twinbus.testing.server import ServerProcess

COUNT = 400

pytestmark = [pytest.mark.proves("D-2"), pytest.mark.feature("pipeline.syphon")]


@pytest.fixture(scope="module")
def primary(bus: ServerProcess) -> ServerProcess:
    create_entities(bus)
    return bus


@pytest.fixture(scope="module")
def secondary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("secondary") / "data") as process:
        for index in range(2):  # P-5: a pair uses them as they are
            process.create_queue(transfer_queue(PAIR, index))
        yield process
    assert "Traceback" not in process.log, process.log


class Run:
    """A syphon that drains, and what it has told."""

    def __init__(self, spark: SparkSession, stage: Stage, directory: Path, **given: str) -> None:
        self.totals = Totals()
        self.rounds: list[list[Any]] = []
        settings = SyphonSettings(
            stage.source_options(**given),
            str(directory / "checkpoint"),
            is_once=True,
            ledger=str(directory / "ledger"),
        )
        self.query = start_syphon(spark, settings, self._take)

    def _take(self, rows: Any) -> None:
        self.rounds.append(list(rows))
        self.totals.add(rows)

    def wait(self) -> Totals:
        assert self.query.awaitTermination(120)
        return self.totals


def put(stage: Stage, queue: int, *messages: Any) -> None:
    """Into a backlog queue, by somebody who is no pair."""
    with (
        ServiceBusClient.from_connection_string(stage.secondary.connection_string) as client,
        client.get_queue_sender(stage.backlog[queue]) as sender,
    ):
        for message in messages:
            sender.send_messages(message)


def set_status(server: ServerProcess, queue: str, status: EntityStatus) -> None:
    with connect(server) as administration:
        found = administration.get_queue(queue)
        found.status = status
        administration.update_queue(found)


@pytest.mark.proves("P-11", "P-14", "D-2", "C-2")
def test_a_backlog_of_every_kind_goes_home(
    spark: SparkSession, primary: ServerProcess, secondary: ServerProcess, tmp_path: Path
) -> None:
    """Each once, unchanged, in order; what cannot be delivered says why."""
    stage = Stage(primary, secondary)
    stage.fill(COUNT)
    message = ServiceBusMessage("x").raw_amqp_message
    gone = [rewrite(message, "gone", f"gone/{number}") for number in range(1, 4)]
    refused = rewrite(ServiceBusMessage("no session").raw_amqp_message, VISITS, "refused/1")
    put(stage, 0, *gone, ServiceBusMessage("no path"), refused)
    damaged = ServiceBusMessage("d", application_properties={"x-ms-path": 5})
    put(stage, 1, damaged)
    before = [_metered(primary), _metered(secondary)]

    totals = Run(spark, stage, tmp_path).wait()

    after = [_metered(primary), _metered(secondary)]
    assert stage.broken_promises() == {}
    assert stage.waiting() == 0
    assert totals.moved_count == COUNT
    assert totals.dead_lettered == {
        ("gone", "DestinationNotFound"): 3,
        ("", "NoDestinationPath"): 1,
        (VISITS, "DestinationRefused"): 1,
        ("", "DamagedBacklogMessage"): 1,
    }
    first, second = (dead_letters(secondary, queue) for queue in stage.backlog)
    assert first == {"DestinationNotFound": 3, "NoDestinationPath": 1, "DestinationRefused": 1}
    assert second == {"DamagedBacklogMessage": 1}
    # C-2: a message costs a receive from the backlog and a send to the primary, as ever.
    assert after[0]["send"] - before[0]["send"] == COUNT
    assert after[1]["receive"] - before[1]["receive"] == COUNT + 6
    assert after[1]["management"] - before[1]["management"] < COUNT / 10
    kept = spark.read.parquet(str(tmp_path / "ledger")).groupBy("outcome").sum("count").collect()
    assert {row[0]: row[1] for row in kept} == {"moved": COUNT, "dead_lettered": 6}


@pytest.mark.proves("P-19", "D-2")
def test_messages_of_another_primary_are_left(
    spark: SparkSession, primary: ServerProcess, secondary: ServerProcess, tmp_path: Path
) -> None:
    """Also in the queue of this one; it says whose they are, and ends."""
    primary.create_queue("mine")
    stage = Stage(primary, secondary)
    plain = ServiceBusMessage("x").raw_amqp_message
    for mark, count in (("another", 3), (PAIR, 5)):
        put(stage, 0, *(rewrite(plain, "mine", f"{mark}/{n + 1}", mark) for n in range(count)))
    totals = Run(spark, stage, tmp_path, patience="5").wait()
    assert (totals.moved, totals.dead_letter_count) == ({"mine": 5}, 0)
    assert totals.left == {(stage.backlog[0], "belongs to another"): 3}
    assert len(take(primary, "mine")) == 5
    assert len(take(secondary, stage.backlog[0])) == 3  # other tests use this queue, too
    assert stage.waiting() == 0


@pytest.mark.proves("D-2")
def test_a_destination_that_is_down_for_a_while(
    spark: SparkSession, primary: ServerProcess, secondary: ServerProcess, tmp_path: Path
) -> None:
    """Others pass by, its messages are held, and come when it is back, in their order."""
    primary.create_queue("late", requires_session=True)
    stage = Stage(primary, secondary)
    text = secondary.connection_string
    messages = []
    for number in range(40):
        message = ServiceBusMessage(f"{number}", session_id="s").raw_amqp_message
        messages.append(rewrite(message, "late", f"late/{number + 1}"))
        plain = ServiceBusMessage(f"{number}", time_to_live=dt.timedelta(hours=1))
        messages.append(rewrite(plain.raw_amqp_message, "early", f"early/{number + 1}"))
    primary.create_queue("early")
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(stage.backlog[0]) as sender,
    ):
        sender.send_messages(messages)
    set_status(primary, "late", EntityStatus.SEND_DISABLED)
    run = Run(spark, stage, tmp_path)
    was_held = threading.Event()

    def mend() -> None:
        while not any(row["outcome"] == "held" for rows in run.rounds for row in rows):
            if was_held.wait(0.1):
                return
        set_status(primary, "late", EntityStatus.ACTIVE)

    mending = threading.Thread(target=mend)
    mending.start()
    try:
        totals = run.wait()
    finally:
        was_held.set()
        mending.join()
    assert totals.moved == {"early": 40, "late": 40}
    held = [row for rows in run.rounds for row in rows if row["outcome"] == "held"]
    assert held[0]["destination"] == "late"
    assert held[0]["count"] == 40
    assert held[0]["reason"].startswith("EntityDisabled: ")
    with (
        ServiceBusClient.from_connection_string(primary.connection_string) as client,
        client.get_queue_receiver("late", session_id="s") as receiver,
    ):
        found = receiver.receive_messages(40, max_wait_time=20)
        while len(found) < 40 and (more := receiver.receive_messages(40, max_wait_time=20)):
            found += more
    assert [str(each) for each in found] == [f"{number}" for number in range(40)]


@pytest.mark.proves("D-2")
def test_the_command_tells_by_its_exit_code(
    spark: SparkSession,
    primary: ServerProcess,
    secondary: ServerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1 when patience ends and something is left, 0 when a later run has brought it home.

    The later one reads the backlog as any Service Bus can be read.
    """
    primary.create_queue("stubborn")
    stage = Stage(primary, secondary)
    message = ServiceBusMessage("x").raw_amqp_message
    put(stage, 1, rewrite(message, "stubborn", "stubborn/1"))
    set_status(primary, "stubborn", EntityStatus.SEND_DISABLED)
    command = ["pipeline", "syphon", "--once", "--primary-name", PAIR]
    command += ["--primary", primary.connection_string, "--secondary", secondary.connection_string]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert main([*command, "--patience", "2s"]) == 3
    told = capsys.readouterr()
    assert told.out == "moved 0, dead-lettered 0, left 1\n"
    assert "stubborn does not accept its 1 now: EntityDisabled: " in told.err
    assert stage.waiting() == 1

    set_status(primary, "stubborn", EntityStatus.ACTIVE)
    assert main([*command, "--json", "--operations", "standard"]) == 0
    told = capsys.readouterr()
    outcome = {"moved": 1, "dead_lettered": 0, "left": 0, "destinations": {"stubborn": 1}}
    assert json.loads(told.out) == outcome
    assert stage.waiting() == 0
    assert spark.streams.active == []


def _metered(server: ServerProcess) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in MeterClient(server.connection_string).read():
        counts[line.kind] += line.operations
    return counts
