"""Limits by profile: what each tier lets an entity be (M-9)."""

from typing import Any

import pytest

from twinbus.broker.tiers import check_topics, fit_description
from twinbus.entities.descriptions import QueueDescription, SubscriptionDescription
from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ServiceError
from twinbus.limits import PROFILE_DEFAULT, PROFILES

pytestmark = pytest.mark.feature("entity.limits")

DAY_MS = 86_400_000


def fit(profile: str, **settings: Any) -> QueueDescription:
    return fit_description(PROFILES[profile], "bus", QueueDescription(**settings))


def test_the_default_changes_nothing() -> None:
    assert PROFILE_DEFAULT is PROFILES["premium"]
    for profile in ("premium", "unlimited"):
        assert fit(profile) == QueueDescription()


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
def test_what_the_basic_tier_lacks(settings: dict[str, Any]) -> None:  # M-9
    with pytest.raises(ArgumentInvalid, match="the namespace 'bus' is using the 'Basic' Tier"):
        fit("basic", **settings)
    for profile in ("standard", "premium", "unlimited"):
        fit(profile, **settings)


def test_topics() -> None:
    with pytest.raises(ArgumentInvalid, match="Cannot operate on type Topic because the namespace"):
        check_topics(PROFILES["basic"], "bus")
    for profile in ("standard", "premium", "unlimited"):
        check_topics(PROFILES[profile], "bus")


@pytest.mark.parametrize(
    "profile, size", [("basic", 5_120), ("standard", 5_120), ("premium", 81_920)]
)
def test_entity_size(profile: str, size: int) -> None:
    assert fit(profile, max_size_megabytes=size).max_size_megabytes == size
    with pytest.raises(ServiceError, match="max_size_megabytes"):
        fit(profile, max_size_megabytes=size + 1)


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
