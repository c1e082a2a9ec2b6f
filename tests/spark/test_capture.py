"""Capture, compaction and replay; the official SDK at both ends, and a driver that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from pyspark.sql import SparkSession

from twinbus.cli.main import main
from twinbus.pipeline.jobs.capture import CaptureSettings, by_hour, start_capture
from twinbus.pipeline.jobs.compact import Compaction
from twinbus.pipeline.jobs.file_layout import HadoopFiles, LocalFiles, hour_folders, visible
from twinbus.pipeline.jobs.replay import Replay, ReplaySettings
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("D-3")

WAIT_S = 5
DEADLINE_S = 200


Cli = Callable[..., Any]


@pytest.fixture
def cli(
    spark: SparkSession,
    bus: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """A command in this process, in the session that is there; what it says as JSON."""
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", bus.connection_string)

    def run(*words: str) -> Any:
        code = main(["pipeline", *words, "--json", "--master", str(spark.sparkContext.master)])
        told = capsys.readouterr()
        assert code == 0, told.err
        return json.loads(told.out)

    return run


@pytest.fixture(scope="module")
def sdk(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        yield client


def send(sdk: ServiceBusClient, queue: str, messages: Sequence[ServiceBusMessage]) -> None:
    with sdk.get_queue_sender(queue) as sender:
        for at in range(0, len(messages), 500):
            sender.send_messages(messages[at : at + 500])


def receive(
    sdk: ServiceBusClient, queue: str, count: int, session: str | None = None
) -> list[ServiceBusReceivedMessage]:
    """So many messages, and no more that are there."""
    found: list[ServiceBusReceivedMessage] = []
    with sdk.get_queue_receiver(queue, session_id=session, max_wait_time=WAIT_S) as receiver:
        while len(found) < count:
            got = receiver.receive_messages(1_000, max_wait_time=WAIT_S)
            for message in got:
                receiver.complete_message(message)
            found += got
            if not got:
                break
        assert not receiver.peek_messages(1)
    return found


def capture(spark: SparkSession, bus: ServerProcess, to: Path, **source: str) -> None:
    options = {"connectionString": bus.connection_string, "includeAmqp": "true", **source}
    start_capture(spark, CaptureSettings(options, str(to), is_once=True)).awaitTermination()


def captured(directory: Path, column: str = "message_id") -> Counter[str]:
    """What a reader finds that is not Spark."""
    found = ds.dataset(directory, format="parquet", partitioning="hive")
    return Counter(found.to_table(columns=[column]).column(0).to_pylist())


@pytest.mark.proves("D-3")
@pytest.mark.feature("pipeline.capture")
def test_a_capture_whose_driver_is_killed_has_every_message_once(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, tmp_path: Path
) -> None:
    """Kill -9 in the middle, while the bus deletes what is captured: no gap, no copy."""
    bus.create_queue("watched")
    send(sdk, "watched", [ServiceBusMessage(b"x", message_id=f"m{n}") for n in range(400)])
    directory = tmp_path / "captured"
    command = [sys.executable, "-m", "twinbus", "pipeline", "capture", "--entity", "watched"]
    command += ["--to", str(directory), "--once", "--max-per-batch", "20", "--delete"]
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    command += ["--conf", f"spark.driver.extraJavaOptions={quick}", "--master", "local[2,4]"]
    environment = {**os.environ, "TWINBUS_CONNECTION_STRING": bus.connection_string}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not list(directory.glob("_capture/capture/done/[1-9]")):
                assert process.poll() is None, "the capture has ended too early"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)

    before = captured(directory)
    assert 0 < len(before) < 400
    assert set(before.values()) == {1}

    send(sdk, "watched", [ServiceBusMessage(b"x", message_id=f"m{n}") for n in range(400, 450)])
    capture(spark, bus, directory, entityPaths="watched", settle="delete")
    assert captured(directory) == Counter(f"m{n}" for n in range(450))
    capture(spark, bus, directory, entityPaths="watched", settle="delete")
    assert sum(captured(directory).values()) == 450
    with sdk.get_queue_receiver("watched") as receiver:
        assert not receiver.peek_messages(1), "captured is deleted, as was asked for"
    for folder in hour_folders(LocalFiles(), str(directory)):
        assert folder.startswith("entity=watched/date=20")


@pytest.mark.proves("D-3")
@pytest.mark.feature("pipeline.capture", "pipeline.replay")
def test_captured_compacted_and_replayed(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, cli: Cli, tmp_path: Path
) -> None:
    """What is received in the end is what was sent, in order, wherever it was meanwhile."""
    bus.create_queue("orders", requires_session=True)
    bus.create_queue("again", requires_session=True)
    directory = tmp_path / "captured"
    for part in range(2):
        messages = [
            ServiceBusMessage(
                f"body {n}".encode(),
                message_id=f"o{n}",
                session_id=f"s{n % 2}",
                subject="even" if n % 4 < 2 else "odd",
                time_to_live=timedelta(hours=3),
                application_properties={"number": n, "exact": 1.5, "flag": True},
            )
            for n in range(part * 40, part * 40 + 40)
        ]
        send(sdk, "orders", messages)
        capture(spark, bus, directory, entityPaths="orders")
    sent = Counter(f"o{n}" for n in range(80))
    assert captured(directory) == sent

    compaction = Compaction(spark, str(directory), 1)
    compaction.recover()
    assert compaction.plans(datetime.now(UTC) - timedelta(hours=2)) == []
    for plan in compaction.plans(datetime.now(UTC) + timedelta(days=1)):
        outcome = compaction.compact(plan)
        assert outcome is not None
        assert (outcome.files_before > outcome.files_after, outcome.files_after) == (True, 1)
    assert captured(directory) == sent
    assert cli("compact", str(directory)) == []

    where = "subject = 'even' AND application_properties['number'] < 80"
    words = ["--from", str(directory), "--map", "Orders=again", "--filter", where, "--id", "drill"]
    assert cli("replay", *words, "--dry-run")[0]["message_count"] == 40
    assert cli("replay", *words) == {"id": "drill", "sent": {"again": 40}, "left": 0}
    # As after a crash that came between sending and noting it: everything is sent once more.
    (directory / "_capture/replays/drill.json").unlink()
    assert cli("replay", *words)["sent"] == {"again": 40}
    assert cli("replay", *words)["sent"] == {}
    with pytest.raises(AssertionError, match="was another replay"):
        cli("replay", *words, "--to", "elsewhere")
    for session in range(2):
        wanted = [n for n in range(80) if n % 4 < 2 and n % 2 == session]
        got = receive(sdk, "again", len(wanted), f"s{session}")
        assert [message.message_id for message in got] == [f"o{n}" for n in wanted]
        first = got[0]
        assert b"".join(first.body) == f"body {wanted[0]}".encode()
        assert first.application_properties == {b"number": wanted[0], b"exact": 1.5, b"flag": True}
        assert first.time_to_live == timedelta(hours=3)


def replay_all(spark: SparkSession, settings: ReplaySettings) -> dict[str, int]:
    replay = Replay(spark, settings, None)
    sent: Counter[str] = Counter()
    for step in replay.steps():
        sent.update(replay.send(step))
    return dict(sent)


@pytest.mark.proves("D-3")
@pytest.mark.feature("pipeline.replay")
def test_a_replay_keeps_a_rate_or_leaves_the_pace_to_the_bus(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, tmp_path: Path
) -> None:
    """Rate limit, time shift, target mapping, and any format that Spark has."""
    for queue in ("left", "right", "slow", "later"):
        bus.create_queue(queue)
    for queue, first in (("left", 0), ("right", 0), ("right", 15)):
        ids = range(first, 30)
        send(sdk, queue, [ServiceBusMessage(queue, message_id=f"{queue}{n}") for n in ids])
    directory = tmp_path / "captured"
    source = {"connectionString": bus.connection_string, "includeAmqp": "true"}
    settings = CaptureSettings(
        {**source, "entityPattern": "left|right"},
        f"file://{directory}",
        format="json",
        is_once=True,
    )
    start_capture(spark, settings).awaitTermination()
    assert len(hour_folders(LocalFiles(), str(directory))) >= 2

    slow = ReplaySettings(
        bus.connection_string,
        str(directory),
        "slow",
        to="slow",
        where="entity_path = 'left'",
        rate=20,
    )
    assert replay_all(spark, slow) == {"slow": 30}
    got = receive(sdk, "slow", 30)
    assert [message.message_id for message in got] == [f"left{n}" for n in range(30)]
    times = [message.enqueued_time_utc for message in got]
    assert None not in times
    lasted = times[-1] - times[0]  # type: ignore[operator]  # None is not among them
    assert lasted >= timedelta(seconds=29 / 20 / 2)  # all at once would be no time at all

    later = ReplaySettings(
        bus.connection_string,
        str(directory),
        "later",
        mapping={"right": "later"},
        where="entity_path = 'right'",
        speed=0.000_001,
        as_scheduled=True,
    )
    assert replay_all(spark, later) == {"later": 45}
    with sdk.get_queue_receiver("later") as receiver:
        states = Counter(message.state.name for message in receiver.peek_messages(100))
    # The first to come is due at once, those of the second send as much later as they were.
    assert states == {"ACTIVE": 30, "SCHEDULED": 15}


@pytest.mark.feature("pipeline.capture")
def test_hours_are_those_of_utc_wherever_spark_is(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        times = spark.sql(
            "SELECT 'a/b' AS entity_path, timestamp_millis(ms) AS enqueued_time FROM "
            "VALUES (0), (3599999), (3600000), (1793577599999), (-1), (NULL) AS t(ms)"
        )
        found = [tuple(row) for row in by_hour(times).select("entity", "date", "hour").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert found == [
        ("a/b", "1970-01-01", "00"),
        ("a/b", "1970-01-01", "00"),
        ("a/b", "1970-01-01", "01"),
        ("a/b", "2026-11-01", "23"),
        ("a/b", "1969-12-31", "23"),
        ("a/b", None, None),
    ]


@pytest.mark.feature("pipeline.capture")
def test_files_by_hadoop_are_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    """On a cluster a capture is somewhere that only Hadoop reaches."""
    local, root = LocalFiles(), str(tmp_path)
    hadoop = HadoopFiles(spark, f"file://{root}")
    local.write_text(f"{root}/a/one", "1")
    assert hadoop.names(f"{root}/a") == local.names(f"{root}/a") == {"one": 1}
    hadoop.write_text(f"{root}/a/two", "zwölf")
    hadoop.write_text(f"{root}/a/two", "zwölf!")
    assert local.read_text(f"{root}/a/two") == hadoop.read_text(f"{root}/a/two") == "zwölf!"
    hadoop.rename(f"{root}/a/two", f"{root}/b/c/two")
    assert visible(hadoop.names(f"{root}/b/c")) == ["two"]
    with pytest.raises(FileExistsError):
        hadoop.rename(f"{root}/a/one", f"{root}/b/c/two")
    assert not hadoop.exchange(f"{root}/a", f"{root}/b")
    hadoop.delete(f"{root}/b")
    assert hadoop.names(root) == {"a": -1}
    assert hadoop.read_text(f"{root}/b/c/two") is None
