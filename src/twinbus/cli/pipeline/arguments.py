"""How errors of Spark are told by the commands that run on it.  Loads no Spark by itself."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# They write what is raised anyway, as JSON, to standard error.
_TALKATIVE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


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
