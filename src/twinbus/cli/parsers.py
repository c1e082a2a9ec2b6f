"""The parsers of all commands as a tree, for what is made from them: completion, the reference.

argparse has no public way to ask a parser what it takes; this is the one place that looks.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FILES: Final = ("FILE", "DIR")


@dataclass(frozen=True)
class Argument:
    """An option, or a word that a command takes."""

    names: tuple[str, ...]  # of an option, the long one first; empty for a word
    metavar: str  # what stands for its value; empty for a switch
    help: str
    choices: tuple[str, ...]
    is_required: bool
    is_file: bool


@dataclass(frozen=True)
class CommandNode:
    """A command: what it takes, or the commands below it."""

    path: tuple[str, ...]  # `("queue", "create")`; empty for `twinbus` itself
    help: str
    arguments: tuple[Argument, ...]
    below: Mapping[str, "CommandNode"]

    def walk(self) -> Iterator["CommandNode"]:
        """This one and all below it."""
        yield self
        for node in self.below.values():
            yield from node.walk()


def commands_below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a command; none if it is one that is run."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def tree(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), summary: str = ""
) -> CommandNode:
    helps: dict[str, str] = {}
    arguments: list[Argument] = []
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            shown = action._choices_actions  # noqa: SLF001
            helps = {each.dest: each.help or "" for each in shown}
        elif not isinstance(action, argparse._HelpAction):  # noqa: SLF001
            arguments.append(_argument(parser, action))
    below = {
        name: tree(found, (*path, name), helps.get(name, ""))
        for name, found in commands_below(parser).items()
    }
    return CommandNode(path, summary, tuple(arguments), below)


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    takes_value = action.nargs != 0
    metavar = action.metavar or ("WHICH" if action.choices else action.dest.upper())
    assert isinstance(metavar, str)
    return Argument(
        names=tuple(sorted(action.option_strings, key=len, reverse=True)),
        metavar=metavar if takes_value else "",
        help=parser._get_formatter()._expand_help(action) if action.help else "",  # noqa: SLF001
        choices=tuple(map(str, action.choices or ())),
        is_required=action.required,
        is_file=takes_value and (action.type is Path or metavar in _FILES),
    )
