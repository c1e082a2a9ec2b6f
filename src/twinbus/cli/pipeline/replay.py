"""`twinbus pipeline replay`: messages of a capture into entities."""

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import (
    add_connection_string,
    add_option,
    add_repeated,
    connection_string,
    key_value,
    moment,
    positive_number,
)
from twinbus.cli.exit_codes import INTERRUPTED
from twinbus.cli.pipeline.arguments import in_one_line
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json, print_table
from twinbus.cli.progress import Progress, Rate, bar, span
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.metered import iso

if TYPE_CHECKING:  # Spark is loaded when it is needed
    from twinbus.pipeline.jobs.replay import Flow, Replay, ReplaySettings, Step

PURPOSE: Final = "send captured messages to any entity: by filter, time, mapping and pace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="directory", required=True, metavar="DIR", help="a capture")
    add_option(parser, "--format NAME", "format of the files, if it cannot be told from them")
    add_option(parser, "--to ENTITY", "destination of everything that is not mapped")
    add_repeated(parser, "--map OLD=NEW", "send messages of OLD to NEW; may be repeated", key_value)
    add_option(parser, "--map-file FILE", "file with lines of OLD=NEW", Path)
    add_option(parser, "--filter SQL", "condition over the columns of a message")
    add_option(parser, "--from-time TIME", "enqueued at this time or later, in UTC", moment)
    add_option(parser, "--to-time TIME", "enqueued before this time", moment)
    add_option(parser, "--rate N", "maximum messages a second", positive_number, 0.0)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--keep-pace",
        dest="speed",
        action="store_const",
        const=1.0,
        default=0.0,
        help="keep the original time between messages",
    )
    add_option(pace, "--speed X", "like --keep-pace, this many times as fast", positive_number)
    parser.add_argument(
        "--as-scheduled",
        action="store_true",
        help="send all at once, scheduled at the pace of --keep-pace or --speed",
    )
    add_option(parser, "--id NAME", "id of this replay; use it again to continue")
    parser.add_argument("--dry-run", action="store_true", help="only print what it would send")
    add_connection_string(parser)
    add_spark_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from twinbus.pipeline.jobs.replay import Replay, ReplaySettings  # noqa: PLC0415
    from twinbus.pipeline.running.supervisor import stop_on_signals  # noqa: PLC0415

    mapping = _mapping(options)
    if not options.to and not mapping:
        raise ConfigError("no destination; pass --to ENTITY or --map OLD=NEW")
    if options.as_scheduled and not options.speed:
        raise ConfigError("--as-scheduled alone has no pace; add --keep-pace or --speed")
    settings = ReplaySettings(
        connection_string="" if options.dry_run else connection_string(options),
        directory=options.directory,
        name=options.id or f"replay-{secrets.token_hex(4)}",
        to=options.to,
        mapping=mapping,
        where=options.filter,
        from_ms=options.from_time,
        to_ms=options.to_time,
        rate=options.rate,
        speed=options.speed,
        as_scheduled=options.as_scheduled,
    )
    with in_one_line(), stop_on_signals() as should_stop:
        spark = open_session_for(options, f"twinbus replay {settings.name}")
        replay = Replay(spark, settings, options.format)
        flows = replay.flows()
        if options.dry_run:
            _print_flows(flows, options.json)
            return 0
        _check(flows)
        sending = _Sending(replay, settings, options)
        for step in sending.steps:
            if should_stop():
                break
            sending.send(step)
        return sending.finish()


def _mapping(options: argparse.Namespace) -> dict[str, str]:
    pairs: list[tuple[str, str]] = []
    if options.map_file is not None:
        try:
            lines = options.map_file.read_text().splitlines()
        except OSError as error:
            raise ConfigError(
                f"cannot read {options.map_file} ({error.strerror}); check --map-file"
            ) from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                pairs.append(key_value(line))
            except argparse.ArgumentTypeError as error:
                raise ConfigError(f"{options.map_file}, line {number}: {error}") from None
    return dict([*pairs, *options.map])


def _check(flows: "Sequence[Flow]") -> None:
    lost = sorted({flow.entity for flow in flows if flow.destination is None})
    if lost:
        shown = ", ".join(lost[:5]) + (" …" if len(lost) > 5 else "")
        raise ConfigError(f"no destination for messages of {shown}; use --to, --map or --filter")


def _print_flows(flows: "Sequence[Flow]", is_json: bool) -> None:
    if is_json:
        print_json([asdict(flow) for flow in flows])
        return
    rows = [
        (
            flow.entity,
            flow.destination or "(nowhere)",
            iso(flow.first_ms),
            iso(flow.last_ms),
            f"{flow.message_count:,}",
        )
        for flow in flows
    ]
    print_table(("from", "to", "first", "last", "messages"), rows, 4)


class _Sending:
    """Step after step, with a line that tells how far it is."""

    def __init__(
        self, replay: "Replay", settings: "ReplaySettings", options: argparse.Namespace
    ) -> None:
        self._replay = replay
        self._name = settings.name
        self._is_json: bool = options.json
        self._is_quiet = options.quiet or options.json
        self._clock = SystemClock()
        self._progress = Progress(sys.stderr)
        self._rate = Rate()
        self.steps: list[Step] = replay.steps()
        self._total = sum(step.message_count for step in self.steps)
        self._before = sum(replay.done.values())
        self._sent: dict[str, int] = {}
        if not self._is_quiet:
            note = f", {self._before:,} were sent before" if self._before else ""
            self._progress.say(f"--id {self._name}: {self._total:,} messages{note}")

    def send(self, step: "Step") -> None:
        self._add(self._replay.send(step))
        count = sum(self._sent.values())
        now_ms = self._clock.now().mono_ms
        rate = self._rate.read(count, now_ms)
        if not self._is_quiet:
            to_go = f"  {span((self._total - count) / rate)} to go" if rate else ""
            line = f"{bar(count, self._total)}  {rate:,.0f}/s  sent {count:,}{to_go}"
            self._progress.show(line, now_ms)

    def _add(self, counts: Mapping[str, int]) -> None:
        for destination, count in counts.items():
            self._sent[destination] = self._sent.get(destination, 0) + count

    def finish(self) -> int:
        """What was sent; whether that was all."""
        self._progress.finish()
        count = sum(self._sent.values())
        is_whole = count >= self._total
        if self._is_json:
            print_json({"id": self._name, "sent": self._sent, "left": self._total - count})
        else:
            for destination, sent in sorted(self._sent.items()):
                print(f"{destination}: {sent:,}")
            rest = "" if is_whole else f"; {self._total - count:,} left: --id {self._name} again"
            print(f"{count:,} messages sent{rest}")
        return 0 if is_whole else INTERRUPTED
