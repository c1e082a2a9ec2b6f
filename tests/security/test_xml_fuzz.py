"""Hostile XML to entity management: a clean refusal or a change that holds, never anything else.

Valid documents are mutated by chance (seeded, so that a failure comes again) and sent by a caller
who may manage everything; nothing that he sends may break what others see.
"""

import random
from urllib.parse import quote
from xml.etree.ElementTree import fromstring

import pytest

from tests.unit.server.http.atom.atom_harness import Client
from tests.unit.server.http.atom.xml_bodies import document
from twinbus.errors import ServiceError
from twinbus.limits import HTTP_BODY_BYTES_MAX
from twinbus.server.http.exchange import Response, error_response

pytestmark = pytest.mark.asyncio

XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
ROUNDS = 1_000

QUEUE = document(
    "<LockDuration>PT45S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
    "<RequiresSession>false</RequiresSession>"
    "<DefaultMessageTimeToLive>P14DT3H</DefaultMessageTimeToLive>"
    "<MaxDeliveryCount>7</MaxDeliveryCount><AuthorizationRules>"
    "<AuthorizationRule i:type='SharedAccessAuthorizationRule'>"
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>"
    "<KeyName>name</KeyName><PrimaryKey>one</PrimaryKey><SecondaryKey>two</SecondaryKey>"
    "</AuthorizationRule></AuthorizationRules><Status>Active</Status>"
    "<ForwardTo>sb://h/target</ForwardTo><UserMetadata>&lt;é&amp;&gt;</UserMetadata>",
    "QueueDescription",
    XSI,
)
TOPIC = document("<UserMetadata>x</UserMetadata>", "TopicDescription", XSI)
SUBSCRIPTION = document(
    "<LockDuration>PT45S</LockDuration><DefaultRuleDescription>"
    "<Filter i:type='SqlFilter'><SqlExpression>a = 1</SqlExpression></Filter>"
    "<Name>mine</Name></DefaultRuleDescription><MaxDeliveryCount>7</MaxDeliveryCount>",
    "SubscriptionDescription",
    XSI,
)
VALUE = (
    "<KeyValueOfstringanyType><Key>{}</Key><Value i:type='x:{}' "
    "xmlns:x='http://www.w3.org/2001/XMLSchema'>{}</Value></KeyValueOfstringanyType>"
)
RULE = document(
    "<Filter i:type='CorrelationFilter'><CorrelationId>c</CorrelationId><Label>l</Label>"
    "<Properties>"
    + VALUE.format("a", "int", "7")
    + VALUE.format("b", "dateTime", "2026-11-01T00:00:00Z")
    + VALUE.format("c", "duration", "P1DT2H3.5S")
    + "</Properties></Filter><Action i:type='SqlRuleAction'><SqlExpression>SET a = @p"
    "</SqlExpression><Parameters>" + VALUE.format("@p", "double", "1.5") + "</Parameters></Action>",
    "RuleDescription",
    XSI,
)

PIECES = (
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
    b"<![CDATA[",
    b"]]>",
    b"<!--",
    b"-->",
    b"<?x y?>",
    b"&#0;",
    b"&#xD800;",
    b"&#x202e;",
    b"&amp;",
    b"&b;",
    b"<a>",
    b"</a>",
    b"<LockDuration>PT5S</LockDuration>",
    b"<Filter/>",
    b" xmlns='urn:x'",
    b" i:nil='true'",
    b"\x00",
    b"\xff",
    "é\u0301😀".encode(),
    b"9" * 500,
    b"(" * 200,
    b"' OR 1=1 --",
    b"P9999999999D",
    b"-",
    b"%00",
)


def mutated(source: bytes, chance: random.Random) -> bytes:
    """A few changes: cut, doubled, overwritten, inserted, exchanged."""
    data = bytearray(source)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.randint(0, 40))
        match chance.randrange(6):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = data[start:end]
            case 2:
                data[start:end] = chance.choice(PIECES)
            case 3:
                data[start:start] = chance.choice(PIECES)
            case 4 if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case _:
                between = data.split(b">")
                chance.shuffle(between)
                data = bytearray(b">".join(between))
    return bytes(data)


async def answered(client: Client, method: str, path: str, body: bytes = b"") -> Response:
    try:
        return await client.ask(method, path, body)
    except ServiceError as error:
        return error_response(error.http_status, str(error))


async def filled() -> Client:
    client = Client()
    assert (await client.ask("PUT", "/target", document())).status == 201
    assert (await client.ask("PUT", "/t", TOPIC)).status == 201
    assert (await client.ask("PUT", "/t/subscriptions/s", SUBSCRIPTION)).status == 201
    return client


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (QUEUE, "/fuzzed"),
        (TOPIC, "/fuzzed"),
        (SUBSCRIPTION, "/t/subscriptions/fuzzed"),
        (RULE, "/t/subscriptions/s/rules/fuzzed"),
    ],
    ids=["queue", "topic", "subscription", "rule"],
)
async def test_mutated_documents(source: bytes, path: str) -> None:
    chance = random.Random(path)
    client = await filled()
    assert (await client.ask("PUT", path, source)).status == 201
    assert (await client.ask("DELETE", path)).status == 200
    taken = 0
    for _ in range(ROUNDS):
        body = mutated(source, chance)
        answer = await answered(client, "PUT", path, body)
        assert answer.status in (201, 400, 403, 404, 501), body
        document_ = fromstring(answer.body)  # whatever it says, it is XML
        if answer.status != 201:
            assert "TrackingId:" in (document_.findtext("Detail") or "")
            continue
        taken += 1
        got = await client.ask("GET", path)
        assert got.status == 200
        fromstring(got.body)
        # What is shown can be sent back, and then is the same.
        again = await client.ask("PUT", path, got.body, update=True)
        assert again.status == 200
        await client.ask("DELETE", path)
    assert 0 < taken < ROUNDS
    assert await client.listed("/$Resources/queues") == ["target"]
    assert await client.listed("/t/subscriptions") == ["s"]


@pytest.mark.parametrize(
    "body",
    [
        b"<a>" * (HTTP_BODY_BYTES_MAX // 3),
        b"<a/>" * (HTTP_BODY_BYTES_MAX // 4),
        b"<a " + b"b='c' " * (HTTP_BODY_BYTES_MAX // 6) + b"/>",
        b"<" + b"a" * (HTTP_BODY_BYTES_MAX - 3) + b"/>",
        b"<a>" + b"&lt;" * (HTTP_BODY_BYTES_MAX // 4),
        b"<a><!--" + b"-" * (HTTP_BODY_BYTES_MAX - 10),
        document(f"<UserMetadata>{'x' * (HTTP_BODY_BYTES_MAX - 1_000)}</UserMetadata>"),
        document(f"<LockDuration>P{'1' * (HTTP_BODY_BYTES_MAX - 1_000)}D</LockDuration>"),
        document(f"<MaxDeliveryCount>{'1' * (HTTP_BODY_BYTES_MAX - 1_000)}</MaxDeliveryCount>"),
        document(f"<ForwardTo>sb://h/{'%2F' * (HTTP_BODY_BYTES_MAX // 4)}</ForwardTo>"),
    ],
    ids=[
        *("deep", "wide", "attributes", "name", "references", "comment"),
        *("text", "duration", "number", "uri"),
    ],
)
async def test_as_large_as_a_request_may_be(body: bytes) -> None:
    client = await filled()
    answer = await answered(client, "PUT", "/x", body)
    assert answer.status == 400
    assert len(answer.body) < 1_000  # nothing of it comes back


async def test_rule_as_large_as_a_request_may_be() -> None:
    client = await filled()
    for kind, text in (
        ("string", "x" * 900_000),
        ("double", "1" * 900_000),
        ("dateTime", "2" * 900_000),
        ("base64Binary", "A" * 900_000),
        ("x" * 900_000, "1"),
    ):
        values = VALUE.format("a", kind, text)
        inner = f"<Filter i:type='CorrelationFilter'><Properties>{values}</Properties></Filter>"
        body = document(inner, "RuleDescription", XSI)
        answer = await answered(client, "PUT", "/t/subscriptions/s/rules/r", body)
        assert answer.status == 400
        assert len(answer.body) < 1_000


@pytest.mark.parametrize(
    "name",
    ["a&b", "<r>", "]]>", "\"'", "a b", "é😀", "%2e%2e", "..", "$x", "a;b=c", "{x}", "a\u0301"],
)
async def test_names_that_need_escaping(name: str) -> None:
    """Rules may have them: they come back as text in every place where they are shown."""
    client = await filled()
    path = f"/t/subscriptions/s/rules/{quote(name, safe='')}"
    made = await client.ask("PUT", path, RULE)
    assert made.status == 201
    entry = fromstring((await client.ask("GET", path)).body)
    atom = "{http://www.w3.org/2005/Atom}"
    assert entry.findtext(f"{atom}title") == name
    assert (entry.findtext(f"{atom}id") or "").endswith(f"/Rules/{quote(name, safe='$')}")
    assert set(await client.listed("/t/subscriptions/s/rules")) == {"mine", name}
    await client.ask("DELETE", path)
    assert await client.listed("/t/subscriptions/s/rules") == ["mine"]
