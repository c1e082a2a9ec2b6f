"""Who may manage what: authorization rules of entities, forward targets, narrow tokens.

All through the official administration client.
"""

import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule, TrueRuleFilter

from tests.interop.administration import (
    FLAVOURS,
    Admin,
    answer_of,
    connect,
    connection_string_of,
    open_admin,
    scoped_to,
)
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-8", "M-12"), pytest.mark.asyncio]

ALL_RIGHTS = [AccessRights.LISTEN, AccessRights.MANAGE, AccessRights.SEND]


@pytest_asyncio.fixture(params=FLAVOURS)
async def admin(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[Admin]:
    async with open_admin(request.param, server) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of the test's own entity."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")


def rule(name: str, *rights: AccessRights, primary: str = "", secondary: str = "") -> Any:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=primary or None,
        secondary_key=secondary or None,
    )


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.entity-rules")
async def test_rules_of_an_entity(admin: Admin, name: str) -> None:
    for kind in ("queue", "topic"):
        create, get, update = (
            getattr(admin, f"{verb}_{kind}") for verb in ("create", "get", "update")
        )
        entity = f"{name}-{kind}"
        created = await create(
            entity,
            authorization_rules=[
                rule("all", *ALL_RIGHTS, primary="first key", secondary="<&>"),
                rule("made", AccessRights.SEND),
            ],
        )
        got = await get(entity)
        given, made = got.authorization_rules
        assert vars(given) == vars(created.authorization_rules[0])
        assert vars(made) == vars(created.authorization_rules[1])
        assert (given.key_name, given.primary_key, given.secondary_key) == (
            "all",
            "first key",
            "<&>",
        )
        assert given.rights == ALL_RIGHTS
        assert made.rights == [AccessRights.SEND]
        assert len(made.primary_key) == len(made.secondary_key) == 44
        assert made.primary_key != made.secondary_key
        assert abs(made.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
        got.authorization_rules = [made, rule("third", AccessRights.LISTEN)]
        await update(got)
        kept, third = (await get(entity)).authorization_rules
        assert vars(kept) == vars(made)
        assert third.rights == [AccessRights.LISTEN]


@pytest.mark.feature("access.entity-rules")
async def test_rules_open_their_entity_only(admin: Admin, name: str, server: ServerProcess) -> None:
    keeper = rule("keeper", *ALL_RIGHTS, primary="k1", secondary="k2")
    sender = rule("sender", AccessRights.SEND, primary="s1", secondary="s2")
    await admin.create_topic(name, authorization_rules=[keeper, sender])
    await admin.create_subscription(name, "s")
    await admin.create_topic(f"{name}2")
    await admin.create_topic(f"{name}/inner")
    for key in ("k1", "k2"):
        with connect(server, connection_string_of(server, "keeper", key)) as kept:
            assert kept.get_topic(name).name == name
            assert [each.name for each in kept.list_subscriptions(name)] == ["s"]
            kept.create_rule(name, "s", f"r-{key}", filter=TrueRuleFilter())
            for refused in (
                lambda: kept.get_topic(f"{name}2"),
                lambda: kept.get_topic(f"{name}/inner"),
                lambda: kept.create_topic(f"{name}/new"),
                lambda: list(kept.list_topics()),
                kept.get_namespace_properties,
            ):
                with pytest.raises(ClientAuthenticationError):
                    refused()
    for who, key in (("sender", "s1"), ("keeper", "s1"), ("nobody", "k1")):
        with connect(server, connection_string_of(server, who, key)) as stranger:
            with pytest.raises(ClientAuthenticationError) as caught:
                stranger.get_topic(name)
            with pytest.raises(ClientAuthenticationError) as other:
                stranger.get_topic("missing")
            assert "SubCode=40100." in answer_of(caught.value)
            assert "SubCode=40100." in answer_of(other.value)


@pytest.mark.feature("access.entity-rules")
async def test_too_many_rules_and_bad_ones(admin: Admin, name: str) -> None:
    twelve = [rule(f"r{number}", AccessRights.SEND) for number in range(12)]
    queue = await admin.create_queue(name, authorization_rules=twelve)
    queue.authorization_rules = [*queue.authorization_rules, rule("r12", AccessRights.SEND)]
    with pytest.raises(HttpResponseError) as caught:
        await admin.update_queue(queue)
    assert caught.value.status_code == 403
    assert "SubCode=40300." in caught.value.message
    for bad in ([rule("a"), rule("b")], [rule("a", AccessRights.SEND)] * 2, [rule("x" * 257)]):
        with pytest.raises(HttpResponseError) as caught:
            await admin.create_queue(f"{name}-bad", authorization_rules=bad)
        assert caught.value.status_code == 400
    assert len((await admin.get_queue(name)).authorization_rules) == 12


@pytest.mark.proves("M-8")
@pytest.mark.feature("entity.queues", "entity.topics")
async def test_forwarding(admin: Admin, name: str) -> None:
    target, dead = f"{name}/target", f"{name}-dead"
    await admin.create_queue(dead)
    await admin.create_topic(target)
    queue = await admin.create_queue(
        name, forward_to=target, forward_dead_lettered_messages_to=dead
    )
    got = await admin.get_queue(name)
    for each in (queue, got):
        assert each.forward_to.endswith(f"/{target}")
        assert each.forward_to.startswith("sb://")
        assert each.forward_dead_lettered_messages_to.endswith(f"/{dead}")
    await admin.update_queue(got, max_delivery_count=3)
    assert (await admin.get_queue(name)).forward_to == got.forward_to
    await admin.create_topic(f"{name}-source")
    await admin.create_subscription(f"{name}-source", "s", forward_to=target)
    subscription = await admin.get_subscription(f"{name}-source", "s")
    assert subscription.forward_to == got.forward_to
    subscription.forward_to = None
    subscription.forward_dead_lettered_messages_to = dead
    await admin.update_subscription(f"{name}-source", subscription)
    changed = await admin.get_subscription(f"{name}-source", "s")
    assert changed.forward_to is None
    assert changed.forward_dead_lettered_messages_to.endswith(f"/{dead}")


async def test_bad_forward_targets(admin: Admin, name: str) -> None:
    with pytest.raises(HttpResponseError):
        await admin.create_queue(name, forward_to=f"{name}-missing")
    with pytest.raises(HttpResponseError):
        await admin.create_queue(name, forward_to=name)
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue(name)


@pytest.mark.proves("M-12")
async def test_forward_target_needs_a_claim_too(server: ServerProcess) -> None:
    with connect(server) as root:
        root.create_queue("claimed")
        root.create_queue("claimed-source")
    # A token for the source alone: the SDK offers the same one for the target.
    with connect(server, scoped_to(server, "claimed-source")) as narrow:
        queue = narrow.get_queue("claimed-source")
        for change in ({"forward_to": "claimed"}, {"forward_dead_lettered_messages_to": "claimed"}):
            with pytest.raises(ClientAuthenticationError):
                narrow.update_queue(queue, **change)
        narrow.update_queue(narrow.get_queue("claimed-source"), max_delivery_count=3)
    with connect(server) as root:
        assert root.get_queue("claimed-source").forward_to is None


@pytest.mark.proves("M-12")
async def test_narrow_token(server: ServerProcess) -> None:
    with connect(server) as root:
        root.create_topic("narrow")
        root.create_subscription("narrow", "s")
        root.create_subscription("narrow", "other")
    with connect(server, scoped_to(server, "narrow/Subscriptions/s")) as narrow:
        assert narrow.get_subscription("narrow", "s").name == "s"
        assert len(list(narrow.list_rules("narrow", "s"))) == 1
        refusals: tuple[Callable[[], object], ...] = (
            lambda: narrow.get_subscription("narrow", "other"),
            lambda: narrow.get_topic("narrow"),
            lambda: list(narrow.list_subscriptions("narrow")),
            lambda: narrow.create_rule("narrow", "other", "r"),
            lambda: narrow.delete_topic("narrow"),
        )
        for refused in refusals:
            with pytest.raises(ClientAuthenticationError):
                refused()


@pytest.mark.proves("M-9")
@pytest.mark.feature("entity.status")
async def test_status_counts_at_once(server: ServerProcess) -> None:
    with (
        connect(server) as admin,
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
    ):
        topic = admin.create_topic("switched")
        subscription = admin.create_subscription("switched", "s")
        for status, may_send in (("SendDisabled", False), ("Active", True), ("Disabled", False)):
            admin.update_topic(topic, status=status)
            assert admin.get_topic("switched").status == status
            if may_send:
                with client.get_topic_sender("switched") as sender:
                    sender.send_messages(ServiceBusMessage(b"x"))
            else:
                with pytest.raises(ServiceBusError), client.get_topic_sender("switched") as sender:
                    sender.send_messages(ServiceBusMessage(b"x"))
        admin.update_topic(topic, status="Active")
        admin.update_subscription("switched", subscription, status="ReceiveDisabled")
        with (
            pytest.raises(ServiceBusError),
            client.get_subscription_receiver("switched", "s") as receiver,
        ):
            receiver.receive_messages(max_wait_time=1)
        admin.update_subscription("switched", subscription, status="Active")
        with client.get_subscription_receiver("switched", "s") as receiver:
            assert len(receiver.receive_messages(max_wait_time=5)) == 1
