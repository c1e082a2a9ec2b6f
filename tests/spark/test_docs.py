"""What the README and the pages about Spark show works as it stands there.

Code of a page is executed, and commands are run in this process, in the session that is there:
every command that is shown, none else.  Only places, times and what would not end are replaced.
"""

import ast
import re
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import DataFrame, SparkSession

from twinbus.cli.main import main
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.pairing import PairedServiceBusClient
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("D-1", "D-7")

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
REFERENCE = ROOT / "docs" / "reference" / "spark.md"
RUNNING = ROOT / "docs" / "operating" / "spark.md"
QUEUES = ("orders", "shop-1", "copies", "archive", "orders-test", "news-test", "paid-again")
AGAIN = ("orders-again", "others-again")
AUDIT = "news/Subscriptions/audit"

Cli = Callable[..., str]


@pytest.fixture(scope="module")
def secondary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("secondary") / "data") as process:
        yield process


@pytest.fixture
def sdk(bus: ServerProcess) -> Iterator[ServiceBusClient]:
    """A client of a bus with the entities that the pages name, empty for each test."""
    for old in list(bus.admin.list_queues()):
        bus.admin.delete_queue(old.name)
    for queue in (*QUEUES, *AGAIN):
        bus.create_queue(queue)
    if not list(bus.admin.list(TOPIC)):
        bus.admin.create(TOPIC, ("news",), {})
        bus.admin.create(SUBSCRIPTION, ("news", "audit"), {})
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        yield client


@pytest.fixture
def cli(
    spark: SparkSession,
    bus: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Run a line of a page; what it has printed."""
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", bus.connection_string)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    small = ["--conf", "spark.sql.shuffle.partitions=1", "--quiet"]

    def run(line: str, *more: str, code: int = 0) -> str:
        program, *words = shlex.split(line)
        assert program == "twinbus"
        ended = main([*words, *more, *small])
        told = capsys.readouterr()
        assert ended == code, f"{line}: {told.err}"
        return told.out

    return run


# --- reading pages --------------------------------------------------------------------------------


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path, places: dict[str, str]) -> list[str]:
    """The commands of the pipeline that a page shows, without comments, with places of ours."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("twinbus pipeline ")]
    return [placed(re.sub(r"\s+#.*", "", line), places) for line in lines]


def placed(text: str, places: dict[str, str]) -> str:
    for theirs, ours in places.items():
        text = text.replace(theirs, ours)
    return text


def execute(code: str, names: dict[str, Any]) -> Any:
    """Execute a block; the value of its last line, if that is an expression."""
    tree = ast.parse(code)
    last = tree.body[-1]
    value = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    whole = ast.Module(tree.body[:-1] if value is not None else tree.body, [])
    exec(compile(whole, "page", "exec"), names)
    return None if value is None else eval(compile(value, "page", "eval"), names)


def send(sdk: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with sdk.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def bodies(sdk: ServiceBusClient, queue: str, count: int) -> list[str]:
    """What is there: so many, and no more."""
    with sdk.get_queue_receiver(queue, max_wait_time=5) as receiver:
        found = receiver.peek_messages(count + 1)
    assert len(found) == count, queue
    return [str(message) for message in found]


# --- source and sink ------------------------------------------------------------------------------


@pytest.mark.proves("D-1")
@pytest.mark.feature("pipeline.source", "pipeline.sink")
def test_the_readme(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, tmp_path: Path
) -> None:
    readme = ROOT / "README.md"
    [code] = [block for block in blocks(readme, "python") if "pipeline" in block]
    assert '"checkpoint"' in code, "Spark takes it from where Java runs, not from here"
    send(sdk, "orders", *(ServiceBusMessage(f"order {number}") for number in range(20)))
    names = {"BUS": bus.connection_string}
    execute(code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint"))), names)
    assert sorted(bodies(sdk, "copies", 20)) == sorted(f"order {number}" for number in range(20))


@pytest.mark.proves("D-1", "D-7")
@pytest.mark.feature("pipeline.source", "pipeline.sink", "pipeline.running")
def test_the_reference_and_programs_of_your_own(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, tmp_path: Path
) -> None:
    send(sdk, "orders", *(ServiceBusMessage(f"order {number}") for number in range(5)))
    names: dict[str, Any] = {"text": bus.connection_string, "other": bus.connection_string}
    [program] = blocks(RUNNING, "python")
    execute(program, names)
    assert names["spark"] is spark
    assert names["orders"].count() == 5

    [code] = blocks(REFERENCE, "python")
    execute(placed(code, {"/var/lib/archive": str(tmp_path / "archive")}), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert bodies(sdk, "archive", 5) == [f"order {number}" for number in range(5)]


# --- the commands ---------------------------------------------------------------------------------


@pytest.mark.proves("D-3")
@pytest.mark.feature("pipeline.capture", "pipeline.replay")
def test_capture_and_replay(
    spark: SparkSession, sdk: ServiceBusClient, cli: Cli, tmp_path: Path
) -> None:
    page = HOW_TO / "capture-and-replay.md"
    now = datetime.now(UTC)
    places = {
        "/data": str(tmp_path),
        "2026-11-16T09:00Z": (now - timedelta(hours=1)).isoformat(),
        "2026-11-16T10:00Z": (now + timedelta(hours=1)).isoformat(),
    }
    paid = {"subject": "paid", "application_properties": {"country": "CH"}}
    send(sdk, "orders", ServiceBusMessage("a"), ServiceBusMessage("b", **paid))  # type: ignore[arg-type]
    send(sdk, "shop-1", ServiceBusMessage("c"))
    with sdk.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage("d", **paid))  # type: ignore[arg-type]
    going_on, once, look, compact, dry, replay = commands(page, places)

    assert cli(f"{going_on} --once") == "3 messages captured\n"  # it would not end otherwise
    assert cli(going_on, "--once") == "0 messages captured\n"
    assert cli(once) == "1 messages captured\n"
    [code] = blocks(page, "python")
    [date] = {path.name.partition("=")[2] for path in tmp_path.glob("captured/entity=*/date=*")}
    names: dict[str, Any] = {"spark": spark}
    found = execute(placed(code, {"/data": str(tmp_path), "2026-11-16": date}), names)
    assert isinstance(found, DataFrame) and found.count() == 4
    assert cli(look) == ""  # this hour is not over
    assert cli(compact).startswith("0 hours compacted")

    told = [line.split() for line in cli(dry).splitlines()[1:]]
    assert [(line[0], line[1], line[-1]) for line in told] == [
        (AUDIT, "orders-test", "1"),
        ("orders", "orders-test", "2"),
        ("shop-1", "orders-test", "1"),
    ]
    for _ in range(2):  # under the same name once more: nothing
        cli(replay)
        assert bodies(sdk, "orders-test", 1) == ["b"]
        assert bodies(sdk, "news-test", 1) == ["d"]


@pytest.mark.proves("D-6")
@pytest.mark.feature("pipeline.dead-letters")
def test_dead_letters(sdk: ServiceBusClient, cli: Cli, tmp_path: Path) -> None:
    page = HOW_TO / "dead-letters.md"
    for queue, subject, reason in (
        ("orders", "paid", "Malformed"),
        ("orders", "open", "Late"),
        ("shop-1", "paid", "Late"),
    ):
        send(sdk, queue, ServiceBusMessage(subject, subject=subject))
        with sdk.get_queue_receiver(queue) as receiver:
            [message] = receiver.receive_messages(max_wait_time=10)
            receiver.dead_letter_message(message, reason=reason, error_description="line 7")
    # Dates in the past are dates in the past, wherever the clock of this machine stands.
    past = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y-%m-%d")
    places = {"/data": str(tmp_path), "2026-11-15": past, "2026-11-01": past}
    show, some, back, elsewhere, export, replay = commands(page, places)

    table = cli(show)
    assert len(re.findall(r"^\S+ +(?:Malformed|Late) +line <n>", table, re.MULTILINE)) == 3, table
    assert '"Malformed"' in cli(some)
    assert cli(export) == "3 dead letters exported\n"
    assert cli(back).endswith("1 dead letters resubmitted\n")
    assert bodies(sdk, "orders", 1) == ["paid"]
    assert cli(elsewhere).endswith("1 dead letters resubmitted\n")
    assert bodies(sdk, "paid-again", 1) == ["paid"]
    cli(replay)
    assert sorted(bodies(sdk, "orders-again", 2)) == ["open", "paid"]
    assert bodies(sdk, "others-again", 1) == ["paid"]


class Unreliable:
    """A sender that loses two messages, sends one twice, alters one and invents one."""

    def __init__(self, send: Callable[[ServiceBusMessage], None]) -> None:
        self._send = send
        self._number = 0

    def send_messages(self, message: ServiceBusMessage) -> None:
        self._number += 1
        if self._number in (100, 200):
            return
        if self._number == 400:
            message = ServiceBusMessage("altered", message_id=message.message_id)
        self._send(message)
        if self._number == 300:
            self._send(message)
        if self._number == 500:
            self._send(ServiceBusMessage("x", message_id="from nowhere"))


@pytest.mark.proves("D-4")
@pytest.mark.feature("pipeline.reconcile")
def test_reconcile(
    spark: SparkSession, bus: ServerProcess, sdk: ServiceBusClient, cli: Cli, tmp_path: Path
) -> None:
    """The program that writes a ledger, and the output that the page begins with."""
    page = HOW_TO / "reconcile.md"
    [shown] = [block for block in blocks(page, "") if block.startswith("$ twinbus")]
    shown = shown.replace("10,000", "1,000")  # a tenth is enough to see it
    command, head, *rows, verdict, question, answer = shown.splitlines()
    assert (question, answer) == ("$ echo $?", "3")
    ledger = str(tmp_path / "sent.jsonl")
    command = placed(command.removeprefix("$ "), {"sent.jsonl": ledger})
    [program] = blocks(page, "python")
    waiting: list[ServiceBusMessage] = []  # sent together: single sends would take long
    names = {"ServiceBusMessage": ServiceBusMessage, "sender": Unreliable(waiting.append)}
    execute(placed(program, {"sent.jsonl": ledger, "10_000": "1_000"}), names)
    for at in range(0, len(waiting), 500):
        send(sdk, "orders", *waiting[at : at + 500])

    lines = cli(command, code=3).splitlines()
    assert lines[0].split() == head.split()
    for line, expected in zip(lines[1:3], rows, strict=True):
        assert line.split()[:-6] == expected.split()[:-6], "all but how long it took"
    assert lines[3:] == [verdict]

    [running] = [line for line in commands(RUNNING, {}) if " reconcile " in line]
    sent = str(tmp_path / "sent.parquet")
    spark.read.json(ledger).where("message_id != 'order-399'").write.parquet(sent)
    cli(placed(running, {"sent.parquet": sent}), "--allow", "lost", code=3)


@pytest.mark.proves("D-2")
@pytest.mark.feature("pipeline.syphon")
def test_a_large_backlog(
    bus: ServerProcess,
    secondary: ServerProcess,
    sdk: ServiceBusClient,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nothing but what the page says is needed."""
    strings = (bus.connection_string, secondary.connection_string)
    with PairedServiceBusClient.from_connection_strings(*strings) as pair:
        pair.force_failover()
        with pair.get_queue_sender("orders") as sender:
            pair.force_failover("orders")
            sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(50)])
    bodies(sdk, "orders", 0)
    [block, *_] = blocks(HOW_TO / "drain-a-large-backlog.md", "sh")
    named = re.findall(r"^export (\w+)=", block, re.MULTILINE)
    for name, text in zip(named, strings, strict=True):
        monkeypatch.setenv(name, text)
    [command] = [line for line in block.splitlines() if line.startswith("twinbus ")]
    assert cli(command).endswith("moved 50, dead-lettered 0, left 0\n")
    assert sorted(bodies(sdk, "orders", 50)) == sorted(f"order {number}" for number in range(50))


@pytest.mark.proves("D-5")
@pytest.mark.feature("pipeline.cost")
def test_cost(
    bus: ServerProcess, secondary: ServerProcess, sdk: ServiceBusClient, cli: Cli, tmp_path: Path
) -> None:
    send(sdk, "orders", ServiceBusMessage("x"))
    [command] = commands(ROOT / "docs" / "operating" / "cost.md", {"2026-11-01": "2020-01-01"})
    for server in (bus, secondary):
        server.create_queue("metered")
        while not list((server.data_dir / "meter").glob("*.jsonl")):
            time.sleep(0.05)  # it is written once a second
    directories = {"/data/primary": str(bus.data_dir), "/data/secondary": str(secondary.data_dir)}
    files = {"cost.html": str(tmp_path / "cost.html"), "cost-november": str(tmp_path / "details")}
    table = cli(placed(command, directories | files))
    assert re.search(r"^NAMESPACE +KIND ", table, re.MULTILINE), table
    assert "<svg" in (tmp_path / "cost.html").read_text()
    assert list((tmp_path / "details").glob("*.parquet"))
