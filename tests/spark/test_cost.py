"""The meters of many namespaces by Spark, and the same answer as `twinbus cost show`."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from twinbus.cli.main import main
from twinbus.metered import HOUR_MS, KINDS, Metered, parse_iso
from twinbus.storage.disk import OsDisk
from twinbus.storage.meter_log import MeterLog

STARTED_MS = parse_iso("2026-10-28T00:00:00Z")
ENTITIES = ("orders", "Topic/Subscriptions/a", "", "main/x-servicebus-transfer/0", "<b>é")
SHARED = ("rows", "total", "pairing", "currency", "prices_date", "months")

pytestmark = [pytest.mark.proves("D-5"), pytest.mark.feature("pipeline.cost")]


def meter(data: Path, namespace: str, seed: int) -> None:
    """Some days, over the end of a month."""
    rng = random.Random(seed)
    log = MeterLog(lambda: OsDisk(data / "meter"))
    for hour in range(0, 8 * 24, 5):
        at_ms = STARTED_MS + hour * HOUR_MS
        lines = []
        for entity in ENTITIES:
            kind = rng.choice(KINDS)
            operations = rng.randrange(1, 5_000_000)
            empty = rng.randrange(operations) if kind == "receive" else 0
            units = operations + rng.randrange(1_000)
            lines.append(
                Metered(at_ms, at_ms + 1_000, namespace, entity, kind, operations, units, empty)
            )
        log.append(lines)
    log.close()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    document: dict[str, Any] = json.loads(captured.out)
    return document, captured.err


@pytest.mark.proves("D-5")
def test_the_same_answer_as_cost_show(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    meter(tmp_path, "ns", seed=5)
    day = tmp_path / "meter" / "2026-10-30.jsonl"
    whole = day.read_bytes()
    # One line is damaged, by a byte that is no text; a gathering has left a file behind.
    day.write_bytes(whole.replace(b'"kind":"', b'"kind":\xff', 1))
    (tmp_path / "meter" / "2026-10-31.jsonl.new").write_bytes(whole)
    for more in (
        ["--by", "day,namespace,entity,kind"],
        ["--by", "entity,kind", "--from", "2026-10-29T10:00:00Z", "--to", "2026-11-02"],
    ):
        words = ["--data", str(tmp_path), *more]
        shown, said = run(capsys, "cost", "show", *words)
        found, also_said = run(capsys, "pipeline", "cost", *words)
        assert {key: found[key] for key in SHARED} == shown
        assert found["damaged"] == 1
        assert "1 damaged lines" in said and "1 damaged lines" in also_said


@pytest.mark.proves("D-5")
def test_namespaces_together_with_details_and_a_page(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Per day, namespace, entity and kind; pairing apart."""
    for place, namespace in enumerate(("primary", "secondary")):
        meter(tmp_path / namespace, namespace, seed=place)
    data = [word for name in ("primary", "secondary") for word in ("--data", str(tmp_path / name))]
    details, page = tmp_path / "details", tmp_path / "report.html"
    found, _ = run(
        capsys, "pipeline", "cost", *data, "--by", "namespace", "--details", str(details),
        "--html", str(page),
    )  # fmt: skip
    alone = [run(capsys, "cost", "show", "--data", data[place])[0] for place in (1, 3)]
    assert [row["namespace"] for row in found["rows"]] == ["primary", "secondary"]
    for name in ("operations", "units", "empty"):
        assert found["total"][name] == sum(each["total"][name] for each in alone)
    assert found["pairing"]["units"] == sum(each["pairing"]["units"] for each in alone)
    assert found["pairing"]["polls"] > 0
    # One bill for all namespaces: the base charge once, and tiers that are reached together.
    assert [month["base"] for month in found["months"]] == [10, 10]
    assert [month["units"] for month in found["months"]] == [
        sum(each["months"][place]["units"] for each in alone) for place in range(2)
    ]
    rows = pq.read_table(details).to_pylist()
    assert sum(row["units"] for row in rows) == found["total"]["units"]
    pairing = sum(row["units"] for row in rows if row["is_pairing"])
    assert pairing == found["pairing"]["units"]
    assert len({row["day"] for row in rows}) == len(found["days"]) == 8
    text = page.read_text()
    assert text.count("<svg") == 3 and "<b>" not in text
    assert main(["pipeline", "cost", *data, "--from", "2027-01-01"]) == 0
    assert "nothing was metered" in capsys.readouterr().out


def test_details_do_not_write_over_anything(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    meter(tmp_path, "ns", seed=1)
    words = ["--data", str(tmp_path), "--details", str(tmp_path)]
    assert main(["pipeline", "cost", *words]) == 1
    assert "already exists" in capsys.readouterr().err


@pytest.mark.proves("D-5")
def test_two_namespaces_of_the_same_name_are_two(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A primary and its secondary, both with the default name, and a third that nobody shares."""
    for seed, place in enumerate(("primary", "secondary")):
        meter(tmp_path / place, "twinbus", seed)
    meter(tmp_path / "secondary", "office", seed=7)
    day = tmp_path / "primary" / "meter" / "2026-10-30.jsonl"
    day.write_bytes(day.read_bytes().replace(b'"kind":"', b'"kind":x', 1))
    places = [str(tmp_path / place) for place in ("primary", "secondary")]
    details = tmp_path / "details"
    words = [word for place in places for word in ("--data", place)]
    words += ["--by", "namespace", "--details", str(details)]
    found, said = run(capsys, "pipeline", "cost", *words)
    assert "1 damaged lines" in said and found["damaged"] == 1
    by_name = {row.pop("namespace"): row for row in found["rows"]}
    expected = {}
    for place in places:
        for row in run(capsys, "cost", "show", "--data", place, "--by", "namespace")[0]["rows"]:
            name = row.pop("namespace")
            expected[f"twinbus ({place})" if name == "twinbus" else name] = row
    assert by_name == expected
    rows = pq.read_table(details).to_pylist()
    assert {row["namespace"] for row in rows} == expected.keys()
    assert sum(row["units"] for row in rows) == found["total"]["units"]
