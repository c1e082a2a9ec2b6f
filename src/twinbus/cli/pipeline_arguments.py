"""What captures, replays and dead letters share on the command line.  Loads no Spark by itself."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from twinbus.metered import parse_iso

# They write what is raised anyway, as JSON, to standard error.
_TALKATIVE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def moment(text: str) -> int:
    """UTC milliseconds."""
    try:
        return parse_iso(text)
    except ValueError:
        shown = f"'{text[:64]}' is no time; write 2026-11-16 or 2026-11-16T07:00:00Z"
        raise argparse.ArgumentTypeError(shown) from None


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is no number above 0")
    return number


def positive_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is no whole number above 0")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals or not value.strip():
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not of the form NAME=VALUE")
    return key.strip(), value.strip()


@contextmanager
def in_one_line() -> Iterator[None]:
    """Errors of Spark, which fill pages, as what was said first and last in them."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415  loads Spark
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    from twinbus.pipeline.running.supervisor import QueryFailed, reason_of  # noqa: PLC0415

    for name in _TALKATIVE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    except PySparkException as error:
        raise QueryFailed(reason_of(error)) from error
    except Py4JJavaError as error:  # of a task, where Spark is asked by rows
        raise QueryFailed(reason_of(PySparkException(str(error)))) from error
