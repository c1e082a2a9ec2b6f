"""A real browser on a real server: one of each for a file, a fresh tab for a test.

Closed at the end of the file, not of the run: Playwright keeps an event loop in this thread for as
long as it lives, and other suites have loops of their own.
"""

import gc
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from twinbus.testing.server import ServerProcess

HERE: Final = Path(__file__).parent
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A name that is not this machine's, to see the page as others see it.
    "--host-resolver-rules=MAP bus.test 127.0.0.1",
)
WAIT_MS: Final = 15_000

# A key that may do everything, and one that may only look.
WATCHER: Final = "Watcher"
WATCHER_KEY: Final = "eW91IG1heSBsb29rIGFuZCBub3QgdG91Y2g="


def rule(name: str, rights: list[str], key: str) -> dict[str, object]:
    return {"name": name, "rights": rights, "primary_key": key, "secondary_key": f"{key[:-1]}0="}


ROOT: Final = "RootManageSharedAccessKey"
EVERYTHING: Final = ["Listen", "Manage", "Send"]
SERVER: Final = {
    "namespaces": [
        {
            "name": "shop",
            "created_utc_ms": 1_795_000_000_000,
            "rules": [
                rule(ROOT, EVERYTHING, "ZXZlcnl0aGluZyBpcyBhbGxvd2VkIGhlcmU="),
                rule(WATCHER, ["Listen"], WATCHER_KEY),
            ],
        },
        {
            "name": "billing",
            "created_utc_ms": 1_795_000_000_000,
            "rules": [rule(ROOT, EVERYTHING, "YW5kIG5vdGhpbmcgYXQgYWxsIGlzIGhlcmUhISE=")],
        },
    ]
}

# What the browser itself has to say about policies that were broken.
LISTEN_FOR_VIOLATIONS: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As in the interop suite: the SDK forgets to close its sockets."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


def find_browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.fail(
        "The tests of the page need a browser and found none of " + ", ".join(BROWSERS) + ". "
        "On Debian and Ubuntu: apt-get install chromium",
        pytrace=False,
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MS)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("server") / "data"
    data.mkdir()
    (data / "server.json").write_text(json.dumps(SERVER))
    with ServerProcess(data) as process:
        yield process
    assert "Traceback" not in process.log, process.log
    gc.collect()


class Sdk:
    """The official SDK on the server of this file, its links kept open."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        self._client = ServiceBusClient.from_connection_string(connection_string, **options)
        self._senders: dict[str, Any] = {}

    def send(self, entity: str, *messages: ServiceBusMessage | str, topic: bool = False) -> None:
        if entity not in self._senders:
            open_sender = self._client.get_topic_sender if topic else self._client.get_queue_sender
            self._senders[entity] = open_sender(entity)
        made = [each if isinstance(each, ServiceBusMessage) else text(each) for each in messages]
        self._senders[entity].send_messages(made)

    def dead_letter(self, queue: str, *reasons: tuple[str, str]) -> None:
        """The next messages of the queue become dead letters, for these reasons."""
        with self._client.get_queue_receiver(queue, max_wait_time=5) as receiver:
            for reason, description in reasons:
                [message] = receiver.receive_messages(1)
                receiver.dead_letter_message(message, reason=reason, error_description=description)

    def receive(self, queue: str) -> Any:
        with self._client.get_queue_receiver(queue, max_wait_time=5) as receiver:
            [message] = receiver.receive_messages(1)
            receiver.complete_message(message)
            return message

    def count_dead_letters(self, queue: str) -> int:
        place = ServiceBusSubQueue.DEAD_LETTER
        with self._client.get_queue_receiver(queue, sub_queue=place) as receiver:
            return len(receiver.peek_messages(100))

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._client.close()


def text(body: str) -> ServiceBusMessage:
    return ServiceBusMessage(body)


@pytest.fixture(scope="module")
def sdk(server: ServerProcess) -> Iterator[Sdk]:
    sdk = Sdk(server.connection_string)
    yield sdk
    sdk.close()


@dataclass
class Tab:
    """One page of the browser, which must have met no surprise when the test ends."""

    page: Page
    origin: str
    forgiven: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.add_init_script(LISTEN_FOR_VIOLATIONS)
        self.page.on("console", lambda said: self._hear(said.type, said.text))
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))

    def _hear(self, kind: str, said: str) -> None:
        if kind in {"error", "warning"}:
            self.troubles.append(f"{kind}: {said}")

    def open(self, place: str = "#/") -> Page:
        """Go there, as by a link that somebody has sent, and wait until the bus is shown."""
        self.page.goto(f"{self.origin}/{place}")
        expect(self.page.locator("#live")).to_have_text("Live")
        return self.page

    def sign_in(self, connection_string: str) -> None:
        self.page.locator("#sign").click()
        self.page.get_by_label("Connection string").fill(connection_string)
        self.page.locator("#sign-submit").click()
        expect(self.page.locator("#sign-dialog")).to_be_hidden()

    def row(self, entity: str) -> Any:
        """The row of an entity in the overview."""
        exactly = re.compile(f"^{re.escape(entity)}$")
        name = self.page.locator("a.entity-name").filter(has_text=exactly)
        return self.page.locator("table.entities tbody tr").filter(has=name)

    def check(self) -> None:
        self.troubles += self.page.evaluate("window.violations ?? []")
        surprises = [
            trouble
            for trouble in self.troubles
            if not any(pattern in trouble for pattern in self.forgiven)
        ]
        assert not surprises, surprises


@pytest.fixture
def new_tab(browser: Browser, server: ServerProcess) -> Iterator[Callable[..., Tab]]:
    """Makes tabs: `new_tab(width=360, color_scheme="dark")`."""
    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def make(
        *, width: int = 1280, height: int = 800, host: str = "localhost", **options: Any
    ) -> Tab:
        size = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=size, **options))  # type: ignore[arg-type]
        contexts[-1].set_default_timeout(WAIT_MS)
        tabs.append(Tab(contexts[-1].new_page(), f"http://{host}:{server.port}"))
        tabs[-1].watch()
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.check()
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    return new_tab()
