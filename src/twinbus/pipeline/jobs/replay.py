"""Replay: messages of a capture into any entity, by filter, time, mapping and pace.

The selection is gone through in steps, minute after minute of the time at which messages were
enqueued.  In a step the messages of one session, or of one partition of their old entity, are sent
by one task in their old order; a replay with a pace has one task for all.

A replay has a name.  Under the same name no message is stored twice by a twinbus: producer keys see
to it, and minutes that were sent wholly are noted next to the capture, so that a replay which was
killed goes on where it was.  On other buses the messages of the step that was under way may come
twice.  Under another name everything is sent anew, which is what a second replay is for.

Never changes the capture.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from time import sleep
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 – as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType

from twinbus.clock import SystemClock
from twinbus.errors import ConfigError
from twinbus.pipeline.bus import SEND_BATCH_BYTES
from twinbus.pipeline.bus.pool import using_bus
from twinbus.pipeline.jobs.capture import PARTITION_COLUMNS
from twinbus.pipeline.jobs.compact import show_hours
from twinbus.pipeline.jobs.file_layout import CAPTURE, check_name, files_for, read_format
from twinbus.pipeline.jobs.resending import Pace, Timed, paced, renewed
from twinbus.pipeline.schema import message_schema
from twinbus.pipeline.sink.sends import Sends

STEP_COUNT_MAX: Final = 50_000
PACED_STEP_S: Final = 10  # of a replay with a pace, so that its progress can be seen
MINUTE_MS: Final = 60_000
_SENT: Final = ("destination", "position", "amqp", "enqueued_ms", "ahead_ms")


@dataclass(frozen=True)
class ReplaySettings:
    """What is replayed where to.  Times are UTC milliseconds, entities as a receiver names them."""

    connection_string: str
    directory: str
    name: str
    to: str | None = None  # for what is not in `mapping`
    mapping: Mapping[str, str] = field(default_factory=dict)  # old entity → new one
    where: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    rate: float = 0.0
    speed: float = 0.0
    as_scheduled: bool = False  # the bus keeps the pace, by scheduled messages
    operations: str = "auto"


@dataclass(frozen=True)
class Flow:
    """What goes from one entity of the capture to another entity, or to nowhere."""

    entity: str
    destination: str | None
    message_count: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True)
class Step:
    """Some minutes in a row: their starts, and how many messages each of them has."""

    minutes: dict[int, int]
    first_ms: int  # when the first of these messages was enqueued

    @property
    def message_count(self) -> int:
        return sum(self.minutes.values())


# --- DataFrame → DataFrame ------------------------------------------------------------------------


def read_capture(spark: SparkSession, directory: str, form: str) -> DataFrame:
    """A capture, or the export of one in the same layout."""
    schema = message_schema(include_amqp=True)
    folders = [StructField(name, StringType()) for name in PARTITION_COLUMNS]
    return spark.read.schema(StructType([*schema.fields, *folders])).format(form).load(directory)


def selected(messages: DataFrame, settings: ReplaySettings) -> DataFrame:
    """What is to be sent, with the columns `destination`, `enqueued_ms` and `minute`."""
    found = messages
    if settings.where is not None:
        found = filtered(found, settings.where)
    enqueued_ms = F.unix_millis("enqueued_time")
    if settings.from_ms is not None:
        found = found.where(_at_or_after("enqueued_time", settings.from_ms))
    if settings.to_ms is not None:
        found = found.where(~_at_or_after("enqueued_time", settings.to_ms))
    return (
        found.withColumn("destination", _destination(settings))
        .withColumn("enqueued_ms", enqueued_ms)
        .withColumn("minute", F.floor(enqueued_ms / MINUTE_MS) * MINUTE_MS)
    )


def filtered(messages: DataFrame, where: str) -> DataFrame:
    """What a SQL condition over the columns of a message holds for."""
    try:
        return messages.where(where)
    except (AnalysisException, ParseException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the condition cannot be read: {reason}") from None


def _at_or_after(column: str, time_ms: int) -> Column:
    return F.col(column) >= F.timestamp_millis(F.lit(time_ms))


def _destination(settings: ReplaySettings) -> Column:
    found: Column = F.lit(settings.to)
    for old, new in settings.mapping.items():
        found = F.when(F.lower("entity_path") == old.lower(), F.lit(new)).otherwise(found)
    return found.cast("string")


def flows(chosen: DataFrame) -> DataFrame:
    """How much goes from where to where."""
    return (
        chosen.groupBy("entity_path", "destination")
        .agg(
            F.count("*").alias("message_count"),
            F.min("enqueued_ms").alias("first_ms"),
            F.max("enqueued_ms").alias("last_ms"),
        )
        .orderBy("entity_path", "destination")
    )


def of_minutes(chosen: DataFrame, minutes: Mapping[int, int]) -> DataFrame:
    """Those of a step.  Says so by folder and by time as well, which saves reading the others."""
    first_ms, end_ms = min(minutes), max(minutes) + MINUTE_MS
    folder = F.concat_ws(" ", "date", "hour")
    # Files that are not in folders by hour have no such columns.
    return chosen.where(
        ((folder == "") | folder.between(_folder_of(first_ms), _folder_of(end_ms)))
        & _at_or_after("enqueued_time", first_ms)
        & ~_at_or_after("enqueued_time", end_ms)
        & F.col("minute").isin(list(minutes))
    )


def _folder_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H")


def in_lines(chosen: DataFrame, is_paced: bool) -> DataFrame:
    """Divided into tasks that keep the order, with just the columns that are sent."""
    order = ("enqueued_time", "entity_path", "sequence_number")
    line = F.coalesce("session_id", F.col("partition_id").cast("string"))
    divided = chosen.coalesce(1) if is_paced else chosen.repartition("destination", line)
    ahead_ms = F.unix_millis("scheduled_enqueue_time") - F.col("enqueued_ms")
    return divided.sortWithinPartitions(*order).withColumn("ahead_ms", ahead_ms).select(*_SENT)


# --- in tasks -------------------------------------------------------------------------------------


class ReplayTask:
    """Sends the rows of a task in order, at their pace; gives what was stored by destination."""

    def __init__(self, settings: ReplaySettings, pace: Pace) -> None:
        self._settings = settings
        self._pace = pace

    def __call__(self, rows: Iterable[Row]) -> Iterator[tuple[str, int]]:
        settings = self._settings
        clock = SystemClock()
        pace = Pace(rate=self._pace.rate) if settings.as_scheduled else self._pace
        with using_bus(settings.connection_string, settings.operations) as bus:
            sends = Sends(bus, SEND_BATCH_BYTES)
            for chunk in paced(self._timed(rows), pace, lambda: clock.now().utc_ms, sleep):
                sends.send(chunk, [message.key or "" for message in chunk])
            sends.wait()
            sends.close()
        for destination, count in sends.counts.items():
            yield destination, count.messages

    def _timed(self, rows: Iterable[Row]) -> Iterator[Timed]:
        for number, row in enumerate(rows, 1):
            if row["amqp"] is None or row["position"] is None:
                raise ConfigError("a message lacks the columns amqp and position: no exact copy")
            message = renewed(
                number,
                bytes(row["amqp"]),
                row["destination"],
                self._settings.name,
                row["position"],
                self._scheduled_ms(row),
            )
            yield Timed(message, row["enqueued_ms"])

    def _scheduled_ms(self, row: Row) -> int | None:
        """Later than now only for what was scheduled still, and where the bus keeps the pace."""
        if self._settings.as_scheduled:
            return self._pace.shifted_ms(row["enqueued_ms"])
        ahead_ms: int | None = row["ahead_ms"]
        if ahead_ms is None or ahead_ms <= 0:
            return None
        return SystemClock().now().utc_ms + ahead_ms


# --- the run --------------------------------------------------------------------------------------


class Replay:
    """One replay: looks, plans, and then goes step by step."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings, form: str | None) -> None:
        self._settings = settings
        self._files, self._directory = files_for(spark, settings.directory)
        self._notes = (
            f"{self._directory}/{CAPTURE}/replays/{check_name(settings.name, '--id')}.json"
        )
        show_hours(self._files, self._directory)
        form = form or read_format(self._files, self._directory)
        self._chosen = selected(read_capture(spark, self._directory, form), settings)
        self.done: dict[int, int] = self._read_notes()
        self._first_ms = self._start_ms = 0

    def flows(self) -> list[Flow]:
        """What would be sent, whether or not it was sent already."""
        return [Flow(*row) for row in flows(self._chosen).collect()]

    def steps(self) -> list[Step]:
        """What is left to send, in order."""
        counts = self._chosen.groupBy("minute").agg(F.count("*"), F.min("enqueued_ms")).collect()
        left = [Step({row[0]: row[1]}, row[2]) for row in counts if self.done.get(row[0]) != row[1]]
        if any(None in step.minutes for step in left):
            raise ConfigError("some messages have no enqueued time; leave them out by the filter")
        left.sort(key=_first_ms)
        return list(joined(left, self._settings))

    def send(self, step: Step) -> dict[str, int]:
        """Send a step and note it; how many by destination, copies included."""
        settings = self._settings
        if not self._start_ms:  # now is the time that belongs to the first message
            self._start_ms, self._first_ms = SystemClock().now().utc_ms, step.first_ms
        pace = Pace(settings.rate, settings.speed, self._first_ms, self._start_ms)
        is_paced = bool(settings.rate or settings.speed)
        rows = in_lines(of_minutes(self._chosen, step.minutes), is_paced)
        sums: Counter[str] = Counter()
        # By rows, since Spark's way by Arrow batches would need pandas.
        for destination, count in rows.rdd.mapPartitions(ReplayTask(settings, pace)).collect():
            sums[destination] += count
        self.done.update(step.minutes)
        self._files.write_text(self._notes, self._notes_text())
        return dict(sums)

    def _read_notes(self) -> dict[int, int]:
        text = self._files.read_text(self._notes)
        if text is None:
            return {}
        notes = json.loads(text)
        if notes["selection"] != self._selection():
            raise ConfigError(
                f"--id {self._settings.name} was another replay, with other options; "
                "take another name, or the same options to go on with it"
            )
        return {int(minute): count for minute, count in notes["minutes"].items()}

    def _notes_text(self) -> str:
        minutes = {str(minute): count for minute, count in sorted(self.done.items())}
        return json.dumps({"selection": self._selection(), "minutes": minutes})

    def _selection(self) -> dict[str, object]:
        """What makes it the same replay: all but the pace and the way to the bus."""
        given = asdict(self._settings)
        return {
            name: dict(sorted(given[name].items())) if name == "mapping" else given[name]
            for name in ("to", "mapping", "where", "from_ms", "to_ms")
        }


def joined(minutes: Iterable[Step], settings: ReplaySettings) -> Iterator[Step]:
    """Steps of one minute each, put together as far as a step may reach."""
    count_max = float(STEP_COUNT_MAX)
    if settings.rate:
        count_max = min(count_max, settings.rate * PACED_STEP_S)
    span_ms = float("inf")
    if settings.speed and not settings.as_scheduled:
        span_ms = PACED_STEP_S * 1_000 * settings.speed
    gathered: Step | None = None
    for step in minutes:
        if gathered is None:
            gathered = step
        elif (
            gathered.message_count + step.message_count > count_max
            or step.first_ms - gathered.first_ms >= span_ms
        ):
            yield gathered
            gathered = step
        else:
            gathered = Step({**gathered.minutes, **step.minutes}, gathered.first_ms)
    if gathered is not None:
        yield gathered


def _first_ms(step: Step) -> int:
    return step.first_ms
