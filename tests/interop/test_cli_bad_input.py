"""Every command with no server, a wrong key, too few rights, a wrong name, a bad file.

Always the same: one line of reason, one line of fix, an exit code that is not 0, no traceback, and
never the key.
"""

import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.complaint import complaint
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main, parser
from twinbus.cli.parsers import tree
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("cli.errors")

KEY = "a-key-that-must-never-be-shown"
ROOT = RuleConfig("RootManageSharedAccessKey", KEY, KEY)
SENDING = RuleConfig("sending", KEY, KEY, ("Send",))

# Every command that asks a server, with arguments that would be right.
ASKING = {
    "queue create": ["fresh"],
    "queue list": [],
    "queue show": ["orders"],
    "queue update": ["orders", "--lock-duration", "30s"],
    "queue delete": ["orders"],
    "topic create": ["fresh"],
    "topic list": [],
    "topic show": ["news"],
    "topic update": ["news", "--user-metadata", "mine"],
    "topic delete": ["news"],
    "subscription create": ["news", "fresh"],
    "subscription list": ["news"],
    "subscription show": ["news", "all"],
    "subscription update": ["news", "all", "--max-delivery-count", "3"],
    "subscription delete": ["news", "all"],
    "rule create": ["news", "all", "fresh"],
    "rule list": ["news", "all"],
    "rule show": ["news", "all", "$Default"],
    "rule delete": ["news", "all", "$Default"],
    "send": ["orders", "hello"],
    "receive": ["orders"],
    "peek": ["orders"],
    "purge": ["orders"],
    "undefer": ["orders"],
    "replay": ["orders"],
    "fault add": ["throttle"],
    "fault list": [],
    "fault clear": ["--all"],
    "cost show": [],
    "status": [],
    "bench": ["--duration", "10ms"],
}
# A key that may only send may send.
NOT_FOR_SENDERS = [name for name in ASKING if name != "send"]
# Names that are not there, and what is suggested.
NAMES = {
    "queue show": (["ordres"], "did you mean `orders`?"),
    "queue update": (["ordres", "--lock-duration", "30s"], "did you mean `orders`?"),
    "queue delete": (["ordres"], "did you mean `orders`?"),
    "topic show": (["nwes"], "did you mean `news`?"),
    "topic update": (["nwes", "--user-metadata", "mine"], "did you mean `news`?"),
    "topic delete": (["nwes"], "did you mean `news`?"),
    "subscription create": (["nwes", "x"], "did you mean `news`?"),
    "subscription list": (["nwes"], "did you mean `news`?"),
    "subscription show": (["news", "al"], "did you mean `all`?"),
    "subscription update": (["news", "al", "--max-delivery-count", "3"], "did you mean `all`?"),
    "subscription delete": (["news", "al"], "did you mean `all`?"),
    "rule create": (["news", "al", "x"], "did you mean `all`?"),
    "rule list": (["news", "al"], "did you mean `all`?"),
    "rule show": (["news", "all", "$Defalt"], "did you mean `$Default`?"),
    "rule delete": (["news", "all", "$Defalt"], "did you mean `$Default`?"),
    "send": (["ordres", "hello"], "did you mean `orders`?"),
    "receive": (["news/Subscriptions/al"], "did you mean `all`?"),
    "peek": (["nwes/Subscriptions/all"], "did you mean `news`?"),
    "purge": (["ordres"], "did you mean `orders`?"),
    "undefer": (["ordres"], "did you mean `orders`?"),
    "replay": (["ordres"], "did you mean `orders`?"),
    "fault add": (["throttle", "--entity", "ordres"], "did you mean `orders`?"),
    "fault clear": (["77"], ""),
    "bench": (["--queue", "ordres"], "did you mean `orders`?"),
}
# Files and directories that are not there, or are not what they should be.
FILES = {
    "serve": ["--data", "{file}"],
    "emulator": ["--data", "{file}"],
    "env": ["--data", "{missing}"],
    "verify": ["--data", "{missing}"],
    "send": ["orders", "--file", "{missing}"],
    "cost show": ["--data", "{missing}"],
    "cost plan": ["--rate", "1/s", "--prices", "{missing}"],
    "bench": ["--data", "{missing}"],
    "drill": ["--keep", "{file}"],
    "pipeline capture": ["--entity", "q", "--to", "d", "--connection-string", "{file}"],
    "pipeline replay": ["--from", "d", "--map-file", "{missing}"],
    "pipeline reconcile": ["--sent", "a", "--arrived", "b", "--html", "{missing}/x.html"],
    "pipeline cost": ["--data", "{missing}", "--prices", "{missing}"],
    "pipeline syphon": ["--primary", "{file}", "--secondary", "{file}"],
    "pipeline dead-letters show": ["--all", "--connection-string", "{file}"],
    "pipeline dead-letters resubmit": ["--all", "--connection-string", "{file}"],
    "pipeline dead-letters export": ["--all", "--to", "d", "--connection-string", "{file}"],
    "pair status": ["--primary", "{file}", "--secondary", "{file}"],
    "pair syphon": ["--primary", "{file}", "--secondary", "{file}"],
    "pair drain": ["--primary", "{file}", "--secondary", "{file}"],
}
# What is left: `doctor` has an answer to everything, the others take no name, file or server.
ELSEWHERE = {"doctor", "completion", "pipeline compact", "pipeline warm"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("server") / "data"
    data_dir.mkdir()
    store_identity(data_dir, Identity("twinbus", (ROOT, SENDING)))
    with ServerProcess(data_dir) as process:
        process.create_queue("orders")
        process.admin.create(TOPIC, ("news",), {})
        process.admin.create(SUBSCRIPTION, ("news", "all"), {})
        yield process
        queues = [entry.name for entry in process.admin.list_queues()]
        assert queues == ["orders"], "nothing of this has changed anything"
    assert "Traceback" not in process.log, process.log
    gc.collect()


def refused(capsys: pytest.CaptureFixture[str], command: str, words: Sequence[str]) -> str:
    """Run a command that must be refused; what is said."""
    capsys.readouterr()
    try:
        code = main([*command.split(), *words])
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr()
    assert code in (1, 2), said.err
    assert said.out == ""
    assert KEY not in said.err
    return complaint(said.err)


def test_no_command_is_forgotten() -> None:
    leaves = {" ".join(node.path) for node in tree(parser()).walk() if not node.below}
    assert leaves == {*ASKING, *FILES, *ELSEWHERE}


def text_of(port: int, key: str = KEY, rule: str = ROOT.name) -> str:
    endpoint = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={rule};"
    return f"{endpoint}SharedAccessKey={key};UseDevelopmentEmulator=true;"


def test_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as found,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, other_port = found.getsockname()[1], other.getsockname()[1]
    monkeypatch.setenv(CONNECTION_STRING, text_of(port))
    for command, words in ASKING.items():
        said = refused(capsys, command, words)
        assert f"no bus answers at 127.0.0.1:{port}" in said
        assert "start one with `twinbus serve`" in said
    monkeypatch.setenv(f"{CONNECTION_STRING}_PRIMARY", text_of(port))
    monkeypatch.setenv(f"{CONNECTION_STRING}_SECONDARY", text_of(other_port))
    for command in ("pair drain", "pair syphon"):
        assert "no bus answers" in refused(capsys, command, [])


def test_a_primary_that_is_its_own_secondary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("PRIMARY", "SECONDARY"):
        monkeypatch.setenv(f"{CONNECTION_STRING}_{side}", text_of(5672))
    for command in ("pair drain", "pair syphon"):
        assert "cannot be paired with itself" in refused(capsys, command, [])


def test_no_bus_but_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever listens there hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(5)
        text = text_of(stranger.getsockname()[1])
        monkeypatch.setenv(CONNECTION_STRING, text)

        def hang_up() -> None:
            for _ in range(2):
                stranger.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert "twinbus serve" in refused(capsys, "peek", ["orders"])
        assert "twinbus serve" in refused(capsys, "queue list", [])
        thread.join()


@pytest.mark.parametrize("text", ["", "nonsense", "Endpoint=sb://h;SharedAccessKey=" + KEY])
def test_no_connection_string(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, text)
    for command, words in ASKING.items():
        if text or command != "bench":  # which then starts a bus of its own
            assert "connection string" in refused(capsys, command, words)


def test_wrong_key(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, text_of(server.port, "wrong"))
    for command, words in ASKING.items():
        assert "check the key name and key" in refused(capsys, command, words), command


def test_too_few_rights(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, text_of(server.port, rule=SENDING.name))
    for command in NOT_FOR_SENDERS:
        assert "grants the right for this" in refused(capsys, command, ASKING[command]), command


def test_wrong_names(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
    for command, (words, suggestion) in NAMES.items():
        assert suggestion in refused(capsys, command, words), command


def test_bad_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, text_of(1))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_text("neither a directory nor a connection string")
    for command, words in FILES.items():
        given = [word.format(file=file, missing=tmp_path / "missing") for word in words]
        refused(capsys, command, given)
    assert list(tmp_path.iterdir()) == [file], "nothing was made"


def test_doctor_has_an_answer(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, state in (
        (server.connection_string, "ok"),
        (text_of(server.port, "wrong"), "bad"),
        (text_of(1), "bad"),
    ):
        monkeypatch.setenv(CONNECTION_STRING, text)
        code = main(["doctor", "--json", "--port", str(server.port)])
        said = capsys.readouterr()
        found = {each["check"]: each for each in json.loads(said.out)["findings"]}
        assert found["server"]["state"] == state
        assert "twinbus" in found[f"port {server.port}"]["found"]
        assert KEY not in said.out + said.err
        assert code == 3 or state == "ok"


# Runs before the server does: one that was there before the operation was.
OLDER = """
import twinbus
twinbus.__version__ = "0.0.1"
from twinbus.server.amqp.management.node import OPERATIONS
del OPERATIONS["twinbus:browse"]
"""


def test_a_server_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says by AMQP that it does not know the operation, and by HTTP what it is."""
    (tmp_path / "sitecustomize.py").write_text(OLDER)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with ServerProcess(tmp_path / "data", environment={"PYTHONPATH": paths}) as older:
        older.create_queue("orders")
        monkeypatch.setenv(CONNECTION_STRING, older.connection_string)
        said = refused(capsys, "peek", ["orders"])
        assert "the server is twinbus 0.0.1, this is " in said
        assert "use the same version of twinbus on both sides" in said
        assert main(["doctor", "--port", str(older.port)]) in (0, 3)
        assert "twinbus 0.0.1" in capsys.readouterr().out
