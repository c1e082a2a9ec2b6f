"""`twinbus pipeline compact`: the small files of a capture's past hours become few large ones."""

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import add_option, positive_count
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json
from twinbus.cli.progress import Progress, bar
from twinbus.clock import SystemClock

if TYPE_CHECKING:  # Spark is loaded when it is needed
    from twinbus.pipeline.jobs.compact import Compacted

PURPOSE: Final = "merge the small files of a capture's past hours into a few large ones"
FILE_MIB_DEFAULT: Final = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="directory of `twinbus pipeline capture`")
    purpose = f"size of the files to make ({FILE_MIB_DEFAULT})"
    add_option(parser, "--file-mib N", purpose, positive_count, FILE_MIB_DEFAULT)
    parser.add_argument("--dry-run", action="store_true", help="only print what it would do")
    add_spark_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.jobs.compact import Compaction  # noqa: PLC0415

    clock, progress = SystemClock(), Progress(sys.stderr)
    with in_one_line():
        spark = open_session_for(options, "twinbus compact")
        compaction = Compaction(spark, options.directory, options.file_mib)
        now_ms = clock.now().utc_ms
        if not options.dry_run:
            compaction.recover()
        plans = compaction.plans(datetime.fromtimestamp(now_ms / 1_000, UTC))
        if options.dry_run:
            document = [asdict(plan) for plan in plans]
            if options.json:
                print_json(document)
            for plan in [] if options.json else plans:
                print(f"{plan.folder}: {len(plan.names)} files → {plan.file_count}")
            return 0
        done: list[Compacted] = []
        for place, plan in enumerate(plans):
            if not (options.quiet or options.json):
                progress.show(f"{bar(place, len(plans))}  {plan.folder}", clock.now().mono_ms)
            outcome = compaction.compact(plan)
            if outcome is not None:
                done.append(outcome)
        progress.finish()
    _print(done, options.json)
    return 0


def _print(done: "list[Compacted]", is_json: bool) -> None:
    if is_json:
        print_json([asdict(each) for each in done])
        return
    before, after = (sum(getattr(each, f"files_{when}") for each in done) for when in _WHEN)
    sizes = [sum(getattr(each, f"bytes_{when}") for each in done) / 2**20 for when in _WHEN]
    print(
        f"{len(done)} hours compacted: {before:,} files → {after:,}, "
        f"{sizes[0]:,.1f} MiB → {sizes[1]:,.1f} MiB"
    )


_WHEN: Final = ("before", "after")
