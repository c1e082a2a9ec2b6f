"""What the README, the how-to about pairs and examples/pairing show works as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.pairs import Servers, run_servers, take, texts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "pair-an-application.md"
EXAMPLES = ROOT / "examples" / "pairing"

pytestmark = pytest.mark.feature("pairing.send")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Fresh ones for each test: the pages use the same names, and tests come in any order."""
    with run_servers(tmp_path) as both:
        yield both


def shell(servers: Servers, *lines: str) -> str:
    """Run lines of a page in one shell; what they print."""
    python = shlex.quote(sys.executable)
    script = "\n".join(
        (
            "set -e",
            f'twinbus() {{ {python} -m twinbus "$@"; }}',
            f'python() {{ {python} "$@"; }}',
            *lines,
        )
    )
    for side, server in (("primary", servers.primary), ("secondary", servers.secondary)):
        script = script.replace(f"--data ./{side}", f"--data {shlex.quote(str(server.data_dir))}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["sh", "-c", script]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_is_that_of_the_examples() -> None:
    sources = [path.read_text() for path in EXAMPLES.glob("*.py")]
    shown = blocks("python")
    assert len(shown) > 3
    for block in shown:
        assert any(block in source for source in sources), block


@pytest.mark.proves("P-1", "P-17")
def test_the_page_command_by_command(servers: Servers) -> None:
    """P-1 … P-17 as a reader meets them: fail over, look, bring home."""
    commands = blocks("sh")
    printed = shell(servers, *commands).splitlines()
    expected = [line for block in commands for line in re.findall(r"^# (.*)$", block, re.MULTILINE)]
    assert len(expected) > 8
    found = iter(printed)
    for line in expected:  # in this order, with what is not shown between
        assert line in found, f"{line!r} is not in {printed}"
    left = servers.primary.admin.get_queue("orders").properties["ActiveMessageCount"]
    assert left == "3", "what the rehearsal has sent"
    take(servers.primary, "orders", 3)


def test_the_readme(servers: Servers) -> None:
    [_, snippet, _] = blocks("python", ROOT / "README.md")
    servers.create_queue("orders")
    strings = (servers.primary.connection_string, servers.secondary.connection_string)
    program = f"""
from azure.servicebus import ServiceBusMessage
PRIMARY, SECONDARY = {strings!r}
{snippet}"""
    prepare = 'eval "$(twinbus env --data ./secondary)"'
    shell(servers, prepare, f"python -c {shlex.quote(program)}")
    assert texts(take(servers.primary, "orders", 1)) == ["one coffee"]
