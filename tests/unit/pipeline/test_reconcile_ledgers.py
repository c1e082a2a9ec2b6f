"""Where ledgers are, and which of their columns say what."""

from pathlib import Path

import pytest

from twinbus.errors import ConfigError
from twinbus.pipeline.jobs.ledgers import Columns, Source, choose_columns, json_names
from twinbus.pipeline.schema import COLUMNS

pytestmark = pytest.mark.proves("D-4")

SOME = Source("parquet", "ledger")


def test_the_kind_of_a_source_shows(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "part-0.json.gz").touch()
    (tmp_path / "lines" / "_SUCCESS").touch()
    (tmp_path / "sent.jsonl").touch()
    (tmp_path / "capture").mkdir()
    assert Source.parse("entity:orders/$DeadLetterQueue").kind == "entity"
    assert Source.parse(f"{tmp_path}/sent.jsonl").kind == "json"
    assert Source.parse(f"{tmp_path}/lines").kind == "json"
    assert Source.parse(f"{tmp_path}/capture").kind == "parquet"
    assert Source.parse(f"json:{tmp_path}/capture") == Source("json", f"{tmp_path}/capture")
    assert Source.parse("s3a://bucket/capture") == Source("parquet", "s3a://bucket/capture")
    assert Source.parse("s3a://bucket/a.json.gz").kind == "json"
    assert Source.parse(f"{tmp_path}/*.jsonl").kind == "json", "a pattern is for Spark to resolve"


@pytest.mark.parametrize("text", ["/nowhere/sent.jsonl", "parquet:/nowhere", ""])
def test_a_source_that_is_not_there(text: str) -> None:
    with pytest.raises(ConfigError, match=r"does not exist|empty text"):
        Source.parse(text)


def test_a_capture_needs_no_names() -> None:
    names = [column.name for column in COLUMNS]
    for side in ("sent", "arrived"):
        chosen = choose_columns(names, Columns(), side, SOME)
        assert chosen == Columns(
            id="message_id",
            entity="entity_path",
            session="session_id",
            order="sequence_number",
            time="enqueued_time",
            body="body",
        )


def test_the_senders_number_is_no_order_of_arrival() -> None:
    names = ["message_id", "number", "time"]
    assert choose_columns(names, Columns(), "sent", SOME).order == "number"
    assert choose_columns(names, Columns(), "arrived", SOME).order == "time"


def test_a_hash_saves_reading_bodies_unless_they_are_asked_for() -> None:
    names = ["message_id", "body", "body_hash"]
    assert choose_columns(names, Columns(), "sent", SOME).body is None
    assert choose_columns(names, Columns(body="body"), "sent", SOME).body == "body"


def test_foreign_names_must_be_there() -> None:
    assert choose_columns(["key"], Columns(id="key"), "sent", SOME).id == "key"
    with pytest.raises(ConfigError, match=r"no column kye \(--sent-id\); there are: key"):
        choose_columns(["key"], Columns(id="kye"), "sent", SOME)
    with pytest.raises(ConfigError, match=r"no column h \(--arrived-body-hash\)"):
        choose_columns(["message_id"], Columns(body_hash="h"), "arrived", SOME)
    with pytest.raises(ConfigError, match="name one by --arrived-id"):
        choose_columns(["key"], Columns(), "arrived", SOME)


def test_names_in_json_lines() -> None:
    lines = ['{"message_id": 1, "time": 2}', '{"torn', "[1]", '{"session_id": null}']
    assert json_names(lines) == ["message_id", "time", "session_id"]
