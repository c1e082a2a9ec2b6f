"""`twinbus pipeline capture`: messages into files, each once."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from twinbus.cli.arguments import (
    add_connection_string,
    add_option,
    add_repeated,
    connection_string,
    key_value,
    positive_count,
    positive_number,
)
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json
from twinbus.cli.progress import Progress, Rate
from twinbus.clock import SystemClock

PURPOSE: Final = "write messages to Parquet, by entity, date and hour, each exactly once"
_SUB_QUEUES: Final = ("none", "deadLetter", "transferDeadLetter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    add_repeated(which, "--entity PATH", "orders, or topic/Subscriptions/name; may be repeated")
    add_option(which, "--pattern REGEX", "entities whose whole path matches this")
    parser.add_argument(
        "--sub-queue", choices=_SUB_QUEUES, default="none", help="subqueue of each entity (none)"
    )
    add_option(parser, "--to DIR", "directory or URL for the files", required=True)
    add_option(
        parser,
        "--name NAME",
        "name of this capture in the directory; use it again to continue (capture)",
        default="capture",
    )
    add_option(parser, "--format NAME", "file format: parquet, json, orc, … (parquet)")
    add_repeated(
        parser,
        "--format-option KEY=VALUE",
        "an option of the format, such as compression=gzip; may be repeated",
        key_value,
    )
    parser.add_argument("--delete", action="store_true", help="delete messages once captured")
    parser.add_argument("--once", action="store_true", help="capture what is there, then exit")
    add_option(parser, "--interval SECONDS", "time between two batches (10)", positive_number, 10.0)
    add_option(
        parser,
        "--max-per-batch N",
        "messages in a batch, held in memory by all tasks together (100,000)",
        positive_count,
        100_000,
    )
    add_connection_string(parser)
    add_spark_arguments(parser)


def source_options(options: argparse.Namespace) -> dict[str, str]:
    source = {
        "connectionString": connection_string(options),
        "subQueue": options.sub_queue,
        "includeAmqp": "true",
        "settle": "delete" if options.delete else "none",
        "maxOffsetsPerTrigger": str(options.max_per_batch),
    }
    if options.entity:
        source["entityPaths"] = ",".join(options.entity)
    else:
        source["entityPattern"] = options.pattern
    return source


def run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.jobs.capture import CaptureSettings, start_capture  # noqa: PLC0415
    from twinbus.pipeline.options import SourceOptions  # noqa: PLC0415
    from twinbus.pipeline.running.supervisor import stop_on_signals, supervise  # noqa: PLC0415

    settings = CaptureSettings(
        source=source_options(options),
        directory=options.to,
        name=options.name,
        format=options.format,
        options=dict(options.format_option),
        is_once=options.once,
        interval_s=options.interval,
    )
    SourceOptions.parse(settings.source)  # complains before Spark is started
    shown = _Shown(options.quiet or options.json)
    with in_one_line(), stop_on_signals() as should_stop:
        spark = open_session_for(options, f"twinbus capture {options.name}")
        supervise(
            lambda: start_capture(spark, settings),
            on_progress=shown.take,
            should_stop=should_stop,
            on_restart=shown.progress.say,
        )
    shown.progress.finish()
    if options.json:
        print_json({"captured": shown.count, "directory": options.to})
    else:
        print(f"{shown.count:,} messages captured")
    return 0


class _Shown:
    """What has been captured by this run, on a line that changes."""

    def __init__(self, is_quiet: bool) -> None:
        self.progress = Progress(sys.stderr)
        self.count = 0
        self._is_quiet = is_quiet
        self._rate = Rate()
        self._clock = SystemClock()

    def take(self, told: Mapping[str, Any]) -> None:
        from twinbus.pipeline.running.progress import batch_progress  # noqa: PLC0415

        batch = batch_progress(told)
        self.count += batch.rows
        now_ms = self._clock.now().mono_ms
        if self._is_quiet or not self.progress.is_due(now_ms):
            return
        rate = self._rate.read(self.count, now_ms)
        left = "" if batch.lag is None else f"  left at most {batch.lag:,}"
        self.progress.show(f"{rate:,.0f}/s  captured {self.count:,}{left}", now_ms)
