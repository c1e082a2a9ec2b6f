"""The options of a sink, and the columns of the rows it will get.

The driver checks everything before a task starts: the error for an unknown option or column
suggests the nearest known one, the error for a wrong type the right one.  No error shows a value
that may hold a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Self

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from twinbus.client.connection_string import ConnectionString
from twinbus.errors import ConfigError
from twinbus.pipeline.bus import SEND_BATCH_BYTES
from twinbus.pipeline.options import OPERATIONS, GivenOptions
from twinbus.pipeline.schema import BY_NAME

SEND_BATCH_BYTES_MIN: Final = 1_024
SEND_BATCH_BYTES_MAX: Final = 100 * 1024 * 1024  # the largest message of any Service Bus

# Every option of the sink, and what it is; docs/reference/spark.md is checked against it.
SINK_OPTIONS: Final[Mapping[str, str]] = {
    "connectionString": "of the namespace; required",
    "entityPath": "the queue or topic of all rows; without it each row has a `destination`",
    "producerKeyColumn": "the column with the producer key of each row, such as `position`",
    "sendBatchBytes": "bytes of messages that are sent together",
    "operations": "`auto`, `twinbus` or `standard` (any Service Bus)",
}
# What Spark itself puts among the options of a stream.
_SPARKS_OWN: Final = ("checkpointLocation", "queryName", "outputMode")

_NUMBERS: Final = (LongType, IntegerType, ShortType, ByteType)
_PROPERTY_VALUES: Final = (StringType, *_NUMBERS, DoubleType, FloatType, BooleanType)


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of a sink.  Pickled into the tasks."""

    connection_string: str = field(repr=False)  # has the key
    entity_path: str | None  # None: each row has a destination of its own
    producer_key_column: str | None
    send_batch_bytes: int
    operations: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        options = GivenOptions(given, list(SINK_OPTIONS), _SPARKS_OWN)
        connection_string = options.required(
            "connectionString", "it says where the namespace is and who you are"
        )
        of_string = ConnectionString.parse(connection_string).entity_path
        entity_path = options.text("entityPath")
        if of_string is not None and entity_path not in {None, of_string}:
            raise ConfigError("entityPath and the EntityPath of the connection string differ")
        entity_path = entity_path or of_string
        return cls(
            connection_string=connection_string,
            entity_path=None if entity_path is None else _destination(entity_path),
            producer_key_column=options.text("producerKeyColumn"),
            send_batch_bytes=options.number(
                "sendBatchBytes", SEND_BATCH_BYTES, SEND_BATCH_BYTES_MIN, SEND_BATCH_BYTES_MAX
            ),
            operations=options.choice("operations", OPERATIONS),
        )

    def check_columns(self, schema: StructType) -> None:
        """Can rows like these be sent?"""
        names = schema.fieldNames()
        key = self.producer_key_column
        if key is not None and key not in names:
            near = get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"producerKeyColumn names {key[:64]}, which is not a column{hint}")
        for name in names:
            if name not in BY_NAME and name != key:
                near = get_close_matches(name.lower(), BY_NAME, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else "select only columns of a message"
                raise ConfigError(f"a message has no column {name[:64]}; {hint}")
            if names.count(name) > 1:
                raise ConfigError(f"the column {name} is there twice")
        for column in schema.fields:
            wanted = _wanted(column.name, column.dataType)
            if wanted is not None:
                raise ConfigError(
                    f"the column {column.name} is {column.dataType.simpleString()}; "
                    f"a sink takes {wanted}"
                )
        if "body" not in names and "amqp" not in names:
            raise ConfigError("the column body is missing (or amqp, for exact copies)")
        if self.entity_path is None and "destination" not in names:
            raise ConfigError(
                "where the rows go is missing: give the option entityPath or a column destination"
            )
        if key is not None and not isinstance(schema[key].dataType, StringType):
            raise ConfigError(f"the producer keys in the column {key[:64]} must be texts")


def _destination(path: str) -> str:
    stripped = path.strip().strip("/")
    if not stripped or "/subscriptions/" in stripped.lower() or "$" in stripped:
        raise ConfigError(f"entityPath names a queue or a topic to send to; given: {path[:64]!r}")
    return stripped


def _wanted(name: str, given: DataType) -> str | None:
    """What the column must be instead; None if it is fine, or is not sent at all."""
    column = BY_NAME.get(name)
    if column is None or not column.is_sent:
        return None
    if name == "body":
        return None if isinstance(given, BinaryType | StringType) else "binary or string"
    if name == "application_properties":
        is_fine = (
            isinstance(given, MapType)
            and isinstance(given.keyType, StringType)
            and isinstance(given.valueType, _PROPERTY_VALUES)
        )
        return None if is_fine else "map<string,string>, or of bigint, double or boolean"
    if isinstance(column.spark, LongType):
        return None if isinstance(given, _NUMBERS) else "bigint"
    if isinstance(column.spark, TimestampType):
        return None if isinstance(given, TimestampType) else "timestamp"
    return None if isinstance(given, type(column.spark)) else column.spark.simpleString()
