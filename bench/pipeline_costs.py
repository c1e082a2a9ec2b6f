"""What work costs in `bench.pipeline`: taken at two sizes, shown next to the SDK.

A job of Spark costs something before its first message: it is planned, workers are asked, code is
compiled.  So the same is done with few messages and with ten times as many.  What the larger one
costs more is the price of a message; what the smaller one costs beyond that is the price of the
job, however many messages it has.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import tools
from bench.client_clock import ClientClock

LARGER = 10
Pair = tuple[float, float]  # on the wall, of processors


@dataclass
class Costs:
    """Seconds of each run with few and with many messages, and what the SDK did in a second."""

    few: list[Pair] = field(default_factory=list)
    many: list[Pair] = field(default_factory=list)
    sdk: list[Pair] = field(default_factory=list)

    def clear(self) -> None:
        """The first runs find nothing warm."""
        for runs in (self.few, self.many, self.sdk):
            runs.clear()


def timed(what: str, work: Callable[[], None]) -> Pair:
    """Seconds that it takes: on the wall, of processors on the client's side."""
    tools.wait_for_quiet()
    with ClientClock() as clock:
        started = time.perf_counter()
        work()
        wall_s = time.perf_counter() - started
    print(f"{what}: {wall_s:.2f} s, {clock.seconds:.2f} s of processors", flush=True)
    return wall_s, clock.seconds


def show_costs(doing: str, first_column: str, lines: dict[str, Costs], count: int) -> None:
    large = count * LARGER
    repetitions = len(next(iter(lines.values())).many)
    print(
        f"\n{doing} 1 KiB messages, {large:,} a run; medians of {repetitions} and, of what a core "
        "does, the lowest and the highest.  A message, a job: µs of\n"
        f"processor time for one message more, ms for the job itself (from {count:,} and {large:,})"
    )
    print(
        f"\n| {first_column} | Spark, messages/s | a core | a message, µs | a job, ms |"
        " SDK, messages/s | a core | Spark / SDK, a core | a message |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for title, costs in lines.items():
        rates = rates_of(costs.many, large)
        small_s = statistics.median(cpu for _, cpu in costs.few)
        large_s = statistics.median(cpu for _, cpu in costs.many)
        message_s = (large_s - small_s) / (large - count)
        job_s = small_s - count * message_s
        sdk = median(costs.sdk, 1)
        print(
            f"| {title} | {median(rates, 0):,.0f} | {spread(rates)} | {message_s * 1e6:.1f} |"
            f" {job_s * 1e3:,.0f} | {median(costs.sdk, 0):,.0f} | {spread(costs.sdk)} |"
            f" {median(rates, 1) / sdk:.1f} | {1 / message_s / sdk:.1f} |"
        )
    print(flush=True)


def rates_of(runs: list[Pair], size: int) -> list[Pair]:
    return [(size / wall, size / cpu) for wall, cpu in runs]


def median(rates: list[Pair], place: int) -> float:
    return statistics.median(each[place] for each in rates)


def spread(rates: list[Pair]) -> str:
    cores = [core for _, core in rates]
    return f"{statistics.median(cores):,.0f} ({min(cores):,.0f}–{max(cores):,.0f})"
