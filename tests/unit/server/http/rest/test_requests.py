"""Which requests are about messages, and where the port's router sends each request."""

import pytest

from twinbus.errors import Unauthorized
from twinbus.host.routes import Router
from twinbus.server.http.access import Claim
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.rest.requests import RestRouter, is_about_messages

pytestmark = [pytest.mark.proves("M-11"), pytest.mark.asyncio]


class Nobody:
    """Lets nobody in, and remembers who asked for what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def authorize(self, request: Request, right: str, path: str) -> None:
        self.asked.append((right, path))
        raise Unauthorized("no")

    def body_max(self, request: Request, claim: Claim | None) -> int:
        if claim is not None:
            self.asked.append((claim.right, claim.path))
        return 0


class Others:
    """Answers with its own name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def claim(self, request: Request) -> Claim | None:
        return None

    async def answer(self, request: Request) -> Response:
        return Response(200, self._name)


def route(access: Nobody) -> Router:
    messages = RestRouter(access, None)  # type: ignore[arg-type]
    names = (b"entities", b"front", b"faults", b"meter", b"namespaces", b"page", b"pairs")
    others = [Others(name) for name in names]
    return Router(access, messages, *others)  # type: ignore[arg-type]


@pytest.mark.proves("M-11")
@pytest.mark.parametrize(
    "method, path, expected",
    [
        ("POST", "q/messages", True),
        ("POST", "a/b/Messages", True),
        ("POST", "messages", False),
        ("GET", "q/messages", False),
        ("PUT", "q/messages", False),  # an entity may have such a name
        ("DELETE", "q/messages", False),
        ("POST", "q/messages/head", True),
        ("DELETE", "q/messages/HEAD", True),
        ("PUT", "q/messages/head", False),
        ("GET", "q/messages/head", False),
        ("POST", "messages/head", False),
        ("POST", "t/subscriptions/s/messages/head", True),
        ("DELETE", "q/messages/1/token", True),
        ("PUT", "q/messages/1/token", True),
        ("POST", "q/messages/1/token", True),
        ("GET", "q/messages/1/token", False),
        ("PUT", "t/subscriptions/messages/rules/r", False),
        ("DELETE", "t/Subscriptions/Messages/Rules/r", False),
        ("PUT", "messages/1/token", False),
        ("PUT", "q", False),
        ("PUT", "", False),
    ],
)
async def test_what_is_about_messages(method: str, path: str, expected: bool) -> None:
    assert is_about_messages(method, path.split("/")) == expected


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "method, path, asked",
    [
        ("POST", "/a%2Fb/messages", ("Send", "a/b")),
        ("POST", "/a/b/messages/", ("Send", "a/b")),
        ("POST", "/q/messages/head", ("Listen", "q")),
        ("DELETE", "/q/$DeadLetterQueue/messages/head", ("Listen", "q/$DeadLetterQueue")),
        ("DELETE", "/q/messages/1/x", ("Listen", "q")),
        ("PUT", "/t/subscriptions/s/messages/1/x", ("Listen", "t/subscriptions/s")),
        ("POST", "/x%3A%2F%2Fy%2Fq/messages", ("Send", "q")),  # what is asked for is what is used
    ],
)
async def test_access_is_asked_for_first(method: str, path: str, asked: tuple[str, str]) -> None:
    access = Nobody()
    router = route(access)
    request = Request(method, path, {}, {}, b"")
    assert router.body_max(request) == 0
    with pytest.raises(Unauthorized):
        await router.answer(request)
    assert access.asked == [asked, asked]


async def test_the_rest_goes_elsewhere() -> None:
    router = route(Nobody())
    for path, status, body in (
        ("/health", 200, b"front"),
        ("/metrics", 200, b"front"),
        ("/$faults", 200, b"faults"),
        ("/$meter", 200, b"meter"),
        ("/$Page/state", 200, b"page"),
        ("/%24pairs/one", 200, b"pairs"),
        ("/", 200, b"front"),
        ("/$servicebus/websocket", 426, b"WebSockets"),
        ("/$servicebus/websocket/", 426, b"WebSockets"),
        ("/%24ServiceBus/WebSocket", 426, b"WebSockets"),
        ("/q", 200, b"entities"),
    ):
        answer = await router.answer(Request("GET", path, {}, {}, b""))
        assert answer.status == status
        assert body in answer.body
