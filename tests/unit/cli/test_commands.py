"""`twinbus` before any command runs: the overview, mistyped words, and what a start costs."""

import json
import subprocess
import sys

import pytest

from tests.complaint import complaint
from twinbus.cli.commands import COMMANDS
from twinbus.cli.main import TRACEBACK, main, parser
from twinbus.cli.parsers import commands_below

pytestmark = pytest.mark.feature("cli.errors")


def nonsense(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said about arguments that make no sense."""
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return complaint(said.err)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in shown
        assert command.summary in shown


def test_the_table_of_commands_is_true() -> None:
    """Each module adds the commands that are said to be its own, and all together no other."""
    for name in COMMANDS:
        assert name in commands_below(parser(name))
    assert set(commands_below(parser())) == set(COMMANDS)


@pytest.mark.parametrize(
    "words, fix",
    [
        (["quue", "list"], "did you mean `twinbus queue`?"),
        (["SEND"], "did you mean `twinbus send`?"),
        (["zzz"], "run `twinbus` to list them"),
        (["--data", "x"], "run `twinbus` to list them"),
        (["queue", "crate", "x"], "did you mean `create`?"),
        (["queue", "zzz"], "`twinbus queue --help`"),
        (["peek", "q", "--cont", "4"], "did you mean `--count`?"),
        (["queue", "list", "--jsn"], "did you mean `--json`?"),
        (
            ["pipeline", "dead-letters", "show", "--all", "--sampls", "1"],
            "did you mean `--samples`?",
        ),
        (["peek", "q", "r"], "`twinbus peek --help`"),
        (["peek", "q", "--state", "activ"], "did you mean `active`?"),
        (["peek", "q", "--count", "0"], "'0' is not a whole number above 0"),
        (["peek", "q", "--before", "noon"], "write 2026-11-16"),
        (["send", "q", "x", "--ttl", "soon"], "write 500ms, 30s, 5m, 2h"),
        (["send", "q", "x", "--property", "n"], "NAME=VALUE"),
        (["receive", "q", "--all", "--follow"], "`twinbus receive --help`"),
        (["bench", "--size", "much"], "write 200, 4k or 1m"),
        (["doctor", "--port", "70000"], "write 1 to 65535"),
        (["send", "q", "x", "--lines"], "both a BODY and lines; omit BODY"),
        (["send", "q", "--lines", "x"], "both a BODY and lines; omit BODY"),
        (["send", "q", "x", "--file", "f"], "both a BODY and --file"),
        (["send", "q", "--count", "3", "x", "y"], "unrecognized arguments: y"),
        (["receive", "q", "--receive-and-delete", "--settle", "abandon"], "omit --settle"),
        (["fault", "clear"], "pass its ID or --all"),
        (["fault", "clear", "--all", "--json", "7"], "pass its ID or --all"),
        (["bench", "--connections", "1000"], "use 100 at most"),
        (["completion", "tcsh"], "`twinbus completion --help`"),
        (["serve"], "`twinbus serve --help`"),
    ],
)
def test_what_is_mistyped(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fix in nonsense(capsys, *words)


def test_a_bug_is_told_in_two_lines_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.delenv(TRACEBACK, raising=False)
    assert main(["completion", "bash"]) == 1
    assert TRACEBACK in complaint(capsys.readouterr().err)
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(AttributeError):
        main(["completion", "bash"])


def test_a_start_loads_only_what_it_needs() -> None:
    """Nothing to do with a server for the version, no TLS to print a script, no SDK to send."""
    program = (
        "import json, sys; from twinbus.cli.main import main, parser; words = json.loads({!r}); "
        "main(words) if words[0] == '--version' else parser(words[0]); "
        "print(json.dumps(sorted(sys.modules)))"
    )

    def loaded(*words: str) -> set[str]:
        command = [sys.executable, "-c", program.format(json.dumps(words))]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(json.loads(ended.stdout.splitlines()[-1]))

    heavy = {"azure", "pyspark", "rich", "aiohttp", "opentelemetry", "twinbus.host.app"}
    assert not loaded("--version") & (heavy | {"asyncio", "cryptography", "http.client"})
    assert not loaded("send") & (heavy | {"cryptography"})
    assert not loaded("queue") & (heavy | {"cryptography", "asyncio"})
    assert not loaded("pair") & heavy
    assert not loaded("pipeline") & heavy
