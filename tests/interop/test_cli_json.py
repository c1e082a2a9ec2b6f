"""`--json`: standard output has one document, or one a line, and nothing else.  And `status` and
`bench`, which print much."""

import json
from pathlib import Path
from typing import Any

import pytest

from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main, parser
from twinbus.cli.parsers import tree
from twinbus.client.http import HttpClient
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("cli.json")

# In an order in which each finds what it needs.
COMMANDS = [
    "queue create orders",
    "queue list",
    "queue show orders",
    "queue update orders --lock-duration 30s",
    "topic create news",
    "topic list",
    "topic show news",
    "topic update news --user-metadata mine",
    "subscription create news all",
    "subscription list news",
    "subscription show news all",
    "subscription update news all --max-delivery-count 3",
    "rule create news all red --sql color='red'",
    "rule list news all",
    "rule show news all red",
    "rule delete news all red",
    "send orders hello",
    "send news hello --count 3",
    "send news/nobody hello",
    "peek news/Subscriptions/all",
    "receive news/Subscriptions/all --count 2 --settle dead-letter",
    "replay news/Subscriptions/all",
    "undefer orders",
    "purge news/Subscriptions/all",
    "status",
    "fault add throttle --entity news --duration 1h",
    "fault list",
    "fault clear --all",
    "cost show",
    "cost plan --rate 1/s",
    "bench --queue empty --duration 50ms --connections 1 --in-flight 3",
    "env --data {data}",
    "doctor --port {port}",
    "subscription delete news all",
    "topic delete news",
    "queue delete orders",
]
LINES = ("peek", "receive")
# Shown by the tests of their own: they need a pair, Spark, minutes, or a server that is stopped.
ELSEWHERE = ("pair ", "pipeline ", "drill", "verify")
NO_DATA = {"serve", "emulator", "completion"}


@pytest.fixture
def environment(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)


def test_all_that_print_data_can() -> None:
    leaves = {
        " ".join(node.path): {name for each in node.arguments for name in each.names}
        for node in tree(parser()).walk()
        if not node.below
    }
    assert {name for name, options in leaves.items() if "--json" not in options} == NO_DATA
    for name in leaves:
        is_shown = any(command.startswith(name) for command in COMMANDS)
        assert is_shown or name in NO_DATA or name.startswith(ELSEWHERE), name


@pytest.mark.usefixtures("environment")
def test_nothing_but_json(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    server.create_queue("empty")
    for command in COMMANDS:
        words = command.format(data=server.data_dir, port=server.port).split()
        if "news/nobody" in words:
            assert main([*words, "--json"]) == 1
            assert capsys.readouterr().out == ""
            continue
        assert main([*words, "--json"]) in (0, 3 if words[0] == "doctor" else 0), command
        said = capsys.readouterr().out
        documents = said.splitlines() if words[0] in LINES else [said]
        assert documents and all(json.loads(each) is not None for each in documents), command
    assert "orders" not in {entry.name for entry in server.admin.list_queues()}


@pytest.mark.usefixtures("environment")
def test_status(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("seen-a", "seen-b", "other"):
        server.create_queue(name)
    assert main(["send", "seen-a", "x", "--count", "1500"]) == 0
    assert main(["fault", "add", "refuse-sends", "--entity", "seen-b"]) == 0
    report: dict[str, Any] = {"primary": "here", "secondary": "there", "client": "a\x1b[2Jb"}
    report["entities"] = [{"name": "seen-a", "state": "Secondary"}]
    body = json.dumps(report).encode()
    status, _ = HttpClient(server.connection_string).exchange("PUT", "/$pairs/p", body, {})
    assert status == 204
    capsys.readouterr()
    assert main(["status", "--prefix", "seen"]) == 0
    shown = capsys.readouterr().out
    [row] = [line.split() for line in shown.splitlines() if line.startswith("seen-a ")]
    assert row[:3] == ["seen-a", "Active", "1,500"]
    assert "refuse-sends" in shown
    assert "other" not in shown
    assert '"a\\u001b[2Jb"  here     there      seen-a  Secondary' in shown
    assert main(["fault", "clear", "--all"]) == 0


@pytest.mark.usefixtures("environment")
def test_bench_cleans_up(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    before = [entry.name for entry in server.admin.list_queues()]
    assert main(["bench", "--duration", "100ms", "--size", "2k", "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["size_bytes"] == 2_048
    assert shown["send"]["messages"] == shown["receive"]["messages"] > 0
    for part in ("send", "receive", "round_trip"):
        latency = shown[part]["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert [entry.name for entry in server.admin.list_queues()] == before


def test_bench_of_a_bus_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)
    assert main(["bench", "--duration", "100ms", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a bus of its own: bodies of 1,024 bytes, 2 connections")
    assert [line.split()[0] for line in lines[1:]] == ["PART", "send", "receive", "round"]
    assert list(tmp_path.iterdir()) == []
