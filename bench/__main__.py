"""`make bench`: one table, twinbus against RabbitMQ, same machine, same run, same client.

Durable messages, acknowledged after they are on disk, one connection each way.  Repetitions are
interleaved (every broker once, then every broker again), so that a machine that slows down slows
down all of them alike; the table shows medians.  Ratios are against the faster of RabbitMQ's two
kinds of queue, column by column.
"""

import argparse
import platform
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench import tools
from bench.brokers import ROOT, Broker, RabbitNode, RabbitQueue, Twinbus

RATES = {"send": "send", "recv": "receive + settle", "both": "both at once"}
Results = dict[str, dict[str, list[float]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    add = parser.add_argument
    add("--repetitions", type=int, default=3, help="of everything (default: %(default)s)")
    add("--count", type=int, default=60_000, help="messages a measurement (default: %(default)s)")
    add("--size", type=int, default=1_024, help="bytes of a body (default: %(default)s)")
    add("--only", default="", help="part of a broker's name: measure only those")
    add("--data", type=Path, help="where the brokers keep their data (default: a new directory)")
    add("--markdown", type=Path, help="write the table to this file as well")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    tools.prepare()
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-", dir=options.data) as name:
        directory = Path(name)
        node = RabbitNode(directory)
        brokers: list[Broker] = [
            Twinbus(directory, "pure"),
            *([Twinbus(directory, "compiled")] if _is_compiled() else []),
            RabbitQueue(node, "classic"),
            RabbitQueue(node, "quorum"),
        ]
        brokers = [broker for broker in brokers if options.only in broker.name]
        results = _measure(brokers, directory, options)
    table = _table(results, options)
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(table + "\n")


def _is_compiled() -> bool:
    if any((ROOT / "build" / "compiled" / "twinbus" / "amqp").glob("decoding.*.so")):
        return True
    print("no compiled build in build/compiled (make compiled): leaving it out")
    return False


def _measure(brokers: list[Broker], directory: Path, options: argparse.Namespace) -> Results:
    results: Results = defaultdict(lambda: defaultdict(list))
    started: list[Broker] = []
    try:
        for broker in brokers:
            print(f"starting {broker.name}", flush=True)
            started.append(broker)
            broker.start()
            # Not recorded: the first run of a server pays for what later ones find warm.
            _run("both", broker, options, options.count // 4)
        for repetition in range(options.repetitions):
            _measure_machine(results["machine"], directory)
            for broker in brokers:
                _measure_broker(results[broker.name], broker, options)
                print(f"{repetition + 1}/{options.repetitions} {broker.name}", flush=True)
    finally:
        for broker in started:
            broker.stop()
    return results


def _measure_machine(found: dict[str, list[float]], directory: Path) -> None:
    tools.wait_for_quiet()
    sync = tools.run("phys", "append", directory, 4_096, 2_000, "prealloc")
    trip = tools.run("phys", "pingpong", 20_000, 1_024)
    found["sync_us"].append(sync["us"]["p50"])
    found["sync_rate"].append(sync["ops_per_s"])
    found["trip_us"].append(trip["us"]["p50"])


def _measure_broker(
    found: dict[str, list[float]], broker: Broker, options: argparse.Namespace
) -> None:
    for mode in RATES:
        quiet = tools.wait_for_quiet()
        result = _run(mode, broker, options, options.count)
        found[mode].append(result["msgs_per_s"])
        found["noisy"].append(float(not quiet))
    found["noisy"].append(float(not tools.wait_for_quiet()))
    result = _run("latency", broker, options, 2_000)
    found["ack_us"].append(result["ack_us"]["p50"])
    found["ack_p99_us"].append(result["ack_us"]["p99"])
    _run("drain", broker, options, 0, "--idle-ms", 500)


def _run(
    mode: str, broker: Broker, options: argparse.Namespace, count: int, *more: object
) -> dict[str, Any]:
    shape = ("-b", options.size, "-w", 1_000, "-c", 1_000)
    return tools.run("amqpbench", mode, "-n", max(count, 1), *shape, *broker.target(), *more)


def _table(results: Results, options: argparse.Namespace) -> str:
    machine = {name: statistics.median(values) for name, values in results["machine"].items()}
    peers = [found for name, found in results.items() if name.startswith("RabbitMQ")]
    best = {mode: max((statistics.median(p[mode]) for p in peers), default=0.0) for mode in RATES}
    floor_us = machine["sync_us"] + machine["trip_us"]
    what = (
        f"{options.size} byte durable messages, {options.count:,} a run, medians of "
        f"{options.repetitions} interleaved runs (least to most), Python "
        f"{platform.python_version()}."
    )
    where = (
        f"This machine: {machine['sync_rate']:,.0f} syncs/s of 4 KiB "
        f"({machine['sync_us']:.0f} µs), loopback round trip {machine['trip_us']:.0f} µs; "
        f"together {floor_us:.0f} µs, the floor of a durable acknowledgement."
    )
    columns = [f"{title}, messages/s | x RabbitMQ" for title in RATES.values()]
    columns.append("one in flight: acknowledged after µs (p99) | x floor")
    lines = [what, where, "", f"| broker | {' | '.join(columns)} |"]
    lines.append("|---|" + "---:|---:|" * len(columns))
    for name, found in results.items():
        if name != "machine":
            lines.append(_row(name, found, best, floor_us))
    noisy = sum(sum(found["noisy"]) for name, found in results.items() if name != "machine")
    if noisy:
        lines += ["", f"{noisy:.0f} runs were made while others used the machine."]
    return "\n".join(lines)


def _row(name: str, found: dict[str, list[float]], best: dict[str, float], floor_us: float) -> str:
    cells = [name]
    for mode in RATES:
        rate = statistics.median(found[mode])
        cells.append(f"{rate:,.0f} ({min(found[mode]):,.0f} to {max(found[mode]):,.0f})")
        cells.append(f"{rate / best[mode]:.1f}" if best[mode] else "")
    ack_us = statistics.median(found["ack_us"])
    cells.append(f"{ack_us:,.0f} ({statistics.median(found['ack_p99_us']):,.0f})")
    cells.append(f"{ack_us / floor_us:.2f}")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
