"""`twinbus pipeline dead-letters`: show why and since when, resubmit or export a selection."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.cli.arguments import (
    add_connection_string,
    add_option,
    add_repeated,
    connection_string,
    moment,
    positive_count,
)
from twinbus.cli.exit_codes import NO
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json, print_table
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.metered import iso

if TYPE_CHECKING:  # Spark is loaded when it is needed
    from pyspark.sql import DataFrame

    from twinbus.pipeline.jobs.dead_letters import DeadLetterQueues, Resubmitted

PURPOSE: Final = "show why messages were dead-lettered; resubmit or export some"
SAMPLES_DEFAULT: Final = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    show = _action(actions, "show", "count by entity, reason and kind of description, with samples")
    add_option(show, "--samples N", "samples of each kind (2)", int, SAMPLES_DEFAULT)
    add_option(show, "--html FILE", "write a report with plots", Path)
    resubmit = _action(actions, "resubmit", "send selected ones again and delete them here")
    add_option(resubmit, "--to ENTITY", "another entity (default: the one they were in)")
    add_option(resubmit, "--limit N", "maximum number, oldest first", positive_count)
    export = _action(actions, "export", "write selected ones to files; changes nothing here")
    add_option(export, "--to DIR", "a new directory or URL", required=True)
    add_option(export, "--format NAME", "parquet, json, orc, …", default="parquet")


def _action(actions: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=purpose, description=purpose)
    which = parser.add_mutually_exclusive_group(required=True)
    add_repeated(which, "--entity PATH", "orders, or topic/Subscriptions/name; may be repeated")
    which.add_argument("--all", action="store_true", help="every entity in the namespace")
    parser.add_argument("--transfer", action="store_true", help="what could not be forwarded")
    add_option(parser, "--where SQL", "condition over the columns of a message")
    add_option(parser, "--since TIME", "enqueued since then", moment)
    add_connection_string(parser)
    add_spark_arguments(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.jobs.dead_letters import DeadLetterQueues, chosen, read_dead_letters  # noqa: PLC0415

    queues = DeadLetterQueues(connection_string(options), options.entity or (), options.transfer)
    actions = {"show": _show, "resubmit": _resubmit, "export": _export}
    with in_one_line():
        spark = open_session_for(options, f"twinbus dead-letters {options.what}")
        letters = read_dead_letters(spark, queues, is_exact=options.what != "show")
        found = chosen(letters, options.where, options.since)
        return actions[options.what](options, queues, found)


# --- showing --------------------------------------------------------------------------------------


def _show(options: argparse.Namespace, queues: "DeadLetterQueues", letters: "DataFrame") -> int:
    from twinbus.pipeline.jobs.dead_letters import summarised  # noqa: PLC0415
    from twinbus.pipeline.report import dead_letters as report  # noqa: PLC0415
    from twinbus.pipeline.report.page import write_page  # noqa: PLC0415

    del queues
    now_ms = SystemClock().now().utc_ms
    rows = [row.asDict(True) for row in summarised(letters, now_ms, options.samples).collect()]
    if options.html is not None:
        write_page(options.html, report.dead_letters_page(rows, iso(now_ms)))
    if options.json:
        print_json([report.document(row) for row in rows])
    elif not rows:
        print("no dead letters")
    else:
        print_table(report.HEAD, [report.cells(row) for row in rows], 3)
        for row in rows:
            for sample in report.samples(row):
                print(f"\n{'  '.join(report.cells(row)[:2])}\n  {sample}")
    return 0


# --- sending again --------------------------------------------------------------------------------


def _resubmit(options: argparse.Namespace, queues: "DeadLetterQueues", letters: "DataFrame") -> int:
    from twinbus.pipeline.jobs.dead_letters import MoveTask, ReturnTask, oldest, resubmit  # noqa: PLC0415

    if options.where is None and options.since is None and options.limit is None and options.all:
        raise ConfigError("that is every dead letter of every entity; confirm with --where true")
    task: MoveTask | ReturnTask = ReturnTask(queues)
    if options.to is not None:
        _check_destination(options.to, queues)
        task = MoveTask(queues, options.to)
    return _tell(resubmit(oldest(letters, options.limit), task), options.json)


def _check_destination(destination: str, queues: "DeadLetterQueues") -> None:
    from twinbus.pipeline.jobs.dead_letters import drops_known_ids  # noqa: PLC0415

    own = {path.lower().partition("/subscriptions/")[0] for path in queues.entities}
    if queues.entities and destination.lower() not in own:
        return
    if drops_known_ids(queues.connection_string, destination):
        raise ConfigError(
            f"{destination[:64]} detects duplicates, and would drop messages that it has seen; "
            "omit --to to put them back without detection"
        )


def _tell(outcome: "Sequence[Resubmitted]", is_json: bool) -> int:
    removed = sum(each.removed for each in outcome)
    left = sum(each.asked for each in outcome) - removed
    if is_json:
        counts = {each.entity_path: each.removed for each in outcome}
        print_json({"resubmitted": counts, "left": left})
    else:
        for each in outcome:
            print(f"{each.entity_path}: {each.removed:,}")
        print(f"{removed:,} dead letters resubmitted")
        if left:
            print(
                f"{left:,} more are locked, were taken by another receiver, or lack the session id "
                "that their entity needs; it is safe to resubmit again: nothing is sent twice"
            )
    return NO if left else 0


def _export(options: argparse.Namespace, queues: "DeadLetterQueues", letters: "DataFrame") -> int:
    from twinbus.pipeline.jobs.dead_letters import export  # noqa: PLC0415

    del queues
    count = export(letters, options.to, options.format)
    if options.json:
        print_json({"exported": count, "directory": options.to})
    else:
        print(f"{count:,} dead letters exported")
    return 0
