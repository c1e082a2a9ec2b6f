"""Fixtures of the Spark suite: one session for all tests of a process, one server a module.

A session costs seconds and a gigabyte, so `make spark` runs this folder apart, in two
processes.  No test may stop the session, or leave a query running.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twinbus.pipeline.running.session import open_session
from twinbus.testing.server import ServerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Py4j leaves closing its sockets to the garbage collector; nothing we could mend."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session; what a test sends to workers by reference is found there, too."""
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
        patch.delenv("SPARK_HOME", raising=False)
        session = open_session("tests", profile="test")
    yield session
    session.stop()
    gc.collect()


@pytest.fixture(autouse=True)
def no_query_is_left(spark: SparkSession) -> Iterator[None]:
    """A query that goes on would read from a server that is gone, and disturb the next test."""
    yield
    left = spark.streams.active
    for query in left:
        query.stop()
    assert not left, f"still running: {[query.name or query.id for query in left]}"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; it must end cleanly and have met no surprise."""
    with ServerProcess(tmp_path_factory.mktemp("bus") / "data") as process:
        yield process
    assert "Traceback" not in process.log, process.log
