"""The columns of a message in Spark: what a read row has and a written row may have.

One table says name, type, and what each column means; Spark's and Arrow's schemas are made of it.
The names follow the SDK's `ServiceBusReceivedMessage`.  Every column may be null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.  `is_sent`: a sink makes it part of the message; others it leaves alone."""

    name: str
    spark: DataType
    is_sent: bool
    meaning: str


_TEXT: Final = StringType()
_LONG: Final = LongType()
_INT: Final = IntegerType()
_TIME: Final = TimestampType()
_BYTES: Final = BinaryType()
_PROPERTIES: Final = MapType(StringType(), StringType())

COLUMNS: Final = (
    Column("namespace", _TEXT, False, "host (and port) of the namespace"),
    Column("entity_path", _TEXT, False, "queue, subscription or sub-queue it was read from"),
    Column("partition_id", _INT, False, "partition of a partitioned entity, else 0"),
    Column("sequence_number", _LONG, False, "the broker's number, unique in the entity"),
    Column("enqueued_sequence_number", _LONG, False, "its first number, if it was forwarded"),
    Column("enqueued_time", _TIME, False, "when the broker took it"),
    Column("message_id", _TEXT, True, "message id"),
    Column("session_id", _TEXT, True, "session id"),
    Column("partition_key", _TEXT, True, "partition key"),
    Column("correlation_id", _TEXT, True, "correlation id"),
    Column("subject", _TEXT, True, "subject (label)"),
    Column("to", _TEXT, True, "to"),
    Column("reply_to", _TEXT, True, "reply to"),
    Column("reply_to_session_id", _TEXT, True, "reply to session id"),
    Column("content_type", _TEXT, True, "content type"),
    Column("time_to_live_ms", _LONG, True, "time to live, milliseconds"),
    Column("expires_at", _TIME, False, "enqueued time and time to live"),
    Column("scheduled_enqueue_time", _TIME, True, "when it is, or was, to be enqueued"),
    Column("delivery_count", _INT, False, "deliveries that failed"),
    Column("state", _TEXT, False, "active, deferred or scheduled"),
    Column("dead_letter_source", _TEXT, False, "the entity in which it was dead-lettered"),
    Column("dead_letter_reason", _TEXT, False, "why it was dead-lettered"),
    Column("dead_letter_error_description", _TEXT, False, "why, in words"),
    Column("application_properties", _PROPERTIES, True, "application properties, as texts"),
    Column("body", _BYTES, True, "the body; of a value or sequence its text or JSON"),
    Column("body_type", _TEXT, False, "data, value or sequence"),
    Column("body_size", _INT, False, "bytes of the body"),
    Column("position", _TEXT, False, "where it was read, in the form of a producer key"),
)
# Only if it is asked for (`includeAmqp`): the message as it is on the wire, for exact copies.
AMQP: Final = Column("amqp", _BYTES, True, "the encoded message; a sink sends just this")
# Only in rows that are written: where each goes, unless the sink has an `entityPath`.
DESTINATION: Final = Column("destination", _TEXT, True, "queue or topic to send to")

BY_NAME: Final = {column.name: column for column in (*COLUMNS, AMQP, DESTINATION)}

_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def message_schema(include_amqp: bool = False) -> StructType:
    """What a source gives when the user asks for nothing else."""
    columns = (*COLUMNS, AMQP) if include_amqp else COLUMNS
    return StructType([StructField(column.name, column.spark) for column in columns])


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The same columns for Arrow, in this order."""
    return pa.schema([(name, arrow_type(BY_NAME[name].spark)) for name in names])


def arrow_type(spark: DataType) -> pa.DataType:
    return _ARROW[spark.simpleString()]
