"""What all suites share: a real server process, and how hard hypothesis tries."""

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from twinbus.testing.server import ServerProcess

# No deadline: a busy machine is no fault of the code.  A failure prints how to repeat it.
settings.register_profile(
    "pull-request",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", settings.get_profile("pull-request"), max_examples=5_000)
settings.load_profile(os.environ.get("TWINBUS_TEST_SIZE", "pull-request"))

HERE = Path(__file__).parent
WITH_SDK = (HERE / "interop", HERE / "crash", HERE / "spark")

SPARK = "tests/spark"


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist tells no types
    """File by file; but all that needs Spark in one process, since a session is large and starts
    slowly, and first, since nothing takes longer."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return SPARK if scope.startswith(f"{SPARK}/") else scope

    def _assign_work_unit(self, node: WorkerController) -> None:
        if SPARK in self.workqueue:
            self.workqueue.move_to_end(SPARK, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What the SDK has left open in one file must not be found, and blamed on, in the next."""
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and any(item.path.is_relative_to(place) for place in WITH_SDK):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server on a free port; it must end cleanly on SIGTERM."""
    with ServerProcess(tmp_path / "data") as process:
        yield process
