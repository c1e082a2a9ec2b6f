"""Ledgers: what was sent and what arrived, from whatever they were written to, in one shape.

    message_id   text     null when there was none
    entity       text     queue, topic or subscription
    session_id   text
    number       bigint   the order within a session: a number, or a time in microseconds
    time_us      bigint   microseconds since 1970
    body_hash    binary   SHA-256 of the body

A ledger is Parquet, ORC or JSON lines, with columns of any names; a capture directory; or an entity
of a namespace, of which everything that is there is read and nothing is changed.  Bodies are hashed
where they are read: no body is ever moved between machines.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 – as everybody calls it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from twinbus.errors import ConfigError
from twinbus.pipeline.schema import BY_NAME

Side = Literal["sent", "arrived"]
SHAPE: Final = ("message_id", "entity", "session_id", "number", "time_us", "body_hash")

_PREFIX: Final = re.compile(r"(entity|parquet|json|orc):(.+)", re.DOTALL)
_JSON_NAME: Final = re.compile(r"\.(jsonl|json|ndjson)(\.gz|\.bz2|\.zst)?$")
_SUB_QUEUES: Final = (  # the longer one first, which ends like the other
    ("/$transfer/$deadletterqueue", "transferDeadLetter"),
    ("/$deadletterqueue", "deadLetter"),
    ("", "none"),
)
# Of an entity only these are fetched.
_FETCHED: Final = (
    "entity_path",
    "sequence_number",
    "enqueued_time",
    "message_id",
    "session_id",
    "body",
)
_JSON_LINES_SEEN: Final = 1_000  # that say which columns there are
_DAMAGED: Final = "_damaged_line"


@dataclass(frozen=True)
class Source:
    """Where a ledger is."""

    kind: str  # entity, parquet, json or orc
    place: str

    @classmethod
    def parse(cls, text: str) -> "Source":
        """`entity:orders`, `json:PATH`, or a path whose kind shows."""
        match = _PREFIX.fullmatch(text)
        if match is not None:
            source = cls(match[1], match[2])
        else:
            source = cls("json" if _holds_json(text) else "parquet", text)
        if not source.place:
            raise ConfigError("a source is a path or entity:NAME, not an empty text")
        is_local = source.kind != "entity" and "://" not in source.place
        if is_local and not set("*?[{") & set(source.place) and not Path(source.place).exists():
            raise ConfigError(f"{source.place} does not exist; give a path, or entity:NAME")
        return source

    def __str__(self) -> str:
        return f"entity {self.place}" if self.kind == "entity" else self.place


def _holds_json(text: str) -> bool:
    if _JSON_NAME.search(text):
        return True
    path = Path(text)
    if "://" in text or not path.is_dir():
        return False
    names = [each.name for each in path.iterdir() if not each.name.startswith((".", "_"))]
    return bool(names) and all(_JSON_NAME.search(name) for name in names)


@dataclass(frozen=True)
class Columns:
    """Which column says what; None: no column does."""

    id: str | None = None
    entity: str | None = None
    session: str | None = None
    order: str | None = None
    time: str | None = None
    body: str | None = None
    body_hash: str | None = None


# What a column is called when nobody says so, the first that is there.  `number` is the sender's
# own: in a ledger of arrivals it says nothing of the order in which they came.
_USUAL_OF_BOTH: Final = {
    "id": ("message_id",),
    "entity": ("entity", "destination", "entity_path"),
    "session": ("session_id",),
    "body": ("body",),
    "body_hash": ("body_hash",),
}
_USUAL: Final[dict[Side, dict[str, tuple[str, ...]]]] = {
    "sent": {
        **_USUAL_OF_BOTH,
        "order": ("number", "order", "sequence_number"),
        "time": ("time", "sent_time", "enqueued_time"),
    },
    "arrived": {
        **_USUAL_OF_BOTH,
        "order": ("order", "sequence_number"),
        "time": ("time", "arrived_time", "enqueued_time"),
    },
}


def choose_columns(names: Sequence[str], given: Columns, side: Side, source: Source) -> Columns:
    """The columns to work with: what the user named must be there, of the rest the usual ones."""
    chosen = {}
    for field in fields(Columns):
        asked = getattr(given, field.name)
        option = f"--{side}-{field.name.replace('_', '-')}"
        if asked is not None and asked not in names:
            raise ConfigError(f"{source}: no column {asked[:64]} ({option}); {_listed(names)}")
        usual = (name for name in _USUAL[side][field.name] if name in names)
        chosen[field.name] = asked if asked is not None else next(usual, None)
    if chosen["id"] is None:
        hint = f"name one by --{side}-id"
        raise ConfigError(f"{source}: no column message_id; {hint}; {_listed(names)}")
    columns = Columns(**chosen)
    if columns.order is None:
        columns = replace(columns, order=columns.time)
    # A hash that somebody has made saves reading bodies, unless they were asked for.
    if columns.body_hash is not None and given.body is None:
        columns = replace(columns, body=None)
    return columns


def _listed(names: Iterable[str]) -> str:
    return "there are: " + ", ".join(name[:64] for name in list(names)[:40])


@dataclass(frozen=True)
class Ledger:
    """One side in the common shape, and what is known of it."""

    rows: DataFrame
    has_sessions: bool
    has_order: bool
    has_bodies: bool

    def and_also(self, other: "Ledger") -> "Ledger":
        """Both together; what only one of them knows, nobody does."""
        return Ledger(
            self.rows.unionByName(other.rows),
            self.has_sessions or other.has_sessions,
            self.has_order and other.has_order,
            self.has_bodies and other.has_bodies,
        )


def read_ledger(
    spark: SparkSession, source: Source, given: Columns, side: Side, connection_string: str = ""
) -> Ledger:
    """A ledger in the common shape; ConfigError if it cannot be one."""
    if source.kind == "entity":
        found, given = _read_entity(spark, source, connection_string), Columns()
    elif source.kind == "json":
        found = _read_json(spark, source, given)
    else:
        found = _read_files(spark, source)
    columns = choose_columns(
        [each for each in found.columns if each != _DAMAGED], given, side, source
    )
    return shape(found, columns, source)


def shape(found: DataFrame, columns: Columns, source: Source) -> Ledger:
    """These columns of a table, as a ledger."""
    types = {field.name: field.dataType for field in found.schema.fields}

    def typed(name: str | None) -> DataType | None:
        return None if name is None else types[name]

    assert columns.id is not None
    id_type = types[columns.id]
    if not isinstance(id_type, StringType | IntegralType):
        raise ConfigError(f"{source}: ids are texts or whole numbers, not {id_type.simpleString()}")
    text = F.lit(None).cast("string")
    hashed = _body_hash(columns, types, source)
    message_id = quoted(columns.id).cast("string")
    if _DAMAGED in types:  # of a torn line nothing is to be trusted, whatever could be read
        message_id = F.when(F.col(_DAMAGED).isNull(), message_id)
    rows = found.select(
        message_id.alias("message_id"),
        (text if columns.entity is None else quoted(columns.entity).cast("string")).alias("entity"),
        (text if columns.session is None else quoted(columns.session).cast("string")).alias(
            "session_id"
        ),
        _number(columns.order, typed(columns.order), columns.time, source).alias("number"),
        _time_us(columns.time, typed(columns.time), source).alias("time_us"),
        (F.lit(None).cast("binary") if hashed is None else hashed).alias("body_hash"),
    )
    return Ledger(
        rows,
        has_sessions=columns.session is not None,
        has_order=columns.order is not None,
        has_bodies=hashed is not None,
    )


def quoted(name: str) -> Column:
    """A column by its name, whatever is in the name."""
    return F.col("`" + name.replace("`", "``") + "`")


# -- reading ---------------------------------------------------------------------------------------


def _read_entity(spark: SparkSession, source: Source, connection_string: str) -> DataFrame:
    lowered = source.place.lower()
    ending, sub_queue = next(each for each in _SUB_QUEUES if lowered.endswith(each[0]))
    fetched = StructType([StructField(name, BY_NAME[name].spark) for name in _FETCHED])
    reader = spark.read.format("servicebus").schema(fetched)
    reader = reader.option("connectionString", connection_string).option("subQueue", sub_queue)
    return reader.option("entityPath", source.place[: len(lowered) - len(ending)]).load()


def _read_files(spark: SparkSession, source: Source) -> DataFrame:
    try:
        return spark.read.format(source.kind).load(source.place)
    except AnalysisException as error:
        reason = f"{source} cannot be read as {source.kind} ({error.getCondition()})"
        raise ConfigError(f"{reason}; is it empty, or of another kind (json:PATH)?") from error


def _read_json(spark: SparkSession, source: Source, given: Columns) -> DataFrame:
    """Every value as its text: no pass over all lines to guess types, and ids stay as written."""
    try:
        seen = spark.read.text(source.place).limit(_JSON_LINES_SEEN).collect()
    except AnalysisException as error:
        raise ConfigError(f"{source} cannot be read ({error.getCondition()})") from error
    names = json_names(row[0] for row in seen)
    if not seen:  # an empty ledger, about which others decide
        asked = [getattr(given, field.name) for field in fields(Columns)]
        names = ["message_id", *(name for name in asked if name is not None)]
    kept = [StructField(name, StringType()) for name in dict.fromkeys([*names, _DAMAGED])]
    reader = spark.read.schema(StructType(kept)).option("columnNameOfCorruptRecord", _DAMAGED)
    return reader.json(source.place)


def json_names(lines: Iterable[str]) -> list[str]:
    """The names in these lines of JSON; a line that is damaged has none."""
    names: dict[str, None] = {}
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            names.update(dict.fromkeys(document))
    return list(names)


# -- columns ---------------------------------------------------------------------------------------


def _number(name: str | None, kind: DataType | None, time: str | None, source: Source) -> Column:
    if name is None or kind is None:
        return F.lit(None).cast("bigint")
    if isinstance(kind, TimestampType | TimestampNTZType) or name == time:
        return _time_us(name, kind, source)
    if isinstance(kind, DecimalType) and kind.scale == 0:
        return quoted(name).try_cast("bigint")
    if not isinstance(kind, IntegralType | StringType):
        reason = f"the order is a whole number or a time, not {kind.simpleString()}"
        raise ConfigError(f"{source}: column {name[:64]}: {reason}")
    return quoted(name).try_cast("bigint")


def _time_us(name: str | None, kind: DataType | None, source: Source) -> Column:
    """Times as times, as ISO 8601, as whole milliseconds or as seconds with a fraction."""
    if name is None or kind is None:
        return F.lit(None).cast("bigint")
    column = quoted(name)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(column.cast("timestamp"))
    if isinstance(kind, IntegralType):
        return (column.cast("bigint") * 1_000).try_cast("bigint")
    if isinstance(kind, FractionalType):
        return (column.cast("double") * 1_000_000).try_cast("bigint")
    if isinstance(kind, StringType):
        return (
            F.when(column.rlike(r"^\d{1,15}$"), column.try_cast("bigint") * 1_000)
            .when(
                column.rlike(r"^\d{1,11}\.\d+$"),
                (column.try_cast("decimal(20,6)") * 1_000_000).try_cast("bigint"),
            )
            .otherwise(F.unix_micros(column.try_cast("timestamp")))
        )
    raise ConfigError(f"{source}: column {name[:64]}: {kind.simpleString()} is not a time")


def _body_hash(columns: Columns, types: dict[str, DataType], source: Source) -> Column | None:
    name = columns.body if columns.body is not None else columns.body_hash
    if name is None:
        return None
    if not isinstance(types[name], BinaryType | StringType):
        kind = types[name].simpleString()
        raise ConfigError(f"{source}: column {name[:64]}: bytes or text, not {kind}")
    column = quoted(name)
    if columns.body is not None:
        body = F.coalesce(column.cast("binary"), F.lit(b""))
        return F.unhex(F.sha2(body, 256))
    if isinstance(types[name], BinaryType):
        return column
    # What is no hexadecimal text becomes null, and is then taken as it is.
    hexadecimal = F.when(F.length(column) == 64, F.unhex(column))
    return F.coalesce(hexadecimal, column.cast("binary"))
