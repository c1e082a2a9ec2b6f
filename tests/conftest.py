"""What all suites share: a real server process, and how hard hypothesis tries."""

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from twinbus.testing.server import ServerProcess

# No deadline: a busy machine is no fault of the code.  A failure prints how to repeat it.
settings.register_profile(
    "pull-request", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("pull-request"), max_examples=5_000)
settings.load_profile(os.environ.get("TWINBUS_TEST_SIZE", "pull-request"))

HERE = Path(__file__).parent
WITH_SDK = (HERE / "interop", HERE / "crash", HERE / "spark", HERE / "browser")


# What takes long begins early: a file that is begun last is waited for by all other processes.
LONGEST_FIRST = (
    "crash",
    "packaging",
    "test_drill",
    "test_pairing",
    "test_delivery",
    "test_syphon",
    "test_cluster",
    "test_power_cut",
    "test_brokers",
    "test_metering",
    "test_faults",
    "test_sdk_sessions",
    "test_partitioned",
    "browser",
)


@pytest.hookimpl(trylast=True)  # after they have been shuffled
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda each: _rank(each.path))


def _rank(path: Path) -> int:
    name = f"{path.parent.name}/{path.stem}"
    return next((n for n, word in enumerate(LONGEST_FIRST) if word in name), len(LONGEST_FIRST))


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
