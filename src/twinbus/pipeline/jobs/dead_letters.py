"""Dead letters: why, where, since when, with examples; and a selection of them sent again.

What is read is a snapshot of dead-letter queues; nobody loses or locks a message by it.  Sent again
is exactly what the selection meant, by sequence numbers, in one of two ways:

    in place     the bus puts them back into their entity (`twinbus:resubmit`): one step for each
                 message, past duplicate detection, and of a subscription into that one alone
    to another   sent there under a producer key made of their position, then deleted here.  After a
    entity       crash in between the next run sends them again, the bus drops the copies, and they
                 are deleted then

Never deletes a dead letter whose copy is not stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 – as everybody calls it

from twinbus.amqp.types import Int
from twinbus.client.admin import QUEUE, TOPIC, AdminClient
from twinbus.client.blocking import BlockingConnection
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.errors import ConfigError, NotSupported, ServiceError
from twinbus.pipeline.bus import SEND_BATCH_BYTES
from twinbus.pipeline.bus.pool import using_bus
from twinbus.pipeline.jobs.capture import writer_by_hour
from twinbus.pipeline.jobs.file_layout import claim_format, files_for
from twinbus.pipeline.jobs.replay import filtered, read_capture
from twinbus.pipeline.jobs.resending import renewed
from twinbus.pipeline.sink.keys import Outgoing
from twinbus.pipeline.sink.sends import Sends
from twinbus.pipeline.source.runs import Runs, merge
from twinbus.pipeline.source.runs import count as count_of

SAMPLE_BODY_BYTES: Final = 200
# Runs of numbers in one request to the bus: its filters are short texts.
RUNS_PER_REQUEST: Final = 10
PIECE_COUNT_MAX: Final = 1_000  # messages that are sent, then deleted, at a time
UNDERTAKING: Final = "dead letters sent again"
AGES: Final = (("hour", 3_600), ("day", 86_400), ("week", 604_800))  # younger than so many seconds
_GROUP: Final = ("entity_path", "reason", "description")

# What differs from one message to the next in texts that mean the same.
_VARIABLE: Final = (
    (r"(?i)\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", "<id>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"\d+([.,]\d+)*", "<n>"),
)


@dataclass(frozen=True)
class DeadLetterQueues:
    """Which ones: of these entities or, without any, of all in the namespace."""

    connection_string: str
    entities: Sequence[str] = ()
    is_transfer: bool = False
    operations: str = "auto"


# --- DataFrame → DataFrame ------------------------------------------------------------------------


def read_dead_letters(spark: SparkSession, queues: DeadLetterQueues, is_exact: bool) -> DataFrame:
    """A snapshot; `is_exact` with the column `amqp`, for what is sent again or kept."""
    options = {
        "connectionString": queues.connection_string,
        "subQueue": "transferDeadLetter" if queues.is_transfer else "deadLetter",
        "includeAmqp": "true" if is_exact else "false",
        "operations": queues.operations,
    }
    if queues.entities:
        options["entityPaths"] = ",".join(queues.entities)
    else:
        options["entityPattern"] = ".*"
    return spark.read.format("servicebus").options(**options).load()


def chosen(letters: DataFrame, where: str | None, since_ms: int | None) -> DataFrame:
    """Those that a SQL condition holds for, enqueued then or later."""
    found = letters if where is None else filtered(letters, where)
    if since_ms is not None:
        found = found.where(F.col("enqueued_time") >= F.timestamp_millis(F.lit(since_ms)))
    return found


def oldest(letters: DataFrame, limit: int | None) -> DataFrame:
    if limit is None:
        return letters
    return letters.orderBy("enqueued_time", "entity_path", "sequence_number").limit(limit)


def alike(text: Column) -> Column:
    """A description without the numbers, ids and times that make each of its kind another."""
    for pattern, word in _VARIABLE:
        text = F.regexp_replace(text, pattern, word)
    return text


def summarised(letters: DataFrame, now_ms: int, sample_count: int) -> DataFrame:
    """One row for each entity, reason and kind of description, the most frequent first."""
    now = F.timestamp_millis(F.lit(now_ms))
    grouped = (
        letters.withColumn("reason", F.coalesce("dead_letter_reason", F.lit("")))
        .withColumn(
            "description", F.coalesce(alike(F.col("dead_letter_error_description")), F.lit(""))
        )
        .withColumn("age_s", F.unix_seconds(now) - F.unix_seconds("enqueued_time"))
        .withColumn(
            "place",
            F.row_number().over(Window.partitionBy(*_GROUP).orderBy(F.desc("enqueued_time"))),
        )
    )
    sample = F.struct(
        "sequence_number",
        "enqueued_time",
        "message_id",
        "session_id",
        "subject",
        F.col("dead_letter_error_description").alias("error_description"),
        F.substring("body", 1, SAMPLE_BODY_BYTES).alias("body"),
        "body_size",
    )
    ages = []
    for at, (name, younger_s) in enumerate(AGES):
        from_s = AGES[at - 1][1] if at else -(2**62)
        is_in = (F.col("age_s") >= from_s) & (F.col("age_s") < younger_s)
        ages.append(F.count_if(is_in).alias(f"within_{name}"))
    return (
        grouped.groupBy(*_GROUP)
        .agg(
            F.count("*").alias("message_count"),
            F.sum("body_size").alias("body_bytes"),
            F.min("enqueued_time").alias("first_time"),
            F.max("enqueued_time").alias("last_time"),
            *ages,
            F.count_if(F.col("age_s") >= AGES[-1][1]).alias("older"),
            F.collect_list(F.when(F.col("place") <= sample_count, sample)).alias("samples"),
        )
        .orderBy(F.desc("message_count"), *_GROUP)
    )


def export(letters: DataFrame, directory: str, form: str) -> int:
    """Write them into a new directory, in the layout of a capture: `replay` can read it.

    Gives how many are there.
    """
    files, address = files_for(letters.sparkSession, directory)
    if files.names(address):
        raise ConfigError(f"{directory[:256]} is there already; an export needs a new directory")
    claim_format(files, address, form)
    writer_by_hour(letters, form, {}).mode("append").save(address)
    return read_capture(letters.sparkSession, address, form).count()


def drops_known_ids(connection_string: str, entity: str) -> bool:
    """Whether a queue or topic detects duplicates; False too where nobody tells."""
    admin = AdminClient(connection_string)
    for kind in (QUEUE, TOPIC):
        try:
            properties = admin.get(kind, (entity,)).properties
        except ServiceError:
            continue  # the other kind, or no right to look: the send will say what is wrong
        return properties.get("RequiresDuplicateDetection") == "true"
    return False


# --- in tasks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resubmitted:
    """What became of dead letters of one queue.

    Not removed is what somebody has locked or taken meanwhile and, where the bus puts them back,
    what has no session id in an entity that needs one.
    """

    entity_path: str
    asked: int
    removed: int


class ReturnTask:
    """Has the bus put dead letters back into the entities in which they were."""

    columns: tuple[str, ...] = ()

    def __init__(self, queues: DeadLetterQueues) -> None:
        self._queues = queues

    def __call__(self, rows: Iterable[Row]) -> Iterator[Resubmitted]:
        connection = BlockingConnection.open(self._queues.connection_string)
        try:
            for piece in _pieces(rows):
                for path, runs in _by_queue(piece).items():
                    count = self._put_back(connection, path, runs)
                    yield Resubmitted(path, count_of(runs), count)
        finally:
            connection.close()

    def _put_back(self, connection: BlockingConnection, path: str, runs: Runs) -> int:
        async def ask(bus: BusConnection) -> int:
            node = await ManagementNode.open(bus, path)
            total = 0
            for at in range(0, len(runs), RUNS_PER_REQUEST):
                total += await _resubmit(node, runs[at : at + RUNS_PER_REQUEST])
            return total

        try:
            return connection.call(ask)
        except NotSupported:
            raise NotSupported(
                "this bus cannot put dead letters back by itself; give --to ENTITY"
            ) from None


async def _resubmit(node: ManagementNode, runs: Runs) -> int:
    conditions = [
        f"(sys.SequenceNumber >= {first} AND sys.SequenceNumber < {end})" for first, end in runs
    ]
    left = sum(end - first for first, end in runs)
    start, total = runs[0][0], 0
    while left > 0:
        body: dict[object, object] = {
            "filter": " OR ".join(conditions),
            "from-sequence-number": start,
            "message-count": Int(left),
        }
        answer = await node.request("twinbus:resubmit", body)
        count, following = answer.get("message-count"), answer.get("next-sequence-number")
        if isinstance(count, int):
            total += count
            left -= count
        if not isinstance(following, int) or following >= runs[-1][1]:
            break
        start = following
    return total


class MoveTask:
    """Sends dead letters to another entity, and deletes each when its copy is stored."""

    columns: tuple[str, ...] = ("position", "amqp")

    def __init__(self, queues: DeadLetterQueues, destination: str) -> None:
        self._queues = queues
        self._destination = destination

    def __call__(self, rows: Iterable[Row]) -> Iterator[Resubmitted]:
        with using_bus(self._queues.connection_string, self._queues.operations) as bus:
            sends = Sends(bus, SEND_BATCH_BYTES)
            for piece in _pieces(rows):
                messages = [self._message(place, row) for place, row in enumerate(piece, 1)]
                sends.send(messages, [message.key or "" for message in messages])
                sends.wait()
                for path, runs in _by_queue(piece).items():
                    yield Resubmitted(path, count_of(runs), bus.settle(path, runs))
            sends.close()

    def _message(self, place: int, row: Row) -> Outgoing:
        amqp = bytes(row["amqp"])
        return renewed(place, amqp, self._destination, UNDERTAKING, row["position"])


def _pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while piece := list(islice(remaining, PIECE_COUNT_MAX)):
        yield piece


def _by_queue(rows: Iterable[Row]) -> dict[str, Runs]:
    """The sequence numbers of these rows, by their dead-letter queue."""
    numbers: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        number = row["sequence_number"]
        numbers.setdefault(row["entity_path"], []).append((number, number + 1))
    return {path: merge(found) for path, found in numbers.items()}


def resubmit(letters: DataFrame, task: ReturnTask | MoveTask) -> list[Resubmitted]:
    """Send them again, those of one dead-letter queue in one task, in their order."""
    columns = ("entity_path", "sequence_number", *task.columns)
    lines = letters.select(*columns).repartition("entity_path")
    ordered = lines.sortWithinPartitions("entity_path", "sequence_number")
    sums: dict[str, Resubmitted] = {}
    # By rows, since Spark's way by Arrow batches would need pandas.
    for each in ordered.rdd.mapPartitions(task).collect():
        before = sums.get(each.entity_path, Resubmitted(each.entity_path, 0, 0))
        sums[each.entity_path] = Resubmitted(
            each.entity_path, before.asked + each.asked, before.removed + each.removed
        )
    return [sums[path] for path in sorted(sums)]
