"""The pytest plugin: a fresh namespace for each test, and nothing where nobody asks for one."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import twinbus

pytestmark = pytest.mark.feature("dropin.pytest")

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent
CONFIG = """{"UserConfig": {"Namespaces": [{"Queues": [{"Name": "declared"}]}]}}"""
INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.fixture(autouse=True)
def same_twinbus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that run elsewhere load the twinbus that is tested here."""
    monkeypatch.setenv("PYTHONPATH", str(Path(twinbus.__file__).parents[1]))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """pytest in a process of its own, with the plugin whether twinbus is installed or not."""
    installed = importlib.metadata.entry_points(group="pytest11", name="twinbus")
    plugin = [] if installed else ["-p", "twinbus.testing.plugin"]
    return pytester.runpytest_subprocess(*plugin, "-p", "no:randomly", *arguments)


def test_a_fresh_namespace_for_each_test(pytester: pytest.Pytester) -> None:
    """Whatever one test does, to the server too, the next one does not see."""
    pytester.makeini(INI + "servicebus_config = queues/Config.json\n")
    (pytester.mkdir("queues") / "Config.json").write_text(CONFIG)
    pytester.makepyfile(
        """
        import pytest
        from azure.servicebus import ServiceBusMessage

        pids = set()

        def names(servicebus):
            return [queue.name for queue in servicebus.admin.list_queues()]

        def test_first(servicebus):
            assert names(servicebus) == ["declared"]
            servicebus.create_queue("orders")
            with servicebus.client().get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one"))
            servicebus.kill()
            servicebus.restart()
            assert servicebus.message_count("orders") == 1

        @pytest.mark.parametrize("number", range(3))
        def test_next(servicebus, servicebus_server, number):
            assert names(servicebus) == ["declared"]
            servicebus.create_queue("orders")
            pids.add(servicebus_server.server.pid)
            assert len(pids) == 1
            servicebus.fault("refuse-management", entity="orders")

        def test_that_leaves_a_dead_server(servicebus):
            servicebus.kill()

        def test_last(servicebus):
            assert names(servicebus) == ["declared"]

        async def collected_but_not_run(servicebus):
            "Not ours to make anything of."
        """
    )
    run(pytester).assert_outcomes(passed=6)


def test_the_how_to(pytester: pytest.Pytester) -> None:
    """What docs/how-to/test-with-pytest.md shows works as it stands there."""
    page = (HERE.parents[2] / "docs" / "how-to" / "test-with-pytest.md").read_text()
    *tests, script = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    pytester.makeini(INI)
    pytester.makepyfile("\n".join(tests))
    run(pytester).assert_outcomes(passed=3)
    printed = pytester.runpython(pytester.makepyfile(script=script))
    printed.stdout.fnmatch_lines(["Endpoint=sb://127.0.0.1:*;UseDevelopmentEmulator=true;"])


def test_every_worker_has_its_server(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI + "servicebus_arguments = --namespace mine\n")
    pytester.makepyfile(
        """
        import pathlib, pytest

        @pytest.mark.parametrize("number", range(2))
        def test_where(servicebus, servicebus_server, worker_id, number):
            assert [each.name for each in servicebus.admin.list_queues()] == []
            text = (servicebus_server.server.data_dir / "server.json").read_text()
            assert '"name": "mine"' in text
            pathlib.Path(f"seen-{worker_id}").write_text(str(servicebus_server.port))
        """
    )
    run(pytester, "-n", "2", "--dist", "each").assert_outcomes(passed=4)
    assert len({path.read_text() for path in pytester.path.glob("seen-gw*")}) == 2


def test_nothing_where_nobody_asks(pytester: pytest.Pytester) -> None:
    """No server, nothing of twinbus loaded, and no name of others taken away."""
    pytester.makeini(INI)
    pytester.makepyfile(
        """
        import sys
        import pytest

        @pytest.fixture
        def servicebus():
            return "my own"

        def test_mine(servicebus):
            assert servicebus == "my own"
            loaded = {name for name in sys.modules if name.startswith("twinbus")}
            assert loaded <= {"twinbus", "twinbus.testing", "twinbus.testing.plugin"}
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_config_that_is_missing(pytester: pytest.Pytester) -> None:
    """A test that asks for it is told why, before anything is started; others are not bothered."""
    pytester.makeini(INI + "servicebus_config = missing.json\n")
    pytester.makepyfile("def test_a(servicebus): ...\ndef test_b(): ...")
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*cannot read missing.json*check servicebus_config*"])


def test_the_plugin_loads_pytest_alone() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import twinbus.testing.plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "['twinbus', 'twinbus.testing', 'twinbus.testing.plugin']"
