"""What the README, the docs and the examples show works as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-13")

ROOT = Path(__file__).parents[2]
QUEUE = "orders"


@pytest.fixture(autouse=True)
def orders(server: ServerProcess) -> None:
    """Every snippet uses the same queue, fresh for each."""
    if QUEUE in {queue.name for queue in server.admin.list_queues()}:
        server.admin.delete_queue(QUEUE)
    server.create_queue(QUEUE)


def run(server: ServerProcess, *arguments: str) -> list[str]:
    environment = {**os.environ, "TWINBUS_CONNECTION_STRING": server.connection_string}
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_administration_in_a_prepared_shell(server: ServerProcess) -> None:
    """What docs/how-to/tls.md shows, with nothing set but what `twinbus env` prints."""
    server.admin.delete_queue(QUEUE)
    page = (ROOT / "docs" / "how-to" / "tls.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippet is not None
    twinbus = f"{shlex.quote(sys.executable)} -m twinbus"
    script = f"""
        set -e
        eval "$({twinbus} env --data {shlex.quote(str(server.data_dir))})"
        exec {shlex.quote(sys.executable)} -c {shlex.quote(snippet[1])}
    """
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert server.admin.get_queue(QUEUE).properties["MaxDeliveryCount"] == "5"


def left(server: ServerProcess) -> str:
    return server.admin.get_queue(QUEUE).properties["ActiveMessageCount"]


@pytest.mark.parametrize(
    "page, expected",
    [
        ("README.md", ["one coffee"]),
        ("docs/start.md", [f"{number + 1} order {number}" for number in range(5)]),
    ],
)
def test_snippets(server: ServerProcess, page: str, expected: list[str]) -> None:
    snippet = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert snippet is not None
    assert run(server, "-c", snippet[1]) == expected
    assert left(server) == "0"


@pytest.mark.parametrize(
    "name, expected",
    [
        ("send_and_receive.py", [f"{number + 1} order {number}" for number in range(5)]),
        ("send_and_receive_async.py", ["1 order 1"]),
    ],
)
def test_examples(server: ServerProcess, name: str, expected: list[str]) -> None:
    assert run(server, str(ROOT / "examples" / name)) == expected
    assert left(server) == "0"


def test_dead_letters(server: ServerProcess) -> None:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(ServiceBusMessage("rotten"))
        with client.get_queue_receiver(QUEUE) as receiver:
            [message] = receiver.receive_messages(max_wait_time=10)
            receiver.dead_letter_message(message, reason="smells")
    script = str(ROOT / "examples" / "dead_letters.py")
    assert run(server, script, QUEUE) == ["1 smells rotten"]
    assert left(server) == "1"
