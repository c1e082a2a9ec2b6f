"""The sink's options and columns: what is wrong is said before a task starts."""

import pickle

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from twinbus.errors import ConfigError
from twinbus.pipeline.schema import message_schema
from twinbus.pipeline.sink.options import SINK_OPTIONS, SinkOptions
from twinbus.pipeline.sink.writers import batch_writer, stream_writer

BUS = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=k;SharedAccessKey=secret;"
    "UseDevelopmentEmulator=true"
)


# Spark reads such texts itself, but in its JVM.
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map<string,bigint>": MapType(StringType(), LongType()),
    "map<string,double>": MapType(StringType(), DoubleType()),
    "map<string,boolean>": MapType(StringType(), BooleanType()),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "map<int,string>": MapType(IntegerType(), StringType()),
}


def columns(ddl: str) -> StructType:
    named = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"connectionString": BUS, **given})


def check(ddl: str, **given: str) -> None:
    options(**{"entityPath": "orders", **given}).check_columns(columns(ddl))


def test_the_defaults() -> None:
    found = options()
    assert (found.entity_path, found.producer_key_column, found.operations) == (None, None, "auto")
    assert found.send_batch_bytes == 512 * 1024


def test_all_options_in_any_case_and_sparks_own_beside_them() -> None:
    found = SinkOptions.parse(
        {
            "connectionstring": BUS,
            "ENTITYPATH": "orders",
            "producerkeycolumn": "position",
            "sendbatchbytes": "262144",
            "operations": "standard",
            "checkpointLocation": "somewhere",
        }
    )
    assert found == SinkOptions(BUS, "orders", "position", 262_144, "standard")
    assert pickle.loads(pickle.dumps(found)) == found
    assert len(SINK_OPTIONS) == 5


def test_the_connection_string_may_name_the_entity() -> None:
    named = f"{BUS};EntityPath=orders"
    assert SinkOptions.parse({"connectionString": named}).entity_path == "orders"
    with pytest.raises(ConfigError, match=r"entityPath and the EntityPath .* differ"):
        SinkOptions.parse({"connectionString": named, "entityPath": "audit"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"entityPth": "orders"}, "no option entitypth; did you mean entityPath"),
        ({"settle": "delete"}, "no option settle"),
        ({"sendBatchBytes": "0"}, "sendBatchBytes is a whole number"),
        ({"operations": "azure"}, "operations is one of auto, twinbus, standard"),
        ({"entityPath": "topic/Subscriptions/all"}, "names a queue or a topic"),
        ({"entityPath": "orders/$DeadLetterQueue"}, "names a queue or a topic"),
        ({"entityPath": "/"}, "names a queue or a topic"),
    ],
)
def test_bad_options(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        options(**given)
    assert "secret" not in str(caught.value)


def test_a_connection_string_is_needed() -> None:
    with pytest.raises(ConfigError, match="connectionString is missing"):
        SinkOptions.parse({"entityPath": "orders"})


@pytest.mark.parametrize(
    "ddl",
    [
        "body binary",
        "body string, message_id string, time_to_live_ms int",
        "amqp binary",
        "body binary, application_properties map<string,bigint>",
        "body binary, application_properties map<string,double>",
        "body binary, application_properties map<string,boolean>",
        "body binary, scheduled_enqueue_time timestamp",
        "body binary, sequence_number string",  # not sent: of no interest
    ],
)
def test_columns_that_fit(ddl: str) -> None:
    check(ddl)


def test_a_read_row_fits_as_it_is() -> None:
    options(entityPath="orders").check_columns(message_schema(include_amqp=True))


@pytest.mark.parametrize(
    ("ddl", "complaint"),
    [
        ("body binary, mesage_id string", "no column mesage_id; did you mean message_id"),
        ("body binary, zzzzzz string", "no column zzzzzz; select only"),
        ("body binary, BODY string", "no column BODY; did you mean body"),
        ("message_id string", "the column body is missing"),
        ("body int", "the column body is int; a sink takes binary or string"),
        ("body binary, message_id int", "message_id is int; a sink takes string"),
        ("body binary, time_to_live_ms string", "a sink takes bigint"),
        ("body binary, scheduled_enqueue_time timestamp_ntz", "a sink takes timestamp"),
        ("body binary, application_properties map<int,string>", "map<string,string>"),
        ("body binary, application_properties map<string,binary>", "map<string,string>"),
        ("body binary, application_properties string", "map<string,string>"),
        ("amqp string", "the column amqp is string; a sink takes binary"),
    ],
)
def test_columns_that_do_not_fit(ddl: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check(ddl)


def test_a_column_that_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="body is there twice"):
        check("body binary, body binary")


def test_rows_need_a_destination() -> None:
    options().check_columns(columns("body binary, destination string"))
    with pytest.raises(ConfigError, match="option entityPath or a column destination"):
        options().check_columns(columns("body binary"))


def test_the_column_of_the_keys() -> None:
    check("body binary, my_key string", producerKeyColumn="my_key")
    with pytest.raises(ConfigError, match="my_ky, which is not a column; did you mean my_key"):
        check("body binary, my_key string", producerKeyColumn="my_ky")
    with pytest.raises(ConfigError, match="no column my_key"):
        check("body binary, my_key string")
    with pytest.raises(ConfigError, match="must be texts"):
        check("body binary, sequence_number bigint", producerKeyColumn="sequence_number")


def test_a_bus_cannot_be_overwritten() -> None:
    schema = columns("body binary")
    with pytest.raises(ConfigError, match="append"):
        batch_writer(schema, {"connectionString": BUS}, overwrite=True)
    with pytest.raises(ConfigError, match="append"):
        stream_writer(schema, {"connectionString": BUS}, overwrite=True)
