"""Options of the source: what is understood, and how everything else is refused."""

import re

import pytest

from twinbus.errors import ConfigError
from twinbus.pipeline.options import GivenOptions, SourceOptions, spelled_path

CONNECTION = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=all;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true;"
)


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse({"connectionString": CONNECTION, **given})


def test_defaults() -> None:
    options = parse(entityPath="orders")
    assert options.namespace == "127.0.0.1:5672"
    assert options.paths == ("orders",)
    assert options.starting is None
    assert not options.deletes
    assert options.fail_on_data_loss
    assert (options.max_per_trigger, options.task_count) == (0, 0)
    assert options.max_batch_bytes == 16 * 1024 * 1024


def test_names_come_in_lower_case_and_values_in_any() -> None:
    options = SourceOptions.parse(
        {"connectionstring": CONNECTION, "entitypath": "orders", "settle": "DELETE"}
    )
    assert options.deletes


def test_everything() -> None:
    options = parse(
        entityPaths="orders, topic/subscriptions/all/",
        subQueue="deadletter",
        startingOffsets='{"Orders/$DeadLetterQueue/0": [[1, 3]]}',
        endingOffsets="latest",
        startingTime="2026-11-16T10:00:00Z",
        endingTime="2026-11-16T12:00:00+01:00",
        maxOffsetsPerTrigger="5",
        numTasks="2",
        includeAmqp="true",
        failOnDataLoss="False",
        operations="standard",
        maxBatchBytes="1000",
    )
    assert options.paths == ("orders/$DeadLetterQueue", "topic/Subscriptions/all/$DeadLetterQueue")
    assert options.starting is not None
    assert options.starting.runs("orders/$deadletterqueue/0") == ((1, 3),)
    assert options.ending is None
    assert options.starting_time_ms is not None
    assert options.ending_time_ms == options.starting_time_ms + 3_600_000
    assert (options.max_per_trigger, options.task_count, options.max_batch_bytes) == (5, 2, 1000)
    assert options.include_amqp
    assert not options.fail_on_data_loss
    assert options.operations == "standard"


@pytest.mark.parametrize(
    "given, complaint",
    [
        ({"entityPth": "orders"}, "no option entitypth; did you mean entityPath?"),
        ({"path": "orders"}, "no option path; did you mean entityPath?"),
        ({"entityPath": "orders", "zzzz": "1"}, "no option zzzz; known: connectionString,"),
        ({}, "give one of entityPath, entityPaths, entityPattern"),
        ({"entityPath": " "}, "give one of"),
        ({"entityPath": "a", "entityPattern": "b"}, "entityPath and entityPattern contradict"),
        ({"entityPaths": "a,,b"}, "empty place"),
        ({"entityPaths": "a,A"}, "names a twice"),
        ({"entityPattern": "("}, "entityPattern is a regular expression"),
        ({"entityPath": "a/$DeadLetterQueue", "subQueue": "deadLetter"}, "subQueue and the end"),
        ({"entityPath": "a", "subQueue": "dead"}, "one of none, deadLetter, transferDeadLetter"),
        ({"entityPath": "a", "numTasks": "0"}, "numTasks is a whole number of 1"),
        ({"entityPath": "a", "numTasks": "²"}, "numTasks is a whole number of 1"),
        ({"entityPath": "a", "includeAmqp": "yes"}, "includeAmqp is true or false; given: 'yes'"),
        ({"entityPath": "a", "startingTime": "noon"}, "startingTime is a time such as"),
        ({"entityPath": "a", "startingOffsets": "latest"}, "startingOffsets is earliest or an"),
        ({"entityPath": "a", "startingOffsets": "[]"}, "not an object"),
        ({"entityPath": "a", "startingOffsets": '{"a": 1}'}, "not <entity path>/<partition>"),
        ({"entityPath": "a", "startingOffsets": '{"a/0": -1}'}, "neither a number nor runs"),
        ({"entityPath": "a", "startingOffsets": '{"created": 1}'}, "holds times"),
        ({"entityPath": "a", "startingOffsets": '{"from": 1}'}, "positions by partition"),
    ],
)
def test_bad_options_are_refused_with_a_reason(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        parse(**given)


def test_connection_string_is_required_and_its_key_never_shown() -> None:
    with pytest.raises(ConfigError, match="connectionString is missing"):
        SourceOptions.parse({"entityPath": "orders"})
    with pytest.raises(ConfigError) as raised:
        SourceOptions.parse({"connectionString": CONNECTION + "x=y", "entityPath": "orders"})
    assert "c2VjcmV0" not in str(raised.value)
    assert "c2VjcmV0" not in repr(parse(entityPath="orders"))


def test_entity_path_of_the_connection_string() -> None:
    with_path = CONNECTION + "EntityPath=orders"
    assert SourceOptions.parse({"connectionString": with_path}).paths == ("orders",)
    with pytest.raises(ConfigError, match="EntityPath of the connection string differ"):
        SourceOptions.parse({"connectionString": with_path, "entityPath": "other"})


@pytest.mark.parametrize("name", ["endingOffsets", "startingTime", "endingTime"])
def test_batch_only(name: str) -> None:
    given = {name: "{}" if name == "endingOffsets" else "2026-11-16"}
    with pytest.raises(ConfigError, match=f"{name} is for batch reads"):
        parse(entityPath="a", **given).check_for_stream(given)
    parse(entityPath="a", **given).check_for_batch(given)


def test_stream_only() -> None:
    limit = {"maxOffsetsPerTrigger": "5"}
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger is for streams"):
        parse(entityPath="a", **limit).check_for_batch(limit)
    with pytest.raises(ConfigError, match="settle=delete is for streams"):
        parse(entityPath="a", settle="delete").check_for_batch({})
    with pytest.raises(ConfigError, match="startingTime is after endingTime"):
        parse(entityPath="a", startingTime="2026-11-17", endingTime="2026-11-16").check_for_batch(
            {}
        )


def test_names_that_spark_adds_are_let_through() -> None:
    options = GivenOptions({"CheckpointLocation": "x"}, ["entityPath"], ["checkpointLocation"])
    assert not options.has("entityPath")


def test_one_spelling() -> None:
    assert spelled_path(
        "/Subscriptions/subscriptions/SUBSCRIPTIONS/$TRANSFER/$deadletterqueue"
    ) == ("Subscriptions/Subscriptions/Subscriptions/$Transfer/$DeadLetterQueue")
