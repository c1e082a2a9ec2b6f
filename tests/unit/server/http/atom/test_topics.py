"""Entity management over HTTP: topics, subscriptions, rules, errors."""

import asyncio
import dataclasses

import pytest
import pytest_asyncio

from tests.unit.server.http.atom.atom_harness import DLQ_SUPPLEMENTARY, SUPPLEMENTARY, Client, sign
from tests.unit.server.http.atom.xml_bodies import document, entry_content, names_of, value
from twinbus.client.sas import make_sas_token
from twinbus.entities.rule_descriptions import SQL, FilterDescription, RuleDescription
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    NotSupported,
    OperationTimeout,
    Unauthorized,
)
from twinbus.gateway.namespaces.entity_locks import EntityLocks
from twinbus.limits import PROFILES, SQL_FILTERS_MAX

pytestmark = [pytest.mark.proves("M-8", "M-9", "M-11", "M-12"), pytest.mark.asyncio]

XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
TOPIC = document("", "TopicDescription")
SUBSCRIPTION = document("", "SubscriptionDescription")


def rule(expression: str = "a = 1", name: str = "") -> bytes:
    inner = f'<Filter i:type="SqlFilter"><SqlExpression>{expression}</SqlExpression></Filter>'
    return document(f"{inner}<Name>{name}</Name>" if name else inner, "RuleDescription", XSI)


@pytest_asyncio.fixture
async def client() -> Client:
    """With a topic `t` and its subscription `s`."""
    made = Client()
    await made.ask("PUT", "/t", TOPIC)
    await made.ask("PUT", "/t/Subscriptions/s", SUBSCRIPTION)
    return made


class TestTopics:
    async def test_order_of_elements(self, client: Client) -> None:
        got = entry_content((await client.ask("GET", "/t")).body)
        assert names_of(got) == [
            "DefaultMessageTimeToLive",
            "MaxSizeInMegabytes",
            "RequiresDuplicateDetection",
            "DuplicateDetectionHistoryTimeWindow",
            "EnableBatchedOperations",
            "SizeInBytes",
            "FilteringMessagesBeforePublishing",
            "IsAnonymousAccessible",
            "AuthorizationRules",
            "Status",
            "CreatedAt",
            "UpdatedAt",
            "AccessedAt",
            "SupportOrdering",
            "CountDetails",
            "SubscriptionCount",
            "SqlFilterCount",
            "CorrelationFilterCount",
            "AutoDeleteOnIdle",
            "EnablePartitioning",
            "EntityAvailabilityStatus",
            "EnableSubscriptionPartitioning",
            "EnableExpress",
            "MaxMessageSizeInKilobytes",
        ]
        assert value(got, "SubscriptionCount") == "1"

    async def test_create_update_delete(self, client: Client) -> None:
        settings = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
        made = await client.ask("PUT", "/T2", document(settings, "TopicDescription"))
        assert made.status == 201
        assert value(entry_content(made.body), "FilteringMessagesBeforePublishing") == "true"
        assert (await client.ask("PUT", "/t2", TOPIC, update=True)).status == 200
        with pytest.raises(EntityAlreadyExists):
            await client.ask("PUT", "/t2", document())
        await client.ask("DELETE", "/t2")
        with pytest.raises(EntityNotFound):
            await client.ask("GET", "/t2")

    async def test_settings_that_are_always_off(self, client: Client) -> None:
        for setting in ("IsAnonymousAccessible", "EnableSubscriptionPartitioning"):
            with pytest.raises(NotSupported):
                await client.ask(
                    "PUT", "/x", document(f"<{setting}>true</{setting}>", "TopicDescription")
                )
            await client.ask(
                "PUT", f"/{setting}", document(f"<{setting}>0</{setting}>", "TopicDescription")
            )


class TestSubscriptions:
    async def test_order_of_elements(self, client: Client) -> None:
        got = entry_content((await client.ask("GET", "/t/subscriptions/S")).body)
        assert names_of(got) == [
            "LockDuration",
            "RequiresSession",
            "DefaultMessageTimeToLive",
            "DeadLetteringOnMessageExpiration",
            "DeadLetteringOnFilterEvaluationExceptions",
            "MessageCount",
            "MaxDeliveryCount",
            "EnableBatchedOperations",
            "Status",
            "CreatedAt",
            "UpdatedAt",
            "AccessedAt",
            "CountDetails",
            "AutoDeleteOnIdle",
            "EntityAvailabilityStatus",
        ]

    async def test_default_rule(self, client: Client) -> None:
        assert await client.listed("/t/subscriptions/s/rules") == ["$Default"]
        given = (
            "<DefaultRuleDescription><Filter i:type='SqlFilter'><SqlExpression>a = 1"
            "</SqlExpression></Filter><Action i:type='EmptyRuleAction'/><Name>mine</Name>"
            "</DefaultRuleDescription>"
        )
        body = document(given, "SubscriptionDescription", XSI)
        await client.ask("PUT", "/t/subscriptions/s2", body)
        assert await client.listed("/t/subscriptions/s2/rules") == ["mine"]
        bad = body.replace(b"a = 1", b"a = ")
        with pytest.raises(ArgumentInvalid):
            await client.ask("PUT", "/t/subscriptions/s3", bad)
        assert await client.listed("/t/subscriptions") == ["s", "s2"]

    async def test_wrong_document_for_the_address(self, client: Client) -> None:
        with pytest.raises(ArgumentInvalid, match="SubscriptionDescription"):
            await client.ask("PUT", "/t/subscriptions/x", TOPIC)
        with pytest.raises(ArgumentInvalid, match="QueueDescription"):
            await client.ask("PUT", "/x", SUBSCRIPTION)
        with pytest.raises(ArgumentInvalid, match="RuleDescription"):
            await client.ask("PUT", "/t/subscriptions/s/rules/r", SUBSCRIPTION)

    async def test_address_is_the_same_however_it_is_divided(self, client: Client) -> None:
        got = await client.ask("GET", "/t%2FSUBSCRIPTIONS%2fs")
        assert b"<id>https://h:5672/t/Subscriptions/s</id>" in got.body


class TestRules:
    async def test_create_get_update_delete(self, client: Client) -> None:
        path = "/t/subscriptions/s/rules"
        assert (await client.ask("PUT", f"{path}/R", rule())).status == 201
        with pytest.raises(EntityAlreadyExists):
            await client.ask("PUT", f"{path}/r", rule())
        updated = await client.ask("PUT", f"{path}/r", rule("b = 2", "R"), update=True)
        assert updated.status == 200
        got = await client.ask("GET", f"{path}/r")
        assert b"b = 2" in got.body
        assert value(entry_content(got.body), "Name") == "R"
        assert await client.listed(path) == ["$Default", "R"]
        assert (await client.ask("DELETE", f"{path}/$Default")).status == 200
        assert await client.listed(path) == ["R"]

    async def test_missing(self, client: Client) -> None:
        for method, path, update in (
            ("GET", "/t/subscriptions/s/rules/x", False),
            ("DELETE", "/t/subscriptions/s/rules/x", False),
            ("PUT", "/t/subscriptions/s/rules/x", True),
            ("PUT", "/t/subscriptions/x/rules/r", False),
            ("PUT", "/x/subscriptions/s/rules/r", False),
            ("GET", "/t/subscriptions/x/rules", False),
        ):
            with pytest.raises(EntityNotFound):
                await client.ask(method, path, rule(), update=update)


class TestForwarding:
    """Manage is needed on both ends."""

    @pytest_asyncio.fixture
    async def targets(self, client: Client) -> Client:
        await client.ask("PUT", "/a/b", document())
        await client.ask("PUT", "/dead", document())
        return client

    BODY = document(
        "<ForwardTo>sb://elsewhere:1/a%2Fb/</ForwardTo>"
        "<ForwardDeadLetteredMessagesTo>dead</ForwardDeadLetteredMessagesTo>"
    )

    async def test_target_is_a_name_inside_and_a_uri_outside(self, targets: Client) -> None:
        got = entry_content((await targets.ask("PUT", "/q", self.BODY)).body)
        assert targets.namespace.find_queue("q").description.forward_to == "a/b"
        assert value(got, "ForwardTo") == "sb://h:5672/a/b"
        assert value(got, "ForwardDeadLetteredMessagesTo") == "sb://h:5672/dead"

    async def test_narrow_token_needs_others_for_the_targets(self, targets: Client) -> None:
        targets.token = sign("q")
        both = {SUPPLEMENTARY: sign("a/b"), DLQ_SUPPLEMENTARY: sign("dead")}
        for headers in (
            {},
            {SUPPLEMENTARY: sign("a/b")},
            {DLQ_SUPPLEMENTARY: sign("dead")},
            {SUPPLEMENTARY: sign("dead"), DLQ_SUPPLEMENTARY: sign("a/b")},
            {**both, SUPPLEMENTARY: sign("a/b", rule="worker")},
            {**both, DLQ_SUPPLEMENTARY: sign("dead", key="wrong")},
            {**both, DLQ_SUPPLEMENTARY: "x"},
        ):
            with pytest.raises(Unauthorized):
                await targets.ask("PUT", "/q", self.BODY, headers=headers)
        made = await targets.ask("PUT", "/q", self.BODY, headers=both)
        assert made.status == 201

    async def test_bad_token_for_a_target_is_refused_even_if_unneeded(
        self, targets: Client
    ) -> None:
        with pytest.raises(Unauthorized):
            await targets.ask("PUT", "/q", self.BODY, headers={SUPPLEMENTARY: sign(key="wrong")})
        with pytest.raises(EntityNotFound):
            await targets.ask("GET", "/q")

    async def test_token_of_another_namespace(self, targets: Client) -> None:
        token = sign(rule="Other", key="other key")
        with pytest.raises(Unauthorized, match="another namespace"):
            await targets.ask("PUT", "/q", self.BODY, headers={SUPPLEMENTARY: token})

    @pytest.mark.proves("M-13")
    async def test_node_signs_for_the_host_alone(self, targets: Client) -> None:
        token = make_sas_token("127.0.0.1:5672", "Root", "key", 1 << 40)
        targets.token = sign("q")
        headers = {SUPPLEMENTARY: token, DLQ_SUPPLEMENTARY: token}
        assert (await targets.ask("PUT", "/q", self.BODY, headers=headers)).status == 201


class TestAuthorizationRules:
    RULE = (
        "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'>"
        "<Rights><AccessRights>Manage</AccessRights></Rights><KeyName>own</KeyName>"
        "<PrimaryKey>p</PrimaryKey><SecondaryKey>s</SecondaryKey></AuthorizationRule>"
        "</AuthorizationRules>"
    )

    async def test_update_that_says_nothing_keeps_them(self, client: Client) -> None:
        body = document(self.RULE, "TopicDescription", XSI)
        await client.ask("PUT", "/t", body, update=True)
        await client.ask("PUT", "/t", TOPIC, update=True)
        client.token = sign("t", "own", "p")
        assert b"<KeyName>own</KeyName>" in (await client.ask("GET", "/t")).body
        none = document("<AuthorizationRules/>", "TopicDescription")
        await client.ask("PUT", "/t", none, update=True)
        with pytest.raises(Unauthorized):
            await client.ask("GET", "/t")

    async def test_subscriptions_have_none(self, client: Client) -> None:
        body = document(self.RULE, "SubscriptionDescription", XSI)
        made = await client.ask("PUT", "/t/subscriptions/s2", body)
        assert b"AuthorizationRules" not in made.body


class TestSubCodes:
    """What stands beside the status, as every SDK looks for it."""

    async def test_by_case(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        session = document("<RequiresSession>true</RequiresSession>")
        forward = document("<RequiresSession>true</RequiresSession><ForwardTo>q</ForwardTo>")
        for method, path, body, update, status, sub_code in (
            ("PUT", "/t", TOPIC, False, 409, 40900),
            ("PUT", "/t/subscriptions/s", SUBSCRIPTION, False, 409, 40900),
            ("GET", "/missing", b"", False, 404, 40400),
            ("DELETE", "/t/subscriptions/missing", b"", False, 404, 40400),
            ("PUT", "/x", b"<", False, 400, 40000),
            ("PUT", f"/{'x' * 261}", document(), False, 400, 40000),
            ("PUT", f"/t/subscriptions/{'x' * 51}", SUBSCRIPTION, False, 400, 40000),
            ("PUT", "/q", session, True, 400, 40000),
            ("PUT", "/f", forward, False, 403, 40301),
            ("POST", "/q", b"", False, 405, 40500),
        ):
            found, detail = await client.refused(method, path, body, update=update)
            assert (found, f"SubCode={sub_code}. TrackingId:" in detail) == (status, True), detail
        client.token = None
        assert "SubCode=40100." in (await client.refused("GET", "/q"))[1]

    async def test_too_many(self) -> None:
        small = dataclasses.replace(PROFILES["premium"], subscriptions_max=1, entities_max=1)
        client = Client(small)
        await client.ask("PUT", "/t", TOPIC)
        await client.ask("PUT", "/t/subscriptions/s", SUBSCRIPTION)
        refusal = await client.refused("PUT", "/t/subscriptions/s2", SUBSCRIPTION)
        assert refusal[0] == 403
        assert "SubCode=40503." in refusal[1]
        refusal = await client.refused("PUT", "/q", document())
        assert refusal[0] == 403
        assert "SubCode=40300." in refusal[1]

    async def test_too_many_filters(self, client: Client) -> None:
        condition = FilterDescription(SQL, "a = 1")
        made = asyncio.gather(
            *(
                client.namespace.create_rule("t", "s", RuleDescription(f"r{number}", condition))
                for number in range(SQL_FILTERS_MAX)
            )
        )
        await asyncio.sleep(0)
        client.harness.run()
        await made
        refusal = await client.refused("PUT", "/t/subscriptions/s/rules/more", rule())
        assert refusal[0] == 403
        assert "SubCode=40501." in refusal[1]
        with pytest.raises(EntityNotFound):
            await client.ask("GET", "/t/subscriptions/s/rules/more")


class TestRaces:
    """Requests about what another one is just making; the disk has not answered that one yet."""

    @pytest.mark.parametrize(
        ("path", "body", "headers", "status"),
        [
            ("/new", TOPIC, {"if-match": "*"}, 200),
            ("/new/subscriptions/s", SUBSCRIPTION, {}, 201),
            ("/new/subscriptions/s", SUBSCRIPTION, {"if-match": "*"}, 404),
            ("/new/subscriptions/s/rules/r", rule(), {}, 404),
        ],
    )
    async def test_a_put_waits_for_the_outcome(
        self, client: Client, path: str, body: bytes, headers: dict[str, str], status: int
    ) -> None:
        first = asyncio.ensure_future(client.router.answer(client.request("PUT", "/new", TOPIC)))
        await asyncio.sleep(0)
        request = client.request("PUT", path, body, headers)
        second = asyncio.ensure_future(client.router.answer(request))
        await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        while not (first.done() and second.done()):
            client.harness.run()
            await asyncio.sleep(0)
        assert first.result().status == 201
        error = second.exception()
        assert (second.result().status if error is None else error.http_status) == status  # type: ignore[attr-defined]

    async def test_a_put_that_waited_in_vain_is_told_to_try_again(self, client: Client) -> None:
        client.harness.changes.entity_locks = EntityLocks(patience_s=0.01)
        first = asyncio.ensure_future(client.router.answer(client.request("PUT", "/new", TOPIC)))
        await asyncio.sleep(0)
        with pytest.raises(OperationTimeout, match="try again") as caught:
            await client.router.answer(client.request("PUT", "/new", TOPIC))
        assert caught.value.http_status == 408
        client.harness.run()
        assert (await first).status == 201
