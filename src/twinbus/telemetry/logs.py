"""The log on standard error: plain text, or one JSON object per line.

    text   2026-11-16T09:30:00.250Z INFO twinbus.server: link refused: … connection=127.0.0.1:40000
    json   {"time": "2026-11-16T09:30:00.250Z", "level": "INFO", "logger": "twinbus.server", …}

Times are UTC.  Fields say what a line is about; a call passes them as `extra`, with the names in
`FIELDS`.  A filter on every handler removes secrets first (secrets.py).
"""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from twinbus.telemetry.secrets import KnownSecrets

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
# What a line may be about, in the order in which it is written.
FIELDS: Final = ("namespace", "connection", "entity", "broker", "store")


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, fields; a traceback below it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return _time_of(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        fields = "".join([f" {name}={value}" for name, value in fields_of(record).items()])
        return super().formatMessage(record) + fields


class JsonFormatter(logging.Formatter):
    """One JSON object, in one line whatever is in it; a traceback is its field `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, ensure_ascii=False)


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """What the line is about, as far as it says so."""
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


class SecretsFilter(logging.Filter):
    """Removes secrets from every record of a handler, whatever its logger."""

    def __init__(self, secrets: KnownSecrets) -> None:
        super().__init__()
        self._secrets = secrets
        self._plain = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        hide = self._secrets.hide
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the arguments do not fit: whoever logs must not fail
            text = f"{record.msg} {record.args}"
        record.msg = hide(text)
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._plain.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = hide(record.exc_text)
        if record.stack_info:
            record.stack_info = hide(record.stack_info)
        for name, value in fields_of(record).items():
            record.__dict__[name] = hide(value) if isinstance(value, str) else value
        return True


def formatter(log_format: str) -> logging.Formatter:
    return JsonFormatter() if log_format == JSON else TextFormatter()


def show_log(log_format: str, level: int, secrets: KnownSecrets) -> None:
    """Write this process's log to standard error, and only what is of this level."""
    shown = logging.StreamHandler()
    shown.setLevel(level)  # what is shown stays so when more is kept (diagnostics.py)
    shown.setFormatter(formatter(log_format))
    shown.addFilter(SecretsFilter(secrets))
    # One handler, also where somebody has set up logging before us: it would know no secrets.
    logging.basicConfig(level=level, handlers=[shown], force=True)


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
