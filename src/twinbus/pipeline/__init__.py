"""The data pipeline on Spark: `format("servicebus")`, and the jobs that stand on it.

    from twinbus import pipeline

    spark = pipeline.open_session("orders")  # or your own: pipeline.register(spark)
    orders = spark.read.format("servicebus").option("connectionString", …)…

Needs the extra `spark` (pip install 'twinbus[spark]'); nothing else of twinbus does.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_VERSION: Final = "4.3"

__all__ = ["open_session", "register"]


def register(spark: "SparkSession") -> None:
    """Make `format("servicebus")` known to a session.

    A session finds it by itself where twinbus is installed (`pyspark_servicebus`); this says early
    and clearly if that cannot work.
    """
    if not spark.version.startswith(f"{SPARK_VERSION}."):
        raise ConfigError(
            f"this is Spark {spark.version}; the source and the sink need {SPARK_VERSION}: "
            "pip install 'twinbus[spark]'"
        )
    # Late: the parts of the pipeline that are asked for options only need no Spark.
    from twinbus.pipeline.source.data_source import ServiceBusDataSource  # noqa: PLC0415

    spark.dataSource.register(ServiceBusDataSource)


def open_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> "SparkSession":
    """A session that knows the format and starts quickly, with Java found; local unless told."""
    from twinbus.pipeline.running.session import open_session as opened  # noqa: PLC0415 - loads Spark

    return opened(name, master=master, conf=conf)
