"""The data pipeline on Spark: `format("servicebus")`, and the jobs built on it.

    from twinbus import pipeline

    spark = pipeline.open_session("orders")  # or your own: pipeline.register(spark)
    orders = spark.read.format("servicebus").option("connectionString", …)…

Needs the extra `spark` (pip install 'twinbus[spark]'); the rest of twinbus does not.
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
    """A Spark session that knows the format, finds Java and starts quickly; local by default."""
    from twinbus.pipeline.running.session import open_session as opened  # noqa: PLC0415 - loads Spark

    return opened(name, master=master, conf=conf)
