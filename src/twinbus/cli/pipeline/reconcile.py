"""`twinbus pipeline reconcile`: what was sent against what arrived.

Exit codes: 0 all is well, 3 there are differences, 1 it could not be found out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import add_connection_string, add_option, connection_string
from twinbus.cli.exit_codes import NO
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json, print_table
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.metered import iso

if TYPE_CHECKING:  # Spark is loaded when it is needed
    from pyspark.sql import SparkSession

    from twinbus.pipeline.jobs.ledgers import Ledger, Side, Source
    from twinbus.pipeline.jobs.reconcile import Outcome

PURPOSE: Final = "compare what was sent with what arrived: lost, duplicated, altered, out of order"
_SIDES: Final = ("sent", "arrived")
_ALLOWED: Final = ("lost", "duplicated", "unexpected", "altered", "out_of_order", "without_id")
_COLUMNS: Final = {
    "id": "the message id (message_id)",
    "entity": "the entity (entity, destination, entity_path)",
    "session": "the session id (session_id)",
    "order": "the order within a session",
    "time": "the time (time, sent_time or arrived_time, enqueued_time)",
    "body": "the body (body)",
    "body-hash": "SHA-256 of the body (body_hash)",
}
# Inside this command: enough that millions of ids are sorted in memory, few enough that thousands
# are not a matter of tasks.  A cluster has settings of its own.
_PARTITIONS: Final = ("spark.sql.shuffle.partitions", "16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "Parquet, ORC or JSON lines, a capture directory, or entity:NAME; may be repeated"
    for side in _SIDES:
        purpose = f"what {'was sent' if side == 'sent' else 'has arrived'}: {what}"
        add_option(parser, f"--{side} SOURCE", purpose, action="append", required=True)
    add_connection_string(parser)
    for side in _SIDES:
        add_option(parser, f"--{side}-connection-string TEXT", f"for entities of --{side}")
    parser.add_argument(
        "--match-entity", action="store_true", help="count the same id at two entities twice"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=_ALLOWED,
        help="report this without exit code 3; may be repeated",
    )
    parser.add_argument("--allow-empty", action="store_true", help="allow a side without messages")
    add_option(parser, "--details DIR", "write ids with differences as Parquet")
    add_option(parser, "--html FILE", "write a report with plots", Path)
    for side in _SIDES:
        group = parser.add_argument_group(f"columns of --{side}, where they have other names")
        for name, meaning in _COLUMNS.items():
            add_option(group, f"--{side}-{name} COLUMN", meaning)
    add_spark_arguments(parser)


def run(options: argparse.Namespace) -> int:
    with in_one_line():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.jobs.ledgers import Source  # noqa: PLC0415
    from twinbus.pipeline.jobs.reconcile import reconcile  # noqa: PLC0415

    # Everything that can be wrong with the arguments is found before Spark is started.
    sources = {side: [Source.parse(text) for text in getattr(options, side)] for side in _SIDES}
    keys = {side: _connection_string(options, side, sources[side]) for side in _SIDES}
    _check_outputs(options)
    spark = open_session_for(options, "twinbus reconcile")
    if options.master is None and _PARTITIONS[0] not in dict(options.conf):
        spark.conf.set(*_PARTITIONS)
    sent = _ledger(spark, options, "sent", sources["sent"], keys["sent"])
    arrived = _ledger(spark, options, "arrived", sources["arrived"], keys["arrived"])
    with reconcile(sent, arrived, options.match_entity) as found:
        outcome = found.outcome(with_plots=options.html is not None)
        if not options.allow_empty:
            _refuse_empty(outcome, options)
        if options.details is not None:
            found.write(options.details)
    _show(outcome, options, sources)
    return NO if outcome.differences(options.allow) else 0


def _connection_string(options: argparse.Namespace, side: str, sources: Sequence["Source"]) -> str:
    if all(source.kind != "entity" for source in sources):
        return ""
    return getattr(options, f"{side}_connection_string") or connection_string(options)


def _check_outputs(options: argparse.Namespace) -> None:
    details: str | None = options.details
    if details is not None and "://" not in details:
        path = Path(details)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} already exists; set --details to a new or empty directory")
    if options.html is not None and not options.html.absolute().parent.is_dir():
        raise ConfigError(f"{options.html.parent} is not a directory; check --html")


def _ledger(
    spark: "SparkSession",
    options: argparse.Namespace,
    side: "Side",
    sources: Sequence["Source"],
    key: str,
) -> "Ledger":
    from twinbus.pipeline.jobs.ledgers import Columns, read_ledger  # noqa: PLC0415

    named = [name.replace("-", "_") for name in _COLUMNS]
    given = Columns(**{name: getattr(options, f"{side}_{name}") for name in named})
    ledger = read_ledger(spark, sources[0], given, side, key)
    for source in sources[1:]:
        ledger = ledger.and_also(read_ledger(spark, source, given, side, key))
    return ledger


def _refuse_empty(outcome: "Outcome", options: argparse.Namespace) -> None:
    for side, is_empty in (("sent", outcome.is_sent_empty), ("arrived", outcome.is_arrived_empty)):
        if is_empty:
            shown = ", ".join(getattr(options, side))
            raise ConfigError(f"--{side} {shown}: no messages; add --allow-empty if that is right")


def _show(
    outcome: "Outcome", options: argparse.Namespace, sources: dict[str, list["Source"]]
) -> None:
    from twinbus.pipeline.report import page, reconciliation  # noqa: PLC0415

    if options.html is not None:
        sent, arrived = (", ".join(map(str, sources[side])) for side in _SIDES)
        made = iso(SystemClock().now().utc_ms)
        text = reconciliation.reconciliation_page(outcome, sent, arrived, options.allow, made)
        page.write_page(options.html, text)
    if options.json:
        print_json(reconciliation.document(outcome, options.allow))
        return
    print_table(reconciliation.HEAD, reconciliation.summary(outcome), 1)
    for note in reconciliation.notes(outcome):
        print(note)
    print(reconciliation.verdict(outcome, options.allow))
