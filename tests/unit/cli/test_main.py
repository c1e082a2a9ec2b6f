"""The command line: what it prints, what it exits with, and that the docs say the same."""

import argparse
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.complaint import complaint
from twinbus import errors, limits
from twinbus.cli.arguments import CONNECTION_STRING, duration
from twinbus.cli.main import main, parser
from twinbus.client.connection_string import ConnectionString
from twinbus.config import record_stores
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
KEY = "a key that must never be shown"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twinbus", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# --- without a server -------------------------------------------------------------------------


def test_version_says_which_build() -> None:
    assert re.fullmatch(r"twinbus \d+\.\d+\.\d+ \((pure|compiled)\)\n", run("--version").stdout)


def test_pure_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_PURE", "1")
    assert "(pure)" in run("--version").stdout


def test_nonsense_gives_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["serve"], ["queue"], ["dance"], ["serve", "--data", "x", "--port", "y"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert complaint(capsys.readouterr().err)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("Endpoint=sb://h:1;", "no sharedaccesskeyname"),
        ("nonsense", "part 1 is unknown"),
        (f"Endpoint=sb://h:1;SharedAccessKey={KEY}", "no sharedaccesskeyname"),
        (f"Endpoint=sb://h:1;SharedAccessKeyName=n;SharedAcessKey={KEY}", "part 3 is unknown"),
        (f"Endpoint=h:1;SharedAccessKeyName=n;SharedAccessKey={KEY}", "endpoint is not sb://"),
        (
            f"Endpoint=sb://h:no;SharedAccessKeyName=n;SharedAccessKey={KEY}",
            "endpoint is not sb://",
        ),
        (f"Endpoint=sb://h;Endpoint=sb://h;SharedAccessKey={KEY}", "endpoint is given twice"),
    ],
)
def test_wrong_connection_strings_are_explained_without_the_key(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, text)
    assert main(["queue", "list"]) == 1
    said = complaint(capsys.readouterr().err)
    assert reason in said
    assert KEY not in said


def test_connection_string_as_azure_writes_it() -> None:
    text = "Endpoint=sb://ns.example/;SharedAccessKeyName=n;SharedAccessKey=a=b=;EntityPath=q"
    parsed = ConnectionString.parse(text)
    assert (parsed.host, parsed.port, parsed.key) == ("ns.example", None, "a=b=")
    assert parsed.entity_path == "q"
    assert not parsed.development_emulator


def test_no_connection_string(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)
    assert main(["queue", "list"]) == 1
    assert "--connection-string" in complaint(capsys.readouterr().err)


def test_server_not_running(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"Endpoint=sb://127.0.0.1:{free_port};SharedAccessKeyName=n;SharedAccessKey=k;"
    text += "UseDevelopmentEmulator=true;"
    assert main(["queue", "list", "--connection-string", text]) == 1
    said = complaint(capsys.readouterr().err)
    assert f"127.0.0.1:{free_port}" in said
    assert "twinbus serve" in said
    assert main(["env", "--data", str(tmp_path)]) == 1
    assert "start" in complaint(capsys.readouterr().err)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("30s", "PT30S"),
        ("5m", "PT5M"),
        ("2h", "PT2H"),
        ("14d", "P14D"),
        ("1500ms", "PT1.5S"),
        ("pt30s", "PT30S"),
    ],
)
def test_durations(text: str, expected: str) -> None:
    assert duration(text) == expected


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all that do not stop it; each uses names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- starting and stopping --------------------------------------------------------------------


def refusal(data_dir: Path, *arguments: str, port: int = 0) -> str:
    """What `serve` says when it does not start; the exit code must not be 0."""
    with pytest.raises(ServerFailed) as caught:
        ServerProcess(data_dir, port=port, arguments=arguments).start()
    assert caught.value.exit_code == 1
    return complaint(caught.value.text)


def test_one_line_when_ready_and_a_clean_end(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", arguments=["--key", KEY, "--namespace", "orders"])
    line = server.start()
    assert line == (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
    )
    assert server.end(signal.SIGINT) == 0
    assert not (tmp_path / "data" / "running.json").exists()
    server.arguments = ()
    assert server.restart() == line  # key and port are as they were
    server.stop()
    assert server.log == ""


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        said = refusal(tmp_path / "data", port=port)
    assert str(port) in said
    assert "--port" in said


def test_a_second_server_on_the_same_directory(server: ServerProcess) -> None:
    before = (server.data_dir / "server.json").read_bytes()
    other = ServerProcess(server.data_dir, arguments=["--key", "another", "--namespace", "other"])
    other.log_path = server.data_dir.parent / "second.log"
    with pytest.raises(ServerFailed) as caught:
        other.start()
    assert caught.value.exit_code == 1
    assert str(server.data_dir) in complaint(caught.value.text)
    assert (server.data_dir / "server.json").read_bytes() == before
    assert server.create_queue("still-there").name == "still-there"


def test_a_data_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    said = refusal(tmp_path / "file")
    assert "cannot use data directory" in said
    assert "--data" in said


def test_an_address_of_somebody_else(tmp_path: Path) -> None:
    said = refusal(tmp_path / "data", "--host", "192.0.2.1")
    assert "192.0.2.1" in said
    assert "--host" in said


def test_a_config_with_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text('{\n"UserConfig": {\n"Namespacs": []}}')
    said = refusal(tmp_path / "data", "--config", str(path))
    assert f"{path}, line 3: unknown key Namespacs" in said
    assert "Namespaces" in said


def test_declared_queues(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"

    def declare(lock_duration: str) -> None:
        queue = {"Name": "declared", "Properties": {"LockDuration": lock_duration}}
        document = {"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": [queue]}]}}
        path.write_text(json.dumps(document))

    declare("PT30S")
    with ServerProcess(tmp_path / "data", arguments=["--config", str(path)]) as server:
        created = server.admin.get_queue("declared").properties
        assert created["LockDuration"] == "PT30S"
        server.stop()
        declare("PT10S")
        server.restart()
        updated = server.admin.get_queue("declared").properties
        assert updated["LockDuration"] == "PT10S"
        assert updated["CreatedAt"] == created["CreatedAt"]


# --- against a server -------------------------------------------------------------------------


@pytest.fixture
def environment(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_STRING, server.connection_string)


@pytest.mark.proves("M-13")
@pytest.mark.usefixtures("environment")
def test_queue_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue made by the command line is there, and gone when deleted."""
    settings = ["--lock-duration", "30s", "--max-delivery-count", "3"]
    settings += ["--default-message-time-to-live", "PT1H", "--dead-lettering-on-message-expiration"]
    assert main(["queue", "create", "a/b", *settings]) == 0
    assert main(["queue", "create", "plain"]) == 0
    capsys.readouterr()
    assert main(["queue", "show", "a/b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "a/b"
    assert shown["properties"]["LockDuration"] == "PT30S"
    assert shown["properties"]["MaxDeliveryCount"] == "3"
    assert shown["properties"]["DefaultMessageTimeToLive"] == "PT1H"
    assert shown["properties"]["DeadLetteringOnMessageExpiration"] == "true"
    assert main(["queue", "show", "plain"]) == 0
    assert re.search(r"^  ActiveMessageCount +0$", capsys.readouterr().out, re.MULTILINE)
    assert main(["queue", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][0] == "NAME"
    assert {"a/b", "plain"} <= {row[0] for row in rows}
    assert main(["queue", "delete", "a/b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "a/b", "deleted": True}
    assert main(["queue", "list", "--json"]) == 0
    names = {queue["name"] for queue in json.loads(capsys.readouterr().out)}
    assert "plain" in names and "a/b" not in names


@pytest.mark.proves("E-1")
@pytest.mark.feature("entity.partitions")
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_partitioned_entities(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Partitions are asked for when an entity is created."""
    settings = ["--enable-partitioning", "--max-size-in-megabytes", "2048", "--json"]
    assert main([kind, "create", f"parts-{kind}", *settings]) == 0
    shown = json.loads(capsys.readouterr().out)["properties"]
    assert shown["EnablePartitioning"] == "true"
    assert shown["MaxSizeInMegabytes"] == "32768", "of all sixteen partitions"
    assert shown["EntityAvailabilityStatus"] == "Available"


@pytest.mark.proves("M-9")
@pytest.mark.usefixtures("environment")
def test_topic_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics, subscriptions and rules by the command line."""

    def says(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    assert says("topic", "create", "a/news", "--default-message-time-to-live", "1h")
    assert says("subscription", "create", "a/news", "all", "--max-delivery-count", "3")
    assert says("subscription", "create", "a/news", "red", "--requires-session")
    listed = [line.split() for line in says("topic", "list").splitlines()]
    assert ["a/news", "2", "0", "0", "Active"] in listed
    shown = json.loads(says("subscription", "show", "a/news", "all", "--json"))
    assert shown["properties"]["MaxDeliveryCount"] == "3"
    rows = [line.split() for line in says("subscription", "list", "a/news").splitlines()]
    assert [row[0] for row in rows] == ["NAME", "all", "red"]
    rule = ["rule", "create", "a/news", "red"]
    assert says(*rule, "sql", "--sql", "color = 'red'", "--action", "SET seen = 1")
    assert says(*rule, "equal", "--correlation", "subject=x", "--property", "color=red")
    assert says(*rule, "none", "--false")
    assert says("rule", "delete", "a/news", "red", "$Default")
    rules = {
        each["name"]: each["properties"]
        for each in json.loads(says("rule", "list", "a/news", "red", "--json"))
    }
    assert list(rules) == ["equal", "none", "sql"]
    assert rules["sql"]["Expression"] == "color = 'red'"
    assert rules["sql"]["Action"] == "SET seen = 1"
    assert rules["equal"]["Filter"] == "CorrelationFilter"
    assert (rules["equal"]["Label"], rules["equal"]["Properties.color"]) == ("x", "red")
    assert rules["none"]["Filter"] == "FalseFilter"
    assert "color = 'red'" in says("rule", "show", "a/news", "red", "sql")
    assert says("subscription", "delete", "a/news", "all")
    assert says("topic", "delete", "a/news") == "deleted topic a/news\n"


@pytest.mark.parametrize("text", ["nothing", "=x", "Color=red"])
def test_what_a_correlation_filter_cannot_ask_for(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["rule", "create", "t", "s", "r", "--correlation", text])
    assert "--correlation" in capsys.readouterr().err


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["show", "missing"], "missing"),
        (["delete", "missing"], "missing"),
        (["create", "twice"], "twice"),
        (["create", "a?b"], "a?b"),
        (["create", "x", "--lock-duration", "1h"], "lock"),
        (["create", "x", "--lock-duration", "soon"], "SOON"),
    ],
)
def test_refused_queue_commands(
    server: ServerProcess, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "twice" not in {queue.name for queue in server.admin.list_queues()}:
        server.create_queue("twice")
    assert main(["queue", *arguments]) == 1
    assert reason in complaint(capsys.readouterr().err)


@pytest.mark.proves("M-12")
def test_wrong_key(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """No valid signature, no entry."""
    text = re.sub("SharedAccessKey=[^;]+", f"SharedAccessKey={KEY}", server.connection_string)
    assert main(["queue", "list", "--connection-string", text]) == 1
    assert KEY not in complaint(capsys.readouterr().err)


def test_listing_more_than_a_page(server: ServerProcess) -> None:
    names = [f"queue-{number:03}" for number in range(101)]
    for name in names:
        server.create_queue(name)
    listed = [queue.name for queue in server.admin.list_queues()]
    assert [name for name in listed if name.startswith("queue-")] == names


def test_env_can_be_evaluated_by_a_shell(tmp_path: Path) -> None:
    data_dir = tmp_path / "it's a $(directory)"
    with ServerProcess(data_dir) as server:
        lines = run("env", "--data", str(data_dir)).stdout
        shell = f"{lines}\nprintf '%s\\n' " + " ".join(
            f'"${name}"'
            for name in (
                CONNECTION_STRING,
                "REQUESTS_CA_BUNDLE",
                "SSL_CERT_FILE",
                "NODE_EXTRA_CA_CERTS",
            )
        )
        seen = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
        text, requests_bundle, ssl_bundle, node_ca = seen.stdout.splitlines()
        assert text == server.connection_string
        assert requests_bundle == ssl_bundle == str(data_dir / "tls" / "bundle.pem")
        assert Path(node_ca).read_text() in Path(ssl_bundle).read_text()
        assert shlex.split(lines)[0] == "export"
        server.kill()
        stale = run("env", "--data", str(data_dir))
    assert stale.returncode == 1
    assert "no server is running" in complaint(stale.stderr)


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_dir = tmp_path / "data"
    command = ["verify", "--data", str(data_dir)]
    assert main(command) == 1
    assert "--data" in complaint(capsys.readouterr().err)
    assert not data_dir.exists()
    with ServerProcess(data_dir) as server:
        server.create_queue("q")
        assert main(command) == 1
        assert "another server" in complaint(capsys.readouterr().err)
    assert main(command) == 0
    assert "q  active 0" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["whole"], len(shown["stores"])) == (True, 1)
    # One bit is wrong: it is named, and left alone.
    log = min((data_dir / "store-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[0] ^= 0xFF
    log.write_bytes(content)
    assert main(command) == 3
    assert log.name in capsys.readouterr().out
    assert main([*command, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["whole"] is False
    said = refusal(data_dir)
    assert f"{log.name}: damaged at byte 0" in said
    assert "twinbus verify" in said
    assert log.read_bytes() == content


def test_verify_looks_at_every_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = (tmp_path / "store-0", tmp_path / "store-1")
    for store in stores:
        store.mkdir()
    record_stores(tmp_path, stores)
    command = ["verify", "--data", str(tmp_path)]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(str(tmp_path))] == [
        f"{store}:" for store in stores
    ]
    stores[1].rename(tmp_path / "elsewhere")
    assert main(command) == 1
    assert f"store {stores[1]} is missing" in complaint(capsys.readouterr().err)


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--brokers", "0"], "0 brokers; use 1 to 16"),
        (["--brokers", "17"], "17 brokers; use 1 to 16"),
        (["--store", "a", "--store", "b", "--store", "./a"], "each needs a directory of its own"),
        (["--store", "a", "--store", "a/b"], "cannot be created"),
        (["--store", "missing/a"], "cannot be created; choose one in an existing directory"),
        (["--store", "data"], "is the data directory"),
    ],
)
def test_brokers_and_stores_that_cannot_be(
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--data", "data", *words]) == 1
    assert reason in complaint(capsys.readouterr().err)
    assert list((tmp_path / "data").iterdir()) == []


# --- the docs say the same --------------------------------------------------------------------


def options(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)
        yield from (text for text in action.option_strings if text.startswith("--"))


def test_every_option_is_documented() -> None:
    text = (DOCS / "reference" / "cli.md").read_text()
    assert [option for option in options(parser()) if option not in text] == []


def test_every_error_is_documented() -> None:
    text = (DOCS / "reference" / "errors.md").read_text()
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.ServiceError):
            row = (
                rf"\| `{error.__name__}` \| `{error.amqp_condition}` \|.*\| {error.http_status} \|"
            )
            assert error is errors.ServiceError or re.search(row, text), error.__name__


def test_documented_limits_are_true() -> None:
    text = (DOCS / "reference" / "limits.md").read_text()
    rows = re.findall(r"`([A-Z_]+)` \| ([\d,]+) \|", text)
    assert len(rows) > 20
    for name, value in rows:
        assert getattr(limits, name) == int(value.replace(",", "")), name
