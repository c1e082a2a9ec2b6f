"""docs/reference/cli.md says what `twinbus pipeline` takes: every option of every action, no other.

Read from the parsers, which load no Spark for it.
"""

import argparse
import re
from pathlib import Path

import pytest

from twinbus.cli.main import parser
from twinbus.cli.pipeline import ACTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
SECTION = PAGE.partition("\n## `twinbus pipeline`\n")[2].partition("\n## ")[0]
OPTION = re.compile(r"`(--[a-z-]+)[^`]*`")
# A sentence says who takes it, not every table.
CONNECTION_STRING = "--connection-string"


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a command; none if it is one that is run."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """What a command, or any of those below it, takes."""
    found = {
        name for action in parser._actions for name in action.option_strings if name[:2] == "--"
    }
    return found.union(*map(options_of, below(parser).values())) - {"--help"}


def table(title: str) -> set[str]:
    """The options in the first column of the table with this title."""
    found = re.search(
        rf"^\| {re.escape(title)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", SECTION, re.MULTILINE
    )
    if found is None:
        return set()
    return {name for line in found[1].splitlines() for name in OPTION.findall(line.split(" | ")[0])}


PIPELINE = below(parser("pipeline"))["pipeline"]
COMMON = table("option of all but `warm`")


@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "warm"])
def test_options(action: str) -> None:
    options = options_of(below(PIPELINE)[action])
    shown = table(f"option of `{action}`")
    assert len(COMMON) == 4 and options >= COMMON
    assert shown == options - COMMON - {CONNECTION_STRING}
    takers = SECTION.partition(f" take `{CONNECTION_STRING} TEXT`")[0].splitlines()[-1]
    assert (CONNECTION_STRING in options) == (f"`{action}`" in takers)


def test_actions() -> None:
    """Each has its line, with its exit codes; `warm` has nothing to choose."""
    shown = re.findall(
        r"^\| `twinbus pipeline ([a-z -]+?)(?: [A-Z]+)?` \| .+ \| .+ \|$", SECTION, re.MULTILINE
    )
    commands = []
    for action, found in below(PIPELINE).items():
        commands += [f"{action} {what}" for what in below(found)] or [action]
    assert shown == commands
    assert options_of(below(PIPELINE)["warm"]) == set()
