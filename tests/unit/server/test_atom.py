"""Entity management over HTTP, document by document (M-11, M-12)."""

import dataclasses
from collections.abc import Sequence
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.auth import LISTEN, MANAGE, SEND, AuthorizationRule, Authorizer
from twinbus.client.sas import make_sas_token
from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription, validate_name
from twinbus.entities.message import NEVER_MS
from twinbus.entities.queue import QueueCounts
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    NotSupported,
    ServiceError,
    Unauthorized,
)
from twinbus.limits import PAGE_COUNT_MAX, XML_DEPTH_MAX, XML_ELEMENTS_MAX
from twinbus.server.atom import TOKEN_LEEWAY_S, AtomRouter
from twinbus.server.documents import (
    _SETTINGS,
    ATOM,
    COUNTS,
    SERVICE_BUS,
    QueueView,
    queue_entry,
    read_queue_description,
    read_xml,
    utc_text,
)
from twinbus.server.http import Request, Response, xml_text

NOW_S = 1_800_000_000
FOREVER = "P10675199DT2H48M5.4775807S"


class FixedClock:
    def now(self) -> Now:
        return Now(NOW_S * 1000, 0)


class View:
    def __init__(self, name: str, description: QueueDescription) -> None:
        self.name = name
        self.description = description
        self.counts = QueueCounts(active=5, deferred=1, scheduled=2, dead_letter=3, size_bytes=4096)
        self.created_utc_ms = NOW_S * 1000
        self.updated_utc_ms = NOW_S * 1000 + 1
        self.accessed_utc_ms = NOW_S * 1000 + 999


class MemoryNamespace:
    """The namespace's promises, kept in a dictionary."""

    def __init__(self) -> None:
        self.name = "a & b"
        self.created_utc_ms = NOW_S * 1000
        self.clock = FixedClock()
        self.authorizer = Authorizer(
            [
                AuthorizationRule("Root", [MANAGE], "key", "spare"),
                AuthorizationRule("worker", [SEND, LISTEN], "key", "spare"),
            ]
        )
        self.queues: dict[str, View] = {}

    def get_queue(self, name: str) -> QueueView:
        if name.lower() not in self.queues:
            raise EntityNotFound(f"no {name}")
        return self.queues[name.lower()]

    def list_queues(self, skip: int, top: int) -> Sequence[QueueView]:
        return [self.queues[name] for name in sorted(self.queues)][skip : skip + top]

    async def create_queue(self, name: str, description: QueueDescription) -> QueueView:
        validate_name(name)
        if name.lower() in self.queues:
            raise EntityAlreadyExists(f"{name} exists")
        self.queues[name.lower()] = View(name, description)
        return self.queues[name.lower()]

    async def update_queue(self, name: str, description: QueueDescription) -> QueueView:
        view = self.queues[name.lower()]
        view.description = description
        return view

    async def delete_queue(self, name: str) -> None:
        self.get_queue(name)
        del self.queues[name.lower()]


class Client:
    def __init__(self) -> None:
        self.namespace = MemoryNamespace()
        self.router = AtomRouter(self.namespace)
        self.token: str | None = make_sas_token("https://h", "Root", "key", NOW_S + 60)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        update: bool = False,
        query: dict[str, str] | None = None,
    ) -> Response:
        headers = {"host": "h:5672"}
        if self.token is not None:
            headers["authorization"] = self.token
        if update:
            headers["if-match"] = "*"
        return await self.router.answer(Request(method, path, query or {}, headers, body))


@pytest.fixture
def client() -> Client:
    return Client()


def document(inner: str = "", kind: str = "QueueDescription") -> bytes:
    """An entry as the SDK writes it: Atom prefixed, the description in the default namespace."""
    return (
        f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{SERVICE_BUS}">'
        f'<ns0:content type="application/xml"><{kind}>{inner}</{kind}></ns0:content></ns0:entry>'
    ).encode()


def described(response: Response) -> Element:
    found = fromstring(response.body).find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}QueueDescription")
    assert found is not None
    return found


def value(description: Element, name: str) -> str | None:
    return description.findtext(f"{{{SERVICE_BUS}}}{name}")


class TestQueue:
    @pytest.mark.asyncio
    async def test_create_get_update_delete(self, client: Client) -> None:  # M-11
        settings = "<LockDuration>PT45S</LockDuration><MaxDeliveryCount>3</MaxDeliveryCount>"
        created = await client.ask("PUT", "/Orders", document(settings))
        assert created.status == 201
        assert created.content_type.startswith("application/atom+xml")
        got = await client.ask("GET", "/oRDERS")
        assert got.status == 200
        assert value(described(got), "LockDuration") == "PT45S"
        assert value(described(got), "MaxDeliveryCount") == "3"
        assert fromstring(got.body).findtext(f"{{{ATOM}}}title") == "Orders"
        settings = "<LockDuration>PT1M</LockDuration>"
        updated = await client.ask("PUT", "/orders", document(settings), update=True)
        assert updated.status == 200
        assert value(described(updated), "LockDuration") == "PT1M"
        assert value(described(updated), "MaxDeliveryCount") == "10"
        deleted = await client.ask("DELETE", "/orders")
        assert (deleted.status, deleted.body) == (200, b"")
        with pytest.raises(EntityNotFound):
            await client.ask("GET", "/orders")

    @pytest.mark.asyncio
    async def test_create_twice_and_touch_what_is_missing(self, client: Client) -> None:
        await client.ask("PUT", "/orders", document())
        with pytest.raises(EntityAlreadyExists):
            await client.ask("PUT", "/ORDERS", document())
        with pytest.raises(EntityNotFound):
            await client.ask("PUT", "/missing", document(), update=True)
        with pytest.raises(EntityNotFound):
            await client.ask("DELETE", "/missing")

    @pytest.mark.asyncio
    async def test_slash_in_a_name_arrives_both_ways(self, client: Client) -> None:
        await client.ask("PUT", "/east%2Forders", document())
        got = await client.ask("GET", "/east/orders/")
        assert fromstring(got.body).findtext(f"{{{ATOM}}}title") == "east/orders"

    @pytest.mark.asyncio
    async def test_defaults_and_order_of_elements(self, client: Client) -> None:  # M-11
        description = described(await client.ask("PUT", "/orders", document()))
        names = [element.tag.partition("}")[2] for element in description]
        assert names == [
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

    @pytest.mark.asyncio
    async def test_runtime_properties(self, client: Client) -> None:  # M-11
        description = described(await client.ask("PUT", "/orders", document()))
        counts = description.find(f"{{{SERVICE_BUS}}}CountDetails")
        assert counts is not None
        assert {element.tag.removeprefix(f"{{{COUNTS}}}"): element.text for element in counts} == {
            "ActiveMessageCount": "5",
            "DeadLetterMessageCount": "3",
            "ScheduledMessageCount": "2",
            "TransferMessageCount": "0",
            "TransferDeadLetterMessageCount": "0",
        }
        assert value(description, "MessageCount") == "11"
        assert value(description, "SizeInBytes") == "4096"
        assert value(description, "CreatedAt") == "2027-01-15T08:00:00.000Z"
        assert value(description, "AccessedAt") == "2027-01-15T08:00:00.999Z"

    @pytest.mark.asyncio
    async def test_text_survives_the_way_through(self, client: Client) -> None:
        metadata = ' <a href="x">&amp;</a> \r\n\t é 😀 '
        escaped = metadata.replace("&", "&amp;").replace("<", "&lt;").replace("\r", "&#13;")
        await client.ask("PUT", "/q", document(f"<UserMetadata>{escaped}</UserMetadata>"))
        got = described(await client.ask("GET", "/q"))
        assert value(got, "UserMetadata") == metadata

    @pytest.mark.asyncio
    async def test_hostile_host_header_stays_text(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        headers = {"host": 'h"/><evil/>', "authorization": client.token or ""}
        got = await client.router.answer(Request("GET", "/q", {}, headers, b""))
        link = fromstring(got.body).find(f"{{{ATOM}}}link")
        assert link is not None
        assert link.get("href") == 'https://h"/><evil/>/q'

    @pytest.mark.asyncio
    async def test_if_match_other_than_star(self, client: Client) -> None:
        headers = {"authorization": client.token or "", "if-match": '"7"'}
        with pytest.raises(ArgumentInvalid):
            await client.router.answer(Request("PUT", "/q", {}, headers, document()))

    @pytest.mark.asyncio
    async def test_forward_target_is_a_name_inside_and_a_uri_outside(self, client: Client) -> None:
        target = "sb://elsewhere:1/a%2Fb/"
        settings = f"<ForwardTo>{target}</ForwardTo>"
        settings += "<ForwardDeadLetteredMessagesTo>dead</ForwardDeadLetteredMessagesTo>"
        got = described(await client.ask("PUT", "/q", document(settings)))
        assert client.namespace.queues["q"].description.forward_to == "a/b"
        assert value(got, "ForwardTo") == "sb://h:5672/a/b"
        assert value(got, "ForwardDeadLetteredMessagesTo") == "sb://h:5672/dead"


class TestNamespace:
    @pytest.mark.asyncio
    async def test_namespace_info(self, client: Client) -> None:
        got = await client.ask("GET", "/$namespaceinfo")
        entry = fromstring(got.body)
        info = entry.find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}NamespaceInfo")
        assert info is not None
        assert value(info, "Name") == "a & b"
        assert value(info, "NamespaceType") == "Messaging"
        assert value(info, "CreatedTime") == "2027-01-15T08:00:00.000Z"

    @pytest.mark.asyncio
    async def test_paging_is_exactly_two_links(self, client: Client) -> None:  # M-11
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

    @pytest.mark.asyncio
    async def test_page_that_is_just_full_has_no_next(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        page = await client.ask("GET", "/$resources/Queues", query={"$top": "1"})
        assert len(fromstring(page.body).findall(f"{{{ATOM}}}link")) == 1

    @pytest.mark.asyncio
    async def test_topics_are_an_empty_feed(self, client: Client) -> None:
        await client.ask("PUT", "/q", document())
        page = await client.ask("GET", "/$Resources/topics")
        assert fromstring(page.body).findall(f"{{{ATOM}}}entry") == []

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
            ("filter", "startswith(path,'x') eq true", NotSupported),
        ],
    )
    @pytest.mark.asyncio
    async def test_bad_paging(
        self, client: Client, name: str, text: str, error: type[ServiceError]
    ) -> None:
        with pytest.raises(error):
            await client.ask("GET", "/$Resources/queues", query={f"${name}": text})

    @pytest.mark.parametrize(
        "method, path, error",
        [
            ("GET", "/$Resources/relays", EntityNotFound),
            ("GET", "/$Resources", EntityNotFound),
            ("GET", "/", EntityNotFound),
            ("GET", "/$other", EntityNotFound),
            ("PUT", "/$Resources%2Fqueues", EntityNotFound),
            ("GET", "/topic/subscriptions", NotSupported),
            ("GET", "/topic/Subscriptions/s/rules/r", NotSupported),
            ("PUT", "/a%3Fb", ArgumentInvalid),
            ("PUT", "/..%2F..%2Fetc", ArgumentInvalid),
            ("PUT", "/a%00b", ArgumentInvalid),
            ("PUT", "/%3Cscript%3E", ArgumentInvalid),
        ],
    )
    @pytest.mark.asyncio
    async def test_what_is_not_there(
        self, client: Client, method: str, path: str, error: type[ServiceError]
    ) -> None:
        with pytest.raises(error):
            await client.ask(method, path, document())

    @pytest.mark.asyncio
    async def test_other_methods(self, client: Client) -> None:
        answer = await client.ask("POST", "/q", document())
        assert answer.status == 405
        assert ("Allow", "GET, HEAD, PUT, DELETE") in answer.headers
        assert (await client.ask("DELETE", "/$Resources/queues")).status == 405
        assert (await client.ask("HEAD", "/$namespaceinfo")).status == 200


class TestRights:
    """M-12: no Manage claim, no entry, whatever the operation."""

    OPERATIONS = (
        ("GET", "/orders"),
        ("PUT", "/orders"),
        ("DELETE", "/orders"),
        ("POST", "/orders"),
        ("GET", "/$namespaceinfo"),
        ("GET", "/$Resources/queues"),
        ("GET", "/$Resources/topics"),
        ("GET", "/topic/subscriptions/s"),
        ("GET", "/$other"),
        ("DELETE", "/"),
    )

    @pytest.mark.parametrize(
        "token",
        [
            None,
            "",
            "Bearer eyJhbGciOiJub25lIn0.e30.",
            make_sas_token("https://h", "worker", "key", NOW_S + 60),
            make_sas_token("https://h", "Root", "wrong", NOW_S + 60),
            make_sas_token("https://h", "nobody", "key", NOW_S + 60),
            make_sas_token("https://h", "Root", "key", NOW_S - TOKEN_LEEWAY_S),
            make_sas_token("https://h/orders2", "Root", "key", NOW_S + 60),
            make_sas_token("https://h/order", "Root", "key", NOW_S + 60),
            make_sas_token("https://h/orders/$DeadLetterQueue", "Root", "key", NOW_S + 60),
        ],
    )
    @pytest.mark.parametrize("method, path", OPERATIONS)
    @pytest.mark.asyncio
    async def test_refused(self, client: Client, method: str, path: str, token: str | None) -> None:
        await client.ask("PUT", "/orders", document())
        if method == "DELETE" and path == "/orders":
            assert "orders" in client.namespace.queues
        client.token = token
        with pytest.raises(Unauthorized):
            await client.ask(method, path, document())
        assert list(client.namespace.queues) == ["orders"]

    @pytest.mark.asyncio
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

    @pytest.mark.asyncio
    async def test_sdk_may_be_late_with_a_new_token(self, client: Client) -> None:  # M-13
        client.token = make_sas_token("https://h", "Root", "key", NOW_S - 60)
        assert (await client.ask("GET", "/$namespaceinfo")).status == 200

    @pytest.mark.asyncio
    async def test_signature_given_as_bearer_token(self, client: Client) -> None:  # M-13
        client.token = f"Bearer {client.token}"
        assert (await client.ask("GET", "/$namespaceinfo")).status == 200

    @pytest.mark.asyncio
    async def test_health_needs_no_claim(self, client: Client) -> None:
        client.token = None
        assert (await client.ask("GET", "/health")).status == 200
        client.token = ""
        with pytest.raises(Unauthorized):
            await client.ask("GET", "/health")

    @pytest.mark.asyncio
    async def test_body_is_not_read_before_the_claim_is_proven(self, client: Client) -> None:
        client.token = None
        with pytest.raises(Unauthorized):
            await client.ask("PUT", "/q", b"<!DOCTYPE x>")


class TestReading:
    @given(st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        with pytest.raises(ArgumentInvalid):
            read_queue_description(data)

    @given(
        st.dictionaries(
            st.sampled_from(sorted(_SETTINGS)),
            st.sampled_from(["PT30S", "P1D", FOREVER, "7", "true", "0", "Disabled", "a/b"])
            | st.text(max_size=30),
            max_size=3,
        )
    )
    def test_any_values(self, values: dict[str, str]) -> None:
        """A description or a refusal; and what was read is written back the same."""
        inner = "".join(f"<{name}>{xml_text(text)}</{name}>" for name, text in values.items())
        try:
            description = read_queue_description(document(inner))
        except (ArgumentInvalid, ArgumentOutOfRange):
            return
        written = queue_entry(View("q", description), "https://h").encode()
        assert read_queue_description(written) == description

    def test_everything_the_sdk_sends_back_on_update(self) -> None:  # M-13
        settings = (
            "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
            "<DefaultMessageTimeToLive>P10675199DT2H48M5.477539S</DefaultMessageTimeToLive>"
            "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
            "<EnableBatchedOperations>false</EnableBatchedOperations>"
            "<SizeInBytes>1</SizeInBytes><MessageCount>1</MessageCount>"
            "<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules />"
            "<Status>SendDisabled</Status><CreatedAt>2027-01-15T08:00:00.000Z</CreatedAt>"
            f'<CountDetails><d:ActiveMessageCount xmlns:d="{COUNTS}">1</d:ActiveMessageCount>'
            "</CountDetails><EntityAvailabilityStatus>Available</EntityAvailabilityStatus>"
            "<ForwardTo/><UserMetadata>  </UserMetadata><SomethingNew>1</SomethingNew>"
            "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>"
        )
        expected = dataclasses.replace(
            QueueDescription(),
            lock_duration_ms=30_000,
            max_size_megabytes=2_048,
            default_time_to_live_ms=NEVER_MS,
            dead_lettering_on_message_expiration=True,
            enable_batched_operations=False,
            status="SendDisabled",
        )
        assert read_queue_description(document(settings)) == expected

    @pytest.mark.parametrize(
        "settings",
        [
            "<LockDuration>soon</LockDuration>",
            "<LockDuration>PT1S</LockDuration>",
            "<LockDuration>PT6M</LockDuration>",
            "<MaxDeliveryCount>0</MaxDeliveryCount>",
            "<MaxDeliveryCount>-1</MaxDeliveryCount>",
            "<MaxDeliveryCount>1e3</MaxDeliveryCount>",
            f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>",
            "<RequiresSession>maybe</RequiresSession>",
            "<Status>Sleeping</Status>",
            "<LockDuration>PT9S</LockDuration><LockDuration>PT9S</LockDuration>",
            f"<UserMetadata>{'x' * 1025}</UserMetadata>",
            "<ForwardTo>sb://h/%FF</ForwardTo>",
            "<ForwardTo>sb://[/x</ForwardTo>",
            "<ForwardTo>../x</ForwardTo>",
        ],
    )
    def test_bad_settings(self, settings: str) -> None:
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            read_queue_description(document(settings))

    def test_what_comes_later_says_so(self) -> None:
        with pytest.raises(NotSupported, match="Topics"):
            read_queue_description(document(kind="TopicDescription"))
        rules = "<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"
        with pytest.raises(NotSupported, match="rules"):
            read_queue_description(document(rules))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"hello",
            b"<entry",
            b"<entry/>",
            b"<a><b></a></b>",
            b"<a/><b/>",
            b"\x00\x01\x02",
            b"\xff\xfe\x00",
            b'<?xml version="1.0" encoding="no-such-encoding"?><a/>',
            b'<?xml version="1.0" encoding="utf-7"?><a/>',
            b'<?xml version="1.0" encoding="shift_jis"?><a/>',
            f'<entry xmlns="{ATOM}"/>'.encode(),
            f'<entry xmlns="{ATOM}"><content/></entry>'.encode(),
            document(kind="RuleDescription"),
            document("<LockDuration>&undefined;</LockDuration>"),
            b"<!DOCTYPE a><a/>",
            b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>',
            b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
            b'<!DOCTYPE a [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]><a/>',
            b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><l>&b;</l>',
            document("<a>" * XML_DEPTH_MAX + "</a>" * XML_DEPTH_MAX),
            document("<a/>" * XML_ELEMENTS_MAX),
        ],
    )
    def test_unfit_xml(self, body: bytes) -> None:  # C13: no DTD, bounded depth and count
        with pytest.raises(ArgumentInvalid):
            read_queue_description(body)

    def test_depth_and_count_at_their_limits(self) -> None:
        deep = b"<a>" * XML_DEPTH_MAX + b"</a>" * XML_DEPTH_MAX
        assert read_xml(deep).tag == "a"
        wide = b"<a>" + b"<b/>" * (XML_ELEMENTS_MAX - 1) + b"</a>"
        assert len(read_xml(wide)) == XML_ELEMENTS_MAX - 1

    def test_utf_16_is_read(self) -> None:
        text = document("<UserMetadata>é</UserMetadata>").decode()
        body = ('<?xml version="1.0" encoding="utf-16"?>' + text).encode("utf-16")
        assert read_queue_description(body).user_metadata == "é"


def test_times_are_utc_with_milliseconds() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"
