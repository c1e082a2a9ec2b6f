"""Every command and every program of README, start and how-to pages is run as it stands there.

Each block is run below, or by the test that `ELSEWHERE` names, or `NOT_RUN` says why not.  Whoever
writes a page adds its blocks to one of the three: a block that nobody runs fails here.  Every
`twinbus` command of every other page is at least read by the program's own parser.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, EVERY, FOLLOWED, ROOT, Block, blocks, commands
from twinbus.cli.main import parse
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("docs.commands")

SPARK = "tests/spark/test_docs.py"
EXAMPLES = "tests/interop/test_examples.py"
PAIRS = "tests/interop/test_pairing_docs.py"
ANY = ""  # every block of the page

# Page, words that stand in the block → what runs it below.
RUN_HERE = {
    ("README.md", "twinbus queue create orders"): "test_readme",
    ("docs/start.md", ANY): "test_start",
    ("docs/how-to/tls.md", ANY): "test_tls",
    ("docs/how-to/run-in-production.md", ANY): "test_run_in_production",
}
# Page, words that stand in the block → the test that runs it.
ELSEWHERE = {
    ("README.md", "ServiceBusClient.from_connection_string("): EXAMPLES,
    ("README.md", "PairedServiceBusClient"): PAIRS,
    ("README.md", "pipeline"): SPARK,
    ("docs/how-to/capture-and-replay.md", ANY): SPARK,
    ("docs/how-to/dead-letters.md", ANY): SPARK,
    ("docs/how-to/drain-a-large-backlog.md", ANY): SPARK,
    ("docs/how-to/reconcile.md", ANY): SPARK,
    ("docs/how-to/pair-an-application.md", ANY): PAIRS,
    ("docs/how-to/rehearse-an-outage.md", ANY): "tests/interop/test_faults.py",
    ("docs/how-to/test-with-pytest.md", ANY): "tests/unit/testing/test_plugin.py",
    ("docs/how-to/move-from-the-emulator.md", "twinbus e"): "tests/interop/test_emulator.py",
    ("docs/how-to/tls.md", "ServiceBusAdministrationClient"): EXAMPLES,
    ("docs/how-to/tls.md", "--certificate server.pem"): "tests/security/test_tls.py",
}

# Page, words that stand in the block → why nobody runs it.
NOT_RUN = {
    (
        "docs/how-to/move-from-the-emulator.md",
        "docker compose",
    ): "needs Docker, and builds an image",
    ("docs/how-to/run-in-production.md", "sudo"): "needs root, and changes the machine",
}
_MAKE = re.compile(r"^make (\w[\w-]*)", re.MULTILINE)
_SETTING_UP = re.compile(r"^(pip install|make|\. \.venv|twinbus serve)\b.*\n", re.MULTILINE)


def block_id(block: Block) -> str:
    return str(block)


SHOWN = [block for page in FOLLOWED for block in blocks(page, "sh", "python")]


# --- who runs what --------------------------------------------------------------------------------


def is_in(block: Block, places: dict[tuple[str, str], str]) -> bool:
    return any(page == block.page and block.has(words) for page, words in places)


def is_only_make(block: Block) -> bool:
    return block.language == "sh" and not _MAKE.sub("", _without_comments(block.text)).strip()


def test_somebody_runs_each_block() -> None:
    """A page is run below (RUN_HERE), by another test (ELSEWHERE), or nobody can (NOT_RUN)."""
    lists = (RUN_HERE, ELSEWHERE, NOT_RUN)
    forgotten = [
        f"{block.page}:\n{block.text}"
        for block in SHOWN
        if not is_only_make(block) and not any(is_in(block, each) for each in lists)
    ]
    assert not forgotten, "\n".join(forgotten)


def test_nothing_is_listed_that_is_not_there() -> None:
    for place in [*RUN_HERE, *ELSEWHERE, *NOT_RUN]:
        page, words = place
        found = [block for block in SHOWN if block.page == page and block.has(words)]
        assert found, f"{page} shows no block with {words!r}"
        if place in ELSEWHERE:
            source = (ROOT / ELSEWHERE[place]).read_text()
            name = Path(page).name
            assert name in source or words in source or name.removesuffix(".md") in source, place


def test_make_targets_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in SHOWN:
        for target in _MAKE.findall(_without_comments(block.text)):
            is_there = re.search(rf"^{target}:", makefile, re.MULTILINE)
            assert is_there, f"{block.page}: make {target}"


def _without_comments(text: str) -> str:
    return re.sub(r"(^|\s)#.*", "", text)


# --- every other page -----------------------------------------------------------------------------

ALL = [
    (block.page, words)
    for page in EVERY
    for block in blocks(page, "sh", "console")
    for words in commands(block)
]


def test_there_are_commands() -> None:
    assert len(ALL) > 90


def test_the_program_understands_every_command() -> None:
    refused = []
    for page, words in ALL:
        if any("…" in word or word.startswith("[") for word in words) or words[0] == "--version":
            continue  # something is left to the reader, or it is no command
        try:
            parse(words)
        except SystemExit as ended:
            refused.append(f"{page}: `twinbus {shlex.join(words)}` ({ended.code})")
    assert not refused, "\n".join(refused)


# --- pages that are run here ----------------------------------------------------------------------


class Reader:
    """Somebody who follows a page, in a directory of his own, beside a server that runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, page: str, *shown: Block) -> str:
        """All blocks in one shell; what they print.

        Programs have the imports of those before.  Only what would wait is replaced.
        """
        python = shlex.quote(sys.executable)
        script = [
            "set -e",
            f'twinbus() {{ {python} -m twinbus "$@"; }}',
            f'python() {{ {python} "$@"; }}',
        ]
        imports = ""
        for block in shown:
            if block.language == "sh":
                script.append(_SETTING_UP.sub("", block.text))
                continue
            program = imports + block.text.replace("max_wait_time=5", "max_wait_time=1")
            script.append(f"python -c {shlex.quote(program)}")
            imports += "".join(re.findall(r"^(?:import|from) .*\n", block.text, re.MULTILINE))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run(
            ["sh", "-c", "\n".join(script)],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{page}: {ran.stderr}{ran.stdout}"
        return ran.stdout


def arguments_of(block: Block) -> list[str]:
    """What a page gives to `twinbus serve`, with a port that is free."""
    [words] = [each[1:] for each in commands(block) if each[0] == "serve"]
    at = words.index("--data")
    return words[:at] + words[at + 2 :]


def test_readme(tmp_path: Path) -> None:
    shown = [block for block in blocks(ROOT / "README.md", "sh") if is_in(block, RUN_HERE)]
    with ServerProcess(tmp_path / "data") as server:
        Reader(tmp_path).run("README.md", *shown)
        assert server.admin.get_queue("orders").name == "orders"


def test_start(tmp_path: Path) -> None:
    shown = blocks(DOCS / "start.md", "sh", "python")
    with ServerProcess(tmp_path / "data", arguments=arguments_of(shown[0])):
        printed = Reader(tmp_path).run("start.md", *shown)
    assert "one coffee" in printed
    assert [f"{number + 2} order {number}" for number in range(5)] == re.findall(
        r"^\d+ order \d$", printed, re.MULTILINE
    )
    assert re.findall(r"^(goal!|rain)$", printed, re.MULTILINE) == ["goal!"]
    assert re.findall(r"^step \d$", printed, re.MULTILINE) == ["step 0", "step 1", "step 2"]


def test_tls(tmp_path: Path) -> None:
    """What is not run elsewhere: a second port for TLS, and a client that trusts our CA."""
    shown = blocks(DOCS / "how-to" / "tls.md", "sh", "python")
    [second_port] = [block for block in shown if block.has("--extra-port")]
    [client] = [block for block in shown if block.has("connection_verify")]
    imports = "import os\nfrom azure.servicebus import ServiceBusClient\n"
    # The SDK speaks TLS on port 5671 only, which may not be free here: the code is run, and the
    # client not connected.
    program = Block(client.page, "python", imports + client.text + "client.close()\n")
    arguments = [word.replace("5671", "0") for word in arguments_of(second_port)]
    assert arguments == ["--extra-port", "0"]
    with ServerProcess(tmp_path / "data", arguments=arguments):
        Reader(tmp_path).run("tls.md", shown[0], program)


def test_run_in_production(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "run-in-production.md"
    shown = blocks(page, "sh")
    [two_stores] = [block for block in shown if block.has("--store")]
    [verify] = [block for block in shown if block.has("twinbus verify")]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    arguments = [word.replace("/mnt", str(tmp_path)) for word in arguments_of(two_stores)]
    with ServerProcess(tmp_path / "DIR", arguments=arguments) as server:
        server.create_queue("orders")
    assert "Whole: every checksum is right" in Reader(tmp_path).run("run-in-production.md", verify)
    [unit] = blocks(page, "ini")
    unit_lines = unit.text.replace("\\\n", "").splitlines()
    [command] = [line for line in unit_lines if line.startswith("ExecStart=")]
    assert parse(shlex.split(command)[1:]).log_format == "json"
