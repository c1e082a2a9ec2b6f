"""AMQP values as text and JSON, for columns that hold nothing else.

One way only: a text no longer tells a number from its digits.  Who needs the message exactly as it
was takes the column `amqp`.
"""

import base64
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from twinbus.amqp.types import Described, Timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def text_of(value: object) -> str | None:
    """Booleans `true` and `false`, numbers in decimal, times in ISO 8601, binary in base64."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    plain = plain_of(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def json_of(value: object) -> bytes:
    return json.dumps(plain_of(value), ensure_ascii=False).encode("utf-8", "replace")


def plain_of(value: object) -> object:
    """The same in JSON's types; of a described value what it describes."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _iso(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # JSON has no word for what is no number.
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [plain_of(each) for each in value]
    if isinstance(value, dict):
        return {text_of(key) or "": plain_of(each) for key, each in value.items()}
    if isinstance(value, Described):
        return plain_of(value.value)
    assert isinstance(value, str | UUID)
    return str(value)


def _iso(ms: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(int(ms))  # beyond the year 9999: no calendar has it
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
