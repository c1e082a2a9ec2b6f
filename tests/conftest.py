"""What all suites share: a real server process, and how hard hypothesis tries."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server on a free port; it must end cleanly on SIGTERM."""
    with ServerProcess(tmp_path / "data") as process:
        yield process
