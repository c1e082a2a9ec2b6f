"""Cost: what the meters of one or many namespaces have written down, summed up and priced (D-5).

Reads the durable records (`DIR/meter/2026-11-16.jsonl`), by the same rule for a line as the server
has: one whose checksum is wrong is counted as damaged and not otherwise.  Tasks add up
what they read, so that only sums of days are moved.

What is priced is sums that are metered lines again, so that the arithmetic is the one of
`twinbus cost show`, and both say the same of the same files.  That one passes over a last line that
has no end yet; here it counts, as what it says or as damaged.

A line names its namespace and nothing else, and two servers may have one of the same name: a
primary and its secondary do, often.  A name that several directories have is followed by the
directory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from twinbus.costs.prices import Prices
from twinbus.costs.rollup import BACKLOG, BY, MonthBill, Pairing, Sum, month_bills, pairing_of
from twinbus.errors import ConfigError
from twinbus.metered import DAY_MS, PING, Metered, decode_line, parse_iso

ROWS_MAX: Final = 1_000  # of the table that is shown, the most units first
DAYS_MAX: Final = 400  # of the plot, the last ones
_FILES: Final = "????-??-??.jsonl"
_NUMBERS: Final = ("operations", "units", "empty")
_RECORD: Final = (
    "from_ms bigint, day string, namespace string, entity string, kind string, "
    "operations bigint, units bigint, empty bigint"
)
Record = tuple[int, str, str, str, str, int, int, int]


@dataclass(frozen=True)
class Day:
    """What one day came to, in units: by kind, and what of it pairing was."""

    day: str
    kinds: dict[str, int]
    pairing: Pairing


@dataclass(frozen=True)
class Bill:
    """The whole answer."""

    by: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], Sum]]  # in the order of names
    rows_left_out: int
    total: Sum
    pairing: Pairing
    months: list[MonthBill]
    days: list[Day]
    damaged: int


def meter_directory(data: str) -> str:
    """Where the meter of a data directory is; ConfigError if there is none."""
    if "://" in data:
        return data.rstrip("/") + "/meter"
    path = Path(data)
    directory = path if path.name == "meter" else path / "meter"
    if not any(directory.glob(_FILES)):
        raise ConfigError(f"nothing was metered in {data}; give a server's data directory")
    return str(directory)


def read_records(
    spark: SparkSession, directories: Sequence[str], from_ms: int, to_ms: int
) -> DataFrame:
    """One row for each day, namespace, entity and kind; one without them counts damaged lines."""
    found = [
        _lines(spark, each).withColumn("data", F.lit(each.removesuffix("/meter")))
        for each in directories
    ]
    lines = reduce(DataFrame.unionAll, found)
    # As bytes: a damaged line need not be text.  Without Arrow, which would ask for pandas here.
    decode = F.udf(decode_record, _RECORD, useArrow=False)
    records = lines.select("data", decode(F.col("value").cast("binary")).alias("record"))
    started_ms = F.col("record.from_ms")
    wanted = started_ms.isNull() | ((started_ms >= from_ms) & (started_ms < to_ms))
    sums = [F.sum(f"record.{name}").alias(name) for name in _NUMBERS]
    damaged = F.count_if(started_ms.isNull()).alias("damaged")
    key = [F.col(f"record.{name}").alias(name) for name in BY]
    return _told_apart(records.where(wanted).groupBy("data", *key).agg(*sums, damaged))


def _lines(spark: SparkSession, directory: str) -> DataFrame:
    reader = spark.read.option("pathGlobFilter", _FILES).option("lineSep", "\n")
    try:
        return reader.text(directory)
    except AnalysisException as error:
        shown = f"the meter in {directory} cannot be read ({error.getCondition()})"
        raise ConfigError(f"{shown}; give servers' data directories") from error


def _told_apart(records: DataFrame) -> DataFrame:
    """Each namespace by a name that no other has: `twinbus (/data/primary)` where two share one."""
    homes = records.groupBy("namespace").agg(F.count_distinct("data").alias("homes"))
    longer = F.concat("namespace", F.lit(" ("), "data", F.lit(")"))
    name = F.when(F.col("homes") > 1, longer).otherwise(F.col("namespace"))
    # Damaged lines have no namespace, and a join does not match those.
    joined = records.join(F.broadcast(homes), "namespace", "left")
    return joined.withColumn("namespace", name).drop("homes", "data")


def decode_record(line: bytes) -> Record | None:
    """What a line says; None if it is damaged.  Runs in the tasks."""
    found = decode_line(bytes(line).rstrip(b" "))
    if found is None:
        return None
    names = (found.day, found.namespace, found.entity, found.kind)
    return found.from_ms, *names, found.operations, found.units, found.empty


def by_day(records: DataFrame) -> DataFrame:
    """The details: what is not damaged, and whether it is there only for pairing."""
    found = records.where("damaged = 0").drop("damaged")
    return found.withColumn("is_pairing", _is_backlog() | (F.col("kind") == PING))


def _is_backlog() -> Column:
    return F.contains(F.lower("entity"), F.lit(BACKLOG))


def bill(records: DataFrame, prices: Prices, by: tuple[str, ...] = ("entity", "kind")) -> Bill:
    """What it comes to.  `records` is read several times: keep it."""
    days = by_day(records)
    sums = [F.sum(name).alias(name) for name in _NUMBERS]
    table = days.groupBy(*by).agg(*sums)
    rows = table.orderBy(F.desc("units"), *by).limit(ROWS_MAX + 1).collect()
    more = table.count() - ROWS_MAX if len(rows) > ROWS_MAX else 0
    lines = [
        _line(row)
        for row in days.groupBy("day", "kind", _is_backlog().alias("backlog")).agg(*sums).collect()
    ]
    total = Sum()
    for line in lines:
        total.add(line)
    damaged = records.agg(F.sum("damaged")).collect()[0][0]
    return Bill(
        by=by,
        rows=sorted((tuple(row[name] for name in by), _sum(row)) for row in rows[:ROWS_MAX]),
        rows_left_out=more,
        total=total,
        pairing=pairing_of(lines),
        months=month_bills(lines, prices),
        days=_days(lines),
        damaged=damaged or 0,
    )


def _sum(row: Row) -> Sum:
    return Sum(*(row[name] for name in _NUMBERS))


def _line(row: Row) -> Metered:
    """A sum of many entities, as a line: the name says whether they were backlog queues."""
    from_ms = parse_iso(row["day"])
    entity = BACKLOG if row["backlog"] else ""
    numbers = (row[name] for name in _NUMBERS)
    return Metered(from_ms, from_ms + DAY_MS, "", entity, row["kind"], *numbers)


def _days(lines: Sequence[Metered]) -> list[Day]:
    found: dict[str, list[Metered]] = {}
    for line in lines:
        found.setdefault(line.day, []).append(line)
    days = []
    for day, of_day in sorted(found.items())[-DAYS_MAX:]:
        kinds: dict[str, int] = {}
        for line in of_day:
            kinds[line.kind] = kinds.get(line.kind, 0) + line.units
        days.append(Day(day, kinds, pairing_of(of_day)))
    return days
