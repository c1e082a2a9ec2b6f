"""Entity management over HTTP: queues, lists, claims."""

from xml.etree.ElementTree import Element, fromstring

import pytest

from tests.unit.server.http.atom.atom_harness import NOW_S, Client, sign
from tests.unit.server.http.atom.xml_bodies import document, entry_content, names_of, value
from twinbus.client.sas import make_sas_token
from twinbus.entities.commands import Send
from twinbus.entities.message import NewMessage
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    ServiceError,
    Unauthorized,
)
from twinbus.limits import PAGE_COUNT_MAX, PROFILES
from twinbus.server.http.access import TOKEN_LEEWAY_S
from twinbus.server.http.atom.entity_documents import COUNTS
from twinbus.server.http.atom.feeds import ATOM, SERVICE_BUS
from twinbus.server.http.exchange import Request, Response

pytestmark = [pytest.mark.proves("M-9", "M-11", "M-12"), pytest.mark.asyncio]

FOREVER = "P10675199DT2H48M5.4775807S"


@pytest.fixture
def client() -> Client:
    return Client()


def described(response: Response) -> Element:
    return entry_content(response.body)


def title(response: Response) -> str | None:
    return fromstring(response.body).findtext(f"{{{ATOM}}}title")


class TestQueue:
    @pytest.mark.proves("M-11")
    async def test_create_get_update_delete(self, client: Client) -> None:
        settings = "<LockDuration>PT45S</LockDuration><MaxDeliveryCount>3</MaxDeliveryCount>"
        created = await client.ask("PUT", "/Orders", document(settings))
        assert created.status == 201
        assert created.content_type.startswith("application/atom+xml")
        got = await client.ask("GET", "/oRDERS")
        assert got.status == 200
        assert value(described(got), "LockDuration") == "PT45S"
        assert value(described(got), "MaxDeliveryCount") == "3"
        assert title(got) == "Orders"
        settings = "<LockDuration>PT1M</LockDuration>"
        updated = await client.ask("PUT", "/orders", document(settings), update=True)
        assert updated.status == 200
        assert value(described(updated), "LockDuration") == "PT1M"
        assert value(described(updated), "MaxDeliveryCount") == "10"
        deleted = await client.ask("DELETE", "/orders")
        assert (deleted.status, deleted.body) == (200, b"")
        with pytest.raises(EntityNotFound):
            await client.ask("GET", "/orders")

    async def test_create_twice_and_touch_what_is_missing(self, client: Client) -> None:
        await client.ask("PUT", "/orders", document())
        with pytest.raises(EntityAlreadyExists):
            await client.ask("PUT", "/ORDERS", document())
        with pytest.raises(EntityNotFound):
            await client.ask("PUT", "/missing", b"no XML, which matters less", update=True)
        with pytest.raises(EntityNotFound):
            await client.ask("DELETE", "/missing")

    async def test_slash_in_a_name_arrives_both_ways(self, client: Client) -> None:
        await client.ask("PUT", "/east%2Forders", document())
        assert title(await client.ask("GET", "/east/orders/")) == "east/orders"

    @pytest.mark.proves("M-11")
    async def test_defaults_and_order_of_elements(self, client: Client) -> None:
        description = described(await client.ask("PUT", "/orders", document()))
        assert names_of(description) == [
            "LockDuration",
            "MaxSizeInMegabytes",
            "RequiresDuplicateDetection",
            "RequiresSession",
            "DefaultMessageTimeToLive",
            "DeadLetteringOnMessageExpiration",
            "DuplicateDetectionHistoryTimeWindow",
            "MaxDeliveryCount",
            "EnableBatchedOperations",
            "SizeInBytes",
            "MessageCount",
            "IsAnonymousAccessible",
            "AuthorizationRules",
            "Status",
            "CreatedAt",
            "UpdatedAt",
            "AccessedAt",
            "SupportOrdering",
            "CountDetails",
            "AutoDeleteOnIdle",
            "EnablePartitioning",
            "EntityAvailabilityStatus",
            "EnableExpress",
            "MaxMessageSizeInKilobytes",
        ]
        assert value(description, "LockDuration") == "PT1M"
        assert value(description, "DefaultMessageTimeToLive") == FOREVER
        assert value(description, "AutoDeleteOnIdle") == FOREVER
        assert value(description, "EnableBatchedOperations") == "true"
        assert value(description, "RequiresSession") == "false"
        assert value(description, "Status") == "Active"

    @pytest.mark.proves("M-9")
    async def test_runtime_properties(self, client: Client) -> None:
        await client.ask("PUT", "/orders", document())
        queue = client.namespace.find_queue("orders")
        client.harness.clock.advance(7_999)
        client.harness.submit(Send(queue.entity_id, [NewMessage(b"x" * 100) for _ in range(3)]))
        client.harness.run()
        description = described(await client.ask("GET", "/orders"))
        counts = description.find(f"{{{SERVICE_BUS}}}CountDetails")
        assert counts is not None
        assert {element.tag.removeprefix(f"{{{COUNTS}}}"): element.text for element in counts} == {
            "ActiveMessageCount": "3",
            "DeadLetterMessageCount": "0",
            "ScheduledMessageCount": "0",
            "TransferMessageCount": "0",
            "TransferDeadLetterMessageCount": "0",
        }
        assert value(description, "MessageCount") == "3"
        assert int(value(description, "SizeInBytes") or 0) >= 300
        assert value(description, "CreatedAt") == "2026-09-21T14:13:20.000Z"
        assert value(description, "AccessedAt") == "2026-09-21T14:13:27.999Z"

    async def test_text_survives_the_way_through(self, client: Client) -> None:
        metadata = ' <a href="x">&amp;</a> \r\n\t é 😀 ]]> '
        escaped = metadata.replace("&", "&amp;").replace("<", "&lt;").replace("\r", "&#13;")
        escaped = escaped.replace(">", "&gt;")
        await client.ask("PUT", "/q", document(f"<UserMetadata>{escaped}</UserMetadata>"))
        assert value(described(await client.ask("GET", "/q")), "UserMetadata") == metadata

    async def test_hostile_host_header_stays_text(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        headers = {"host": 'h"/><evil/>', "authorization": client.token or ""}
        got = await client.router.answer(Request("GET", "/q", {}, headers, b""))
        link = fromstring(got.body).find(f"{{{ATOM}}}link")
        assert link is not None
        assert link.get("href") == 'https://h"/><evil/>/q'

    async def test_if_match_other_than_star(self, client: Client) -> None:
        with pytest.raises(ArgumentInvalid):
            await client.ask("PUT", "/q", document(), headers={"if-match": '"7"'})

    async def test_the_other_kind_in_an_update(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        with pytest.raises(EntityNotFound):
            await client.ask("PUT", "/q", document("", "TopicDescription"), update=True)


class TestApiVersions:
    async def test_newer_elements_are_not_shown_to_older_clients(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        for version, partitioning, size in (
            ("2012-08", False, False),
            ("2013-10", True, False),
            ("2017-04", True, False),
            ("2021-05", True, True),
            ("2024-05", True, True),
            ("2031-01-preview", True, True),
        ):
            got = await client.ask("GET", "/q", query={"api-version": version})
            names = names_of(described(got))
            assert ("EnablePartitioning" in names) is partitioning
            assert ("MaxMessageSizeInKilobytes" in names) is size

    async def test_older_clients_leave_newer_settings_alone(self, client: Client) -> None:
        size = "<MaxMessageSizeInKilobytes>512</MaxMessageSizeInKilobytes>"
        await client.ask("PUT", "/q", document(size))
        older = {"api-version": "2017-04"}
        await client.ask("PUT", "/q", document(), update=True, query=older)
        got = described(await client.ask("GET", "/q"))
        assert value(got, "MaxMessageSizeInKilobytes") == "512"
        with pytest.raises(ArgumentInvalid, match="2021-05"):
            await client.ask("PUT", "/q", document(size), update=True, query=older)
        await client.ask("PUT", "/q", document(), update=True)
        got = described(await client.ask("GET", "/q"))
        assert value(got, "MaxMessageSizeInKilobytes") == "1024"

    @pytest.mark.parametrize("version", ["1", "new", "2021-05-01-02", "٢٠٢١-٠٥", "x" * 999])
    async def test_what_is_none(self, client: Client, version: str) -> None:
        with pytest.raises(ArgumentInvalid):
            await client.ask("GET", "/$namespaceinfo", query={"api-version": version})


class TestNamespace:
    async def test_namespace_info(self, client: Client) -> None:
        info = described(await client.ask("GET", "/$namespaceinfo"))
        assert value(info, "Name") == "main"
        assert value(info, "NamespaceType") == "Messaging"
        assert value(info, "CreatedTime") == "2026-09-21T14:13:20.000Z"

    async def test_each_namespace_has_its_own_entities(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        await client.ask("PUT", "/only-here", document())
        client.token = sign(rule="Other", key="other key")
        assert value(described(await client.ask("GET", "/$namespaceinfo")), "Name") == "other"
        made = await client.ask("PUT", "/q", document("<MaxDeliveryCount>3</MaxDeliveryCount>"))
        assert (made.status, title(made)) == (201, "q")
        assert await client.listed("/$Resources/queues") == ["q"]
        for path in ("/only-here", "/main:only-here", "/:only-here"):
            with pytest.raises(EntityNotFound):
                await client.ask("GET", path)
        await client.ask("DELETE", "/q")
        client.token = sign()
        assert await client.listed("/$Resources/queues") == ["only-here", "q"]

    async def test_tier_is_that_of_the_limits(self) -> None:
        for profile, tier, units in (
            ("basic", "Basic", None),
            ("standard", "Standard", None),
            ("premium", "Premium", "1"),
            ("unlimited", "Premium", "1"),
        ):
            info = described(await Client(PROFILES[profile]).ask("GET", "/$namespaceinfo"))
            assert value(info, "MessagingSKU") == tier
            assert value(info, "MessagingUnits") == units

    @pytest.mark.proves("M-11")
    async def test_paging_is_exactly_two_links(self, client: Client) -> None:
        for number in range(5):
            await client.ask("PUT", f"/q{number}", document())
        seen: list[str | None] = []
        for skip, links in ((0, 2), (2, 2), (4, 1)):
            page = await client.ask(
                "GET", "/$Resources/queues", query={"$skip": str(skip), "$top": "2"}
            )
            feed = fromstring(page.body)
            found = feed.findall(f"{{{ATOM}}}link")
            assert len(found) == links
            if links == 2:
                assert (found[1].get("href") or "").endswith(f"?$skip={skip + 2}&$top=2")
            seen += [
                entry.findtext(f"{{{ATOM}}}title") for entry in feed.findall(f"{{{ATOM}}}entry")
            ]
        assert seen == ["q0", "q1", "q2", "q3", "q4"]

    async def test_page_that_is_just_full_has_no_next(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        page = await client.ask("GET", "/$resources/Queues", query={"$top": "1"})
        assert len(fromstring(page.body).findall(f"{{{ATOM}}}link")) == 1

    async def test_queues_and_topics_apart(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        await client.ask("PUT", "/t", document("", "TopicDescription"))
        assert await client.listed("/$Resources/queues") == ["q"]
        assert await client.listed("/$Resources/Topics") == ["t"]

    @pytest.mark.parametrize(
        "name, text, error",
        [
            ("skip", "-1", ArgumentInvalid),
            ("skip", "x", ArgumentInvalid),
            ("skip", "", ArgumentInvalid),
            ("skip", "\u0661", ArgumentInvalid),
            ("skip", "9" * 18, ArgumentOutOfRange),
            ("skip", "9" * 400, ArgumentInvalid),
            ("top", str(PAGE_COUNT_MAX + 1), ArgumentOutOfRange),
            ("filter", "endswith(path,'x')", ArgumentInvalid),
        ],
    )
    async def test_bad_paging(
        self, client: Client, name: str, text: str, error: type[ServiceError]
    ) -> None:
        with pytest.raises(error):
            await client.ask("GET", "/$Resources/queues", query={f"${name}": text})

    @pytest.mark.parametrize(
        "method, path, error",
        [
            ("GET", "/$Resources/relays", EntityNotFound),
            ("GET", "/$Resources/subscriptions", EntityNotFound),
            ("GET", "/$Resources", EntityNotFound),
            ("GET", "/", EntityNotFound),
            ("GET", "/$other", EntityNotFound),
            ("GET", "/topic/subscriptions", EntityNotFound),
            ("GET", "/topic/Subscriptions/s/rules/r", EntityNotFound),
            ("GET", "/topic/Subscriptions/s/other/r", EntityNotFound),
            ("GET", "/topic/Subscriptions/s/rules/r/more", EntityNotFound),
            ("PUT", "/a%3Fb", ArgumentInvalid),
            ("PUT", "/..%2F..%2Fetc", ArgumentInvalid),
            ("PUT", "/a%00b", ArgumentInvalid),
            ("PUT", "/%3Cscript%3E", ArgumentInvalid),
            ("PUT", "/other:q", ArgumentInvalid),
            ("GET", "/other:q", EntityNotFound),
        ],
    )
    async def test_what_is_not_there(
        self, client: Client, method: str, path: str, error: type[ServiceError]
    ) -> None:
        with pytest.raises(error):
            await client.ask(method, path, document())

    async def test_other_methods(self, client: Client) -> None:
        answer = await client.ask("POST", "/q", document())
        assert answer.status == 405
        assert ("Allow", "GET, HEAD, PUT, DELETE") in answer.headers
        for path in ("/$Resources%2Fqueues", "/$namespaceinfo", "/t/subscriptions"):
            assert (await client.ask("DELETE", path)).status == 405
        assert (await client.ask("HEAD", "/$namespaceinfo")).status == 200


class TestRights:
    """No Manage claim, no entry, whatever the operation."""

    OPERATIONS = (
        ("GET", "/orders"),
        ("PUT", "/orders"),
        ("PUT", "/new"),
        ("DELETE", "/orders"),
        ("GET", "/missing"),
        ("GET", "/$Resources/queues"),
        ("GET", "/$namespaceinfo"),
        ("POST", "/orders"),
        ("PUT", "/orders/subscriptions/s"),
        ("GET", "/orders/subscriptions/s/rules"),
    )

    @pytest.mark.parametrize(
        "token",
        [
            None,
            "",
            "Bearer x",
            sign(rule="worker"),
            sign(key="wrong"),
            sign(rule="nobody"),
            sign(expires_s=NOW_S - TOKEN_LEEWAY_S),
            sign("orders2"),
            sign("order"),
            sign("orders/$DeadLetterQueue"),
            sign("orders/Subscriptions/other"),
        ],
    )
    @pytest.mark.parametrize("method, path", OPERATIONS)
    async def test_no_operation_without_a_token_that_allows_it(
        self, client: Client, method: str, path: str, token: str | None
    ) -> None:
        await client.ask("PUT", "/orders", document())
        client.token = token
        with pytest.raises(Unauthorized):
            await client.ask(method, path, b"<!DOCTYPE x>")
        client.token = sign()
        assert await client.listed("/$Resources/queues") == ["orders"]

    async def test_token_for_one_queue_opens_that_queue_only(self, client: Client) -> None:
        await client.ask("PUT", "/orders", document())
        await client.ask("PUT", "/orders2", document())
        client.token = make_sas_token("sb://any:1/Orders", "Root", "key", NOW_S + 60)
        assert (await client.ask("GET", "/orders")).status == 200
        for path in (
            "/orders2",
            "/$Resources/queues",
            "/x://h/orders",
            "/orders%252e",
            "/a/orders",
        ):
            with pytest.raises(Unauthorized):
                await client.ask("GET", path)

    @pytest.mark.proves("M-13")
    async def test_token_for_the_very_address(self, client: Client) -> None:  # Node signs so
        for path in ("/$Resources/queues", "/$namespaceinfo"):
            uri = f"https://h:5672{path}?api-version=2021-05"
            client.token = make_sas_token(uri.lower(), "Root", "key", NOW_S + 60)
            assert (await client.ask("GET", path)).status == 200
            with pytest.raises(Unauthorized):
                await client.ask("GET", "/$Resources/topics")

    @pytest.mark.proves("M-13")
    async def test_sdk_may_be_late_with_a_new_token(self, client: Client) -> None:
        client.token = sign(expires_s=NOW_S - 60)
        assert (await client.ask("GET", "/$namespaceinfo")).status == 200

    @pytest.mark.proves("M-13")
    async def test_signature_given_as_bearer_token(self, client: Client) -> None:
        client.token = f"Bearer {client.token}"
        assert (await client.ask("GET", "/$namespaceinfo")).status == 200
