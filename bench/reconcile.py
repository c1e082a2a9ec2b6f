"""How long does it take to reconcile ten million ids, and how much memory?

`python -m bench.reconcile`: two ledgers of Parquet are made by Spark, one sent, one arrived, with
ids like those of an SDK (36 characters), sessions, numbers, times and hashes of bodies.  One in
100,000 is lost, one in 100,000 duplicated, one in 100,000 altered; of each thousand in a session
two are swapped.  Then `twinbus pipeline reconcile` runs as a user would run it, in a process of its
own with its own Java; memory is the peak of the resident memory of all its processes together.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import tools

EVERY = 100_000
SESSION = 1_000  # messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="messages")
    parser.add_argument("--data", type=Path, help="where the ledgers are made (default: anew)")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark's")
    parser.add_argument("--html", action="store_true", help="with the report")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.data, options.count)
        return
    with tempfile.TemporaryDirectory(prefix="twinbus-reconcile-", dir=options.data) as name:
        directory = Path(name)
        again = [sys.executable, "-m", "bench.reconcile", "--make", "--data", name]
        subprocess.run([*again, "--count", str(options.count)], check=True)
        size = sum(path.stat().st_size for path in directory.rglob("*.parquet"))
        print(f"{options.count:,} messages, ledgers of {size / 1e6:,.0f} MB; reconciling")
        quiet = tools.wait_for_quiet()
        _measure(directory, options, quiet)


def make(directory: Path, count: int) -> None:
    """Both ledgers, by arithmetic alone, so that it is known what is wrong."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from twinbus.pipeline.running.session import open_session  # noqa: PLC0415

    spark = open_session("bench reconcile")
    n = F.col("id")
    body = F.concat(F.lit("body "), n)
    sent = spark.range(count).select(
        n,
        F.regexp_replace(F.md5(n.cast("string")), "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
        .alias("message_id"),
        F.concat(F.lit("queue-"), F.floor(n / SESSION) % 8).alias("entity"),
        F.concat(F.lit("session-"), F.floor(n / SESSION)).alias("session_id"),
        n.alias("number"),
        F.timestamp_micros(1_700_000_000_000_000 + n * 100).alias("time"),
        F.sha2(body, 256).alias("body_hash"),
    )  # fmt: skip
    at = n % EVERY
    swapped = F.when(n % SESSION == 500, n + 1).when(n % SESSION == 501, n - 1).otherwise(n)
    altered = F.when(at == 3, F.sha2(F.lit("other"), 256)).otherwise(F.col("body_hash"))
    later = F.col("time") + F.make_dt_interval(secs=F.pmod(F.hash("id"), F.lit(1_000)) / 1_000)
    arrived = sent.withColumns({"order": swapped, "body_hash": altered, "time": later})
    copies = F.when(at == 1, 0).when(at == 2, 2).otherwise(1)
    arrived = arrived.withColumn("copy", F.explode(F.sequence(F.lit(0), copies)))
    arrived = arrived.where(F.col("copy") > 0)
    sent.drop("id").write.parquet(str(directory / "sent"))
    arrived.drop("id", "number", "copy").write.parquet(str(directory / "arrived"))
    spark.stop()


def _measure(directory: Path, options: argparse.Namespace, quiet: bool) -> None:
    words = ["--sent", str(directory / "sent"), "--arrived", str(directory / "arrived")]
    words += ["--details", str(directory / "details")]
    words += ["--html", str(directory / "report.html")] if options.html else []
    words += [word for setting in options.conf for word in ("--conf", setting)]
    command = [sys.executable, "-m", "twinbus", "pipeline", "reconcile", "--json", *words]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _resident_bytes(process.pid))
        time.sleep(0.2)
    duration_s = time.monotonic() - began
    assert process.stdout is not None
    found = json.loads(process.stdout.read())
    rate = 2 * options.count / duration_s
    noise = "" if quiet else " (others used the machine)"
    print(f"{duration_s:,.1f} s, {rate:,.0f} rows/s, peak {peak / 1e9:.2f} GB{noise}")
    print(found["verdict"])
    planted = options.count // EVERY
    assert found["total"]["lost"] == found["total"]["duplicated"] == planted
    assert found["total"]["altered"] == planted
    assert found["total"]["out_of_order"] == options.count // SESSION


def _resident_bytes(root: int) -> int:
    """Of a process and all its descendants."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
            pages[int(entry.name)] = int(fields[21])
    ours = {root}
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in ours}
        grown = not children <= ours
        ours |= children
    return sum(pages.get(pid, 0) for pid in ours) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
