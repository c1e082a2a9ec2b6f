"""A session as `open_session` gives it."""

import os
import sys

import pytest
from pyspark.sql import SparkSession

from twinbus.pipeline.running.session import open_session

pytestmark = pytest.mark.feature("pipeline.running")


def where_am_i(numbers: object) -> list[tuple[str, str]]:
    import pyspark

    assert numbers is not None
    return [(sys.executable, pyspark.__file__)]


@pytest.mark.proves("D-7")
def test_workers_run_this_python_with_the_installed_pyspark(spark: SparkSession) -> None:
    """From `pyspark.zip`, every worker would compile pyspark anew."""
    [(python, package)] = spark.sparkContext.parallelize([1], 1).mapPartitions(where_am_i).collect()
    assert python == sys.executable
    assert package.endswith("/site-packages/pyspark/__init__.py")


def test_nothing_listens_but_on_loopback(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_a_second_call_gives_the_same_session(spark: SparkSession) -> None:
    assert open_session("again", profile="test") is spark


def test_the_environment_is_left_alone(spark: SparkSession) -> None:
    assert spark is not None
    assert not [value for value in os.environ.values() if "/twinbus/spark-" in value]


@pytest.mark.proves("D-7")
def test_the_source_is_known(spark: SparkSession) -> None:
    """Nothing to register; what is missing is said in words."""
    with pytest.raises(Exception, match="connectionString"):
        spark.read.format("servicebus").load().collect()
