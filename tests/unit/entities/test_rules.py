"""Rules: descriptions, their text in the log, and which subscriptions get what."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from twinbus.entities.fields import Fields
from twinbus.entities.rule_descriptions import (
    CORRELATION,
    FALSE,
    SQL,
    TRUE,
    ActionDescription,
    FilterDescription,
    RuleDescription,
    default_rule,
    validate_rule_name,
)
from twinbus.entities.rules import Rule, RuleIndex
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, QuotaExceeded, ServiceError
from twinbus.limits import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX

pytestmark = pytest.mark.proves("M-6")

EVERY_TYPE: dict[str, object] = {
    "text": "käse",
    "integer": 2**63 - 1,
    "double": 1.0,
    "boolean": True,
    "time": datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC),
    "early": datetime(1, 1, 1, tzinfo=UTC),
    "span": timedelta(days=-3, microseconds=7),
    "binary": b"\x00\xff",
    "id": UUID(int=7),
    "decimal": Decimal("-1.10"),
}


def new_id() -> UUID:
    return UUID(int=42)


# --- names ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a", "$Default", "my rule", "x" * 50, "größe", "a.b-c_d"])
def test_names(name: str) -> None:
    validate_rule_name(name)


@pytest.mark.parametrize(
    "name", ["", "x" * 51, "a/b", "a\\b", "a@b", "a?b", "a#b", "a*b", "a\nb", " a", "a "]
)
def test_names_that_service_bus_refuses(name: str) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
        validate_rule_name(name)


# --- descriptions ---------------------------------------------------------------------------------
DESCRIPTIONS = [
    default_rule(),
    RuleDescription("none", FilterDescription(FALSE)),
    RuleDescription("sql", FilterDescription(SQL, "a = @text", EVERY_TYPE)),
    RuleDescription(
        "both",
        FilterDescription(CORRELATION, system={"Label": "x"}, properties=EVERY_TYPE),
        ActionDescription("SET a = @id; REMOVE b", EVERY_TYPE),
        1_793_534_400_000,
    ),
]


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda each: each.name)
def test_text_there_and_back(description: RuleDescription) -> None:
    text = description.to_json()
    again = RuleDescription.from_json(text)
    assert again == description
    assert again.to_json() == text
    assert again.created_utc_ms == description.created_utc_ms
    assert again.filter.kind == description.filter.kind
    assert again.filter.system == description.filter.system
    for before, after in (
        (description.filter.parameters, again.filter.parameters),
        (description.filter.properties, again.filter.properties),
    ):
        assert after == before
        for name, value in before.items():
            assert type(after[name]) is type(value), name


def test_text_of_a_newer_version_is_read() -> None:
    values = json.loads(DESCRIPTIONS[3].to_json())
    values["invented"] = {"later": 1}
    values["filter"]["invented"] = 1
    assert RuleDescription.from_json(json.dumps(values)) == DESCRIPTIONS[3]


def test_descriptions_differ() -> None:
    assert len(set(DESCRIPTIONS)) == len(DESCRIPTIONS)
    assert DESCRIPTIONS[0] != "text"
    stamped = DESCRIPTIONS[0].stamped(5)
    assert stamped.created_utc_ms == 5
    assert stamped != DESCRIPTIONS[0]


@pytest.mark.parametrize(
    "value",
    [{"invented": 1}, {"uuid": "x"}, {"decimal": "x"}, {"binary": "x"}, {"uuid": 1}, {}, []],
)
def test_values_of_an_unknown_type_are_refused(value: object) -> None:
    values = json.loads(DESCRIPTIONS[2].to_json())
    values["filter"]["parameters"]["text"] = value
    with pytest.raises(ArgumentInvalid):
        RuleDescription.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "values,kind",
    [
        ({"name": "r"}, TRUE),
        ({"name": "r", "kind": "False"}, FALSE),
        ({"name": "r", "expression": "a = @p", "parameters": {"@p": 1}}, SQL),
        ({"name": "r", "system": {"label": "x"}}, CORRELATION),
        ({"name": "r", "properties": {"a": 1}}, CORRELATION),
        ({"name": "r", "action": "SET a = @p", "action_parameters": {"p": 1}}, TRUE),
    ],
)
def test_what_users_write(values: dict[str, object], kind: str) -> None:
    assert RuleDescription.from_mapping(values).filter.kind == kind


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"name": 5},
        {"name": "a/b"},
        {"name": "r", "colour": 1},
        {"name": "r", "kind": "Other"},
        {"name": "r", "kind": "Sql"},
        {"name": "r", "kind": "Correlation"},
        {"name": "r", "kind": "True", "expression": "1 = 1"},
        {"name": "r", "kind": "Sql", "expression": "1 = 1", "system": {"label": "x"}},
        {"name": "r", "expression": "a ="},
        {"name": "r", "expression": 5},
        {"name": "r", "expression": "1 = 1", "parameters": [1]},
        {"name": "r", "expression": "1 = 1", "parameters": {1: 1}},
        {"name": "r", "system": {"colour": "x"}},
        {"name": "r", "action": "DROP a"},
        {"name": "r", "action_parameters": {"p": 1}},
    ],
)
def test_what_users_must_not_write(values: dict[str, object]) -> None:
    with pytest.raises(ServiceError):
        RuleDescription.from_mapping(values)


# --- the index ------------------------------------------------------------------------------------
def rule(rule_id: int, subscription_id: int, expression: str = "", action: str = "") -> Rule:
    """A rule with a SQL filter, or a true filter without an expression."""
    described = FilterDescription(SQL, expression) if expression else FilterDescription(TRUE)
    acted = ActionDescription(action) if action else None
    return Rule(rule_id, subscription_id, RuleDescription(f"r{rule_id}", described, acted))


def correlated(rule_id: int, subscription_id: int, action: str = "", **wanted: object) -> Rule:
    described = FilterDescription(CORRELATION, properties=wanted)
    acted = ActionDescription(action) if action else None
    return Rule(rule_id, subscription_id, RuleDescription(f"r{rule_id}", described, acted))


def index_of(*rules: Rule) -> RuleIndex:
    index = RuleIndex()
    for each in rules:
        index.add(each)
    return index


def found(index: RuleIndex, **user: object) -> list[tuple[int, int, dict[str, object] | None]]:
    """Subscription, rule and changed properties of each match."""
    matches = index.match(Fields({}, user), new_id)
    return [
        (each.subscription_id, each.rule_id, None if each.changes is None else each.changes.user)
        for each in matches
    ]


def test_no_rules_no_messages() -> None:
    assert found(RuleIndex()) == []
    assert found(index_of(Rule(1, 1, RuleDescription("r", FilterDescription(FALSE))))) == []


def test_rules_without_action_make_one_copy_together() -> None:
    index = index_of(rule(1, 5), rule(2, 5, "a = 1"), correlated(3, 5, a=1), rule(4, 5))
    assert found(index, a=1) == [(5, 0, None)]


@pytest.mark.proves("M-6")
def test_each_rule_with_an_action_makes_its_own_copy() -> None:
    """Copies with changes come besides the one without."""
    index = index_of(
        rule(1, 5),
        rule(2, 5, "a = 1", "SET b = 2"),
        correlated(3, 5, "SET c = 3", a=1),
        rule(4, 5, "", "SET d = 4"),
        rule(6, 5, "a = 2", "SET e = 5"),
    )
    assert found(index, a=1) == [(5, 0, None), (5, 2, {"b": 2}), (5, 3, {"c": 3}), (5, 4, {"d": 4})]
    assert found(index) == [(5, 0, None), (5, 4, {"d": 4})]


def test_order_is_that_of_ids_not_of_adding() -> None:
    index = index_of(rule(9, 3), rule(4, 1, "a = 1"), rule(8, 2, "", "SET x = 1"), rule(2, 2))
    assert found(index, a=1) == [(1, 0, None), (2, 0, None), (2, 8, {"x": 1}), (3, 0, None)]


def test_errors_are_reported_once_for_a_subscription() -> None:
    index = index_of(
        rule(1, 5, "a / 0 = 1"),
        rule(2, 5, "sys.Colour = 1"),
        rule(3, 5, "a = 1"),
        rule(4, 6, "a = 1", "SET b = a / 0"),
        rule(5, 7, "a = 1"),
    )
    matches = index.match(Fields({}, {"a": 1}), new_id)
    assert [(each.subscription_id, each.error is not None) for each in matches] == [
        (5, False),
        (5, True),
        (6, True),
        (7, False),
    ]
    assert str(matches[1].error) == "Division by zero."
    assert matches[1].rule_id == 1


def test_fields_are_needed_only_by_rules_that_look() -> None:
    index = index_of(rule(1, 5), rule(2, 6))
    assert not index.needs_fields
    assert [each.subscription_id for each in index.match(None, new_id)] == [5, 6]
    for looking in (rule(3, 5, "a = 1"), correlated(3, 5, a=1), rule(3, 5, "", "SET a = 1")):
        index.add(looking)
        needed = [index.needs_fields]
        index.remove(3)
        needed.append(index.needs_fields)
        assert needed == [True, False]
    index.remove(1)
    assert [each.subscription_id for each in index.match(None, new_id)] == [6]


def test_correlation_filters_of_many_shapes() -> None:
    index = index_of(
        correlated(1, 1, color="red"),
        correlated(2, 2, color="red"),
        correlated(3, 3, color="blue"),
        correlated(4, 4, color="red", size=5),
        correlated(5, 5, SIZE=5.0),
        correlated(6, 6, size=True),
        correlated(7, 7, size="5"),
    )
    assert [each[0] for each in found(index, Color="red", Size=5)] == [1, 2, 4, 5]
    assert [each[0] for each in found(index, color="blue")] == [3]
    assert [each[0] for each in found(index, size=True)] == [6]
    assert [each[0] for each in found(index, color=None)] == []


def test_removing() -> None:
    index = index_of(rule(1, 5), rule(2, 5), rule(3, 5, "a = 1"), correlated(4, 6, a=1))
    index.add(correlated(5, 7, a=1))
    assert index.sql_filter_count == 1
    assert index.correlation_filter_count == 2
    assert [each.rule_id for each in index.rules_of(5)] == [1, 2, 3]
    index.remove(1)
    assert [each[0] for each in found(index, a=1)] == [5, 6, 7]
    index.remove(2)
    index.remove(3)
    index.remove(3)
    assert [each[0] for each in found(index, a=1)] == [6, 7]
    index.remove_subscription(6)
    index.remove_subscription(7)
    assert found(index, a=1) == []
    assert index.sql_filter_count == index.correlation_filter_count == 0
    assert index.rules_of(5) == []
    assert not index.needs_fields


def test_a_rule_added_again_counts_once() -> None:
    """Replaying a log may state a rule twice."""
    index = index_of(rule(1, 5, "a = 1"), rule(1, 5, "a = 1"))
    assert index.sql_filter_count == 1
    index.add(rule(1, 5, "a = 2"))
    assert found(index, a=1) == []
    assert found(index, a=2) == [(5, 0, None)]


@pytest.mark.proves("M-6")
def test_limits() -> None:
    """2,000 SQL filters and 100,000 correlation filters a topic."""
    index = index_of(rule(1, 1, "a = 1"), correlated(2, 1, a=1))
    index.sql_filter_count = SQL_FILTERS_MAX  # as if there were so many more
    index.correlation_filter_count = CORRELATION_FILTERS_MAX
    with pytest.raises(QuotaExceeded):
        index.add(rule(3, 1, "a = 1"))
    with pytest.raises(QuotaExceeded):
        index.add(correlated(3, 1, a=1))
    with pytest.raises(QuotaExceeded):
        index.add(rule(2, 1, "a = 1"))  # nothing changes: the one it would replace stays
    index.add(rule(3, 1))
    index.add(rule(1, 1, "a = 2"))
    assert [each.rule_id for each in index.rules_of(1)] == [1, 2, 3]
    assert index.sql_filter_count == SQL_FILTERS_MAX
    assert index.correlation_filter_count == CORRELATION_FILTERS_MAX
    assert (SQL_FILTERS_MAX, CORRELATION_FILTERS_MAX) == (2_000, 100_000)
