"""Signed in: messages are looked at, resubmitted and deleted, faults come and go; nothing runs."""

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient
from playwright.sync_api import expect

from tests.browser.conftest import WATCHER, WATCHER_KEY, Sdk, Tab
from tests.browser.judging import faint_texts, faults_of, is_wider_than_screen
from tests.interop.administration import PlainTransport
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.client.connection_string import ConnectionString
from twinbus.client.rules import RuleSettings
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("page.change")

TRICKS: Final = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "'\"><svg/onload=alert(3)>",
    "javascript:alert(4)",
    "{{constructor.constructor('alert(5)')()}}",
)
BACKWARDS: Final = "safe\u202etxt.exe"
HOSTILE_RULE: Final = "name = '<img src=x onerror=alert(6)>'"
ENTITY_KEY: Final = "b2YgdGhlIHF1ZXVlLCBub2JvZHkgZWxzZXMhIQ=="
MANY: Final = 60


@pytest.fixture(scope="module", autouse=True)
def entities(server: ServerProcess, sdk: Sdk) -> None:
    for name in ("failed", "doomed", "many", "hostile", "target"):
        server.create_queue(name)
    for number in range(2):
        sdk.send("failed", ServiceBusMessage(f'{{"order": {number}}}', message_id=f"o-{number}"))
    sdk.dead_letter("failed", *[("AddressInvalid", "No such street.")] * 2)
    sdk.send("doomed", "first", "second")
    sdk.send("many", *(f"number {number}" for number in range(MANY)))


@pytest.fixture
def signed(tab: Tab, server: ServerProcess) -> Tab:
    tab.open()
    tab.sign_in(server.connection_string)
    return tab


def ask(server: ServerProcess, method: str, path: str, document: object = None) -> None:
    """A request that no SDK makes, with the server's own key."""
    root = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token(f"https://{root.authority}/", root.key_name, root.key, expires_s)
    headers = {"Authorization": token, "Content-Type": "application/json"}
    body = None if document is None else json.dumps(document).encode()
    request = Request(f"http://{root.authority}{path}", body, headers, method=method)
    with urlopen(request) as answer:
        assert answer.status < 300


def go(tab: Tab, place: str) -> Any:
    tab.page.goto(f"{tab.origin}/{place}")
    return tab.page


def test_a_wrong_key_is_refused_and_the_right_one_forgotten(
    tab: Tab, server: ServerProcess
) -> None:
    tab.forgiven.append("401")
    page = tab.open("#/queues/failed?show=dead-letters")
    page.get_by_role("button", name="Sign in").last.click()
    page.get_by_label("Connection string").fill("Endpoint=sb://here")
    page.locator("#sign-submit").click()
    expect(page.locator("#sign-problem")).to_contain_text("no SharedAccessKeyName")
    page.get_by_label("Connection string").fill("")
    root = ConnectionString.parse(server.connection_string)
    page.get_by_label("Key name").fill(root.key_name)
    page.get_by_label("Key", exact=True).fill("wrong")
    page.locator("#sign-submit").click()
    expect(page.locator("#sign-problem")).to_contain_text("does not accept this key")
    page.get_by_label("Key", exact=True).fill(root.key)
    page.keyboard.press("Enter")
    expect(page.locator("#sign-dialog")).to_be_hidden()
    expect(page.locator("table.messages")).to_contain_text("AddressInvalid")
    assert page.locator("#sign-key").input_value() == "", "no key stays in a field"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("Sign in to see messages.")).to_be_visible()
    stored = "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])"
    assert page.evaluate(stored) == '[0,0,""]'


def test_a_key_that_may_only_look(tab: Tab, server: ServerProcess) -> None:
    tab.forgiven.append("401")  # the page has asked whether it may do more
    page = tab.open("#/queues/many")
    root = ConnectionString.parse(server.connection_string)
    tab.sign_in(
        server.connection_string.replace(root.key_name, WATCHER).replace(root.key, WATCHER_KEY)
    )
    expect(page.locator("#notices")).to_contain_text("no Manage right")
    page.locator("table.messages tbody tr a").first.click()
    expect(page.locator(".message pre")).to_contain_text("number 0")
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    go(tab, "#/faults")
    expect(page.get_by_text("has no Manage right.")).to_be_visible()


def test_a_dead_letter_says_why_and_goes_back(signed: Tab, sdk: Sdk) -> None:
    page = go(signed, "#/queues/failed?show=dead-letters")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("AddressInvalid")
    rows.first.locator("a").focus()
    page.keyboard.press("Enter")
    message = page.locator(".message")
    expect(message.locator(".dead-letter")).to_contain_text("No such street.")
    expect(message.locator("pre")).to_contain_text('"order": 0')
    expect(message.get_by_role("button", name="JSON")).to_have_attribute("aria-pressed", "true")
    message.get_by_role("button", name="Bytes").click()
    expect(message.locator("pre")).to_contain_text("000000  7b")
    page.keyboard.press("Escape")
    expect(message).to_have_count(0)
    page.keyboard.press(" ")
    page.get_by_role("button", name="Resubmit 1").click()
    expect(page.locator("#notices")).to_contain_text("1 message resubmitted.")
    expect(rows).to_have_count(1)
    received = sdk.receive("failed")
    assert received.message_id == "o-0"
    assert sdk.count_dead_letters("failed") == 1


def test_deleting_asks_first(signed: Tab) -> None:
    page = go(signed, "#/queues/doomed")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Delete 2").click()
    expect(page.locator("#confirm-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Delete 2").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#notices")).to_contain_text("2 messages deleted.")
    expect(page.get_by_text("No messages.")).to_be_visible()


def test_settings_and_rules_are_shown_but_no_keys(signed: Tab, server: ServerProcess) -> None:
    server.admin.create(TOPIC, ["news"], {})
    server.admin.create(SUBSCRIPTION, ["news", "large"], {"MaxDeliveryCount": "7"})
    server.admin.create_rule(["news", "large", "big"], RuleSettings(sql=HOSTILE_RULE))
    page = go(signed, "#/topics/news/subscriptions/large?show=details")
    expect(page.locator("dl div").filter(has_text="Max delivery count")).to_contain_text("7")
    expect(page.get_by_role("row").filter(has_text="big")).to_contain_text(HOSTILE_RULE)
    rule = AuthorizationRule(
        key_name="clerk", rights=["Send"], primary_key=ENTITY_KEY, secondary_key=ENTITY_KEY
    )
    with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, transport=PlainTransport()
    ) as admin:
        admin.create_queue("guarded", authorization_rules=[rule])
    go(signed, "#/queues/guarded?show=details")
    expect(page.locator("main")).to_contain_text("Lock duration")
    assert ENTITY_KEY not in page.content()


def test_many_messages_come_in_pages(signed: Tab) -> None:
    page = go(signed, "#/queues/many")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(rows).to_have_count(MANY - 50)
    expect(rows.last).to_contain_text(f"number {MANY - 1}")
    page.go_back()
    expect(rows).to_have_count(50)


@pytest.fixture
def hasty(server: ServerProcess) -> Iterator[Sdk]:
    """Tries once: what is refused on purpose need not be tried again for ten seconds."""
    sdk = Sdk(server.connection_string, retry_total=0)
    yield sdk
    sdk.close()


def test_a_fault_comes_and_goes(signed: Tab, hasty: Sdk, sdk: Sdk) -> None:
    page = go(signed, "#/faults")
    hasty.send("target", "before")
    page.get_by_label("Kind").select_option("refuse-sends")
    page.get_by_label("Entity").fill("no-such-queue")
    page.get_by_role("button", name="Add fault").click()
    expect(page.locator("main .problem")).to_contain_text("no-such-queue")
    signed.forgiven.append("404")
    page.get_by_label("Entity").fill("target")
    page.get_by_role("button", name="Add fault").click()
    fault = page.locator(".faults li")
    expect(fault).to_contain_text("refuse-sends")
    expect(page.locator("#faults-count")).to_have_text("1")
    with pytest.raises(ServiceBusError):
        hasty.send("target", "meanwhile")
    fault.get_by_role("button", name="Clear").click()
    expect(fault).to_have_count(0)
    sdk.send("target", "after")


def test_a_partition_that_is_down_stands_out(tab: Tab, server: ServerProcess) -> None:
    server.create_queue("parted", enable_partitioning=True)
    ask(server, "POST", "/$faults", {"kind": "partition-down", "entity": "parted", "partition": 11})
    tab.open()
    strip = tab.row("parted").get_by_role("img")
    expect(strip).to_have_attribute("aria-label", "16 partitions: 11 is down")
    expect(strip.locator("[data-health=down]")).to_have_count(1)
    ask(server, "DELETE", "/$faults")
    expect(strip).to_have_attribute("aria-label", "16 partitions, all up")


@pytest.fixture
def hostile(server: ServerProcess, sdk: Sdk) -> str:
    """Every text that a stranger can write, written by a nasty one."""
    trick = TRICKS[0]
    for number, each in enumerate(TRICKS):
        sdk.send(
            "hostile",
            ServiceBusMessage(
                each,
                message_id=f"{each} {number}",
                subject=each,
                content_type=each,
                correlation_id=each,
                to=each,
                reply_to=BACKWARDS,
                application_properties={each: each, "direction": BACKWARDS},
            ),
        )
    sdk.dead_letter("hostile", *((each, f"{each} {BACKWARDS}") for each in TRICKS))
    entity = {
        "name": trick,
        "state": "failed over",
        "since": None,
        "forced": False,
        "sent_to_primary": 0,
        "sent_to_backlog": 0,
        "last_error": TRICKS[1],
    }
    pair = {
        "primary": TRICKS[2],
        "secondary": TRICKS[3],
        "client": BACKWARDS,
        "syphon_running": False,
        "fault": trick,
        "entities": [entity],
        "backlog_queues": [
            {"queue": "q", "strangers": 9, "strangers_of": [{"primary": BACKWARDS, "count": 7}]}
        ],
    }
    ask(server, "PUT", "/$pairs/hostile", pair)
    return trick


def test_what_strangers_write_is_shown_and_never_run(signed: Tab, hostile: str) -> None:
    page = go(signed, "#/queues/hostile?show=dead-letters")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(len(TRICKS))
    for number, trick in enumerate(TRICKS):
        rows.nth(number).locator("a").click()
        message = page.locator(".message")
        expect(message.locator("pre")).to_have_text(trick)
        expect(message.locator(".dead-letter-reason")).to_have_text(trick)
        expect(message.locator("dd").filter(has_text="U+202E")).to_have_text("safe⟨U+202E⟩txt.exe")
    assert faults_of(page) == []
    assert faint_texts(page) == []
    go(signed, "#/pairs")
    expect(page.locator(".pair-route")).to_contain_text(TRICKS[2])
    expect(page.get_by_role("heading", name="safe⟨U+202E⟩txt.exe")).to_be_visible()
    expect(page.locator("tbody").first).to_contain_text(hostile)
    expect(page.get_by_text("9 messages left")).to_be_visible()
    expect(page.locator(".strangers li")).to_have_text("7 of safe⟨U+202E⟩txt.exe")
    go(signed, f"#/queues/{hostile}?show={hostile}&message={hostile}")
    expect(page.get_by_text("Entity not found.")).to_be_visible()
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("img, iframe, object, main a:not([href^='#'])").count() == 0


def test_a_message_fits_a_small_screen(signed: Tab) -> None:
    signed.page.set_viewport_size({"width": 360, "height": 640})
    page = go(signed, "#/queues/many")
    page.locator("table.messages tbody tr a").first.click()
    expect(page.locator(".message")).to_be_visible()
    assert not is_wider_than_screen(page)
