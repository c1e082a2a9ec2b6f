"""The page as somebody sees it who has not signed in: true, alive, and usable by everybody."""

import re
from collections.abc import Callable
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Sdk, Tab
from tests.browser.judging import faint_texts, faults_of, is_wider_than_screen
from twinbus.client.admin import SUBSCRIPTION, TOPIC
from twinbus.gateway.health.survival import Deployment, survival
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("page.look")

PLACES: Final = (
    "#/",
    "#/queues/orders",
    "#/queues/orders?show=details",
    "#/topics/news",
    "#/topics/news/subscriptions/audit",
    "#/pairs",
    "#/faults",
    "#/machine",
    "#/cost",
    "#/nothing/here",
)


@pytest.fixture(scope="module", autouse=True)
def entities(server: ServerProcess, sdk: Sdk) -> None:
    """A small shop: a partitioned queue, a plain one with a dead letter, a topic."""
    server.create_queue("orders", enable_partitioning=True)
    server.create_queue("payments")
    server.create_queue("live")
    server.create_queue("shop/returns", requires_session=True)
    server.admin.create(TOPIC, ["news"], {})
    server.admin.create(SUBSCRIPTION, ["news", "audit"], {})
    sdk.send("orders", *(f"order {number}" for number in range(5)))
    sdk.send("payments", "paid", "declined")
    sdk.dead_letter("payments", ("Declined", "The card has expired."))
    sdk.send("news", "morning", "evening", topic=True)


def test_the_overview_tells_what_there_is(tab: Tab) -> None:
    page = tab.open()
    orders = tab.row("orders").locator("td")
    expect(orders.nth(0)).to_have_text("5")
    expect(orders.nth(1)).to_have_text("0")
    expect(tab.row("payments").locator("td").nth(0)).to_have_text("1")
    expect(tab.row("payments").locator("td").nth(1)).to_have_text("1")
    expect(tab.row("audit").locator("td").nth(0)).to_have_text("2")
    expect(tab.row("shop/returns")).to_contain_text("sessions")
    strip = tab.row("orders").get_by_role("img")
    expect(strip.locator("i")).to_have_count(16)
    expect(strip).to_have_attribute("aria-label", "16 partitions, all up")
    expect(page.get_by_label("Namespace", exact=True)).to_have_value("shop")
    expect(page.locator("#health")).to_have_text("Healthy")
    expect(page.locator("#version")).to_contain_text("twinbus")
    expect(page.locator(".figures")).to_contain_text("Dead letters")
    expect(page.get_by_role("heading", name="Brokers and stores")).to_be_visible()
    expect(page.locator(".price")).to_contain_text("USD")


@pytest.mark.proves("A-3")
def test_what_this_deployment_survives(tab: Tab) -> None:
    """The same as `twinbus doctor` says of a server with one store."""
    page = tab.open("#/machine")
    table = page.get_by_role("table", name="What this deployment survives")
    for outcome in survival(Deployment(brokers=0, stores=1, disks=1)):
        row = table.locator("tbody tr", has_text=outcome.failure)
        for text in (outcome.verdict, outcome.what, outcome.fix, outcome.beyond):
            expect(row).to_contain_text(text)
    expect(table).to_contain_text("stops with exit code 3")


def test_a_message_shows_up_without_a_reload(tab: Tab, sdk: Sdk) -> None:
    page = tab.open()
    active = tab.row("live").locator("td").first
    expect(active).to_have_text("0")
    page.evaluate("window.sameDocument = true")
    sdk.send("live", "one", "two")
    expect(active).to_have_text("2")
    sdk.receive("live")
    expect(active).to_have_text("1")
    assert page.evaluate("window.sameDocument")


def test_who_has_not_signed_in_changes_nothing(tab: Tab) -> None:
    page = tab.open("#/queues/payments?show=dead-letters")
    expect(page.get_by_text("Sign in to see messages.")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    page.goto(f"{tab.origin}/#/faults")
    expect(page.get_by_text("To add or clear faults you need a key")).to_be_visible()
    expect(page.get_by_role("button", name="Add fault")).to_have_count(0)
    # Nor does the server do it for a script that leaves the buttons aside.
    tab.forgiven.append("401")
    for path, body in (
        ("$page/delete", '{"entity": "payments/$DeadLetterQueue", "sequence_numbers": ["1"]}'),
        ("$page/resubmit", '{"entity": "payments/$DeadLetterQueue", "sequence_numbers": ["1"]}'),
        ("$faults", '{"kind": "throttle"}'),
    ):
        ask = """async ([path, body]) => (await fetch(`/${path}`, {method: "POST", body,
            headers: {"X-Twinbus-Page": "1"}})).status"""
        assert page.evaluate(ask, [path, body]) == 401


def test_a_link_leads_to_its_place_and_back_leads_back(tab: Tab) -> None:
    page = tab.open("#/topics/news/subscriptions/audit")
    expect(page.get_by_role("heading", level=1)).to_contain_text("audit")
    expect(page).to_have_title("news/Subscriptions/audit · twinbus")
    page.get_by_role("link", name="news").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("news")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_text("Availability")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("link", name="audit")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_contain_text("audit")
    page.goto(f"{tab.origin}/#/queues/never-made")
    expect(page.get_by_text("Entity not found.")).to_be_visible()


def test_an_empty_namespace_says_what_to_do(tab: Tab, server: ServerProcess) -> None:
    page = tab.open()
    page.get_by_label("Namespace", exact=True).select_option("billing")
    expect(page.get_by_text("No queues or topics yet.")).to_be_visible()
    expect(page.get_by_text("twinbus queue create orders")).to_be_visible()
    expect(page.get_by_text(f"Endpoint=sb://localhost:{server.port};")).to_be_visible()
    expect(page).to_have_url(re.compile("namespace=billing"))
    page.go_back()
    expect(tab.row("orders")).to_be_visible()


def test_a_walk_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    expect(tab.row("orders")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("or")
    expect(tab.row("payments")).to_be_hidden()
    expect(tab.row("orders")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#filter")).to_have_value("")
    # One Tab into the list, arrows within it, one Tab out of it.
    page.locator(".sorter").last.focus()
    while not page.evaluate("document.activeElement.matches('a.entity-name')"):
        page.keyboard.press("Tab")
    names = page.locator("a.entity-name")
    page.keyboard.press("Home")
    expect(names.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(names.nth(2)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "2px", "where the keyboard is can be seen"
    page.keyboard.press("End")
    expect(names.last).to_be_focused()
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.matches('a.entity-name')")
    names.nth(0).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="Breadcrumb")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#keys-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys-dialog")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_place_can_be_read_and_used(new_tab: Callable[..., Tab], scheme: str) -> None:
    tab = new_tab(color_scheme=scheme)
    tab.open()
    for place in PLACES:
        tab.page.goto(f"{tab.origin}/{place}")
        expect(tab.page.locator("h1")).to_have_count(1)
        assert faults_of(tab.page) == [], place
        assert faint_texts(tab.page) == [], place
    tab.page.locator("#sign").click()
    assert faults_of(tab.page) == []
    assert faint_texts(tab.page) == []


def test_dark_by_the_system_and_by_hand(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(color_scheme="dark")
    page = tab.open()
    ground = page.locator("body")
    dark = ground.evaluate("node => getComputedStyle(node).backgroundColor")
    page.get_by_role("button", name="Switch to light colours").click()
    light = ground.evaluate("node => getComputedStyle(node).backgroundColor")
    assert dark != light
    page.keyboard.press("t")
    assert ground.evaluate("node => getComputedStyle(node).backgroundColor") == dark
    page.emulate_media(color_scheme="light")
    assert ground.evaluate("node => getComputedStyle(node).backgroundColor") == dark, "by hand wins"


def test_nothing_is_wider_than_a_small_screen(new_tab: Callable[..., Tab]) -> None:
    tab = new_tab(width=360, height=640)
    tab.open()
    for place in PLACES:
        tab.page.goto(f"{tab.origin}/{place}")
        expect(tab.page.locator("main")).not_to_be_empty()
        assert not is_wider_than_screen(tab.page), place


def test_a_server_that_is_gone_and_comes_back(tab: Tab, server: ServerProcess) -> None:
    tab.forgiven.append("net::ERR")
    page = tab.open()
    expect(tab.row("payments")).to_be_visible()
    server.kill()
    expect(page.locator("#gone")).to_contain_text("The server does not answer")
    expect(page.locator("#live")).to_have_text("No connection")
    expect(tab.row("payments")).to_be_visible()
    server.restart()
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#gone")).to_be_hidden()
    expect(tab.row("orders").locator("td").first).to_have_text("5")


def test_from_elsewhere_without_https(new_tab: Callable[..., Tab]) -> None:
    """Another machine needs a key, and a browser signs with one only where it trusts the line."""
    tab = new_tab(host="bus.test")
    tab.forgiven.append("401")
    page = tab.page
    page.goto(f"{tab.origin}/")
    expect(page.locator("#gone")).to_contain_text("Sign in to see this server.")
    page.locator("#sign").click()
    expect(page.locator("#sign-problem")).to_contain_text(re.compile("https.*localhost"))
    expect(page.locator("#sign-submit")).to_be_disabled()
