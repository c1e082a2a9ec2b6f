"""Whatever is planted is found, exactly that, in every form in which ledgers come.

Plants are random, from a seed; ids are as odd as ids may be.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession

from twinbus.cli.main import main
from twinbus.pipeline.jobs.ledgers import Columns, Source, shape
from twinbus.pipeline.jobs.reconcile import KINDS, judge, match
from twinbus.pipeline.schema import arrow_schema
from twinbus.testing.server import ServerProcess

SEED = 20261116
STARTED = datetime(2026, 11, 16, 10, tzinfo=UTC)
ODD = ("", "null", "NULL", "Ä", "A\u0308", "ä", " x ", "a,b", 'say "hi"', "back\\slash", "tab\t",
       "two\nlines", "<script>", "{}", "'; --", "😀", "\u200b", "%2F", "0", "00")  # fmt: skip

pytestmark = [pytest.mark.proves("D-4"), pytest.mark.feature("pipeline.reconcile")]


@dataclass
class Planted:
    """Both sides, and what is wrong between them: how often, by kind and id."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[dict[str, Any]] = field(default_factory=list)
    wrong: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in KINDS})


def row(number: int, message_id: str) -> dict[str, Any]:
    return {
        "message_id": message_id,
        "entity": f"queue-{number % 3}",
        "session": f"session {number % 9}",
        "order": number,
        "time": STARTED + timedelta(milliseconds=10 * number),
        "body": f"body of {number}".encode(),
    }


def plant(seed: int, count: int = 400) -> Planted:
    rng = random.Random(seed)
    planted = Planted()
    ids = [*ODD, *(f"{rng.choice(ODD)}{number}" for number in range(count - len(ODD)))]
    rows = [row(number, message_id) for number, message_id in enumerate(ids)]
    planted.sent = [dict(each) for each in rows]
    # Twice on purpose, and arrived twice: nothing is wrong with that.
    planted.sent += [dict(rows[5]), dict(rows[6])]
    chosen = rng.sample(range(20, count - 20), 45)
    lost, twice, altered = set(chosen[:15]), chosen[15:25], set(chosen[25:35])
    # Swaps need a neighbour in the same session that is whole.
    swapped = [n for n in chosen[35:] if not {n, n + 9} & {*chosen[:35], *(c - 9 for c in chosen)}]
    for number, each in enumerate([*rows, rows[5], rows[6]]):
        if number in lost:
            planted.wrong["lost"][each["message_id"]] += 1
            continue
        each = dict(each, time=each["time"] + timedelta(milliseconds=rng.randrange(1, 500)))
        if number in altered:
            each["body"] += b"!"
            planted.wrong["altered"][each["message_id"]] += 1
        if number in swapped:
            each["order"] += 10  # just behind the next of its session
            planted.wrong["out_of_order"][each["message_id"]] += 1
        planted.arrived.append(each)
    for number in twice:
        more = rng.randrange(1, 4)
        planted.arrived += [dict(rows[number], order=count + n) for n in range(more)]
        planted.wrong["duplicated"][rows[number]["message_id"]] += more
    for number in range(7):
        stranger = row(count + number, f"stranger {number}")
        planted.arrived += [stranger] * (1 + number % 2)
        planted.wrong["unexpected"][stranger["message_id"]] += 1 + number % 2
    rng.shuffle(planted.sent)
    rng.shuffle(planted.arrived)
    return planted


# -- the forms of a ledger -------------------------------------------------------------------------


def json_lines(path: Path, rows: list[dict[str, Any]], **names: str) -> list[str]:
    """Two files, so that there is more than one."""
    for place, half in enumerate((rows[::2], rows[1::2])):
        lines = []
        for each in half:
            shown = {**each, "body": each["body"].decode(), "time": each["time"].isoformat()}
            lines.append(json.dumps({names.get(key, key): shown[key] for key in shown}))
        path.with_suffix(f".{place}.jsonl").write_text("\n".join(lines) + "\n")
    return [str(path.with_suffix(f".{place}.jsonl")) for place in range(2)]


def foreign_parquet(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Names and types of somebody else's; hashes, no bodies; times in milliseconds."""
    table = {
        "Key": [each["message_id"] for each in rows],
        "to queue": [each["entity"] for each in rows],
        "group`s": [each["session"] for each in rows],
        "n": pa.array([each["order"] for each in rows], pa.int32()),
        "at": [int(each["time"].timestamp() * 1000) for each in rows],
        "sha": [hashlib.sha256(each["body"]).hexdigest().upper() for each in rows],
    }
    pq.write_table(pa.table(table), path)
    return [str(path)]


def capture(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """As a capture writes it: the columns of a message."""
    names = ["entity_path", "sequence_number", "enqueued_time", "message_id", "session_id", "body"]
    ours = ["entity", "order", "time", "message_id", "session", "body"]
    folder = path / "date=2026-11-16" / "hour=10"
    folder.mkdir(parents=True)
    columns = [[each[name] for each in rows] for name in ours]
    pq.write_table(pa.table(columns, schema=arrow_schema(names)), folder / "part-0.parquet")
    return [str(path)]


FOREIGN = {"id": "Key", "entity": "to queue", "session": "group`s", "order": "n", "time": "at",
           "body-hash": "sha"}  # fmt: skip


def options(side: str, places: list[str], **columns: str) -> list[str]:
    found = [word for place in places for word in (f"--{side}", place)]
    return found + [word for name, value in columns.items() for word in (f"--{side}-{name}", value)]


def reconcile(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    quick = ["--conf", "spark.sql.shuffle.partitions=1"]
    code = main(["pipeline", "reconcile", *quick, "--json", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else {"error": captured.err}


def found_in(details: Path, kind: str) -> Counter[str]:
    rows = pq.read_table(details / kind).to_pylist()
    return Counter({each["message_id"]: each.get("count", 1) for each in rows})


@pytest.mark.proves("D-4")
@pytest.mark.parametrize("form", ["json", "foreign", "capture"])
def test_exactly_what_was_planted(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    seed = SEED + len(form)
    planted = plant(seed)
    if form == "json":
        names = {"session": "session_id"}
        given = options("sent", json_lines(tmp_path / "sent", planted.sent, **names))
        given += options("arrived", json_lines(tmp_path / "arrived", planted.arrived, **names))
    elif form == "foreign":
        given = options("sent", foreign_parquet(tmp_path / "sent.parquet", planted.sent), **FOREIGN)
        given += options("arrived", capture(tmp_path / "arrived", planted.arrived))
    else:
        given = options("sent", capture(tmp_path / "sent", planted.sent))
        given += options("arrived", capture(tmp_path / "arrived", planted.arrived))
    details = tmp_path / "details"
    code, said = reconcile(capsys, *given, "--details", str(details))
    assert code == 3, f"seed {seed}: {said}"
    for kind in KINDS:
        wrong = +planted.wrong[kind]
        assert wrong, f"seed {seed} plants nothing that is {kind}"
        assert found_in(details, kind) == wrong, f"seed {seed}: {kind}"
        assert said["total"][kind] == wrong.total(), f"seed {seed}: {kind}"
    assert said["total"]["sent"] == len(planted.sent)
    assert said["total"]["arrived"] == len(planted.arrived)
    assert said["sent_without_id"] == said["arrived_without_id"] == 0
    assert sum(each["lost"] for each in said["entities"]) == said["total"]["lost"]
    assert 0 < said["total"]["latency_ms"]["p50"] < said["total"]["latency_ms"]["max"] < 500


@pytest.mark.proves("D-4")
def test_a_report_with_plots(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One file, in which hostile ids stay text."""
    rows = [row(number, f"<script>{number}") for number in range(30)]
    later = [dict(each, time=each["time"] + timedelta(seconds=each["order"])) for each in rows]
    page = tmp_path / "report.html"
    given = options("sent", capture(tmp_path / "sent", rows))
    given += options("arrived", capture(tmp_path / "arrived", later[2:]))
    code, said = reconcile(capsys, *given, "--html", str(page))
    text = page.read_text()
    assert (code, said["verdict"]) == (3, "2 lost, of 30 messages sent")
    assert said["verdict"] in text
    assert "What is lost was sent between 10:00:00 and 10:00:00" in text
    assert "&lt;script&gt;1" in text and "<script>" not in text
    assert text.count("<svg") == 4, "over time, percentiles, histogram, entities"


@pytest.mark.proves("D-4")
def test_nothing_wrong_is_exit_code_0(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And a kind that is allowed is no reason for another."""
    rows = [row(number, f"id {number}") for number in range(50)]
    sent = options("sent", capture(tmp_path / "sent", rows))
    code, said = reconcile(
        capsys, *sent, *options("arrived", capture(tmp_path / "arrived", rows[::-1]))
    )
    assert code == 0, said
    assert said["verdict"] == "All 50 messages sent arrived exactly once, unaltered and in order"
    assert (said["bodies_compared"], said["order_checked"]) == (50, 50)
    twice = options("arrived", capture(tmp_path / "twice", [*rows, rows[0]]))
    code, said = reconcile(capsys, *sent, *twice, "--allow", "duplicated", "--match-entity")
    assert (code, said["total"]["duplicated"], said["clean"]) == (0, 1, True)


@pytest.mark.proves("D-4")
def test_rows_without_an_id_are_counted_and_match_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Lines that were torn when somebody was killed among them."""
    sent, arrived = tmp_path / "sent.jsonl", tmp_path / "arrived.jsonl"
    sent.write_text('{"message_id": 7}\n{"message_id": null}\n{}\n{"message_id": "torn", "bo')
    arrived.write_text('{"message_id": "7"}\n{"message_id": null}\n')
    code, said = reconcile(capsys, "--sent", str(sent), "--arrived", str(arrived))
    assert code == 3
    assert (said["sent_without_id"], said["arrived_without_id"]) == (3, 1)
    assert (said["total"]["sent"], said["total"]["arrived"]) == (1, 1)
    assert said["total"]["lost"] == said["total"]["unexpected"] == 0
    assert said["total"]["altered"] is said["total"]["out_of_order"] is None


@pytest.mark.proves("D-4")
def test_an_empty_side_is_an_error(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A wrong path must not look like a total loss, nor like a success."""
    full, empty = tmp_path / "full.jsonl", tmp_path / "empty.jsonl"
    full.write_text('{"message_id": "a"}\n')
    empty.touch()
    (tmp_path / "nothing").mkdir()
    given = ["--sent", str(full), "--arrived", str(empty)]
    code, said = reconcile(capsys, *given)
    assert (code, "--allow-empty" in said["error"]) == (1, True)
    code, said = reconcile(capsys, *given, "--allow-empty")
    assert (code, said["total"]["lost"]) == (3, 1)
    for sources, reason in (
        (["--sent", str(full), "--arrived", str(tmp_path / "nothing")], "cannot be read"),
        (["--sent", str(full), "--arrived", str(full), "--sent-id", "key"], "no column key"),
        (["--sent", str(full), "--arrived", "/nowhere"], "does not exist"),
    ):
        code, said = reconcile(capsys, *sources)
        assert (code, reason in said["error"]) == (1, True), said


@pytest.mark.proves("D-4")
def test_copies_and_bodies_are_multisets(spark: SparkSession) -> None:
    """Of each id the bodies sent, those that arrived, and what is said of it."""
    cases: dict[str, tuple[Sequence[str | None], list[str], tuple[int, int, int]]] = {
        "as it was": (["a"], ["a"], (0, 0, 0)),
        "another body": (["a"], ["b"], (0, 0, 1)),
        "a copy with another body": (["a"], ["a", "b"], (0, 1, 1)),
        "two bodies, both there": (["a", "b"], ["b", "a"], (0, 0, 0)),
        "one took the other's place": (["a", "b"], ["a", "a"], (0, 0, 1)),
        "one of two": (["a", "b"], ["b"], (1, 0, 0)),
        "three of one": (["a"], ["a", "a", "a"], (0, 2, 0)),
        "none": (["a", "a"], [], (2, 0, 0)),
        "empty and empty": ([None], [""], (0, 0, 0)),
    }

    def ledger(side: int) -> Any:
        rows = [(name, body) for name, case in cases.items() for body in case[side]]
        frame = spark.createDataFrame(rows, "message_id string, body string")
        columns = Columns(id="message_id", body="body")
        return shape(frame, columns, Source("parquet", "test"))

    found = {
        each["message_id"]: (each["lost"], each["duplicated"], each["altered"])
        for each in judge(match(ledger(0), ledger(1))).collect()
    }
    assert found == {name: case[2] for name, case in cases.items()}


@pytest.fixture(scope="module")
def sdk(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        yield client


@pytest.mark.proves("D-4")
def test_an_entity_is_a_ledger_too(
    spark: SparkSession,
    bus: ServerProcess,
    sdk: ServiceBusClient,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """What waits in a queue, and in its dead-letter queue, against what an SDK sent."""
    bus.create_queue("ledgered", requires_session="true")
    messages = [
        ServiceBusMessage(f"body {n}", message_id=f"m-{n}", session_id=f"s-{n % 2}")
        for n in range(40)
    ]
    with sdk.get_queue_sender("ledgered") as sender:
        sender.send_messages(messages[:30])
        sender.send_messages(messages[28:35])
    with sdk.get_queue_receiver("ledgered", session_id="s-0", max_wait_time=5) as receiver:
        for received in receiver.receive_messages(3, max_wait_time=5):
            receiver.dead_letter_message(received, reason="planted")
    ledger = tmp_path / "sent.jsonl"
    lines = [
        {"message_id": f"m-{n}", "session_id": f"s-{n % 2}", "number": n, "body": f"body {n}"}
        for n in range(40)
    ]
    ledger.write_text("\n".join(map(json.dumps, lines)))
    given = ["--connection-string", bus.connection_string, "--sent", str(ledger)]
    given += ["--arrived", "entity:ledgered"]
    details = tmp_path / "details"
    code, said = reconcile(
        capsys, *given, "--arrived", "entity:ledgered/$DeadLetterQueue", "--details", str(details)
    )
    assert code == 3, said
    assert said["total"]["arrived"] == 37, said
    assert found_in(details, "lost") == Counter(f"m-{n}" for n in range(35, 40))
    assert found_in(details, "duplicated") == Counter(["m-28", "m-29"])
    assert said["total"]["altered"] == said["total"]["unexpected"] == 0
    assert said["total"]["out_of_order"] == 0
    dead_lettered = Counter(["m-0", "m-2", "m-4"])
    code, said = reconcile(capsys, *given, "--details", str(tmp_path / "less"))
    assert found_in(tmp_path / "less", "lost") == dead_lettered + found_in(details, "lost")
