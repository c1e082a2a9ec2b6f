"""`twinbus pipeline syphon`: bring a large backlog home with Spark.

Makes no pair: no queue is created, nothing is sent but what was in the backlog.  Ctrl-C and SIGTERM
end it in an orderly way, and whatever ends it: the next run goes on with what is in the backlog.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from twinbus.cli.arguments import add_option, positive_count
from twinbus.cli.exit_codes import INTERRUPTED, NO
from twinbus.cli.pair.command import (
    add_adopt_unmarked,
    add_pair,
    add_patience,
    add_restored_time_to_live,
    take_connection_strings,
)
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.progress import Progress, Rate, bar, span
from twinbus.client.connection_string import ConnectionString
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError, TwinbusError

if TYPE_CHECKING:  # at run time, loading them is left to the run
    from twinbus.cli.pair.backlog import Backlog
    from twinbus.pipeline.jobs.syphon import Totals

PURPOSE: Final = "move a pair's large backlog to the primary"
COUNT_MS: Final = 2_000  # between two looks at the counts of the backlog queues
_SHOWN_DESTINATIONS_MAX: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code with --once: 0: the backlog is empty, everything was delivered.  3: messages "
        "were dead-lettered, or are left because their destination does not accept them, or "
        "because they are another primary's."
    )
    add_pair(parser)
    add_restored_time_to_live(parser)
    add_adopt_unmarked(parser)
    parser.add_argument("--once", action="store_true", help="exit when the backlog is empty")
    add_patience(parser)
    purpose = "directory for progress (one for each pair in the user's state directory)"
    add_option(parser, "--checkpoint DIR", purpose)
    add_option(parser, "--ledger DIR", "write a record to Parquet files here")
    purpose = "messages of a backlog queue that a task moves before it reports (50,000)"
    add_option(parser, "--max-per-task N", purpose, positive_count, 50_000)
    parser.add_argument(
        "--operations",
        choices=("auto", "twinbus", "standard"),
        default="auto",
        help="how to read the secondary: as a twinbus, or as any Service Bus (auto)",
    )
    add_spark_arguments(parser)


def run(options: argparse.Namespace) -> int:
    take_connection_strings(options)
    try:
        from twinbus.cli.pair.backlog import Backlog  # noqa: PLC0415  loads the SDK
    except ImportError as error:
        raise ConfigError(
            "the syphon shares the rules of pairs, which need the official SDK; "
            "pip install 'twinbus[spark,pairing]'"
        ) from error
    from twinbus.pipeline.jobs.syphon import (  # noqa: PLC0415  loads Spark
        SyphonSettings,
        Totals,
        default_checkpoint,
        start_syphon,
    )
    from twinbus.pipeline.running.supervisor import stop_on_signals, supervise  # noqa: PLC0415

    backlog = Backlog(options)
    shown = _Shown(options, backlog, Totals())
    authority = ConnectionString.parse(options.secondary).authority
    settings = SyphonSettings(
        source_options(options, [queue.name for queue in backlog.queues()]),
        options.checkpoint or default_checkpoint(authority, backlog.prefix),
        options.once,
        options.ledger,
    )
    with in_one_line(), stop_on_signals() as is_asked_to_stop:
        spark = open_session_for(options, "twinbus syphon")
        supervise(
            lambda: start_syphon(spark, settings, shown.take),
            on_progress=_nothing,
            should_stop=shown.between(is_asked_to_stop),
            on_restart=shown.progress.say,
        )
        return shown.end(is_asked_to_stop())


def source_options(options: argparse.Namespace, queues: Sequence[str]) -> dict[str, str]:
    return {
        "primary": options.primary,
        "secondary": options.secondary,
        "queues": ",".join(queues),
        "primaryName": options.primary_name or "",
        "adoptUnmarked": "true" if options.adopt_unmarked else "false",
        "restoredTimeToLive": options.restored_time_to_live,
        "maxPerTask": str(options.max_per_task),
        "patience": str(options.patience),
        "operations": options.operations,
    }


def _nothing(told: Mapping[str, Any]) -> None:
    """What Spark tells of a batch: rows know more."""


def _left(queue: str, reason: str, count: int) -> str:
    """What is told once of messages that are not this primary's, or may not be."""
    from twinbus.pairing.primary import strangers_told  # noqa: PLC0415  loads the SDK
    from twinbus.pipeline.syphon.mover import LEFT_TO  # noqa: PLC0415  loads the SDK

    primary = reason.removeprefix(LEFT_TO) if reason.startswith(LEFT_TO) else ""
    return strangers_told(queue, primary, count)


class _Shown:
    """How far it has come: a line that changes, lines that stay, the result."""

    def __init__(self, options: argparse.Namespace, backlog: "Backlog", totals: "Totals") -> None:
        self.progress = Progress(sys.stderr)
        self._options = options
        self._backlog = backlog
        self._totals = totals
        self._clock = SystemClock()
        self._rate = Rate()
        self._counted_ms = 0
        self._told_held: dict[str, str] = {}
        self._told_left: set[tuple[str, str]] = set()
        # As the secondary counts them, a moment ago; it dead-letters messages by itself, too.
        self._left = self._dead_letters = 0
        self._count()
        self._left_first, self._dead_letters_first = self._left, self._dead_letters
        self._done = 0
        self._say(f"{self._left:,} waiting in the backlog queues")

    def take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A round is over."""
        self._totals.add(rows)
        if self._options.json and not self._options.once and rows:
            print(json.dumps({"round": [dict(row) for row in rows]}), flush=True)
        held_for = self._totals.held_for
        for path, reason in held_for.items():
            if path not in self._told_held:
                self._say(f"{path} does not accept its {self._totals.held[path]:,} now: {reason}")
        self._told_held = dict(held_for)
        for (queue, reason), count in self._totals.left.items():
            if (queue, reason) not in self._told_left:
                self._told_left.add((queue, reason))
                if not self._options.quiet:
                    self.progress.say(_left(queue, reason, count))

    def between(self, is_asked_to_stop: Callable[[], bool]) -> Callable[[], bool]:
        """What the supervisor asks every second; the line is renewed by the way."""

        def ask() -> bool:
            now_ms = self._clock.now().mono_ms
            if now_ms - self._counted_ms >= COUNT_MS:
                self._counted_ms = now_ms
                try:
                    self._count()
                except TwinbusError:
                    pass  # the query meets the same, and says so
            if self._is_shown() and self.progress.is_due(now_ms):
                self.progress.show(self._line(now_ms), now_ms)
            return is_asked_to_stop()

        return ask

    def end(self, was_asked_to_stop: bool) -> int:
        try:
            self._count()
        except TwinbusError as error:
            self._say(f"cannot tell what is left: {error}")
        totals = self._totals
        dead = max(totals.dead_letter_count, self._dead_letters - self._dead_letters_first)
        self.progress.finish()
        if self._options.json:
            outcome = {"moved": totals.moved_count, "dead_lettered": dead, "left": self._left}
            print(json.dumps({**outcome, "destinations": totals.moved}))
        else:
            for path, count in sorted(totals.moved.items()):
                print(f"{path}: {count:,}")
            for (path, reason), count in sorted(totals.dead_lettered.items()):
                print(f"{path or 'unknown destination'}: {count:,} dead-lettered, {reason}")
            print(f"moved {totals.moved_count}, dead-lettered {dead}, left {self._left}")
        if not self._options.once:
            return 0
        if was_asked_to_stop:
            return INTERRUPTED
        return NO if dead or self._left else 0

    def _count(self) -> None:
        queues = self._backlog.queues()
        self._left = sum(queue.active for queue in queues)
        self._dead_letters = sum(queue.dead_letter for queue in queues)

    def _line(self, now_ms: int) -> str:
        totals = self._totals
        # Rounds are long; what is no longer in the backlog is quicker to tell.
        self._done = max(self._done, self._left_first - self._left, totals.moved_count)
        rate = self._rate.read(self._done, now_ms)
        words = [f"{rate:,.0f}/s", f"left {self._left:,}", f"held {totals.held_count:,}"]
        words.append(f"dead-lettered {totals.dead_letter_count:,}")
        if self._options.once:
            words.insert(0, bar(self._done, self._done + self._left))
            if rate and self._left:
                words.append(f"{span(self._left / rate)} to go")
        most = sorted(totals.moved.items(), key=lambda each: -each[1])[:_SHOWN_DESTINATIONS_MAX]
        return "  ".join([*words, *(f"{path} {count:,}" for path, count in most)])

    def _say(self, text: str) -> None:
        if self._is_shown():
            self.progress.say(text)

    def _is_shown(self) -> bool:
        return not (self._options.quiet or self._options.json)
