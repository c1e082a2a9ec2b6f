"""`twinbus pipeline`: what runs on Spark.  Reads arguments; the work is in `twinbus.pipeline`.

Each action is a module of this package that says its PURPOSE, adds its arguments without importing
Spark, and runs.  Spark is an extra, and is asked for where it is missing.
"""

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import Commands, add_json, add_option, add_repeated
from twinbus.errors import ConfigError

if TYPE_CHECKING:  # at run time, only the action that was asked for loads Spark
    from pyspark.sql import SparkSession

# Each action and its module in this package.
ACTIONS: Final = {
    "syphon": "syphon",
    "capture": "capture",
    "compact": "compact",
    "replay": "replay",
    "reconcile": "reconcile",
    "cost": "cost",
    "dead-letters": "dead_letters",
    "warm": "warm",
}
_SPARK: Final = ("pyspark", "pyarrow", "py4j")


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("pipeline")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, name in ACTIONS.items():
        module = importlib.import_module(f"twinbus.cli.pipeline.{name}")
        purpose: str = module.PURPOSE
        command = actions.add_parser(action, help=purpose, description=purpose)
        module.add_arguments(command)
        command.set_defaults(run=_run, run_action=module.run)


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """What every action that opens a session takes."""
    group = parser.add_argument_group("Spark")
    add_option(
        group,
        "--master URL",
        "cluster to use, for example spark://host:7077 (Spark in this process)",
    )
    add_repeated(
        group, "--conf KEY=VALUE", "a Spark configuration setting; may be repeated", _setting
    )
    add_json(group)
    group.add_argument("--quiet", action="store_true", help="print only the result, no progress")


def open_session_for(options: argparse.Namespace, name: str) -> "SparkSession":
    """The session that the arguments of `add_spark_arguments` ask for."""
    from twinbus.pipeline.running.session import open_session  # noqa: PLC0415  loads Spark

    return open_session(name, master=options.master, conf=dict(options.conf))


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not of the form KEY=VALUE")
    return key, value


def _run(options: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = options.run_action
    try:
        return run(options)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _SPARK:
            raise
        raise ConfigError(
            "the pipeline builds on Spark, which is not installed; pip install 'twinbus[spark]'"
        ) from error
