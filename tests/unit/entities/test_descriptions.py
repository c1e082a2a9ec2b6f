"""Descriptions: the limits of Service Bus, names, durations, and reading what was written."""

import json
from dataclasses import replace

import pytest

from twinbus.entities.descriptions import (
    QueueDescription,
    format_duration,
    parse_duration,
    validate_name,
    validate_subscription_name,
)
from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, ServiceError


def made(name: str, value: object) -> QueueDescription:
    return QueueDescription.from_mapping({name: value})


def test_defaults_are_those_of_service_bus() -> None:
    description = QueueDescription()
    assert description.lock_duration_ms == 60_000
    assert description.max_delivery_count == 10
    assert description.default_time_to_live_ms == NEVER_MS
    assert description.auto_delete_on_idle_ms == NEVER_MS
    assert description.max_size_megabytes == 1_024
    assert description.status == "Active"
    assert not description.dead_lettering_on_message_expiration


@pytest.mark.parametrize(
    "name,low,high",
    [
        ("lock_duration_ms", 5_000, 300_000),
        ("max_delivery_count", 1, 2_147_483_647),
        ("default_time_to_live_ms", 1_000, NEVER_MS),
        ("duplicate_detection_window_ms", 20_000, 604_800_000),
        ("max_size_megabytes", 1, 81_920),
        ("max_message_size_kilobytes", 1, 1_024),
        ("auto_delete_on_idle_ms", 300_000, NEVER_MS),
    ],
)
def test_limits_are_exact_and_named(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(made(name, value), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ArgumentOutOfRange, match=f"^{name} is {value}; allowed is {low} to "):
            made(name, value)


@pytest.mark.parametrize(
    "name,value",
    [
        ("status", "Broken"),
        ("status", None),
        ("lock_duration_ms", "PT1M"),
        ("lock_duration_ms", True),
        ("lock_duration_ms", 60_000.0),
        ("requires_session", 1),
        ("forward_to", 5),
        ("forward_to", "a//b"),
        ("user_metadata", b"x"),
        ("colour", "red"),
        ("created_utc_ms", 5),
    ],
)
def test_wrong_values_and_unknown_properties_are_refused(name: str, value: object) -> None:
    with pytest.raises(ArgumentInvalid, match=f"{name}|entity name"):
        made(name, value)


def test_user_metadata_is_limited() -> None:
    assert made("user_metadata", "x" * 1_024).user_metadata == "x" * 1_024
    with pytest.raises(ArgumentOutOfRange, match="user_metadata has 1025"):
        made("user_metadata", "x" * 1_025)


def test_json_is_stable_and_tolerates_a_newer_version() -> None:
    description = QueueDescription(
        lock_duration_ms=5_000, user_metadata="ü", status="SendDisabled"
    ).stamped(created_utc_ms=1, updated_utc_ms=2)
    text = description.to_json()
    assert QueueDescription.from_json(text) == description
    assert QueueDescription.from_json(text).to_json() == text
    newer = json.dumps({**json.loads(text), "a_later_property": 1})
    assert QueueDescription.from_json(newer) == description
    assert QueueDescription.from_json("{}") == QueueDescription()


@pytest.mark.proves("E-1")
@pytest.mark.feature("entity.partitions")
def test_partitions_are_decided_on_at_creation() -> None:
    plain = QueueDescription()
    partitioned = made("enable_partitioning", True)
    partitioned.check_update(replace(partitioned, max_size_megabytes=5_120))
    for before, after in ((plain, partitioned), (partitioned, plain)):
        with pytest.raises(ArgumentInvalid) as caught:
            before.check_update(after)
        assert str(caught.value) == (
            f"enable_partitioning is {before.enable_partitioning} "
            f"and cannot be changed to {after.enable_partitioning}."
        )


@pytest.mark.proves("E-2")
@pytest.mark.feature("entity.partitions")
def test_the_size_of_a_partition() -> None:
    partitioned = made("enable_partitioning", True)
    assert partitioned.max_size_megabytes == 1_024
    for size in (1, 5_120):
        assert replace(partitioned, max_size_megabytes=size).max_size_megabytes == size
    with pytest.raises(
        ArgumentOutOfRange, match="max_size_megabytes is 5121; allowed is 1 to 5120"
    ):
        replace(partitioned, max_size_megabytes=5_121)


def test_update_may_change_what_is_not_fixed() -> None:
    description = QueueDescription()
    description.check_update(replace(description, lock_duration_ms=5_000, status="Disabled"))
    with pytest.raises(ArgumentInvalid, match="requires_session is True and cannot be changed"):
        made("requires_session", True).check_update(description)


@pytest.mark.parametrize(
    "name",
    [
        *("q", "Q1", "a-b_c.d~e", "a/b/c", "0", "x" * 260, "subscriptions", "queue.1"),
        *("NS/Fault--NS/Message--", "a.", "a-", "a_", "a~", "a./b", "...", "a/.../b", "_", "-"),
        *("-a", "_a", ".a", "~a", "a/-b", ".well-known/x"),
    ],
)
def test_good_names(name: str) -> None:
    validate_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 261, "/a", "a/", "a//b", "a@b", "a?b", "a#b", "a*b", "a\\b", "a b", "a\n"),
        *("$cbs", "a/$management", "a/$DeadLetterQueue", "größe", "a\x00b", "a%2fb", "a:b", "a\n"),
        *("a/Subscriptions/b", "a/../b/", "topic/subscriptions", "/", "-/", "/-"),
        *(".", "..", "./a", "../a", "a/.", "a/..", "a/./b", "a/../b", "a/%2e%2e/b"),
    ],
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ServiceError, match="entity name"):
        validate_name(name)


def test_a_bad_name_is_told_the_rule() -> None:
    with pytest.raises(ArgumentInvalid, match=r"contain only letters, digits, and \. - _ ~$"):
        validate_name("a b")
    with pytest.raises(ArgumentInvalid, match=r"path segment '\.\.', which HTTP clients"):
        validate_name("a/../b")
    with pytest.raises(ArgumentOutOfRange, match="261 characters; allowed are 1 to 260"):
        validate_name("-" * 261)


@pytest.mark.parametrize("name", ["s", "S-", "s_", "s.", "-s", "_s", ".s", "~", "x" * 50])
def test_good_subscription_names(name: str) -> None:
    validate_subscription_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "$s", "x" * 51])
def test_bad_subscription_names(name: str) -> None:
    with pytest.raises(ServiceError, match=r"(entity|subscription) name"):
        validate_subscription_name(name)


def test_what_forwards_to_a_name_of_dots_can_still_be_read() -> None:
    """An earlier version has made queues with such names, and written who forwards to them."""
    written = QueueDescription(forward_to="a/../b").to_json()
    assert QueueDescription.from_json(written).forward_to == "a/../b"


@pytest.mark.parametrize(
    "text,milliseconds",
    [
        ("PT1M", 60_000),
        ("PT0S", 0),
        ("PT0.5S", 500),
        ("PT5.4775807S", 5_477),
        ("PT1H2M3.004S", 3_723_004),
        ("P14D", 14 * 86_400_000),
        ("P1DT12H", 36 * 3_600_000),
        ("P10675199DT2H48M5.4775807S", NEVER_MS),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds
    assert parse_duration(format_duration(milliseconds)) == milliseconds


def test_durations_are_written_as_service_bus_writes_them() -> None:
    assert format_duration(NEVER_MS) == "P10675199DT2H48M5.4775807S"
    assert [format_duration(n) for n in (0, 1, 60_000, 86_400_000, 90_061_500)] == [
        "PT0S",
        "PT0.001S",
        "PT1M",
        "P1D",
        "P1DT1H1M1.5S",
    ]


def test_years_months_and_weeks_count_as_in_dotnet() -> None:
    assert parse_duration("P1Y2M1W") == (365 + 60 + 7) * 86_400_000
    assert parse_duration("P99999999Y") == NEVER_MS


@pytest.mark.parametrize(
    "text",
    [
        *("", "P", "PT", "P1DT", "1M", "PT1", "PT-1S", "-PT1S", "PT1M\n", "PT.5S", "PT1.S"),
        *("PT1S1M", "P1", "PTS", "PT\u0661S", "PT" + "9" * 400 + "S", "P1D2H", "pt1m"),
    ],
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="ISO 8601"):
        parse_duration(text)
