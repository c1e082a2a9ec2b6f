"""Making the source and the sink known to Spark."""

from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_VERSION: Final = "4.3"


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
