"""`twinbus drill`: a rehearsed outage on this machine, with a verdict.

Everything runs in a folder of its own, which is deleted at the end unless it is to be kept.  The
verdict goes to standard output, what happens meanwhile to standard error.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import Commands, add_json, add_option, span_ms
from twinbus.cli.exit_codes import NO
from twinbus.cli.printing import print_json
from twinbus.clock import SystemClock
from twinbus.drill.plan import (
    DURATION_S_DEFAULT,
    DURATION_S_MAX,
    FAULTS,
    RATE_DEFAULT,
    RATE_MAX,
    RATE_MIN,
    shortest_s,
)
from twinbus.errors import ConfigError
from twinbus.metered import iso

if TYPE_CHECKING:  # loaded when a drill begins
    from twinbus.drill.director import Drill
    from twinbus.drill.judging import Verdict

REPORT: Final = "twinbus-drill.html"
_EXTRA: Final = "pip install 'twinbus[drill]'"
_PURPOSE: Final = (
    "Rehearse an outage on this machine: two namespaces, an application that sends through the "
    "pair, a primary that fails and returns, a backlog that drains, and a verdict."
)
_CODES: Final = "Exit code 3: messages were lost, duplicated or out of order."


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser(
        "drill", help="rehearse an outage", description=_PURPOSE, epilog=_CODES
    )
    add_option(
        parser,
        "--duration TIME",
        f"how long the application sends, in seconds or as 90s, 2m ({DURATION_S_DEFAULT:g})",
        _duration,
        DURATION_S_DEFAULT,
    )
    add_option(parser, "--rate N", f"messages a second ({RATE_DEFAULT:g})", _rate, RATE_DEFAULT)
    parser.add_argument(
        "--fault",
        action="append",
        choices=list(FAULTS),
        help="how the primary fails: kill (its processes die; the default), hang (they stop), cut "
        "(connections are cut); may be repeated for one outage after another",
    )
    add_option(parser, "--keep DIR", "keep data, ledgers and logs in this new directory", Path)
    add_option(
        parser,
        "--report FILE",
        f"where to write the report ({REPORT} here, or in DIR with --keep; none with --json)",
        Path,
    )
    parser.add_argument(
        "--no-spark",
        action="store_true",
        help="drain with `twinbus pair drain` and reconcile in Python, without Spark or Java",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def _duration(text: str) -> float:
    """Seconds; a plain number is that already."""
    try:
        return float(text)
    except ValueError:
        return span_ms(text) / 1_000


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not RATE_MIN <= number <= RATE_MAX:
        raise argparse.ArgumentTypeError(
            f"'{text[:64]}' is not a number from {RATE_MIN:g} to {RATE_MAX:g}"
        )
    return number


def run(options: argparse.Namespace) -> int:
    faults = options.fault or ["kill"]
    _check(options, faults)
    # Not before: the SDK is an extra.
    from twinbus.drill.director import Drill, DrillSettings  # noqa: PLC0415
    from twinbus.drill.screen import open_screen  # noqa: PLC0415
    from twinbus.drill.waiting import interruptible  # noqa: PLC0415

    settings = DrillSettings(options.duration, options.rate, faults, not options.no_spark)
    report = _report_path(options)
    with _folder(options.keep) as folder, interruptible() as waiting:
        with (
            open_screen(sys.stderr, is_plain=options.json) as screen,
            Drill(settings, folder, waiting, screen) as drill,
        ):
            verdict = drill.play()
        if report is not None:
            _write_report(report, drill, verdict)
    return answer(verdict, report, options.json)


def answer(verdict: "Verdict", report: Path | None, is_json: bool) -> int:
    """Print the verdict; the exit code that says the same."""
    if is_json:
        print_json({**verdict.document(), "report": None if report is None else str(report)})
    else:
        _print(verdict, report)
    return 0 if verdict.is_good else NO


def _check(options: argparse.Namespace, faults: Sequence[str]) -> None:
    """Whatever can be wrong is found before anything is started."""
    least_s = shortest_s(faults)  # type: ignore[arg-type]  # argparse has checked them
    if not least_s <= options.duration <= DURATION_S_MAX:  # never true of a NaN
        is_long = options.duration > least_s
        reason = "too long for a rehearsal" if is_long else "too short to notice an outage"
        raise ConfigError(
            f"{options.duration:g} s is {reason}; "
            f"set --duration from {least_s:g} to {DURATION_S_MAX:g}"
        )
    if not _is_installed("azure.servicebus"):
        raise ConfigError(f"the drill uses the official SDK, which is not installed; {_EXTRA}")
    if not options.no_spark:
        _check_spark()
    report = _report_path(options)
    in_kept = options.report is None and options.keep is not None
    if report is not None and not in_kept and not os.access(report.absolute().parent, os.W_OK):
        raise ConfigError(
            f"{report.parent} is not a writable directory; set --report to another FILE"
        )
    keep: Path | None = options.keep
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigError(f"{keep} already exists; set --keep to a new or empty directory")


def _check_spark() -> None:
    if not (_is_installed("pyspark") and _is_installed("pyarrow")):
        raise ConfigError(
            "the drill drains and judges with Spark, which is not installed; "
            f"{_EXTRA}, or use --no-spark"
        )
    from twinbus.pipeline.running.java import find_java  # noqa: PLC0415

    try:
        find_java()
    except ConfigError as error:
        raise ConfigError(f"{error}, or use --no-spark") from error


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent is
        return False


def _report_path(options: argparse.Namespace) -> Path | None:
    given: Path | None = options.report
    if given is not None:
        return given
    if options.keep is not None:
        return Path(options.keep) / REPORT
    return None if options.json else Path(REPORT)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="twinbus-drill-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {keep} ({error.strerror}); check --keep") from error
    yield keep.absolute()


def _write_report(path: Path, drill: "Drill", verdict: "Verdict") -> None:
    from twinbus.drill.report import report_page, settings_text  # noqa: PLC0415
    from twinbus.pipeline.report.page import write_page  # noqa: PLC0415

    asked = drill.settings
    settings = settings_text(asked.duration_s, asked.rate, asked.faults)
    made = iso(SystemClock().now().utc_ms)
    write_page(path, report_page(verdict, drill.timeline, drill.told, settings, made))


def _print(verdict: "Verdict", report: Path | None) -> None:
    from twinbus.drill.judging import verdict_lines  # noqa: PLC0415

    print()
    for name, text in verdict_lines(verdict):
        print(f"  {name:<20}{text}")
    print(f"\n{'✔' if verdict.is_good else '✖'} {verdict.sentence}")
    if report is not None:
        print(f"  report: {report}")
