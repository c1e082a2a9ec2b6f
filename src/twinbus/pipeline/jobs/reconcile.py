"""Reconcile: what was sent against what arrived (D-4).

Ids are counted on both sides, as many times as they are there.  Of an id that was sent n times and
arrived m times

    lost          max(0, n − m)
    duplicated    max(0, m − n), if it was sent at all
    unexpected    m, if it was not
    altered       arrivals with a body that was not sent under this id; and where a body took the
                  place of another that was, those too
    out of order  1, if it arrived after one that was sent later in the same session

Exact: ids themselves are grouped, never hashes of them.  One shuffle, by id, brings both sides
together; a second one, by session, happens only where order can be judged.  What reaches the driver
is sums and a few examples, whatever the size of the ledgers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from twinbus.pipeline.jobs.ledgers import Ledger

KINDS: Final = ("lost", "duplicated", "unexpected", "altered", "out_of_order")
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
# Percentiles are approximate: the rank of what is shown is off by at most 1 / this of all.
ACCURACY: Final = 10_000
ENTITIES_MAX: Final = 1_000  # in the summary, those with most differences first
EXAMPLES_MAX: Final = 20  # of each kind, in a report
CURVE: Final = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9, 99.95,
                99.99)  # fmt: skip
BUCKETS: Final = 60  # of time
_BINS_PER_DECADE: Final = 5  # of latency


@dataclass(frozen=True)
class Latency:
    """From the first time it was sent to the first time it arrived, in milliseconds."""

    count: int
    percentiles: tuple[float, ...]  # as PERCENTILES
    max: float
    negative: int  # arrived before they were sent: the clocks differ


@dataclass(frozen=True)
class Counts:
    """What came out, of one entity or of all."""

    sent: int
    arrived: int
    lost: int
    duplicated: int
    unexpected: int
    altered: int
    out_of_order: int
    latency: Latency | None = None

    def of(self, kind: str) -> int:
        found: int = getattr(self, kind)
        return found


@dataclass(frozen=True)
class Plots:
    """What a report draws."""

    # Beginning of each span of time, in seconds since 1970: sent, arrived, lost in it.
    timeline: list[tuple[float, int, int, int]]
    timeline_width_s: float
    histogram: list[tuple[float, float, int]]  # from, to in milliseconds: messages
    curve: list[tuple[float, float]]  # percentile, milliseconds


@dataclass(frozen=True)
class Outcome:
    """The result of a reconciliation."""

    total: Counts
    entities: list[tuple[str | None, Counts]]
    entities_left_out: int
    sent_without_id: int
    arrived_without_id: int
    bodies_compared: int | None  # ids of which both bodies are known; None: bodies are not
    order_checked: int | None  # messages; None: nothing is known of the order
    examples: dict[str, list[Row]] = field(default_factory=dict)
    plots: Plots | None = None

    @property
    def is_sent_empty(self) -> bool:
        return self.total.sent + self.sent_without_id == 0

    @property
    def is_arrived_empty(self) -> bool:
        return self.total.arrived + self.arrived_without_id == 0

    def differences(self, allowed: Sequence[str] = ()) -> dict[str, int]:
        """What is not as it should be, without kinds that are allowed; nothing: all is well."""
        found = {kind: self.total.of(kind) for kind in KINDS}
        found["without_id"] = self.sent_without_id + self.arrived_without_id
        return {kind: n for kind, n in found.items() if n and kind not in allowed}


# -- tables ----------------------------------------------------------------------------------------


def match(sent: Ledger, arrived: Ledger, by_entity: bool = False) -> DataFrame:
    """One row for each id, with no more than has to be kept of it; `judge` says the rest.

    Rows without an id are kept together by the task that has read them, so that many of them do not
    end up in one place; they are only counted.  `by_entity`: the same id at two entities is two.
    """
    facts = sent.rows.withColumn("is_sent", F.lit(True)).unionByName(
        arrived.rows.withColumn("is_sent", F.lit(False))
    )
    without_id = F.col("message_id").isNull()
    facts = facts.withColumn("apart", F.when(without_id, F.spark_partition_id()).otherwise(-1))
    key = ["message_id", "apart"]
    if by_entity:
        route = _route("entity", _names_subscriptions(sent))
        facts = facts.withColumn("route", F.when(without_id, "").otherwise(route))
        key.append("route")
    # Said here rather than left to the aggregation, which would sort before the shuffle and after.
    facts = facts.repartition(*key)
    if not (sent.has_bodies and arrived.has_bodies):
        bare = facts.groupBy(*key).agg(*_sides())
        return _kept(bare.withColumns({name: F.lit(None).cast(kind) for name, kind in _NO_BODY}))
    by_body = facts.groupBy(*key, "body_hash").agg(*_sides())
    return _kept(by_body.groupBy(*key).agg(*_sides_again(), *_bodies()))


_NO_BODY: Final = (
    ("same_bodies", "bigint"),
    ("new_bodies", "bigint"),
    ("unknown_bodies", "bigint"),
    ("sent_body_hash", "binary"),
    ("arrived_body_hash", "binary"),
)


def _names_subscriptions(sent: Ledger) -> bool:
    """Whether whoever wrote it counted a message once for each subscription of its topic."""
    named = F.lower("entity").contains("/subscriptions/")
    return not sent.rows.select("entity").where(named).isEmpty()


def _route(name: str, with_subscription: bool) -> Column:
    """An entity's name without sub-queue, and mostly without subscription: where it was sent to."""
    ends = r"/\$.*$" if with_subscription else r"/(subscriptions/|\$).*$"
    return F.coalesce(F.regexp_replace(F.lower(name), ends, ""), F.lit(""))


# What is kept of both sides, and what it is called of each: `entity` is `sent_entity`, and so on.
_OF_SIDES: Final = (
    ("entity", "entity"),
    ("session_id", "session"),
    ("number", "number"),
    ("time_us", "us"),
)


def _sides() -> list[Column]:
    columns = []
    for side, belongs in (("sent", F.col("is_sent")), ("arrived", ~F.col("is_sent"))):
        columns.append(F.count_if(belongs).alias(side))
        for name, short in _OF_SIDES:
            columns.append(F.min(F.when(belongs, F.col(name))).alias(f"{side}_{short}"))
    return columns


def _sides_again() -> list[Column]:
    """The same once more, now that each body is one row."""
    columns = []
    for side in ("sent", "arrived"):
        columns.append(F.sum(side).alias(side))
        columns += [F.min(f"{side}_{short}").alias(f"{side}_{short}") for _, short in _OF_SIDES]
    return columns


def _bodies() -> list[Column]:
    sent, arrived, body = F.col("sent"), F.col("arrived"), F.col("body_hash")
    return [
        F.sum(F.least(sent, arrived)).alias("same_bodies"),
        F.sum(F.when(sent == 0, arrived).otherwise(0)).alias("new_bodies"),
        F.sum(F.when(body.isNull(), sent + arrived).otherwise(0)).alias("unknown_bodies"),
        F.min(F.when(sent > arrived, body)).alias("sent_body_hash"),
        F.min(F.when(arrived > sent, body)).alias("arrived_body_hash"),
    ]


def _kept(ids: DataFrame) -> DataFrame:
    """What both sides come to, in few columns.  `altered` is null where bodies are not known."""
    sent, arrived = F.col("sent"), F.col("arrived")
    # Without an id there is nothing to compare; a body that nobody knows is not an altered one.
    compared = F.col("message_id").isNotNull() & (sent > 0) & (arrived > 0)
    compared &= F.col("unknown_bodies") == 0
    exchanged = F.least(sent, arrived) - F.col("same_bodies")
    altered = F.when(compared, F.greatest(F.col("new_bodies"), exchanged))
    return ids.select(
        "message_id",
        F.coalesce("sent_entity", "arrived_entity").alias("entity"),
        "arrived_entity",
        F.coalesce("sent_session", "arrived_session").alias("session_id"),
        "sent",
        "arrived",
        altered.alias("altered"),
        F.when(altered > 0, F.col("sent_body_hash")).alias("sent_body_hash"),
        F.when(altered > 0, F.col("arrived_body_hash")).alias("arrived_body_hash"),
        "sent_number",
        "arrived_number",
        "sent_us",
        "arrived_us",
    )


def judge(ids: DataFrame) -> DataFrame:
    """How many of each kind an id stands for, and how long it took."""
    sent, arrived = F.col("sent"), F.col("arrived")
    has_id = F.col("message_id").isNotNull()
    both = has_id & (sent > 0) & (arrived > 0)
    return ids.withColumns(
        {
            "lost": _when(has_id, F.greatest(sent - arrived, F.lit(0))),
            "duplicated": _when(has_id & (sent > 0), F.greatest(arrived - sent, F.lit(0))),
            "unexpected": _when(has_id & (sent == 0), arrived),
            "is_compared": F.col("altered").isNotNull(),
            "altered": F.coalesce("altered", F.lit(0)),
            "latency_us": F.when(both, F.col("arrived_us") - F.col("sent_us")),
        }
    )


def _when(condition: Column, value: Column) -> Column:
    return F.when(condition, value).otherwise(F.lit(0)).cast("bigint")


def in_order(ids: DataFrame) -> DataFrame:
    """Those whose order can be judged, each with the highest number that arrived before it did.

    Only at one entity are arrivals comparable.  Equal places say nothing of the order, so
    what arrived at the same place is not before.
    """
    known = F.col("message_id").isNotNull() & F.col("session_id").isNotNull()
    known &= F.col("sent_number").isNotNull() & F.col("arrived_number").isNotNull()
    before = (
        Window.partitionBy("arrived_entity", "session_id")
        .orderBy("arrived_number")
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    columns = ["entity", "arrived_entity", "session_id", "message_id"]
    columns += ["sent_number", "arrived_number"]
    judged = ids.where(known).select(
        *columns, F.max("sent_number").over(before).alias("overtaken_by")
    )
    is_late = F.coalesce(F.col("overtaken_by") > F.col("sent_number"), F.lit(False))
    return judged.withColumn("is_late", is_late)


def details(ids: DataFrame, late: DataFrame | None) -> Iterator[tuple[str, DataFrame]]:
    """Kind by kind, the ids in question."""
    shown = ["entity", "message_id", "session_id", "sent", "arrived"]
    for kind in KINDS[:4]:
        columns: list[Column | str] = [*shown, F.col(kind).alias("count")]
        if kind == "altered":
            columns += [
                F.lower(F.hex(name)).alias(name) for name in ("sent_body_hash", "arrived_body_hash")
            ]
        columns += [F.timestamp_micros(f"{side}_us").alias(f"{side}_time") for side in shown[3:]]
        yield kind, ids.where(F.col(kind) > 0).select(*columns)
    if late is not None:
        yield "out_of_order", late.where("is_late").drop("is_late", "arrived_entity")


# -- sums ------------------------------------------------------------------------------------------


def _summed() -> list[Column]:
    """Of rows with an id; those without one have no part in it."""
    has_id, latency = F.col("message_id").isNotNull(), F.col("latency_us")
    return [
        *[F.sum(F.when(has_id, F.col(name))).alias(name) for name in ("sent", "arrived")],
        *[F.sum(name).alias(name) for name in KINDS[:4]],
        F.count(latency).alias("latency_count"),
        F.percentile_approx(latency, [p / 100 for p in PERCENTILES], ACCURACY).alias("percentiles"),
        F.max(latency).alias("latency_max"),
        F.count_if(latency < 0).alias("latency_negative"),
    ]


def _counts(row: Row, out_of_order: int) -> Counts:
    latency = None
    if row["latency_count"]:
        latency = Latency(
            row["latency_count"],
            tuple(us / 1_000 for us in row["percentiles"]),
            row["latency_max"] / 1_000,
            row["latency_negative"],
        )
    sums = {name: row[name] or 0 for name in ("sent", "arrived", *KINDS[:4])}
    return Counts(**sums, out_of_order=out_of_order, latency=latency)


@dataclass(frozen=True)
class Reconciled:
    """The tables of a reconciliation, while they are kept."""

    ids: DataFrame
    late: DataFrame | None
    has_bodies: bool

    def outcome(self, with_plots: bool = False) -> Outcome:
        without_id = F.col("message_id").isNull()
        whole = self.ids.agg(
            *_summed(),
            F.sum(F.when(without_id, F.col("sent"))).alias("sent_without_id"),
            F.sum(F.when(without_id, F.col("arrived"))).alias("arrived_without_id"),
            F.count_if("is_compared").alias("compared"),
        ).collect()[0]
        late, checked, late_at = self._late()
        total = _counts(whole, late)
        entities, more = self._entities(late_at)
        return Outcome(
            total=total,
            entities=entities,
            entities_left_out=more,
            sent_without_id=whole["sent_without_id"] or 0,
            arrived_without_id=whole["arrived_without_id"] or 0,
            bodies_compared=whole["compared"] if self.has_bodies else None,
            order_checked=checked,
            examples=self._examples(total) if with_plots else {},
            plots=plots(self.ids.where(~without_id)) if with_plots else None,
        )

    def _entities(
        self, late_at: dict[str | None, int]
    ) -> tuple[list[tuple[str | None, Counts]], int]:
        """The worst ones, and how many are left out."""
        worst = F.lit(0)
        for kind in KINDS[:4]:
            worst += F.col(kind)
        known = self.ids.where(F.col("message_id").isNotNull())
        by_entity = known.groupBy("entity").agg(*_summed())
        rows = by_entity.orderBy(worst.desc(), "entity").limit(ENTITIES_MAX + 1).collect()
        found = [
            (row["entity"], _counts(row, late_at.get(row["entity"], 0)))
            for row in rows[:ENTITIES_MAX]
        ]
        return found, by_entity.count() - ENTITIES_MAX if len(rows) > ENTITIES_MAX else 0

    def _late(self) -> tuple[int, int | None, dict[str | None, int]]:
        """How many are out of order, how many were looked at, and where they are."""
        if self.late is None:
            return 0, None, {}
        is_late = F.col("is_late")
        late, checked = self.late.agg(F.count_if(is_late), F.count("*")).collect()[0]
        if not late:
            return 0, checked, {}
        by_entity = self.late.where(is_late).groupBy("entity").count()
        worst = by_entity.orderBy(F.col("count").desc()).limit(ENTITIES_MAX).collect()
        return late, checked, {row["entity"]: row["count"] for row in worst}

    def _examples(self, total: Counts) -> dict[str, list[Row]]:
        found = {}
        for kind, table in details(self.ids, self.late):
            if not total.of(kind):
                continue
            # As text: Python would show times in the zone of the machine.
            times = {name: F.col(name).cast("string") for name in table.columns if "_time" in name}
            found[kind] = table.withColumns(times).limit(EXAMPLES_MAX).collect()
        return found

    def write(self, directory: str) -> None:
        """One folder of Parquet for each kind, also where there is nothing to tell."""
        for kind, table in details(self.ids, self.late):
            table.write.mode("errorifexists").parquet(f"{directory.rstrip('/')}/{kind}")


@contextmanager
def reconcile(sent: Ledger, arrived: Ledger, by_entity: bool = False) -> Iterator[Reconciled]:
    """Bring both sides together; what was found is on disk, and read once, until this is left."""
    kept = match(sent, arrived, by_entity).persist(StorageLevel.DISK_ONLY)
    ids = judge(kept)
    late = None
    if (sent.has_sessions or arrived.has_sessions) and sent.has_order and arrived.has_order:
        late = in_order(ids).persist(StorageLevel.DISK_ONLY)
    try:
        yield Reconciled(ids, late, sent.has_bodies and arrived.has_bodies)
    finally:
        for table in (late, kept):
            if table is not None:
                table.unpersist()


# -- what a report draws ---------------------------------------------------------------------------


def plots(known: DataFrame) -> Plots:
    bounds = known.agg(
        F.min(F.least("sent_us", "arrived_us")),
        F.max(F.greatest("sent_us", "arrived_us")),
        F.percentile_approx("latency_us", [p / 100 for p in CURVE], ACCURACY),
        F.max("latency_us"),
    ).collect()[0]
    timeline: list[tuple[float, int, int, int]] = []
    width_us = 0
    if bounds[0] is not None:
        width_us = max(1, -(-(bounds[1] - bounds[0] + 1) // BUCKETS))
        timeline = _timeline(known, bounds[0], width_us)
    curve = []
    if bounds[2] is not None:
        curve = [(p, us / 1_000) for p, us in zip(CURVE, bounds[2], strict=True)]
        curve.append((100.0, bounds[3] / 1_000))
    return Plots(timeline, width_us / 1e6, _histogram(known), curve)


def _timeline(known: DataFrame, start_us: int, width_us: int) -> list[tuple[float, int, int, int]]:
    def at(name: str) -> Column:
        return F.floor((F.col(name) - start_us) / width_us).alias("bucket")

    none = F.lit(0)
    sent = known.select(at("sent_us"), "sent", none.alias("arrived"), "lost")
    arrived = known.select(at("arrived_us"), none.alias("sent"), "arrived", none.alias("lost"))
    sums = [F.sum(name) for name in ("sent", "arrived", "lost")]
    rows = sent.unionByName(arrived).where("bucket IS NOT NULL").groupBy("bucket").agg(*sums)
    found = {row[0]: (row[1], row[2], row[3]) for row in rows.collect()}
    return [
        ((start_us + bucket * width_us) / 1e6, *found.get(bucket, (0, 0, 0)))
        for bucket in range(max(found, default=-1) + 1)
    ]


def _histogram(known: DataFrame) -> list[tuple[float, float, int]]:
    """Bins of equal width on a logarithmic scale; below a tenth of a millisecond is one bin."""
    latency_ms = F.greatest(F.col("latency_us") / 1_000, F.lit(0.1))
    bin_of = F.floor(F.log10(latency_ms) * _BINS_PER_DECADE).alias("bin")
    rows = known.where("latency_us IS NOT NULL").groupBy(bin_of).count().collect()
    found = {row[0]: row[1] for row in rows}
    if not found:
        return []

    def edge(number: int) -> float:
        return float(10 ** (number / _BINS_PER_DECADE))

    bins = range(min(found), max(found) + 1)
    return [(edge(number), edge(number + 1), found.get(number, 0)) for number in bins]
