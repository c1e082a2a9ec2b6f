"""The `twinbus` command: reads the arguments, runs one command, reports errors in two lines.

A person sees a reason and a fix, never a traceback.  Exit codes: 0 it is done; 1 it failed; 2 the
arguments make no sense; 3 it worked, and the answer is no (a check has failed, something is lost);
130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, Never

import twinbus
from twinbus.cli.commands import COMMANDS, overview
from twinbus.cli.exit_codes import FAILED, INTERRUPTED, NONSENSE, Nonsense
from twinbus.errors import TwinbusError

TRACEBACK: Final = "TWINBUS_TRACEBACK"


class Parser(argparse.ArgumentParser):
    """Complains in two lines, as everything else does."""

    def error(self, message: str) -> Never:
        reason, _, fix = message.partition("; ")  # as arguments' own readers write it
        complain(reason, fix or _fix_for(self, message))
        raise SystemExit(NONSENSE)


def parser(asked: str = "") -> argparse.ArgumentParser:
    """The parser for one command, or for all when it is none of them."""
    root = Parser(prog="twinbus")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names = [asked] if asked in COMMANDS else list(COMMANDS)
    for module in dict.fromkeys(COMMANDS[name].module for name in names):
        importlib.import_module(f"twinbus.cli.{module}").add_arguments(commands)
    for name, found in commands.choices.items():
        if found.description is None:
            summary = COMMANDS[name].summary
            found.description = summary[0].upper() + summary[1:] + "."
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0
    if words[0] == "--version":
        print(twinbus.version_text())
        return 0
    if words[0] not in COMMANDS:
        from twinbus.cli.fixes import nearest  # noqa: PLC0415  only who errs pays for it

        fix = nearest(words[0], COMMANDS, "twinbus {}")
        complain(f"there is no command {words[0][:64]!r}", fix or "run `twinbus` to list them")
        raise SystemExit(NONSENSE)
    return _run(parse(words))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What the words ask for, or the end of this process with exit code 2."""
    root = parser(words[0])
    options, unknown = root.parse_known_args(words)
    if unknown:
        command = _command_of(root, options)
        _take_late_words(command, options, unknown)
        if unknown:
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _take_late_words(
    command: argparse.ArgumentParser, options: argparse.Namespace, unknown: list[str]
) -> None:
    """A word that may be left out is given up by argparse as soon as an option stands before it."""
    for action in command._actions:  # noqa: SLF001  argparse has no other way to ask
        is_missing = action.nargs == "?" and getattr(options, action.dest) is None
        if is_missing and unknown and not unknown[0].startswith("-"):
            setattr(options, action.dest, unknown.pop(0))


def _run(options: argparse.Namespace) -> int:
    try:
        exit_code: int = options.run(options)
        # Here, not at interpreter exit, so that a reader that hung up (`| head`) is noticed below.
        sys.stdout.flush()
    except TwinbusError as error:
        from twinbus.cli.fixes import explain  # noqa: PLC0415  only who errs pays for it

        complain(*explain(error, options))
        return NONSENSE if isinstance(error, Nonsense) else FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a bug of ours; whoever mends it wants more than a person does
        if os.environ.get(TRACEBACK):
            raise
        complain(
            f"unexpected error: {type(error).__name__}: {str(error)[:400]}",
            f"set {TRACEBACK}=1 to see the traceback, and please report it",
        )
        return FAILED
    return exit_code


def complain(reason: str, fix: str) -> None:
    """Two lines, whatever is in the texts: some of it may be what a peer has said."""
    for start, text in (("twinbus: ", reason), ("  fix: ", fix)):
        line = " ".join(text.split())
        shown = (each if each.isprintable() else ascii(each)[1:-1] for each in line)
        print(start + "".join(shown), file=sys.stderr)


def _command_of(root: argparse.ArgumentParser, options: argparse.Namespace) -> Parser:
    """The parser of the command that was meant."""
    from twinbus.cli.parsers import commands_below  # noqa: PLC0415  only who errs pays for it

    found = root
    for name in ("command", "action", "what"):
        below = commands_below(found)
        if getattr(options, name, None) in below:
            found = below[getattr(options, name)]
    assert isinstance(found, Parser)
    return found


def _fix_for(command: argparse.ArgumentParser, message: str) -> str:
    """What to do about arguments that make no sense."""
    from twinbus.cli.fixes import nearest  # noqa: PLC0415  only who errs pays for it

    more = f"see `{command.prog} --help`"
    _, is_unknown, words = message.partition("unrecognized arguments: ")
    if is_unknown:
        option = words.split()[0].partition("=")[0]
        known = command._option_string_actions if option.startswith("-") else {}  # noqa: SLF001
        return nearest(option, known) or more
    _, is_choice, rest = message.partition("invalid choice: '")
    if is_choice:
        word = rest.partition("' (choose")[0]
        choices = [
            str(choice)
            for action in command._actions  # noqa: SLF001
            for choice in action.choices or ()
        ]
        return nearest(word, choices) or more
    return more
