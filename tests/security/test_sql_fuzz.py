"""Hostile filter texts: noise, mutations of good ones, depth, length, and costly patterns.

Whatever a text is, reading it ends soon, in a filter or in ArgumentInvalid; whatever a message has,
evaluating ends soon, in an answer or in FilterError.
"""

import random
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from twinbus.entities.fields import Fields
from twinbus.entities.filters import parse_action, parse_filter
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.sql.values import FilterError
from twinbus.errors import ArgumentInvalid, ServiceError

SEED = 20_261_101
MEBIBYTE = 1_048_576

VOCABULARY = (
    "AND OR NOT LIKE ESCAPE IN IS NULL EXISTS TRUE FALSE SET REMOVE sys user sys. user. newid() p( "
    "property( ( ) , . ; = <> != < > <= >= + - * / % 'x' 'it''s' N'y' [a b] \"q\" @p @q 1 -1 0x1F "
    "1.5 1e3 .5 9223372036854775807 9223372036854775808 a b sys.Label sys.Foo '%' '_' "
    "\n \t ä 日 \x00"
)
WORDS = VOCABULARY.split(" ")
GOOD_FILTERS = (
    "color = 'red' AND (size > 5 OR NOT EXISTS(user.[weird name]))",
    "sys.Label LIKE '%a!%b%' ESCAPE '!' OR p('a' + 'b') IS NOT NULL",
    "a IN (1, 2.5, @p, NULL) AND b NOT LIKE 'x_%' AND -c * 2 / 3 % 4 + 1 <> 0x10",
)
GOOD_ACTIONS = (
    "SET a = 1; SET sys.Label = 'x' + newid() REMOVE user.[b c]; SET d = -a * 2",
    "REMOVE sys.ReplyTo; SET sys.To = p('x') + @p",
)
PARAMETERS: dict[str, object] = {"p": 5, "q": "x"}
MESSAGES = [
    Fields({}, {}),
    Fields(
        {"label": "a%b", "timetolive": timedelta.max},
        {"a": 0, "b": "x" * 32_768, "c": -(2**63), "size": 1e308, "color": True},
    ),
    Fields(
        {"sequencenumber": 2**63 - 1},
        {
            "a": Decimal("9E6144"),
            "b": b"\xff",
            "c": UUID(int=0),
            "x": datetime.max.replace(tzinfo=UTC),
        },
    ),
]


def new_id() -> UUID:
    return UUID(int=9)


def try_filter(text: str) -> bool:
    """Read and evaluate; is it a filter at all?"""
    try:
        chosen = parse_filter(text, PARAMETERS)
    except ArgumentInvalid:
        return False
    for fields in MESSAGES:
        try:
            assert chosen.matches(fields, new_id) in (True, False)
        except FilterError:
            pass
    return True


def try_action(text: str) -> bool:
    try:
        action = parse_action(text, PARAMETERS)
    except ArgumentInvalid:
        return False
    for fields in MESSAGES:
        try:
            action.apply(fields, new_id)
        except FilterError:
            pass
    return True


def mutated(text: str, chance: random.Random) -> str:
    """The text with a few characters or words changed, doubled, moved or gone."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(text))
        to = min(len(text), at + chance.randint(0, 6))
        piece = chance.choice(
            [
                "",
                text[at:to] * 2,
                chance.choice(WORDS),
                chr(chance.choice([0, 39, 91, 93, 0x5D0, 0xD800, 0x1F600])),
            ]
        )
        text = text[:at] + piece + text[to:]
    return text


@pytest.mark.parametrize("attempt", [try_filter, try_action], ids=["filter", "action"])
def test_noise(attempt: Callable[[str], bool]) -> None:
    chance = random.Random(SEED)
    for _ in range(1_500):
        length = chance.choice([3, 10, 60])
        attempt(" ".join(chance.choice(WORDS) for _ in range(length)))
        attempt("".join(chr(chance.randint(0, 0x2FF)) for _ in range(length)))


@pytest.mark.parametrize(
    "attempt,good",
    [(try_filter, GOOD_FILTERS), (try_action, GOOD_ACTIONS)],
    ids=["filter", "action"],
)
def test_mutations(attempt: Callable[[str], bool], good: tuple[str, ...]) -> None:
    chance = random.Random(SEED)
    read = 0
    for text in good:
        assert attempt(text)
        for _ in range(600):
            read += attempt(mutated(text, chance))
        for at in range(len(text)):
            attempt(text[:at])
    assert read > 50  # many mutations are still texts that can be read, so evaluating is tried too


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_024,
        "((" * 200 + "a",
        "(" * 500 + "1" + ")" * 500 + "=1",
        "NOT " * 256,
        "NOT (" * 200,
        "p(" * 512,
        "a=(" * 341,
        "a IN (" * 170,
        "EXISTS(" * 146,
        "a LIKE (" * 128,
        "'" * 1_023,
        "[" * 1_024,
        "]" * 1_024,
        "1" * 1_024,
        "0x" + "F" * 1_000,
        "1e" + "9" * 1_000,
        "." * 1_024,
        "@" * 1_024,
        "a" * 1_025,
        "a=1 AND " * 128,
        "\n" * 1_023 + "(",
    ],
    ids=lambda text: text[:12].replace("\n", "newline"),
)
def test_depth_and_length(text: str) -> None:
    assert not try_filter(text)
    assert not try_action(text)


def test_costly_patterns_on_long_texts() -> None:
    """Each of these takes a backtracking matcher more than a lifetime."""
    message = Fields({}, {"b": "a" * 32_768})
    for pattern in ("%a" * 480, "%_" * 480, "%a_" * 320 + "b", "_%" * 480 + "b", "a%" * 480 + "%b"):
        parse_filter(f"b LIKE '{pattern}'", {}).matches(message, new_id)


def test_memory_of_an_action_that_doubles_a_text() -> None:
    text = "SET a = 'xxxxxxxx';" + "SET a = a + a + a + a;" * 31
    action = parse_action(text, {})
    tracemalloc.start()
    try:
        with pytest.raises(FilterError, match="32768"):
            action.apply(MESSAGES[0], new_id)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEBIBYTE


def test_rules_from_anything() -> None:
    """What a user sends as a rule is a rule or a refusal."""
    chance = random.Random(SEED)
    odd: list[object] = [
        None,
        True,
        5,
        1.5,
        "",
        "x",
        [],
        {},
        {"a": 1},
        {"label": "x"},
        {1: 2},
        2**70,
    ]
    odd += ["Sql", "Correlation", "1 = 1", "SET a = 1", {"a": [1]}, {"@p": "x"}, "a\ud800"]
    keys = ["name", "kind", "expression", "parameters", "system", "properties", "action", "other"]
    made = 0
    for _ in range(2_000):
        values: dict[str, object] = {"name": "r"} if chance.random() < 0.8 else {}
        for key in chance.sample(keys, chance.randint(0, 4)):
            values[key] = chance.choice(odd)
        try:
            text = RuleDescription.from_mapping(values).to_json()
        except ServiceError:
            continue
        assert RuleDescription.from_json(text).to_json() == text
        made += 1
    assert made > 50
