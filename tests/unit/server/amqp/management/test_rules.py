"""Rules over $management: every form a rule may come in, what is answered, what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from tests.unit.server.asking import Asking
from tests.unit.server.wired import Scene
from twinbus.amqp.decoding import decode_whole
from twinbus.amqp.encoding import encode_value
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.server.amqp.management.rules import CODES, describe_rule

pytestmark = [pytest.mark.asyncio, pytest.mark.feature("topic.rules-amqp")]

ADD = "com.microsoft:add-rule"
REMOVE = "com.microsoft:remove-rule"
LIST = "com.microsoft:enumerate-rules"
ALL = {"top": Int(2_147_483_647), "skip": Int(0)}


@pytest_asyncio.fixture
async def scene() -> Scene:
    scene = Scene()
    topic = scene.harness.create_topic("news")
    scene.harness.create_subscription(topic, "all")
    scene.harness.create_queue("orders")
    return scene


@pytest_asyncio.fixture
async def asking(scene: Scene) -> Asking:
    return Asking(scene.connect(), "news/Subscriptions/all")


def sql(expression: str) -> dict[object, object]:
    return {"sql-filter": {"expression": expression}}


def listed(asking: Asking) -> dict[str, list[Any]]:
    """Filter, action and time of every rule, by its name."""
    answer = asking.ask(LIST, ALL)
    assert answer.status == 200
    rules: dict[str, list[Any]] = {}
    for entry in answer.body["rules"]:
        described = entry["rule-description"]
        assert described.descriptor == CODES["rule-description"]
        condition, action, name, created = described.value
        rules[name] = [condition, action, created]
    return rules


@pytest.mark.proves("M-6")
async def test_a_rule_is_added_listed_and_removed(scene: Scene, asking: Asking) -> None:
    """With the exact codes and fields that the SDKs look for."""
    now_ms = scene.clock.now().utc_ms
    description = {**sql("color = 'red'"), "sql-rule-action": {"expression": "SET x = 1"}}
    assert asking.ask(ADD, {"rule-name": "red", "rule-description": description}).status == 200
    rules = listed(asking)
    assert list(rules) == ["$Default", "red"]
    condition, action, created = rules["red"]
    assert condition == Described(ULong(0x1370000006), ["color = 'red'", Int(20)])
    assert action == Described(ULong(0x13700000006), ["SET x = 1", Int(20)])
    assert isinstance(created, Timestamp)
    assert created == now_ms
    assert rules["$Default"][:2] == [
        Described(ULong(0x1370000007), []),
        Described(ULong(0x13700000005), []),
    ]
    assert asking.ask(REMOVE, {"rule-name": "RED"}).status == 200  # names have no case
    assert list(listed(asking)) == ["$Default"]
    assert asking.ask(REMOVE, {"rule-name": "$Default"}).status == 200
    empty = asking.ask(LIST, ALL)
    assert (empty.status, empty.body) == (204, {})


async def test_a_correlation_filter_keeps_every_field_and_type(asking: Asking) -> None:
    properties = {
        "text": "a",
        "whole": 7,
        "double": 0.5,
        "yes": True,
        "id": UUID(int=5),
        "time": Timestamp(1_000),
        "span": Described(Symbol("com.microsoft:timespan"), 10_000_000),
    }
    fields = {
        "correlation-id": "c",
        "message-id": "m",
        "to": "t",
        "reply-to": "r",
        "label": "l",
        "session-id": "s",
        "reply-to-session-id": "rs",
        "content-type": "ct",
        "properties": properties,
    }
    description = {"correlation-filter": fields, "sql-rule-action": None}
    assert asking.ask(ADD, {"rule-name": "c", "rule-description": description}).status == 200
    condition, action, _ = listed(asking)["c"]
    assert condition.descriptor == 0x1370000009
    assert condition.value == ["c", "m", "t", "r", "l", "s", "rs", "ct", properties]
    assert action.descriptor == 0x13700000005


@pytest.mark.parametrize("name", [Symbol, str])
async def test_names_may_be_symbols(asking: Asking, name: type[str]) -> None:
    fields = {name("correlation-id"): None, name("label"): "news", name("properties"): None}
    description = {name("correlation-filter"): fields}
    body = {name("rule-name"): "r", name("rule-description"): description}
    assert asking.ask(ADD, body).status == 200
    assert listed(asking)["r"][0].value[4] == "news"


@pytest.mark.parametrize(
    "kind, fields", [("true-filter", []), ("false-filter", []), ("sql-filter", ["a = 1", Int(20)])]
)
@pytest.mark.parametrize("named", [False, True])
async def test_a_rule_may_come_as_described_lists(
    asking: Asking, kind: str, fields: list[object], named: bool
) -> None:
    """By code or by symbol; this is how the service itself writes rules."""

    def described(what: str, values: list[object]) -> Described:
        symbol = Symbol(f"com.microsoft:{what}:list")
        return Described(symbol if named else ULong(CODES[what]), values)

    action = described("sql-rule-action", ["REMOVE b", Int(20)])
    rule = described("rule-description", [described(kind, fields), action, "ignored", None])
    assert asking.ask(ADD, {"rule-name": "r", "rule-description": rule}).status == 200
    condition, stored_action, _ = listed(asking)["r"]
    assert condition == Described(ULong(CODES[kind]), fields)
    assert stored_action.value == ["REMOVE b", Int(20)]


async def test_parameters_of_an_expression_are_taken(scene: Scene, asking: Asking) -> None:
    condition = {"expression": "a = @a", "parameters": {"@a": 5}}
    body = {"rule-name": "p", "rule-description": {"sql-filter": condition}}
    assert asking.ask(ADD, body).status == 200
    [rule] = [rule for rule in scene.harness.store.rules.values() if rule.description.name == "p"]
    assert rule.description.filter.parameters == {"@a": 5}


async def test_pages(asking: Asking) -> None:
    for number in range(5):
        body = {"rule-name": f"r{number}", "rule-description": sql("1=1")}
        assert asking.ask(ADD, body).status == 200
    names = []
    skip = 0
    while (answer := asking.ask(LIST, {"top": Int(2), "skip": Int(skip)})).status == 200:
        page = answer.body["rules"]
        names += [entry["rule-description"].value[2] for entry in page]
        skip += len(page)
        assert 1 <= len(page) <= 2
    assert names == ["$Default", "r0", "r1", "r2", "r3", "r4"]


@pytest.mark.proves("M-6")
async def test_an_added_rule_counts_for_the_next_message(scene: Scene, asking: Asking) -> None:
    """And is there after a power cut, because it was answered."""
    assert asking.ask(REMOVE, {"rule-name": "$Default"}).status == 200
    description = {"correlation-filter": {"label": "wanted"}}
    assert asking.ask(ADD, {"rule-name": "w", "rule-description": description}).status == 200
    names = scene.harness.store.names
    assert "news/subscriptions/all/rules/w" in names
    assert "news/subscriptions/all/rules/$default" not in names


GOOD = sql("a = 1")


@pytest.mark.parametrize(
    "operation, body, status, text",
    [
        (ADD, {"rule-name": "$Default", "rule-description": GOOD}, 409, "exists"),
        (REMOVE, {"rule-name": "missing"}, 404, "missing"),
        (ADD, {"rule-name": "r", "rule-description": sql("a = = 1")}, 400, "5"),
        (ADD, {"rule-name": "r", "rule-description": {**GOOD, "true-filter": {}}}, 400, "2"),
        (ADD, {"rule-name": "r", "rule-description": {}}, 400, "filter"),
        (ADD, {"rule-name": "r", "rule-description": {"sql-filter": None}}, 400, "filter"),
        (ADD, {"rule-name": "r", "rule-description": {"sql-filter": {}}}, 400, "expression"),
        (ADD, {"rule-name": "r", "rule-description": {"sql-filter": "a = 1"}}, 400, "map"),
        (ADD, {"rule-name": "r", "rule-description": "a = 1"}, 400, "map"),
        (ADD, {"rule-name": "r"}, 400, "map"),
        (ADD, {"rule-description": GOOD}, 400, "rule-name"),
        (ADD, {"rule-name": 5, "rule-description": GOOD}, 400, "rule-name"),
        (ADD, {"rule-name": "a/b", "rule-description": GOOD}, 400, "a/b"),
        (ADD, {"rule-name": "x" * 51, "rule-description": GOOD}, 400, "51"),
        (ADD, {"rule-name": "r", "rule-description": {"correlation-filter": {}}}, 400, "at least"),
        (
            ADD,
            {"rule-name": "r", "rule-description": {"correlation-filter": {"label": 5}}},
            400,
            "label",
        ),
        (
            ADD,
            {"rule-name": "r", "rule-description": {**GOOD, "sql-rule-action": {"expression": 5}}},
            400,
            "expression",
        ),
        (
            ADD,
            {
                "rule-name": "r",
                "rule-description": {**GOOD, "sql-rule-action": {"expression": "x"}},
            },
            400,
            "action",
        ),
        (ADD, {"rule-name": "r", "rule-description": Described(ULong(1), [])}, 400, "descriptor"),
        (
            ADD,
            {"rule-name": "r", "rule-description": Described(ULong(0x13700000004), "x")},
            400,
            "described",
        ),
        (
            ADD,
            {
                "rule-name": "r",
                "rule-description": {"sql-filter": Described(ULong(0x1370000007), [])},
            },
            400,
            "described",
        ),
        (REMOVE, {}, 400, "rule-name"),
        (LIST, {"top": Int(-1), "skip": Int(0)}, 400, "negative"),
        (LIST, {"top": Int(1), "skip": Int(-1)}, 400, "negative"),
        (LIST, {"top": "all", "skip": Int(0)}, 400, "top"),
        (LIST, {}, 400, "skip"),
        (ADD, ["rule"], 400, "map"),
    ],
)
async def test_what_is_refused_changes_nothing(
    asking: Asking, operation: str, body: object, status: int, text: str
) -> None:
    answer = asking.ask(operation, body)
    assert answer.status == status, answer.text
    assert text in answer.text
    assert list(listed(asking)) == ["$Default"]


@pytest.mark.parametrize("entity", ["orders", "news"])
@pytest.mark.parametrize(
    "operation, body",
    [
        (ADD, {"rule-name": "r", "rule-description": GOOD}),
        (REMOVE, {"rule-name": "r"}),
        (LIST, ALL),
    ],
)
async def test_only_subscriptions_have_rules(
    scene: Scene, entity: str, operation: str, body: object
) -> None:
    answer = Asking(scene.connect(), entity).ask(operation, body)
    assert (answer.status, answer.condition) == (400, "amqp:not-allowed")


async def test_what_is_written_is_read_back() -> None:
    """A rule as it is answered is a rule that add-rule takes."""
    values: dict[str, object] = {
        "name": "r",
        "system": {"label": "x"},
        "properties": {"t": datetime(2026, 1, 1, tzinfo=UTC), "d": timedelta(seconds=1)},
    }
    rule = RuleDescription.from_mapping(values)
    assert decode_whole(encode_value(describe_rule(rule))) == describe_rule(rule)
