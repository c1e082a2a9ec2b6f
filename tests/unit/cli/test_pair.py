"""`twinbus pair` without a server: what it refuses, and how progress is shown."""

import io
import subprocess
import sys

import pytest

from tests.complaint import complaint
from twinbus.cli.main import main
from twinbus.cli.pair.command import PRIMARY, SECONDARY
from twinbus.cli.progress import LIVE_INTERVAL_MS, PLAIN_INTERVAL_MS, Progress, Rate, bar, span

KEY = "a key that must never be shown"
TEXT = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;"

pytestmark = pytest.mark.feature("pairing.cli")


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["status", "syphon", "drain"])
def test_both_namespaces_are_needed(
    action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PRIMARY, raising=False)
    monkeypatch.delenv(SECONDARY, raising=False)
    assert main(["pair", action]) == 1
    assert "--primary" in complaint(capsys.readouterr().err)
    assert main(["pair", action, "--primary", TEXT]) == 1
    said = complaint(capsys.readouterr().err)
    assert "--secondary" in said
    assert SECONDARY in said


def test_a_wrong_connection_string_is_explained_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PRIMARY, TEXT)
    monkeypatch.setenv(SECONDARY, f"Endpoint=sb://h;SharedAccesKey={KEY}")
    assert main(["pair", "status"]) == 1
    said = complaint(capsys.readouterr().err)
    assert "part 2 is unknown" in said
    assert KEY not in said


@pytest.mark.parametrize("count", ["0", "-1", "some"])
def test_no_backlog_queues_make_no_sense(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pair", "drain", "--backlog-queues", count])
    assert caught.value.code == 2
    assert "--backlog-queues" in capsys.readouterr().err


@pytest.mark.parametrize("patience", ["5", "soon", "1d"])
def test_patience_has_a_unit(patience: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pair", "drain", "--patience", patience])
    assert "write 30s, 5m or 2h" in capsys.readouterr().err


def test_the_extra_is_named_where_the_sdk_is_missing() -> None:
    """The base install does without the SDK: help works, and the command says what to install."""
    program = (
        "import sys; sys.modules['azure.servicebus'] = None; "
        "from twinbus.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for action in ("status", "drain"):
        refused = run("pair", action, "--primary", TEXT, "--secondary", TEXT)
        assert refused.returncode == 1
        assert "twinbus[pairing]" in complaint(refused.stderr)
    assert run("pair", "--help").returncode == 0


# --- progress -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_changes() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    progress.show("ten of twenty", 0)
    assert not progress.is_due(LIVE_INTERVAL_MS - 1)
    assert progress.is_due(LIVE_INTERVAL_MS)
    progress.show("all", LIVE_INTERVAL_MS)
    progress.say("orders rests")
    progress.finish()
    assert terminal.getvalue() == "\rten of twenty\rall          \norders rests\n"


def test_elsewhere_every_few_seconds_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.show("one", 0)
    assert not progress.is_due(PLAIN_INTERVAL_MS - 1)
    progress.show("two", PLAIN_INTERVAL_MS)
    progress.finish()
    assert stream.getvalue() == "one\ntwo\n"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.read(0, 0) == 0.0
    assert rate.read(1_000, 1_000) == 1_000.0
    for second in range(2, 30):
        found = rate.read(1_000 + 10 * second, second * 1_000)
    assert found == 10.0, "the fast beginning is forgotten"


@pytest.mark.parametrize(
    "done, total, expected",
    [
        (0, 10, "[........................]   0 %"),
        (5, 10, "[############............]  50 %"),
        (999, 1_000, "[#######################.]  99 %"),
        (10, 10, "[########################] 100 %"),
        (0, 0, "[########################] 100 %"),
    ],
)
def test_bar(done: int, total: int, expected: str) -> None:
    assert bar(done, total) == expected


@pytest.mark.parametrize(
    "seconds, expected",
    [(0.9, "0s"), (59, "59s"), (200, "3m 20s"), (18_720, "5h 12m"), (356_400, "4d 3h")],
)
def test_span(seconds: float, expected: str) -> None:
    assert span(seconds) == expected
