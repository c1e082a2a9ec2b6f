"""`twinbus pipeline warm`: what later starts of Spark on this machine need, made beforehand."""

import argparse
from typing import Final

from twinbus.cli.arguments import add_json
from twinbus.cli.printing import print_json

PURPOSE: Final = "speed up later starts: takes about a minute once, and 200 MB in the user's cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.running.session import warm  # noqa: PLC0415  loads Spark

    path = warm()
    if options.json:
        print_json({"archive": None if path is None else str(path)})
    elif path is None:
        print("nothing to do: this Java has no class archives, or this Spark is your own")
    else:
        print(path)
    return 0
