"""Lines of the log: one JSON object each, or text, with the same fields and times in UTC."""

import json
import logging
from collections.abc import Iterator

import pytest

from twinbus.telemetry.logs import JSON, TEXT, JsonFormatter, TextFormatter, formatter, show_log
from twinbus.telemetry.secrets import KnownSecrets

CREATED_S = 1_794_821_400.25


@pytest.fixture
def record() -> logging.LogRecord:
    made = logging.LogRecord(
        "twinbus.server", logging.INFO, "x", 1, "two\nlines: %s", ("“é”",), None
    )
    made.created = CREATED_S
    made.connection = "127.0.0.1:40000"
    made.entity = "orders"
    made.unheard_of = "left out"
    return made


def test_json(record: logging.LogRecord) -> None:
    line = formatter(JSON).format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-16T09:30:00.250Z",
        "level": "INFO",
        "logger": "twinbus.server",
        "message": "two\nlines: “é”",
        "connection": "127.0.0.1:40000",
        "entity": "orders",
    }


def test_text(record: logging.LogRecord) -> None:
    assert formatter(TEXT).format(record) == (
        "2026-11-16T09:30:00.250Z INFO twinbus.server: two\nlines: “é” "
        "connection=127.0.0.1:40000 entity=orders"
    )


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "failed", (), caught, sinfo="Stack")
    line = JsonFormatter().format(record)
    document = json.loads(line)
    assert "\n" not in line
    assert document["exception"].startswith("Traceback (most recent call last):\n")
    assert document["exception"].endswith("ValueError: no\nsuch thing")
    assert document["stack"] == "Stack"
    assert "Traceback" in TextFormatter().format(record)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers = []
    yield root
    root.handlers, root.level = handlers, level


def test_only_the_level_is_shown_and_no_secret(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = KnownSecrets()
    secrets.add(["a-key-that-is-secret"])
    show_log(JSON, logging.WARNING, secrets)
    root.setLevel(logging.DEBUG)  # as diagnostics do, which keep more than is shown
    log = logging.getLogger("twinbus.test")
    log.info("not shown")
    log.warning("it is %s", "a-key-that-is-secret", extra={"store": 1})
    shown = capsys.readouterr().err
    assert [json.loads(line)["message"] for line in shown.splitlines()] == ["it is ***"]
    assert json.loads(shown)["store"] == 1
