"""docs/reference/cli.md has the tables that the parsers give, for every command."""

import re
from pathlib import Path

import pytest

from twinbus.cli.commands import COMMANDS
from twinbus.cli.main import parser
from twinbus.cli.parsers import tree
from twinbus.cli.reference import BLOCK, rewritten

pytestmark = pytest.mark.feature("cli.reference")

PATH = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
PAGE = PATH.read_text()


def test_the_page_is_up_to_date() -> None:
    assert rewritten(PAGE) == PAGE, (
        "run `python -m twinbus.cli.reference docs/reference/cli.md`, and look at what it changed"
    )


def test_every_command_has_its_place() -> None:
    assert {match[1] for match in BLOCK.finditer(PAGE)} == set(COMMANDS)
    for name in COMMANDS:
        assert f"\n## `twinbus {name}`\n" in PAGE


def test_everything_is_explained() -> None:
    for node in tree(parser()).walk():
        assert node.help or len(node.path) < 2, node.path
        for argument in node.arguments:
            assert argument.help, (node.path, argument)


def test_the_exit_codes_are_there() -> None:
    table = PAGE.partition("| exit code | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "130"]
