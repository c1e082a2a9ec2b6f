"""The data pipeline on Spark: `format("servicebus")`, and the jobs that stand on it.

    from twinbus import pipeline

    pipeline.register(spark)
    orders = spark.read.format("servicebus").option("connectionString", …)…

Needs the extra `spark` (pip install 'twinbus[spark]'); nothing else of twinbus does.
"""

from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_VERSION: Final = "4.3"

__all__ = ["register"]


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
    from twinbus.pipeline.source import ServiceBusDataSource  # noqa: PLC0415

    spark.dataSource.register(ServiceBusDataSource)
