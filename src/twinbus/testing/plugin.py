"""The pytest plugin: `servicebus`, a fresh namespace for each test.

    def test_an_order_arrives(servicebus):
        servicebus.create_queue("orders")
        my_application.send_order(servicebus.connection_string)
        assert servicebus.message_count("orders") == 1

One server serves a run (with xdist, one per worker).  It starts with the first test that uses it;
a run without such a test only pays for reading this file.  Must not import anything else from
twinbus before that, and must not change what any other plugin or test sees.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from twinbus.testing.bus import Bus, FreshNamespace


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "servicebus_config",
        "Config.json whose entities every test's namespace has, relative to this file",
        default="",
    )
    parser.addini(
        "servicebus_arguments", "arguments of `twinbus serve` for the server", type="args"
    )


@pytest.fixture(scope="session")
def servicebus_server(pytestconfig: pytest.Config) -> Iterator["Bus"]:
    """The server of this run, for tests that need a whole server."""
    from twinbus.testing.bus import Bus  # noqa: PLC0415 - see above

    with Bus(arguments=pytestconfig.getini("servicebus_arguments")) as bus:
        yield bus


@pytest.fixture(scope="session")
def _servicebus_config(pytestconfig: pytest.Config) -> str:
    """The text of the file that declares every namespace's entities."""
    name: str = pytestconfig.getini("servicebus_config")
    if not name:
        return ""
    folder = pytestconfig.inipath.parent if pytestconfig.inipath else pytestconfig.rootpath
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot read {Path(name)} ({error}); check servicebus_config"
        raise pytest.UsageError(reason) from error


@pytest.fixture
def servicebus(_servicebus_config: str, servicebus_server: "Bus") -> Iterator["FreshNamespace"]:
    """A namespace of the test's own: `connection_string`, `create_queue`, `client()`, `kill()`."""
    with servicebus_server.fresh_namespace(_servicebus_config) as namespace:
        yield namespace
