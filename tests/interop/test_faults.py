"""Faults on purpose, felt through the official SDK."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from twinbus.client.faults import FaultClient
from twinbus.entities.partitions import PARTITION_COUNT, hash_key
from twinbus.errors import ServiceError, TwinbusError
from twinbus.testing.server import ServerProcess

pytestmark = [
    pytest.mark.proves("A-1", "A-2", "A-5", "A-6"),
    pytest.mark.feature("available.faults"),
]

QUEUE = "orders"
OTHER = "bills"
WAIT_S = 5


@pytest.fixture
def faults(server: ServerProcess) -> Iterator[FaultClient]:
    """Two empty queues, and no fault left behind."""
    known = {queue.name for queue in server.admin.list_queues()}
    for name in (QUEUE, OTHER):
        if name in known:
            server.admin.delete_queue(name)
        server.create_queue(name)
    client = FaultClient(server.connection_string)
    yield client
    client.clear_all()


def sdk(server: ServerProcess, **settings: Any) -> ServiceBusClient:
    """A client that does not try again: the test wants to see the error."""
    settings = {"retry_total": 0, **settings}
    return ServiceBusClient.from_connection_string(server.connection_string, **settings)


def send(
    server: ServerProcess,
    text: str,
    queue: str = QUEUE,
    partition_key: str | None = None,
    **settings: Any,
) -> None:
    with sdk(server, **settings) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(text, partition_key=partition_key))


def receive(server: ServerProcess, queue: str = QUEUE) -> list[str]:
    with sdk(server) as client, client.get_queue_receiver(queue) as receiver:
        messages = receiver.receive_messages(max_wait_time=WAIT_S)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def manage(server: ServerProcess) -> str:
    return str(server.admin.get_queue(QUEUE).name)


def acted(faults: FaultClient) -> int:
    [fault] = faults.list()
    return int(fault["acted"])


# --- the four ways of being unavailable -----------------------------------------------------------


@pytest.mark.proves("A-1")
def test_cannot_send_alone(server: ServerProcess, faults: FaultClient) -> None:
    send(server, "before")
    fault = faults.add({"kind": "refuse-sends", "entity": QUEUE})
    with pytest.raises(ServiceBusError, match="refuse-sends"):
        send(server, "during")
    assert receive(server) == ["before"]
    assert manage(server) == QUEUE
    send(server, "elsewhere", OTHER)
    assert acted(faults) >= 1
    faults.clear(fault["id"])
    send(server, "after")
    assert receive(server) == ["after"]


@pytest.mark.proves("A-1")
def test_cannot_receive_alone(server: ServerProcess, faults: FaultClient) -> None:
    fault = faults.add({"kind": "refuse-receives", "entity": QUEUE})
    send(server, "kept")
    assert manage(server) == QUEUE
    with pytest.raises(ServiceBusError, match="refuse-receives"):
        receive(server)
    send(server, "elsewhere", OTHER)
    assert receive(server, OTHER) == ["elsewhere"]
    faults.clear(fault["id"])
    assert receive(server) == ["kept"]


@pytest.mark.proves("A-1")
def test_a_receiver_that_is_open_when_it_begins(server: ServerProcess, faults: FaultClient) -> None:
    with sdk(server) as client, client.get_queue_receiver(QUEUE) as receiver:
        assert receiver.receive_messages(max_wait_time=0.1) == []
        faults.add({"kind": "refuse-receives", "entity": QUEUE})
        send(server, "kept")
        with pytest.raises(ServiceBusError, match="refuse-receives"):
            receiver.receive_messages(max_wait_time=WAIT_S)


@pytest.mark.proves("A-1")
def test_cannot_manage_alone(server: ServerProcess, faults: FaultClient) -> None:
    faults.add({"kind": "refuse-management", "entity": QUEUE})
    with pytest.raises(ServiceError, match="refuse-management"):
        manage(server)
    assert server.admin.get_queue(OTHER).name == OTHER
    send(server, "goes on")
    assert receive(server) == ["goes on"]


@pytest.mark.proves("A-1")
def test_cannot_contact_alone(server: ServerProcess, faults: FaultClient) -> None:
    with sdk(server) as client, client.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        faults.add({"kind": "refuse-connections"})
        with pytest.raises((ServiceBusConnectionError, ServiceBusCommunicationError)):
            send(server, "a new connection")
        with pytest.raises(TwinbusError, match="no bus answers"):
            manage(server)
        sender.send_messages(ServiceBusMessage("on the open one"))
    faults.clear_all()
    assert sorted(receive(server) + receive(server)) == ["before", "on the open one"]


# --- the others -----------------------------------------------------------------------------------


@pytest.mark.proves("A-2")
def test_throttling(server: ServerProcess, faults: FaultClient) -> None:
    faults.add({"kind": "throttle", "entity": QUEUE})
    with pytest.raises(ServiceBusServerBusyError, match="10 seconds"):
        send(server, "too much")
    send(server, "another entity", OTHER)
    assert receive(server, OTHER) == ["another entity"]


@pytest.mark.proves("A-6")
def test_the_client_tries_again_by_itself(server: ServerProcess, faults: FaultClient) -> None:
    """It lasts as long as it was set, and the SDK's own retry covers it."""
    faults.add({"kind": "refuse-sends", "entity": QUEUE, "duration_s": 1})
    send(server, "in the end", retry_total=5, retry_backoff_factor=0.5)
    assert receive(server) == ["in the end"]
    assert faults.list() == []


@pytest.mark.proves("A-5")
def test_a_namespace_that_is_cut_off(server: ServerProcess, faults: FaultClient) -> None:
    with sdk(server) as client, client.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        fault = faults.add({"kind": "cut-namespace"})
        with pytest.raises((ServiceBusConnectionError, ServiceBusCommunicationError)):
            sender.send_messages(ServiceBusMessage("on the open one"))
        with pytest.raises((ServiceBusConnectionError, ServiceBusCommunicationError)):
            send(server, "on a new one")
        faults.clear(fault["id"])
        sender.send_messages(ServiceBusMessage("after"))
    assert sorted(receive(server) + receive(server)) == ["after", "before"]


def test_connections_are_dropped_once(server: ServerProcess, faults: FaultClient) -> None:
    with sdk(server, retry_total=3) as client, client.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        assert faults.add({"kind": "drop-connections"})["acted"] == 1
        sender.send_messages(ServiceBusMessage("after"))
    assert sorted(receive(server) + receive(server)) == ["after", "before"]


def test_connections_are_late(server: ServerProcess, faults: FaultClient) -> None:
    faults.add({"kind": "delay-connections", "delay_ms": 20})
    send(server, "late")
    assert receive(server) == ["late"]
    assert acted(faults) > 10


def test_a_slow_store(server: ServerProcess, faults: FaultClient) -> None:
    faults.add({"kind": "slow-store", "store": 0, "delay_ms": 20})
    send(server, "slow")
    assert receive(server) == ["slow"]
    assert acted(faults) >= 2


def test_now_and_then(server: ServerProcess, faults: FaultClient) -> None:
    faults.add({"kind": "refuse-management", "entity": QUEUE, "probability": 0.5})
    outcomes = set()
    for _ in range(40):
        try:
            outcomes.add(manage(server))
        except ServiceError:
            outcomes.add("refused")
    assert outcomes == {QUEUE, "refused"}


@pytest.mark.proves("A-6")
def test_a_store_that_fails_takes_a_small_server_with_it(tmp_path: Path) -> None:
    """The disk fails where disks fail; what was acknowledged is there after the restart."""
    with ServerProcess(tmp_path / "data") as server:
        server.create_queue(QUEUE)
        send(server, "acknowledged")
        FaultClient(server.connection_string).add({"kind": "fail-store"})
        with pytest.raises(TwinbusError):
            server.create_queue(OTHER)
        assert server.wait() == 3
        server.restart()
        assert FaultClient(server.connection_string).list() == []  # a restart ends them all
        assert receive(server) == ["acknowledged"]


@pytest.mark.proves("E-5", "E-7")
def test_a_partition_that_is_down(server: ServerProcess, faults: FaultClient) -> None:
    if "wide" not in {queue.name for queue in server.admin.list_queues()}:
        server.create_queue("wide", enable_partitioning=True)
    down = hash_key("a key")
    faults.add({"kind": "partition-down", "entity": "wide", "partition": down})
    with sdk(server) as client, client.get_queue_sender("wide") as sender:
        for number in range(PARTITION_COUNT + 1):  # once around
            sender.send_messages(ServiceBusMessage(f"anywhere {number}"))
        with pytest.raises(ServiceBusError, match=r"partition-down|is down"):
            sender.send_messages(ServiceBusMessage("there", partition_key="a key"))
    faults.clear_all()
    send(server, "there", "wide", partition_key="a key")


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two broker processes."""
    data_dir = tmp_path_factory.mktemp("wide") / "data"
    with ServerProcess(data_dir, arguments=("--brokers", "2")) as server:
        server.create_queue("wide", enable_partitioning=True)
        yield server
    assert "Traceback" not in server.log, server.log


@pytest.mark.proves("A-4", "A-6")
@pytest.mark.parametrize("kind", ["kill-broker", "hang-broker"])
def test_a_broker_that_dies_or_hangs(wide_server: ServerProcess, kind: str) -> None:
    """What has no key is sent all the same, and nothing that was sent is lost."""
    faults = FaultClient(wide_server.connection_string)
    sent = {f"{kind} {number}" for number in range(20)}
    received: set[str] = set()
    with sdk(wide_server, retry_total=10) as client:
        with client.get_queue_sender("wide") as sender:
            for number, text in enumerate(sorted(sent)):
                sender.send_messages(ServiceBusMessage(text))
                if number == 5:
                    assert faults.add({"kind": kind, "broker": 1})["acted"] == 1
        with client.get_queue_receiver("wide") as receiver:
            while not sent <= received:
                messages = receiver.receive_messages(20, max_wait_time=30)
                assert messages, f"missing {sent - received}"
                received |= {str(message) for message in messages}
                for message in messages:
                    receiver.complete_message(message)
    faults.clear_all()


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def twinbus(server: ServerProcess, faults: FaultClient) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "twinbus", "fault", *arguments]
        command += ["--connection-string", server.connection_string]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout + ran.stderr

    return run


@pytest.mark.proves("A-6")
def test_command_line(twinbus: Callable[..., tuple[int, str]]) -> None:
    code, text = twinbus("add", "throttle", "--entity", QUEUE, "--duration", "5m")
    assert code == 0
    assert text.startswith("fault ")
    assert "throttle namespace=twinbus entity=orders, 300s left" in text
    fault_id = text.split()[1].rstrip(":")
    code, text = twinbus("list")
    heading, row = text.splitlines()
    assert heading.startswith("ID  KIND      SCOPE")
    assert row.split()[:2] == [fault_id, "throttle"]
    assert twinbus("clear", fault_id) == (0, f"cleared fault {fault_id}\n")
    code, text = twinbus(
        "add", "slow-store", "--store", "0", "--delay", "5ms", "--probability", "0.5", "--json"
    )
    assert json.loads(text)["delay_ms"] == 5
    assert json.loads(twinbus("list", "--json")[1])[0]["probability"] == 0.5
    assert twinbus("clear", "--all") == (0, "cleared all faults\n")
    assert json.loads(twinbus("list", "--json")[1]) == []
    assert twinbus("add", "drop-connections")[1] == "drop-connections: done, 0 hit\n"


@pytest.mark.parametrize(
    "arguments, code, reason",
    [
        (("add", "kill-broker", "--broker", "0"), 1, "start it with --brokers 2"),
        (("add", "throttle", "--entity", "missing"), 1, "no entity 'missing'"),
        (("add", "throttle", "--namespace", "elsewhere"), 1, "no namespace 'elsewhere'"),
        (("add", "throttle", "--entity", QUEUE, "--partition", "3"), 1, "not partitioned"),
        (("add", "fail-store", "--store", "1"), 1, "no store 1; the last one is 0"),
        (("add", "slow-store"), 1, "needs a delay"),
        (("add", "throttle", "--duration", "soon"), 2, "write 500ms, 30s, 5m, 2h"),
        (("add", "explode"), 2, "invalid choice"),
        (("clear", "no-such"), 1, "No fault no-such is in force"),
        (("clear",), 2, "pass its ID or --all"),
    ],
)
def test_command_line_complaints(
    twinbus: Callable[..., tuple[int, str]], arguments: tuple[str, ...], code: int, reason: str
) -> None:
    exit_code, text = twinbus(*arguments)
    assert exit_code == code
    assert reason in text
    assert json.loads(twinbus("list", "--json")[1]) == []


# --- the page for it ------------------------------------------------------------------------------


@pytest.mark.proves("A-6")
def test_the_rehearsal_as_it_stands_in_the_docs(server: ServerProcess, tmp_path: Path) -> None:
    """Docs/how-to/rehearse-an-outage.md, command by command."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "rehearse-an-outage.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program is not None
    (tmp_path / "rehearse.py").write_text(program[1])
    known = {queue.name for queue in server.admin.list_queues()}
    for name in {QUEUE, "wide"} & known:
        server.admin.delete_queue(name)
    python = shlex.quote(sys.executable)
    lines = [
        "set -e",
        f'twinbus() {{ {python} -m twinbus "$@"; }}',
        f'python() {{ {python} "$@"; }}',
    ]
    data = f"--data {shlex.quote(str(server.data_dir))}"
    expected: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        lines += block.replace("--data DIR", data).splitlines()
        expected += re.findall(r"^# (.*)$", block, re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["sh", "-c", "\n".join(lines)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = [line for line in ran.stdout.splitlines() if re.fullmatch(r"sent|\w+Error", line)]
    assert outcomes == expected
