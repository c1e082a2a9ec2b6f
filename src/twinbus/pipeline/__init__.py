"""The data pipeline on Spark: `format("servicebus")`, and the jobs that stand on it.

    from twinbus import pipeline

    spark = pipeline.open_session("orders")  # or your own: pipeline.register(spark)
    orders = spark.read.format("servicebus").option("connectionString", …)…

Needs the extra `spark` (pip install 'twinbus[spark]'); nothing else of twinbus does.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from twinbus.pipeline.registering import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["open_session", "register"]


def open_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> "SparkSession":
    """A session that knows the format and starts quickly, with Java found; local unless told."""
    from twinbus.pipeline.running.session import open_session as opened  # noqa: PLC0415 - loads Spark

    return opened(name, master=master, conf=conf)
