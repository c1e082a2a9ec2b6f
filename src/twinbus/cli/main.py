"""The `twinbus` command: reads the arguments, runs one command, reports errors in one line.

A person sees a reason and a fix, never a traceback: every error of ours that reaches `main` is
written to standard error and gives exit code 1 (2 for arguments that make no sense).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import twinbus
from twinbus.errors import TwinbusError

# Each command and its module in this package; only the one asked for is imported, so a start does
# not pay for all.
COMMANDS: Final = {
    "serve": "serve",
    "env": "env",
    "queue": "queue",
    "topic": "topic",
    "subscription": "subscription",
    "rule": "rule",
    "fault": "fault",
    "pair": "pair",
    "peek": "messages",
    "purge": "messages",
    "undefer": "messages",
    "replay": "messages",
    "cost": "cost",
    "pipeline": "pipeline",
    "verify": "verify",
    "demo": "demo",
}


def parser(asked: str = "") -> argparse.ArgumentParser:
    """The parser for one command, or for all when it is none of them (help, typing errors)."""
    root = argparse.ArgumentParser(
        prog="twinbus",
        description="A durable service bus that speaks Azure Service Bus's protocol.",
    )
    root.add_argument("--version", action="version", version=twinbus.version_text())
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = [COMMANDS[asked]] if asked in COMMANDS else dict.fromkeys(COMMANDS.values())
    for name in modules:
        importlib.import_module(f"twinbus.cli.{name}").add_arguments(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser(words[0] if words else "").parse_args(words)
    try:
        exit_code: int = options.run(options)
        # Here, not at interpreter exit, so that a reader that hung up (`| head`) is noticed below.
        sys.stdout.flush()
    except TwinbusError as error:
        print(f"twinbus: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return exit_code
