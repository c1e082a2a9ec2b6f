"""Generated SQL filters against a naive evaluator; the rule index against a plain loop."""

import re
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinbus.entities.fields import Fields
from twinbus.entities.filters import parse_filter
from twinbus.entities.rule_descriptions import (
    CORRELATION,
    FALSE,
    SQL,
    TRUE,
    ActionDescription,
    FilterDescription,
    RuleDescription,
)
from twinbus.entities.rules import Rule, RuleIndex
from twinbus.entities.sql.like import Pattern
from twinbus.entities.sql.values import FilterError

pytestmark = pytest.mark.proves("M-6")

# A tree: (operator, operands…), or ("value", constant), or ("property", name).
Tree = tuple[object, ...]

NAMES = ("a", "b", "c", "d")
USER = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(st.integers(-3, 3), st.sampled_from(["", "x", "xy"]), st.booleans(), st.none()),
)
LITERALS = st.one_of(
    st.integers(-3, 3), st.sampled_from(["", "x", "xy", "it's"]), st.booleans(), st.none()
)
VALUES: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(
        LITERALS.map(lambda value: ("value", value)),
        st.sampled_from(NAMES).map(lambda name: ("property", name)),
    ),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
    max_leaves=4,
)
COMPARED = st.one_of(
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES, VALUES),
    st.tuples(st.just("IN"), VALUES, VALUES, VALUES),
    st.tuples(st.just("NOT IN"), VALUES, VALUES),
    st.tuples(st.just("LIKE"), VALUES, st.sampled_from(["%", "x%", "_", "%y"])),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL", "EXISTS"]), st.sampled_from(NAMES)),
)
CONDITIONS: st.SearchStrategy[Tree] = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner), st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=6,
)


def new_id() -> UUID:
    return UUID(int=1)


class Failed(Exception):
    """What the naive evaluator says for FilterError."""


# --- the naive evaluator --------------------------------------------------------------------------
def kind(value: object) -> str:
    return type(value).__name__


def arithmetic(operator: object, left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if operator == "+" and "str" in (kind(left), kind(right)):
        return f"{left}{right}"
    if type(left) is not int or type(right) is not int:
        raise Failed
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise Failed
    quotient = int(left / right)  # exact for numbers this small
    return quotient if operator == "/" else left - quotient * right


def compared(operator: object, left: object, right: object) -> bool | None:
    if left is None or right is None or kind(left) != kind(right):
        return None
    if operator == "=":
        return left == right
    if operator == "<>":
        return left != right
    if isinstance(left, bool):
        return None
    assert isinstance(left, int | str)
    assert isinstance(right, type(left))
    below, above = left < right, left > right  # type: ignore[operator]
    return bool({"<": below, "<=": not above, ">": above, ">=": not below}[str(operator)])


def any_of(results: list[bool | None]) -> bool | None:
    return True if True in results else None if None in results else False


def opposite(result: bool | None) -> bool | None:
    return None if result is None else not result


def naive(tree: Tree, user: dict[str, object]) -> object:
    operator, first, rest = tree[0], tree[1], tree[2:]
    if operator == "value":
        return first
    if operator == "property":
        return user.get(str(first))
    if operator in ("IS NULL", "IS NOT NULL"):
        return (user.get(str(first)) is None) == (operator == "IS NULL")
    if operator == "EXISTS":
        return first in user
    assert isinstance(first, tuple)
    left = naive(first, user)
    if operator == "NOT":
        return None if left is None else not left
    if operator in ("AND", "OR"):
        sure = operator == "OR"
        if left is sure:
            return sure
        (second,) = rest
        assert isinstance(second, tuple)
        right = naive(second, user)
        return right if right is sure or left is not None else None
    if operator == "LIKE":
        (pattern,) = rest
        if not isinstance(left, str):
            return None
        wanted = "".join({"%": ".*", "_": "."}.get(each, each) for each in str(pattern))
        return re.fullmatch(wanted, left, re.DOTALL) is not None
    if operator in ("IN", "NOT IN"):
        result: bool | None = False
        for choice in rest:
            assert isinstance(choice, tuple)
            result = any_of([result, compared("=", left, naive(choice, user))])
            if result:
                break
        return result if operator == "IN" else opposite(result)
    (second,) = rest
    assert isinstance(second, tuple)
    right = naive(second, user)
    if operator in ("+", "-", "*", "/", "%"):
        return arithmetic(operator, left, right)
    return compared(operator, left, right)


# --- the printer ----------------------------------------------------------------------------------
STRENGTH = {"OR": 1, "AND": 2, "NOT": 3, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
COMPARISON = 4
LEAF = 9


def printed(tree: Tree, extra: bool = False) -> str:
    """The tree as text; brackets where they are needed, or everywhere (`extra`)."""
    return printed_at(tree, 0, extra)


def printed_at(tree: Tree, needed: int, extra: bool) -> str:
    operator, first, rest = tree[0], tree[1], tree[2:]
    strength = STRENGTH.get(str(operator), COMPARISON)
    if operator == "value":
        strength = LEAF
        if isinstance(first, str):
            text = "'" + first.replace("'", "''") + "'"
        else:
            text = "NULL" if first is None else str(first).upper()
    elif operator == "property":
        strength = LEAF
        text = f"[{first}]" if extra else str(first)
    elif operator == "EXISTS":
        text = f"EXISTS({first})"
    elif operator in ("IS NULL", "IS NOT NULL"):
        text = f"{first} {operator}"
    else:
        assert isinstance(first, tuple)
        if operator == "NOT":
            text = f"NOT {printed_at(first, strength, extra)}"
        elif operator == "LIKE":
            text = f"{printed_at(first, COMPARISON + 1, extra)} LIKE '{rest[0]}'"
        else:
            sides = [each for each in rest if isinstance(each, tuple)]
            left = printed_at(first, strength if strength != COMPARISON else 5, extra)
            if operator in ("IN", "NOT IN"):
                choices = ", ".join(printed_at(side, 5, extra) for side in sides)
                text = f"{left} {operator} ({choices})"
            else:
                text = f"{left} {operator} {printed_at(sides[0], strength + 1, extra)}"
    return f"({text})" if strength < needed or (extra and strength < LEAF) else text


# --- the properties -------------------------------------------------------------------------------
@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.sql-filter")
@settings(max_examples=250, deadline=None)
@given(CONDITIONS, USER, st.booleans())
@example(("OR", ("=", ("property", "a"), ("value", 1)), ("IS NULL", "a")), {"a": 1}, False)
def test_filters_say_what_the_naive_evaluator_says(
    tree: Tree, user: dict[str, object], extra: bool
) -> None:
    text = printed(tree, extra)
    if len(text) > 1_024:
        return
    chosen = parse_filter(text, {})
    try:
        expected: object = naive(tree, user)
    except Failed:
        expected = Failed
    try:
        found: object = chosen._condition.evaluate(Fields({}, user), new_id)
    except FilterError:
        found = Failed
    assert found is expected, text


@pytest.mark.feature("topic.sql-filter")
@settings(max_examples=100, deadline=None)
@given(CONDITIONS)
def test_brackets_only_say_what_precedence_says_already(tree: Tree) -> None:
    """Printed with every bracket or with none too many, a filter reads the same."""
    full, sparse = printed(tree, extra=True), printed(tree)
    if len(full) > 1_024:
        return
    messages: list[dict[str, object]] = [{}, {"a": 1, "b": "x"}, {"a": True, "c": 0, "d": None}]
    for user in messages:
        results: list[object] = []
        for text in (full, sparse):
            try:
                results.append(parse_filter(text, {})._condition.evaluate(Fields({}, user), new_id))
            except FilterError:
                results.append(Failed)
        assert results[0] is results[1], sparse


# --- LIKE -----------------------------------------------------------------------------------------
@pytest.mark.feature("topic.sql-filter")
@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=8), st.text("ab%_", max_size=8))
def test_like_is_what_a_regular_expression_says(text: str, pattern: str) -> None:
    wanted = "".join({"%": ".*", "_": "."}.get(each, each) for each in pattern)
    assert Pattern(pattern, None).matches(text) is (re.fullmatch(wanted, text) is not None)


# --- the rule index -------------------------------------------------------------------------------
FILTERS = st.one_of(
    st.just(FilterDescription(TRUE)),
    st.just(FilterDescription(FALSE)),
    st.sampled_from(["a = 1", "a = 1 OR b = 'x'", "a / b = 1", "EXISTS(c)", "sys.Label = 'x'"]).map(
        lambda text: FilterDescription(SQL, text)
    ),
    st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from([0, 1, 1.0, "x", True, False]), min_size=1
    ).map(lambda wanted: FilterDescription(CORRELATION, properties=wanted)),
    st.just(FilterDescription(CORRELATION, system={"label": "x"}, properties={"a": 1})),
)
ACTIONS = st.one_of(
    st.none(), st.sampled_from(["SET z = 1", "SET z = a / b"]).map(ActionDescription)
)
RULES = st.lists(st.tuples(st.integers(1, 5), FILTERS, ACTIONS), max_size=12)


def naive_matches(
    rules: dict[int, Rule], fields: Fields
) -> list[tuple[int, bool, int, dict[str, object] | None]]:
    """(subscription, failed, rule, changes) by looking at every rule of every subscription."""
    found: list[tuple[int, bool, int, dict[str, object] | None]] = []
    for subscription_id in sorted({rule.subscription_id for rule in rules.values()}):
        plain = False
        copies: list[tuple[int, bool, int, dict[str, object] | None]] = []
        errors: list[tuple[int, bool, int, dict[str, object] | None]] = []
        for rule_id in sorted(rules):
            rule = rules[rule_id]
            if rule.subscription_id != subscription_id:
                continue
            try:
                if not rule.filter.matches(fields, new_id):
                    continue
                if rule.action is None:
                    plain = True
                else:
                    changes = rule.action.apply(fields, new_id)
                    copies.append((subscription_id, False, rule_id, changes.user))
            except FilterError:
                errors.append((subscription_id, True, rule_id, None))
        found += [(subscription_id, False, 0, None)] * plain + copies + errors[:1]
    return found


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.correlation-filter", "topic.action")
@settings(max_examples=120, deadline=None)
@given(RULES, st.lists(st.integers(1, 12), max_size=6), st.lists(USER, min_size=1, max_size=4))
def test_the_index_finds_what_a_loop_over_all_rules_finds(
    described: list[tuple[int, FilterDescription, ActionDescription | None]],
    removed: list[int],
    messages: list[dict[str, object]],
) -> None:
    """M-6, with rules added, replaced and removed in any order."""
    index = RuleIndex()
    rules: dict[int, Rule] = {}
    for rule_id, (subscription_id, chosen, action) in enumerate(described, start=1):
        rule = Rule(rule_id, subscription_id, RuleDescription(f"r{rule_id}", chosen, action))
        index.add(rule)
        rules[rule_id] = rule
    for rule_id in removed:
        index.remove(rule_id)
        rules.pop(rule_id, None)
    for user in messages:
        fields = Fields({"label": "x"} if len(user) & 1 else {}, user)
        found = [
            (
                each.subscription_id,
                each.error is not None,
                each.rule_id,
                None if each.changes is None else each.changes.user,
            )
            for each in index.match(fields, new_id)
        ]
        assert found == naive_matches(rules, fields)
        assert all(before[0] <= after[0] for before, after in pairwise(found))
