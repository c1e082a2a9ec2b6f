"""`twinbus pipeline cost`: the meters of many namespaces and long times, summed up by Spark.

Says of the same files what `twinbus cost show` says, in the same tables.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cli.arguments import add_option
from twinbus.cli.cost.price_table import read_prices
from twinbus.cli.cost.show import (
    END_OF_TIME_MS,
    add_selection,
    document,
    print_bills,
    print_pairing,
    print_sums,
)
from twinbus.cli.pipeline.command import add_spark_arguments, open_session_for
from twinbus.cli.printing import print_json
from twinbus.clock import SystemClock
from twinbus.costs.prices import Prices
from twinbus.errors import ConfigError
from twinbus.metered import iso

if TYPE_CHECKING:  # Spark is loaded when it is needed
    from twinbus.pipeline.jobs.cost import Bill

PURPOSE: Final = "price the metered usage of one or more namespaces, with pairing apart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    purpose = "a server's data directory, or a copy of it anywhere Spark can read; may be repeated"
    add_option(parser, "--data DIR", purpose, action="append", required=True)
    add_selection(parser)
    add_option(parser, "--details DIR", "write all days, namespaces, entities and kinds as Parquet")
    add_option(parser, "--html FILE", "write a report with plots", Path)
    add_spark_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from pyspark.storagelevel import StorageLevel  # noqa: PLC0415  loads Spark

    from twinbus.pipeline.jobs.cost import bill, by_day, meter_directory, read_records  # noqa: PLC0415

    prices = read_prices(options.prices)
    directories = [meter_directory(data) for data in options.data]
    if len(set(directories)) < len(directories):
        raise ConfigError("the same --data is given twice; name each directory once")
    if options.details is not None and Path(options.details).exists():
        raise ConfigError(f"{options.details} already exists; set --details to a new directory")
    spark = open_session_for(options, "twinbus cost")
    since_ms = 0 if options.since is None else options.since
    until_ms = END_OF_TIME_MS if options.until is None else options.until
    records = read_records(spark, directories, since_ms, until_ms)
    records = records.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = bill(records, prices, options.by)
        if options.details is not None:
            by_day(records).write.parquet(options.details)
    finally:
        records.unpersist()
    _show(found, prices, options)
    return 0


def _show(found: "Bill", prices: Prices, options: argparse.Namespace) -> None:
    from twinbus.pipeline.report.bill import bill_page  # noqa: PLC0415
    from twinbus.pipeline.report.page import write_page  # noqa: PLC0415

    if found.damaged:
        print(f"twinbus: {found.damaged:,} damaged lines are not counted", file=sys.stderr)
    if options.html is not None:
        made = iso(SystemClock().now().utc_ms)
        write_page(options.html, bill_page(found, prices, options.data, made))
    if options.json:
        print_json(_document(found, prices))
    elif not found.months:
        print("nothing was metered in this period")
    else:
        _print(found, prices)


def _document(found: "Bill", prices: Prices) -> dict[str, object]:
    """As `twinbus cost show --json`, and what only this knows."""
    common = document(found.rows, found.by, found.total, found.pairing, found.months, prices)
    days = [
        {
            "day": day.day,
            "units": day.kinds,
            "pairing": {**vars(day.pairing), "units": day.pairing.units},
        }
        for day in found.days
    ]
    return {**common, "rows_left_out": found.rows_left_out, "days": days, "damaged": found.damaged}


def _print(found: "Bill", prices: Prices) -> None:
    from twinbus.pipeline.report.bill import moved_on  # noqa: PLC0415

    print_sums(found.rows, found.by, found.total, found.rows_left_out)
    print()
    print_pairing(found.pairing)
    if found.pairing.out_of_backlog:
        print(moved_on(found.pairing))
    print()
    print_bills(found.months, prices)
