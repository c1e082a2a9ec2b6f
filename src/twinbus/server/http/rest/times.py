"""Times and durations in the spellings that the REST data plane takes and gives."""

import datetime as dt
import math
import re
from email.utils import formatdate
from typing import Any, Final

from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange

# .NET's longest TimeSpan is about 10.7 million days and means "for ever"; so does anything beyond
# a thousand years.
FOREVER_MS: Final = 1_000 * 366 * 86_400_000

_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"
_HTTP_DATE: Final = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) "
    r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([0-9]{4}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
)
_TIME_SPAN: Final = re.compile(
    r"(?:([0-9]{1,8})\.)?([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,7}))?"
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)
_DATE_MS_MAX: Final = 253_402_300_799_999  # the year 9999 ends


def http_date(ms: int) -> str:
    """A time as HTTP writes it, to the second."""
    return formatdate(min(max(0, ms), _DATE_MS_MAX) // 1_000, usegmt=True)


def read_http_date(text: str) -> int | None:
    """Milliseconds since 1970, or None when this is no such date."""
    match = _HTTP_DATE.fullmatch(text)
    if match is None:
        return None
    month = _MONTHS.index(match[2]) // 3 + 1
    day, year, hour, minute, second = (int(match[at]) for at in (1, 3, 4, 5, 6))
    try:
        date = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:
        return None
    return (date - _EPOCH) // _MS


def read_date(name: str, text: str) -> int:
    """Milliseconds since 1970 of an HTTP date or one of ISO 8601, UTC where it does not say."""
    ms = read_http_date(text.strip())
    if ms is None:
        try:
            date = dt.datetime.fromisoformat(text.strip())
            ms = (date.replace(tzinfo=date.tzinfo or dt.UTC) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            raise ArgumentInvalid(f"{name} is not a date such as {http_date(0)}.") from None
    return ms


def read_seconds(name: str, value: Any) -> int:
    """Milliseconds of a duration: a number of seconds, or text such as `1.02:03:04.5`."""
    if isinstance(value, str):
        ms = _read_time_span(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and value <= math.inf:
        ms = int(max(0, min(value, FOREVER_MS)) * 1_000)
    else:
        ms = None
    if ms is None:
        raise ArgumentInvalid(f"{name} must be a number of seconds.")
    if ms <= 0:
        raise ArgumentOutOfRange(f"{name} must be more than 0.")
    return min(ms, FOREVER_MS)


def _read_time_span(text: str) -> int | None:
    match = _TIME_SPAN.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[at] or 0) for at in (1, 2, 3, 4))
    fraction_ms = int((match[5] or "0").ljust(7, "0")) // 10_000
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
