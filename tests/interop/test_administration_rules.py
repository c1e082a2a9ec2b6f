"""Rules by the official administration client: every filter, every type."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.interop.administration import FLAVOURS, Admin, answer_of, connect, open_admin
from twinbus.testing.server import ServerProcess

pytestmark = [
    pytest.mark.proves("M-6", "M-9", "M-11"),
    pytest.mark.asyncio,
    pytest.mark.feature("entity.rules"),
]

MOMENT = dt.datetime(2026, 11, 1, 12, 30, 15, tzinfo=dt.UTC)
VALUES: dict[str, Any] = {
    "text": " <é> & ]]> ",
    "small": -7,
    "large": 2**40,
    "fraction": 1.5,
    "yes": True,
    "moment": MOMENT,
    "span": dt.timedelta(days=1, seconds=2, milliseconds=3),
}


@pytest_asyncio.fixture(params=FLAVOURS)
async def admin(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin(request.param, server) as client:
        yield client


@pytest_asyncio.fixture
async def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    """The test's own topic, with a subscription `s`."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    return name


@pytest.mark.proves("M-9")
async def test_create_get_update_delete(admin: Admin, topic: str) -> None:
    created = await admin.create_rule(
        topic,
        "s",
        "mine",
        filter=SqlRuleFilter("color = 'red' AND size > 5"),
        action=SqlRuleAction("SET seen = TRUE; REMOVE size"),
    )
    got = await admin.get_rule(topic, "s", "mine")
    for rule in (created, got):
        assert rule.name == "mine"
        assert type(rule.filter) is SqlRuleFilter
        assert rule.filter.sql_expression == "color = 'red' AND size > 5"
        assert rule.action.sql_expression == "SET seen = TRUE; REMOVE size"
    assert abs(got.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    got.filter = CorrelationRuleFilter(label="order")
    got.action = None
    await admin.update_rule(topic, "s", got)
    updated = await admin.get_rule(topic, "s", "mine")
    assert type(updated.filter) is CorrelationRuleFilter
    assert updated.filter.label == "order"
    assert updated.action is None
    assert updated.created_at_utc == got.created_at_utc
    await admin.update_rule(topic, "s", updated, filter=FalseRuleFilter())
    assert type((await admin.get_rule(topic, "s", "mine")).filter) is FalseRuleFilter
    assert [rule.name for rule in await admin.list_rules(topic, "s")] == ["$Default", "mine"]
    await admin.delete_rule(topic, "s", "$default")
    await admin.delete_rule(topic, "s", "mine")
    assert await admin.list_rules(topic, "s") == []
    for missing in (admin.get_rule, admin.delete_rule):
        with pytest.raises(ResourceNotFoundError):
            await missing(topic, "s", "mine")
    with pytest.raises(ResourceNotFoundError):
        await admin.update_rule(topic, "s", updated)


async def test_every_filter_kind(admin: Admin, topic: str) -> None:
    filters = {
        "sql": SqlRuleFilter("a = @p", parameters={"@p": 1}),
        "true": TrueRuleFilter(),
        "false": FalseRuleFilter(),
        "correlation": CorrelationRuleFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="<l>",
            session_id="s",
            reply_to_session_id="rs",
            content_type="text/plain",
        ),
    }
    for name, chosen in filters.items():
        await admin.create_rule(topic, "s", name, filter=chosen)
    found = {rule.name: rule.filter for rule in await admin.list_rules(topic, "s")}
    assert found.keys() == {"$Default", *filters}
    for name, chosen in filters.items():
        assert type(found[name]) is type(chosen)
    wanted = {**vars(filters["correlation"]), "properties": {}}
    assert vars(found["correlation"]) == wanted
    assert dict(found["sql"].parameters) == {"@p": 1}


async def test_typed_values_come_back(admin: Admin, topic: str) -> None:
    parameters: Any = {f"@{name}": value for name, value in VALUES.items()}
    uses = " OR ".join(f"x = {name}" for name in parameters)
    await admin.create_rule(
        topic,
        "s",
        "typed",
        filter=SqlRuleFilter(uses, parameters=parameters),
        action=SqlRuleAction("SET y = @text", parameters={"@text": parameters["@text"]}),
    )
    await admin.create_rule(topic, "s", "equal", filter=CorrelationRuleFilter(properties=VALUES))
    typed = await admin.get_rule(topic, "s", "typed")
    assert dict(typed.filter.parameters) == parameters
    assert dict(typed.action.parameters) == {"@text": VALUES["text"]}
    equal = await admin.get_rule(topic, "s", "equal")
    assert dict(equal.filter.properties) == VALUES
    await admin.update_rule(topic, "s", equal)
    await admin.update_rule(topic, "s", typed)
    again = {rule.name: rule for rule in await admin.list_rules(topic, "s")}
    assert dict(again["equal"].filter.properties) == VALUES
    assert dict(again["typed"].filter.parameters) == parameters


@pytest.mark.proves("M-11")
async def test_refusals(admin: Admin, topic: str) -> None:  # exact errors
    await admin.create_rule(topic, "s", "r", filter=TrueRuleFilter())
    with pytest.raises(ResourceExistsError) as exists:
        await admin.create_rule(topic, "s", "R", filter=TrueRuleFilter())
    assert "SubCode=40900." in answer_of(exists.value)
    for refused in (
        lambda: admin.create_rule(topic, "s", "bad", filter=SqlRuleFilter("a = ")),
        lambda: admin.create_rule(topic, "s", "bad", filter=SqlRuleFilter("a = 'x'" * 200)),
        lambda: admin.create_rule(topic, "s", "bad", filter=CorrelationRuleFilter()),
        lambda: admin.create_rule(topic, "s", "bad", action=SqlRuleAction("DROP TABLE x")),
        lambda: admin.create_rule(topic, "s", "x" * 51),
        lambda: admin.create_rule(topic, "s", "a\\b"),
    ):
        with pytest.raises(HttpResponseError) as caught:
            await refused()  # type: ignore[no-untyped-call]  # Admin is one for both flavours
        assert caught.value.status_code == 400
        assert "SubCode=40000." in caught.value.message
        assert "TrackingId:" in caught.value.message
    with pytest.raises(ResourceNotFoundError):
        await admin.create_rule(topic, "missing", "r")
    with pytest.raises(ResourceNotFoundError):
        await admin.list_rules("missing", "s")
    assert [rule.name for rule in await admin.list_rules(topic, "s")] == ["$Default", "r"]


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.sql-filter", "topic.correlation-filter", "topic.action")
async def test_rules_decide_what_arrives(server: ServerProcess) -> None:
    with connect(server) as admin:
        admin.create_topic("decided")
        for name in ("sql", "correlation", "acting"):
            admin.create_subscription("decided", name)
            admin.delete_rule("decided", name, "$Default")
        admin.create_rule(
            "decided", "sql", "r", filter=SqlRuleFilter("size > @least", {"@least": 5})
        )
        admin.create_rule(
            "decided",
            "correlation",
            "r",
            filter=CorrelationRuleFilter(label="order", properties={"color": "red"}),
        )
        admin.create_rule(
            "decided",
            "acting",
            "r",
            filter=CorrelationRuleFilter(properties={"size": 3}),
            action=SqlRuleAction("SET size = size + @more; SET sys.Label = 'acted'", {"@more": 10}),
        )
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_topic_sender("decided") as sender:
            sender.send_messages(
                [
                    ServiceBusMessage(
                        b"1", subject="order", application_properties={"size": 9, "color": "red"}
                    ),
                    ServiceBusMessage(
                        b"2", subject="order", application_properties={"size": 3, "color": "blue"}
                    ),
                ]
            )
        received = {}
        for name in ("sql", "correlation", "acting"):
            with client.get_subscription_receiver("decided", name) as receiver:
                [message] = receiver.receive_messages(max_message_count=5, max_wait_time=5)
                size = (message.application_properties or {})[b"size"]
                received[name] = (str(message), message.subject, size)
    assert received == {
        "sql": ("1", "order", 9),
        "correlation": ("1", "order", 9),
        "acting": ("2", "acted", 13),
    }


async def test_counts_of_filters(server: ServerProcess) -> None:
    """Shown from api-version 2024-05 on, not before."""
    async with open_admin("sync", server) as admin:
        await admin.create_topic("filters")
        await admin.create_subscription("filters", "s")
        await admin.create_rule("filters", "s", "a", filter=SqlRuleFilter("a = 1"))
        await admin.create_rule("filters", "s", "b", filter=CorrelationRuleFilter(label="x"))
        await admin.create_rule("filters", "s", "c", filter=CorrelationRuleFilter(label="y"))
        runtime = await admin.get_topic_runtime_properties("filters")
        assert runtime.sql_filter_count == 1
        assert runtime.correlation_filter_count == 2
    async with open_admin("sync", server, api_version="2021-05") as admin:
        runtime = await admin.get_topic_runtime_properties("filters")
        assert runtime.sql_filter_count is None
        assert (await admin.get_topic("filters")).max_message_size_in_kilobytes == 1024
    async with open_admin("sync", server, api_version="2017-04") as admin:
        assert (await admin.get_topic("filters")).max_message_size_in_kilobytes is None
