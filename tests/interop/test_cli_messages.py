"""`twinbus send`, `receive` and `peek` against a real server: nothing lost, nothing left locked."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.complaint import complaint
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("cli.messages")

Says = Callable[..., str]


@pytest.fixture
def says(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> Callable[..., str]:
    """Runs a command that must go well; what it prints."""
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)

    def run(*words: str, given: bytes = b"") -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capfdbinary.readouterr()
        assert main(list(words)) == 0
        sys.stdout.flush()
        out: bytes = capfdbinary.readouterr().out
        return out.decode(errors="surrogateescape")

    return run


@pytest.fixture
def queue(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    server.create_queue(name)
    return name


def counts(server: ServerProcess, queue: str) -> tuple[int, int]:
    """Active and dead-lettered."""
    found = server.admin.get_queue(queue).properties
    return int(found["ActiveMessageCount"]), int(found["DeadLetterMessageCount"])


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_message_with_everything(says: Says, queue: str) -> None:
    options = ["--message-id", "m", "--session-id", "s", "--correlation-id", "c", "--subject", "x"]
    options += ["--content-type", "text/plain", "--to", "there", "--reply-to", "here"]
    options += ["--partition-key", "s", "--ttl", "5m", "--property", "n=7", "--property", "t=seven"]
    options += ["--property", 'q="7"', "--property", "yes=true"]
    assert says("send", queue, "hello", *options) == f"1 message sent to {queue}\n"
    [shown] = documents(says("receive", queue, "--json"))
    for name in ("sequence_number", "enqueued_time", "locked_until", "delivery_count", "state"):
        assert shown.pop(name) is not None
    assert shown == {
        "message_id": "m",
        "session_id": "s",
        "correlation_id": "c",
        "subject": "x",
        "content_type": "text/plain",
        "to": "there",
        "reply_to": "here",
        "partition_key": "s",
        "time_to_live_ms": 300_000,
        "application_properties": {"n": 7, "t": "seven", "q": "7", "yes": True},
        "body": "hello",
    }


def test_where_bodies_come_from(says: Says, queue: str, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"from\na \xff file")
    says("send", queue, "--file", str(path))
    says("send", queue, given=b"from standard input\n")
    says("send", queue, "--lines", given=b"one\r\ntwo\n\nlast")
    says("send", queue, "again", "--count", "2", "--message-id", "a")
    got = says("receive", queue, "--all", "--raw", "--wait", "300ms")
    expected = b"from\na \xff file\nfrom standard input\n\none\ntwo\n\nlast\nagain\nagain\n"
    assert got.encode(errors="surrogateescape") == expected


def test_what_is_peeked_can_be_sent(server: ServerProcess, says: Says, queue: str) -> None:
    """And is the same message again, many times over."""
    says("send", queue, "--lines", "--property", "n=1.5", given=b"\n".join([b"x"] * 2_500))
    says("send", queue, "--subject", "odd\nline", given=b"\x00\xff")
    lines = says("peek", queue, "--count", "5000", "--json")
    assert len(documents(lines)) == 2_501
    server.create_queue(f"{queue}-again")
    sent = says("send", f"{queue}-again", "--json-lines", "--json", given=lines.encode())
    assert json.loads(sent) == {"entity": f"{queue}-again", "message_count": 2_501}

    def plain(text: str) -> list[dict[str, Any]]:
        of_the_bus = ("sequence_number", "enqueued_time")
        return [
            {name: value for name, value in each.items() if name not in of_the_bus}
            for each in documents(text)
        ]

    assert plain(says("peek", f"{queue}-again", "--count", "5000", "--json")) == plain(lines)


def test_scheduled(server: ServerProcess, says: Says, queue: str) -> None:
    says("send", queue, "later", "--at", "2099-01-01")
    [shown] = documents(says("peek", queue, "--json"))
    assert shown["state"] == "scheduled"
    assert shown["scheduled_enqueue_time"].startswith("2099-01-01T00:00:00")
    assert says("receive", queue, "--wait", "100ms") == ""


def test_settlements(server: ServerProcess, says: Says, queue: str) -> None:
    """No more is taken than was asked for, and what is given back is there for the next at once."""
    says("send", queue, "--lines", given=b"a\nb\nc\nd\ne")
    assert says("receive", queue, "--raw") == "a\n"
    assert counts(server, queue) == (4, 0)
    assert says("receive", queue, "--all", "--settle", "abandon", "--raw", "--wait", "300ms") == (
        "b\nc\nd\ne\n"
    )
    [shown] = documents(says("receive", queue, "--settle", "defer", "--json"))
    assert (shown["body"], shown["delivery_count"]) == ("b", 1)
    says("receive", queue, "--count", "2", "--settle", "dead-letter", "--reason", "not ours")
    assert counts(server, queue)[1] == 2
    assert 'reason="not ours"' in says("receive", queue, "--dead-letter")
    assert says("undefer", queue) == "1 message made active\n"
    both = says("receive", queue, "--receive-and-delete", "--count", "9", "--raw", "--wait", "1s")
    assert both.split() == ["b", "e"] or both.split() == ["e", "b"]
    assert counts(server, queue) == (0, 1)


def test_receive_and_delete_takes_no_more_than_asked(
    server: ServerProcess, says: Says, queue: str
) -> None:
    says("send", queue, "--lines", given=b"\n".join(b"%d" % n for n in range(300)))
    got = says("receive", queue, "--receive-and-delete", "--count", "150", "--raw")
    assert got.split() == [str(number) for number in range(150)]
    assert counts(server, queue) == (150, 0)


def test_sessions(server: ServerProcess, says: Says) -> None:
    server.create_queue("in-sessions", requires_session=True)
    says("send", "in-sessions", "--lines", "--session-id", "s", given=b"a\nb")
    says("send", "in-sessions", "c", "--session-id", "t")
    assert says("receive", "in-sessions", "--session", "t", "--raw") == "c\n"
    assert says("receive", "in-sessions", "--next-session", "--raw", "--count", "2") == "a\nb\n"
    assert says("receive", "in-sessions", "--next-session", "--wait", "200ms") == ""


def test_follow_until_it_is_told(server: ServerProcess, says: Says, queue: str) -> None:
    """SIGTERM and Ctrl-C end it in order: nothing stays locked, nothing is lost."""
    command = [sys.executable, "-m", "twinbus", "receive", queue, "--follow", "--raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        says("send", queue, "--lines", given=b"first\nsecond")
        assert [following.stdout.readline() for _ in range(2)] == ["first\n", "second\n"]
        following.send_signal(signal.SIGTERM)
        assert following.wait(20) == 130
    assert counts(server, queue) == (0, 0)
    says("send", queue, "third")
    assert says("receive", queue, "--raw") == "third\n"


def test_a_reader_that_hangs_up(server: ServerProcess, says: Says, queue: str) -> None:
    """As `| head -1` does: what could not be written is free for the next, at once."""
    says("send", queue, "--count", "50", given=b"x" * 100_000)
    command = [sys.executable, "-m", "twinbus", "receive", queue, "--all", "--raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as receiving:
        assert receiving.stdout is not None
        assert receiving.stderr is not None
        assert receiving.stdout.read(100_001) == b"x" * 100_000 + b"\n"
        receiving.stdout.close()
        assert receiving.wait(20) == 1
        assert receiving.stderr.read() == b""
    left = counts(server, queue)[0]
    assert left > 40
    again = says("receive", queue, "--count", "50", "--json", "--wait", "500ms")
    shown = documents(again)
    assert len(shown) == left
    assert {each["delivery_count"] for each in shown} == {0}, "nobody has seen them"


@pytest.mark.parametrize(
    "words, given, reason",
    [
        (["--json-lines"], b'{"body": "x"}\n{"boddy": "y"}\n', "line 2: a message has no 'boddy'"),
        (["--json-lines"], b"[1]\n", "line 1: not a JSON object; write one, such as {"),
        (["--json-lines"], b"{\n", "line 1: not JSON"),
        (["--file", "missing"], b"", "cannot read missing (No such file or directory)"),
    ],
)
def test_what_cannot_be_sent(
    words: list[str],
    given: bytes,
    reason: str,
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "refused" not in {entry.name for entry in server.admin.list_queues()}:
        server.create_queue("refused")
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["send", "refused", *words]) == 1
    said = capsys.readouterr().err
    told, is_told, _ = said.partition("messages were sent before this:\n")
    assert reason in complaint(said.removeprefix(told + is_told) if is_told else said)
    assert bool(is_told) == (b"boddy" in given)


def test_one_that_is_refused_ends_it(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What came before is there, and is counted."""
    server.create_queue("strict", requires_session=True)
    lines = [{"body": "a", "session_id": "s"}] * 3 + [{"body": "b"}] + [{"body": "c"}]
    given = "\n".join(map(json.dumps, lines)).encode()
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["send", "strict", "--json-lines"]) == 1
    told, _, rest = capsys.readouterr().err.partition("\n")
    assert told == "3 messages were sent before this:"
    assert "session" in complaint(rest)
    assert counts(server, "strict") == (3, 0)
