"""Throttling: thresholds, fair shares, relief, and credits."""

import pytest

from twinbus.clock import Now
from twinbus.entities.commands import COMPLETE, AddRule, Command, Peek, RenewLocks, Send, Settle
from twinbus.entities.descriptions import QueueDescription, TopicDescription
from twinbus.entities.message import NewMessage
from twinbus.entities.rule_descriptions import default_rule
from twinbus.entities.selections import DeleteMessages, Selection
from twinbus.errors import ServerBusy
from twinbus.gateway.directory.directory import Entity, Part, plain_id
from twinbus.gateway.throttling.throttle import (
    CALM,
    FULL,
    MANAGE,
    PRESSED,
    RECEIVE,
    SEND,
    SETTLE,
    Throttle,
    Usage,
)
from twinbus.limits import PROFILES, QUIET_OPERATIONS_MAX, Thresholds

pytestmark = pytest.mark.proves("A-2")

BUSY = plain_id(0, 7)
QUIET = plain_id(0, 8)
ELSEWHERE = plain_id(1, 7)
NOW = Now(0, 5_000)
MEGABYTE = 1_048_576
THRESHOLDS = Thresholds(
    cpu_share_max=0.9,
    lag_ms_max=1_000,
    memory_bytes_max=100 * MEGABYTE,
    disk_free_bytes_min=64 * MEGABYTE,
    operations_max=1_000,
)

BUSY_CPU = Usage(cpu_share=0.99, lag_ms=1_200)
FULL_CPU = Usage(cpu_share=0.99, lag_ms=2_000)
BUSY_MEMORY = Usage(memory_bytes=101 * MEGABYTE)
FULL_MEMORY = Usage(memory_bytes=120 * MEGABYTE)
BUSY_DISK = Usage(disk_free_bytes=60 * MEGABYTE)
FULL_DISK = Usage(disk_free_bytes=20 * MEGABYTE)
RELIEVED = Usage(disk_free_bytes=1_000 * MEGABYTE)


def throttle(profile: str = "premium", thresholds: Thresholds = THRESHOLDS) -> Throttle:
    return Throttle(thresholds, PROFILES[profile])


def is_admitted(throttle: Throttle, part_id: int = BUSY, kind: int = SEND, cost: int = 1) -> bool:
    return throttle.admit("", part_id, kind, cost, NOW) is None


def entity(kind: str = "queue", name: str = "orders") -> Entity:
    description = TopicDescription() if kind == "topic" else QueueDescription()
    return Entity(BUSY, kind, name, description, [Part(0, 7, 0)])


# --- pressure ---------------------------------------------------------------------------------


def test_a_server_that_is_well() -> None:
    subject = throttle()
    assert subject.is_calm
    subject.observe(Usage(cpu_share=0.5, lag_ms=3, memory_bytes=MEGABYTE))
    subject.observe_store(0, RELIEVED)
    assert subject.is_calm
    assert is_admitted(subject)


@pytest.mark.proves("A-2")
@pytest.mark.parametrize(
    "usage, word", [(BUSY_CPU, "cpu"), (BUSY_MEMORY, "memory"), (BUSY_DISK, "storage")]
)
def test_past_a_threshold(usage: Usage, word: str) -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.observe(usage)
    assert not subject.is_calm
    refusal = subject.admit("", BUSY, SEND, 1, NOW)
    assert isinstance(refusal, ServerBusy)
    assert "wait 10 seconds and try again" in str(refusal)
    assert "50009" in str(refusal)
    assert word in str(refusal)
    assert subject.shortage(0, SEND) == (PRESSED, word)


def test_all_of_a_core_in_use_is_no_pressure_while_nothing_waits() -> None:
    subject = throttle()
    subject.observe(Usage(cpu_share=1.0, lag_ms=50))
    assert subject.is_calm


def test_a_late_loop_is_no_pressure_if_it_was_not_ours_to_be_in_time() -> None:
    subject = throttle()
    subject.observe(Usage(cpu_share=0.2, lag_ms=5_000))  # others took the machine
    assert subject.is_calm


@pytest.mark.parametrize(
    "usage, refused",
    [
        (BUSY_CPU, {SEND, RECEIVE, MANAGE}),
        (BUSY_MEMORY, {SEND}),
        (BUSY_DISK, {SEND}),
        (FULL_CPU, {SEND, RECEIVE, MANAGE}),
        (FULL_MEMORY, {SEND}),
        (FULL_DISK, {SEND}),
    ],
)
def test_what_relieves_the_server_is_never_refused(usage: Usage, refused: set[int]) -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.observe(usage)
    kinds = {SEND, RECEIVE, MANAGE, SETTLE}
    assert {kind for kind in kinds if not is_admitted(subject, kind=kind)} == refused


@pytest.mark.proves("A-2")
def test_open_operations() -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.observe(Usage(open_count=999))
    assert subject.is_calm
    subject.observe(Usage(open_count=1_000))
    assert subject.shortage(0, SEND) == (PRESSED, "operations")
    assert is_admitted(subject, QUIET)
    subject.observe(Usage(open_count=2_000))
    assert subject.shortage(0, SEND) == (FULL, "operations")
    assert not is_admitted(subject, QUIET)


def test_a_measure_that_is_not_watched() -> None:
    subject = throttle(thresholds=Thresholds(0.0, 1, 0, 0, 0))
    subject.begin(BUSY, 1_000_000)
    subject.observe(Usage(2.0, 60_000, 1 << 40, 0, 1_000_000))
    subject.observe_store(0, Usage(2.0, 60_000, 1 << 40, 0, 1_000_000))
    assert subject.is_calm


# --- fairness ---------------------------------------------------------------------------------


@pytest.mark.proves("A-2")
def test_a_quiet_entity_is_served_beside_a_busy_one() -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.begin(QUIET, 30)
    subject.observe(BUSY_CPU)
    assert not is_admitted(subject, BUSY)
    assert is_admitted(subject, QUIET)


def test_an_entity_alone_has_no_more_than_its_share() -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.observe(BUSY_CPU)
    assert not is_admitted(subject, BUSY)


def test_whoever_hardly_does_anything_is_served_whatever_the_average_is() -> None:
    subject = throttle()
    for number in range(100):
        subject.begin(plain_id(0, number + 100), 1)
    subject.observe(BUSY_CPU)
    subject.begin(QUIET, QUIET_OPERATIONS_MAX - 1)
    assert is_admitted(subject, QUIET)
    subject.begin(QUIET, 1)
    assert not is_admitted(subject, QUIET)


def test_past_the_limit_nobody_is_served() -> None:
    subject = throttle()
    subject.observe(FULL_CPU)
    assert not is_admitted(subject, QUIET)


def test_use_is_forgotten_after_two_seconds() -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.observe(BUSY_CPU)
    assert not is_admitted(subject)
    subject.observe(BUSY_CPU)
    assert is_admitted(subject)


@pytest.mark.proves("A-2")
def test_partitioning_lowers_the_odds() -> None:  # each partition has a share of its own
    subject = throttle()
    partitions = [plain_id(number % 2, 20 + number) for number in range(16)]
    for part_id in partitions:
        subject.begin(part_id, 19)
    subject.begin(BUSY, 16 * 19)
    subject.observe(BUSY_CPU)
    assert all(is_admitted(subject, part_id) for part_id in partitions)
    assert not is_admitted(subject, BUSY)


# --- stores -----------------------------------------------------------------------------------


def test_pressure_in_a_store_concerns_sends_to_it_only() -> None:
    subject = throttle()
    subject.begin(BUSY, 500)
    subject.begin(ELSEWHERE, 500)
    subject.observe_store(1, FULL_DISK)
    assert is_admitted(subject, BUSY)
    assert not is_admitted(subject, ELSEWHERE)
    assert is_admitted(subject, ELSEWHERE, RECEIVE)
    assert subject.is_store_full(1)
    assert not subject.is_store_full(0)


def test_the_worse_of_store_and_gateway_counts() -> None:
    subject = throttle()
    subject.observe(BUSY_CPU)
    subject.observe_store(1, FULL_MEMORY)
    assert subject.shortage(0, SEND) == (PRESSED, "cpu")
    assert subject.shortage(1, SEND) == (FULL, "memory")
    assert subject.shortage(1, RECEIVE) == (PRESSED, "cpu")


def test_what_waits_in_a_store_counts_as_open() -> None:
    subject = throttle()
    subject.observe_store(1, Usage(open_count=2_000))
    assert subject.shortage(1, SEND) == (FULL, "operations")


# --- relief -----------------------------------------------------------------------------------


def test_relief_is_believed_after_three_samples() -> None:
    subject = throttle()
    subject.observe(BUSY_MEMORY)
    for _ in range(2):
        subject.observe(Usage())
        assert not subject.is_calm
    subject.observe(Usage())
    assert subject.is_calm


def test_a_server_at_its_threshold_does_not_flicker() -> None:
    subject = throttle()
    subject.observe(BUSY_MEMORY)
    for _ in range(10):  # just below, yet not below enough
        subject.observe(Usage(memory_bytes=95 * MEGABYTE))
        assert subject.shortage(0, SEND)[0] == PRESSED


def test_a_relapse_starts_the_patience_anew() -> None:
    subject = throttle()
    subject.observe(BUSY_MEMORY)
    for usage in (Usage(), Usage(), BUSY_MEMORY, Usage(), Usage()):
        subject.observe(usage)
    assert not subject.is_calm


def test_from_full_to_pressed_to_calm() -> None:
    subject = throttle()
    subject.observe(FULL_CPU)
    seen = []
    for usage in [BUSY_CPU] * 3 + [Usage()] * 3:
        subject.observe(usage)
        seen.append(subject.shortage(0, SEND)[0])
    assert seen == [FULL, FULL, PRESSED, PRESSED, PRESSED, CALM]


# --- credits ----------------------------------------------------------------------------------


@pytest.mark.proves("A-2")
def test_credits_of_the_standard_tier() -> None:  # 1,000 a second
    subject = throttle("standard")
    assert not subject.is_calm
    assert all(is_admitted(subject) for _ in range(1_000))
    refusal = subject.admit("", BUSY, SEND, 1, Now(0, 5_999))
    assert isinstance(refusal, ServerBusy)
    assert "namespace" in str(refusal)
    assert "wait 10 seconds and try again" in str(refusal)
    assert subject.admit("", BUSY, SEND, 1, Now(0, 6_000)) is None


def test_credits_are_those_of_a_namespace() -> None:
    subject = throttle("standard")
    assert is_admitted(subject, cost=1_000)
    assert not is_admitted(subject)
    assert subject.admit("other:", BUSY, SEND, 1, NOW) is None


def test_settling_costs_no_credits() -> None:
    subject = throttle("standard")
    assert is_admitted(subject, cost=1_000)
    assert is_admitted(subject, kind=SETTLE)


def test_a_batch_beyond_the_credits_goes_through_and_is_paid_for_later() -> None:
    subject = throttle("standard")
    assert is_admitted(subject, cost=2_500)
    assert subject.admit("", BUSY, SEND, 1, Now(0, 6_000)) is not None
    assert subject.admit("", BUSY, SEND, 1, Now(0, 7_000)) is None


def test_credits_cannot_be_saved_up() -> None:
    subject = throttle("standard")
    assert is_admitted(subject)
    late = Now(0, 60_000)
    assert subject.admit("", BUSY, SEND, 1_000, late) is None
    assert subject.admit("", BUSY, SEND, 1, late) is not None


def test_messages_handed_out_cost_credits_but_not_without_end() -> None:
    subject = throttle("standard")
    subject.spend("", 100_000, NOW)
    assert not is_admitted(subject)
    assert subject.admit("", BUSY, SEND, 1, Now(0, 7_000)) is None


def test_a_refusal_costs_nothing() -> None:
    subject = throttle("standard")
    subject.observe(FULL_CPU)
    assert not is_admitted(subject, cost=1_000)
    for _ in range(3):
        subject.observe(Usage())
    assert is_admitted(subject, cost=1_000)


def test_without_a_profile_that_has_credits_nothing_is_counted() -> None:
    subject = throttle("premium")
    subject.spend("", 1_000_000, NOW)
    assert is_admitted(subject, cost=1_000_000)
    assert is_admitted(subject)


def message() -> NewMessage:
    return NewMessage(b"body")


@pytest.mark.proves("A-2")
@pytest.mark.parametrize(
    "command, cost",
    [
        (Send(BUSY, [message(), message(), message()]), 3),
        (Peek(BUSY, 0, 0, 10), 1),
        (AddRule(BUSY, default_rule()), 10),
        (DeleteMessages(BUSY, 0, Selection(), 10), 10),
        (Settle(BUSY, 0, [(1, 1)], COMPLETE), 0),
        (RenewLocks(BUSY, 0, [(1, 1)]), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Command) else str(value),
)
def test_what_commands_cost(command: Command, cost: int) -> None:
    subject = throttle("standard")
    assert subject.admit_command(entity(), BUSY, command, NOW) is None
    assert is_admitted(subject, cost=999 - cost)
    assert is_admitted(subject)
    assert not is_admitted(subject)


def test_what_goes_to_all_partitions_is_paid_for_once() -> None:
    subject = throttle("standard")
    parts = [Part(number % 2, 20 + number, number) for number in range(16)]
    whole = Entity(1 << 60, "queue", "orders", QueueDescription(), parts)
    for part in parts:
        part_id = plain_id(part.store, part.entity_id)
        command = AddRule(part.entity_id, default_rule())
        assert subject.admit_command(whole, part_id, command, NOW) is None
    assert is_admitted(subject, cost=989)
    assert is_admitted(subject)
    assert not is_admitted(subject)


@pytest.mark.proves("A-2")
def test_managing_entities() -> None:
    subject = throttle("standard")
    for _ in range(100):
        assert subject.admit_management("", NOW) is None
    assert subject.admit_management("", NOW) is not None
    assert subject.admit_management("other:", NOW) is None


def test_managing_has_a_share_of_its_own() -> None:
    subject = throttle()
    subject.observe(BUSY_CPU)
    for _ in range(QUIET_OPERATIONS_MAX):
        assert subject.admit_management("", NOW) is None
    assert subject.admit_management("", NOW) is not None
    assert is_admitted(subject)


def test_a_message_to_a_topic_costs_one_more_for_each_subscription() -> None:
    subject = throttle("standard")
    topic = entity("topic", "other:news")
    topic.subscriptions = {name: entity("subscription", name) for name in "abc"}
    command = Send(BUSY, [message()])
    for _ in range(250):
        assert subject.admit_command(topic, BUSY, command, NOW) is None
    assert subject.admit_command(topic, BUSY, command, NOW) is not None
    assert is_admitted(subject)  # the first namespace has its own


def test_what_is_short_in_words() -> None:
    subject = throttle()
    assert subject.pressures() == []
    subject.observe(BUSY_CPU)
    subject.observe_store(1, FULL_DISK)
    assert subject.pressures() == ["this process: cpu is short", "store 1: storage is full"]


def test_refusals_are_counted_by_reason() -> None:
    subject = throttle("standard")
    is_admitted(subject, cost=1_000)
    is_admitted(subject)
    subject.observe(FULL_DISK)
    is_admitted(subject)
    is_admitted(subject)
    assert subject.refused_counts == [0, 0, 2, 0, 1]
