"""Limits by profile: what each tier lets an entity be."""

from typing import Any

import pytest

from twinbus.entities.descriptions import QueueDescription, SubscriptionDescription
from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ServiceError
from twinbus.gateway.namespaces.tiers import check_partitioning, check_topics, fit_description
from twinbus.limits import PROFILE_DEFAULT, PROFILES

pytestmark = [pytest.mark.proves("M-9"), pytest.mark.feature("entity.limits")]

DAY_MS = 86_400_000


def fit(profile: str, **settings: Any) -> QueueDescription:
    return fit_description(PROFILES[profile], "bus", QueueDescription(**settings))


def test_the_default_changes_nothing() -> None:
    assert PROFILE_DEFAULT is PROFILES["premium"]
    for profile in ("premium", "unlimited"):
        assert fit(profile) == QueueDescription()


@pytest.mark.proves("M-9")
@pytest.mark.parametrize(
    "settings",
    [
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"forward_to": "other"},
        {"forward_dead_lettered_messages_to": "other"},
        {"auto_delete_on_idle_ms": 300_000},
    ],
)
def test_what_the_basic_tier_lacks(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid, match="the namespace 'bus' is using the 'Basic' Tier"):
        fit("basic", **settings)
    for profile in ("standard", "premium", "unlimited"):
        fit(profile, **settings)


def test_topics() -> None:
    with pytest.raises(ArgumentInvalid, match="Cannot operate on type Topic because the namespace"):
        check_topics(PROFILES["basic"], "bus")
    for profile in ("standard", "premium", "unlimited"):
        check_topics(PROFILES[profile], "bus")


@pytest.mark.proves("E-1")
def test_new_partitioned_entities_by_the_rule_of_2017() -> None:
    """An update of one that is there is none of this check's business."""
    partitioned = QueueDescription(enable_partitioning=True)
    limits = PROFILES["premium-2017"]
    reason = "'EnablePartitioning' can't be set .* namespace 'bus' is using the 'Premium' Tier"
    with pytest.raises(ArgumentInvalid, match=reason):
        check_partitioning(limits, "bus", partitioned)
    check_partitioning(limits, "bus", QueueDescription())
    assert fit_description(limits, "bus", partitioned) == partitioned
    for profile in ("basic", "standard", "premium", "unlimited"):
        check_partitioning(PROFILES[profile], "bus", partitioned)


GIGABYTES = {
    "basic": (1, 2, 3, 4, 5),
    "standard": (1, 2, 3, 4, 5),
    "premium": (1, 2, 3, 4, 5, 10, 20, 40, 80),
}


@pytest.mark.proves("E-2")
@pytest.mark.parametrize("profile", GIGABYTES)
def test_entity_size(profile: str) -> None:
    sizes = [1_024 * each for each in GIGABYTES[profile]]
    for size in sizes:
        assert fit(profile, max_size_megabytes=size).max_size_megabytes == size
        with pytest.raises(ServiceError, match=f"max_size_megabytes is {size - 1}; the '.*' tier"):
            fit(profile, max_size_megabytes=size - 1)
    others = {1_024 * each for each in range(1, 81)}.difference(sizes)
    for size in others:
        with pytest.raises(ServiceError, match=f"max_size_megabytes is {size}; the '.*' tier"):
            fit(profile, max_size_megabytes=size)


@pytest.mark.proves("E-2")
@pytest.mark.parametrize("profile", GIGABYTES)
def test_partition_size(profile: str) -> None:
    for size in (1_024, 2_048, 3_072, 4_096, 5_120):
        fitted = fit(profile, enable_partitioning=True, max_size_megabytes=size)
        assert (fitted.max_size_megabytes, fitted.enable_partitioning) == (size, True)
    for size in (1, 1_023, 1_025, 1_536):
        with pytest.raises(ServiceError, match=f"is {size} for each partition; the '.*' tier"):
            fit(profile, enable_partitioning=True, max_size_megabytes=size)


def test_small_sizes_are_for_those_who_want_no_limits() -> None:
    for size in (1, 1_500):
        for settings in ({}, {"enable_partitioning": True}):
            fitted = fit("unlimited", max_size_megabytes=size, **settings)
            assert fitted.max_size_megabytes == size


def test_a_subscription_has_the_size_of_its_topic() -> None:
    odd = SubscriptionDescription(max_size_megabytes=7)  # as an older version may have written it
    assert fit_description(PROFILES["premium"], "bus", odd) == odd


@pytest.mark.proves("E-14")
def test_ten_thousand_entities_are_not_a_limit_of_premium() -> None:
    counts = {name: limits.entities_max for name, limits in PROFILES.items()}
    assert counts["basic"] == counts["standard"] == 10_000
    assert counts["premium"] == counts["unlimited"] > 10_000


@pytest.mark.proves("E-14")
def test_partitioned_entities_of_a_namespace() -> None:
    counts = {name: limits.partitioned_entities_max for name, limits in PROFILES.items()}
    assert counts.pop("unlimited") > 100
    assert set(counts.values()) == {100}


@pytest.mark.parametrize(
    "profile, kilobytes", [("basic", 256), ("standard", 256), ("premium", 1_024)]
)
def test_message_size_is_cut(profile: str, kilobytes: int) -> None:
    assert fit(profile).max_message_size_kilobytes == kilobytes
    assert fit(profile, max_message_size_kilobytes=64).max_message_size_kilobytes == 64


def test_time_to_live() -> None:
    assert fit("basic").default_time_to_live_ms == 14 * DAY_MS
    assert fit("basic", default_time_to_live_ms=DAY_MS).default_time_to_live_ms == DAY_MS
    with pytest.raises(ServiceError, match="default_time_to_live_ms"):
        fit("basic", default_time_to_live_ms=14 * DAY_MS + 1)
    assert fit("standard").default_time_to_live_ms == NEVER_MS


def test_the_kind_stays() -> None:
    fitted = fit_description(PROFILES["standard"], "bus", SubscriptionDescription())
    assert type(fitted) is SubscriptionDescription
