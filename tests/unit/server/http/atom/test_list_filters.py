"""`$filter` of lists."""

import pytest

from tests.unit.server.http.atom.atom_harness import Client
from tests.unit.server.http.atom.xml_bodies import document
from twinbus.entities.commands import Send
from twinbus.entities.message import NewMessage
from twinbus.errors import ArgumentInvalid
from twinbus.server.http.atom.list_filters import FILTER_CHARS_MAX, read_filter

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.asyncio]


@pytest.fixture
def client() -> Client:
    return Client()


async def filled(client: Client) -> None:
    """Three queues, a second apart; the last has two messages and was updated."""
    for name in ("Alpha/one", "alpha/two", "beta"):
        await client.ask("PUT", f"/{name}", document())
        client.harness.clock.advance(1_000)
    queue = client.namespace.find_queue("beta")
    client.harness.submit(Send(queue.entity_id, [NewMessage(b"x"), NewMessage(b"y")]))
    client.harness.run()
    await client.ask("PUT", "/beta", document(), update=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("startswith(path, 'alpha') eq true", ["Alpha/one", "alpha/two"]),
        ("startswith(path,'ALPHA/T')", ["alpha/two"]),
        ("StartsWith(Path,'/alpha/o') Eq True", ["Alpha/one"]),
        ("startswith(path, 'alpha') eq false", ["beta"]),
        ("messageCount Gt 0", ["beta"]),
        ("messageCount eq 0 and startswith(path, 'alpha/o')", ["Alpha/one"]),
        ("sizeInBytes le 0", ["Alpha/one", "alpha/two"]),
        ("path eq 'BETA'", ["beta"]),
        ("path ne 'beta'", ["Alpha/one", "alpha/two"]),
        ("createdAt gt '2026-09-21T14:13:20Z'", ["alpha/two", "beta"]),
        (
            "createdAt ge 2026-09-21T14:13:21.000Z AND createdAt lt 2026-09-21T14:13:22",
            ["alpha/two"],
        ),
        ("updatedAt gt datetime'2026-09-21T14:13:22.5Z'", ["beta"]),
        ("modifiedAt le '2026-09-21T14:13:20Z'", ["Alpha/one"]),
        ("accessedAt lt '2026-09-21T16:13:21+02:00'", ["Alpha/one"]),
        ("path eq 'it''s'", []),
    ],
)
async def test_forms(client: Client, text: str, names: list[str]) -> None:
    await filled(client)
    assert await client.listed("/$Resources/queues", filter=text) == names


async def test_pages_of_what_passes(client: Client) -> None:
    await filled(client)
    text = "startswith(path, 'alpha')"
    first = await client.ask("GET", "/$Resources/queues", query={"$filter": text, "$top": "1"})
    assert b"?$skip=1&amp;$top=1&amp;$filter=startswith%28path%2C%20%27alpha%27%29" in first.body
    assert await client.listed("/$Resources/queues", filter=text, skip="1") == ["alpha/two"]


async def test_subscriptions_and_rules(client: Client) -> None:
    await client.ask("PUT", "/t", document("", "TopicDescription"))
    for name in ("one", "two"):
        await client.ask("PUT", f"/t/subscriptions/{name}", document("", "SubscriptionDescription"))
    listed = await client.listed("/t/subscriptions", filter="startswith(name, 'o') eq true")
    assert listed == ["one"]
    rules = "/t/subscriptions/one/rules"
    assert await client.listed(rules, filter="createdAt gt '2020-01-01'") == ["$Default"]
    assert await client.listed(rules, filter="createdAt lt '2020-01-01'") == []
    assert await client.listed(rules, filter="messageCount gt 0") == []


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "startswith",
        "startswith(path)",
        "startswith(path, alpha)",
        "startswith(path, 'a') eq 1",
        "startswith(path, 'a') or startswith(path, 'b')",
        "startswith(path, 'a') and",
        "startswith(other, 'a')",
        "messageCount gt",
        "messageCount gt -1",
        "messageCount gt 1.5",
        "messageCount is 1",
        f"messageCount gt {'9' * 19}",
        "createdAt gt yesterday",
        "path gt 7",
        "lockDuration eq 'PT1M'",
        "'path' eq 'x'",
        "path eq 'x",
        "path eq \u202e'x'",
        "(path eq 'x')",
        "((((((((((" * 50,
        "x" * (FILTER_CHARS_MAX + 1),
    ],
)
async def test_what_is_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match=r"\$filter"):
        read_filter(text)
