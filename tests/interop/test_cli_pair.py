"""`twinbus pair` against two real namespaces."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.interop.pairs import Servers, run_servers, take, texts
from twinbus.cli.main import main
from twinbus.cli.pair.command import PRIMARY, SECONDARY
from twinbus.pairing.rewriting import rewrite

pytestmark = pytest.mark.feature("pairing.cli")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with run_servers(tmp_path_factory.mktemp("pair")) as both:
        yield both


class Backlog:
    """The backlog queues of one test, by a name of their own."""

    def __init__(self, servers: Servers, name: str) -> None:
        self.servers = servers
        self.name = name
        self.orders = servers.create_queue(f"{name}-orders")
        for index in range(2):
            self.create(index, lock_duration="PT1M")

    def queue(self, index: int) -> str:
        return f"{self.name}/x-servicebus-transfer/{index}"

    def create(self, index: int, **settings: str | int) -> str:
        self.servers.secondary.create_queue(self.queue(index), **settings)
        return self.queue(index)

    def put(self, index: int, *messages: AmqpAnnotatedMessage) -> None:
        text = self.servers.secondary.connection_string
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_sender(self.queue(index)) as sender,
        ):
            sender.send_messages(list(messages))

    def put_texts(self, index: int, *bodies: str, path: str = "") -> None:
        self.put(index, *(_rewritten(body, path or self.orders) for body in bodies))

    def arguments(self, action: str) -> list[str]:
        return ["pair", action, "--primary-name", self.name]


def _foreign() -> AmqpAnnotatedMessage:
    """A message that no pair has put there."""
    return ServiceBusMessage("somebody else's").raw_amqp_message


def _rewritten(body: str, path: str) -> AmqpAnnotatedMessage:
    return rewrite(ServiceBusMessage(body).raw_amqp_message, path)


@pytest.fixture
def backlog(
    servers: Servers, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Backlog:
    monkeypatch.setenv(PRIMARY, servers.primary.connection_string)
    monkeypatch.setenv(SECONDARY, servers.secondary.connection_string)
    return Backlog(servers, re.sub(r"\W+", "-", request.node.name.removeprefix("test_")))


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs a command; its exit code, and what it says as JSON."""

    def run(arguments: list[str]) -> tuple[int, Any]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


# --- status ---------------------------------------------------------------------------------------


def test_status(backlog: Backlog, capsys: pytest.CaptureFixture[str]) -> None:
    backlog.put_texts(0, "a", "b", "c")
    backlog.put_texts(0, "d", path="news")
    backlog.put(1, _foreign())
    assert main([*backlog.arguments("status"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["primary"]["reachable"] is shown["secondary"]["reachable"] is True
    assert (shown["active"], shown["dead_letter"]) == (5, 0)
    first, second = shown["backlog_queues"]
    assert first["queue"] == backlog.queue(0)
    assert first["destinations"] == {backlog.orders: 3, "news": 1}
    assert 0 <= first["oldest_s"] < 60
    assert second["destinations"] == {"(no x-ms-path)": 1}
    assert main([*backlog.arguments("status"), "--backlog-queues", "1"]) == 0
    table = capsys.readouterr().out
    assert f"{backlog.orders} (3), news (1)" in table
    assert backlog.queue(1) not in table
    assert "4 waiting, 0 in dead-letter queues" in table


def test_status_while_the_primary_is_cut_off(
    backlog: Backlog, says: Callable[..., tuple[int, Any]]
) -> None:
    fault = backlog.servers.faults.add({"kind": "cut-namespace"})
    try:
        code, shown = says(backlog.arguments("status"))
    finally:
        backlog.servers.faults.clear(fault["id"])
    assert code == 0, "the backlog could be looked at"
    assert shown["primary"]["reachable"] is False
    assert "no bus answers" in shown["primary"]["reason"]
    assert len(shown["backlog_queues"]) == 2


def test_status_while_the_secondary_is_cut_off(
    backlog: Backlog, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = backlog.servers.secondary_faults.add({"kind": "cut-namespace"})
    try:
        assert main(backlog.arguments("status")) == 3
    finally:
        backlog.servers.secondary_faults.clear(fault["id"])
    assert re.search(r"^secondary .* not reachable: ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("action", ["status", "drain"])
def test_no_such_pair(backlog: Backlog, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is made where nothing was."""
    assert main(["pair", action, "--primary-name", "nobody"]) == 1
    assert "nobody/x-servicebus-transfer/0" in capsys.readouterr().err
    assert backlog.servers.backlog("nobody") == []


# --- drain ----------------------------------------------------------------------------------------


@pytest.mark.proves("P-14")
def test_drain(backlog: Backlog, says: Callable[..., tuple[int, Any]]) -> None:
    """All of it comes home, and the exit code says so."""
    wanted = [f"message {number}" for number in range(250)]
    backlog.put_texts(0, *wanted[:150])
    backlog.put_texts(1, *wanted[150:])
    code, shown = says(backlog.arguments("drain"))
    assert (code, shown) == (0, {"moved": 250, "dead_lettered": 0, "left": 0})
    assert sorted(texts(take(backlog.servers.primary, backlog.orders, 250))) == sorted(wanted)


@pytest.mark.proves("P-14")
def test_drain_of_what_cannot_be_delivered(
    backlog: Backlog, says: Callable[..., tuple[int, Any]]
) -> None:
    """A foreign message and a destination that is gone end in the dead-letter queue; what is
    for a destination that is down stays, and is not waited for for ever.

    A queue that dead-letters by itself, after one delivery, does not look empty and well.
    """
    other = backlog.servers.create_queue(f"{backlog.name}-other")
    strict = backlog.create(2, lock_duration="PT5S", max_delivery_count=1)
    backlog.put(0, _foreign())
    backlog.put_texts(0, "lost", path="gone")
    backlog.put_texts(0, "a", "b", path=other)
    backlog.put_texts(0, "one")
    backlog.put_texts(2, "c", path=other)
    fault = backlog.servers.faults.add({"kind": "refuse-sends", "entity": other})
    try:
        code, shown = says([*backlog.arguments("drain"), "--patience", "20s"])
    finally:
        backlog.servers.faults.clear(fault["id"])
    assert (code, shown) == (3, {"moved": 1, "dead_lettered": 3, "left": 2})
    assert texts(take(backlog.servers.primary, backlog.orders, 1)) == ["one"]
    kept = backlog.servers.secondary.admin.get_queue(strict).properties
    assert kept["DeadLetterMessageCount"] == "1"


# --- syphon ---------------------------------------------------------------------------------------


@contextmanager
def syphon_processes(backlog: Backlog, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """That have begun; a test that fails shows what they said, and leaves none behind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "twinbus", *backlog.arguments("syphon"), "--json"]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stderr is not None
            assert "in 2 backlog queues" in process.stderr.readline()
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                sys.stdout.writelines(process.communicate())


@pytest.mark.proves("P-15")
def test_syphons_until_they_are_stopped(backlog: Backlog) -> None:
    """Two of them side by side; they go on when all is home, and end cleanly."""
    backlog.put_texts(0, "early")
    with syphon_processes(backlog, 2) as processes:
        assert texts(take(backlog.servers.primary, backlog.orders, 1)) == ["early"]
        backlog.put_texts(1, "late")
        assert texts(take(backlog.servers.primary, backlog.orders, 1)) == ["late"]
        for process, end in zip(processes, (signal.SIGINT, signal.SIGTERM), strict=True):
            process.send_signal(end)
            out, err = process.communicate(timeout=30)
            assert process.returncode == 0, err
            assert "Traceback" not in err
            assert set(json.loads(out.splitlines()[-1])) == {"moved", "dead_lettered", "left"}
    orders = backlog.servers.primary.admin.get_queue(backlog.orders).properties
    assert orders["ActiveMessageCount"] == "0", "nothing came twice"
