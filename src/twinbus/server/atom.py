"""Entity management over HTTP: the Atom documents that ServiceBusAdministrationClient exchanges.

    GET     /$namespaceinfo                      the namespace
    GET     /$Resources/queues?$skip=&$top=      a page of queues; topics: an empty one
    PUT     /{queue}                             create: 201; with `If-Match: *` update: 200
    GET     /{queue}                             description and counts
    DELETE  /{queue}

Every request needs the Manage right on what it names, and nothing is read before that is proven.  A
name never becomes anything but text and a key in the namespace.  Create, update and delete answer
when they are durable.
"""

from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import quote

from twinbus.broker.auth import MANAGE, Authorizer
from twinbus.clock import Clock
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    NotSupported,
    Unauthorized,
)
from twinbus.limits import PAGE_COUNT_MAX
from twinbus.server.documents import (
    QueueView,
    feed,
    namespace_entry,
    queue_entry,
    read_queue_description,
    utc_text,
    whole_number,
)
from twinbus.server.health import answer_in_public
from twinbus.server.http import Request, Response, error_response

PAGE_COUNT_DEFAULT: Final = 100  # what the SDKs ask for
SKIP_MAX: Final = 1_000_000_000
# azure-servicebus 7.15 renews its HTTP token 60 s after it has expired, not before.
TOKEN_LEEWAY_S: Final = 120

_ENTRY_TYPE: Final = "application/atom+xml; type=entry; charset=utf-8"
_FEED_TYPE: Final = "application/atom+xml; type=feed; charset=utf-8"
_METHODS: Final = "GET, HEAD, PUT, DELETE"


class Namespace(Protocol):
    """What management needs of a namespace; every change completes when it is durable."""

    @property
    def name(self) -> str: ...
    @property
    def created_utc_ms(self) -> int: ...
    @property
    def authorizer(self) -> Authorizer: ...
    @property
    def clock(self) -> Clock: ...
    def get_queue(self, name: str) -> QueueView: ...
    def list_queues(self, skip: int, top: int) -> Sequence[QueueView]: ...
    async def create_queue(self, name: str, description: QueueDescription) -> QueueView: ...
    async def update_queue(self, name: str, description: QueueDescription) -> QueueView: ...
    async def delete_queue(self, name: str) -> None: ...


class AtomRouter:
    """The router of the server's port: what is public first, then everything about entities."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._clock = namespace.clock

    async def answer(self, request: Request) -> Response:
        public = answer_in_public(request)
        if public is not None:
            return public
        segments = request.segments()
        first = segments[0].lower()
        is_about_namespace = first in ("", "$namespaceinfo", "$resources")
        self._authorize(request, "" if is_about_namespace else "/".join(segments))
        if request.method not in ("GET", "HEAD", "PUT", "DELETE"):
            return error_response(405, "The method is not allowed.", (("Allow", _METHODS),))
        if is_about_namespace:
            return self._answer_about_namespace(request, segments)
        if len(segments) > 1 and segments[1].lower() == "subscriptions":
            raise NotSupported("Topics, subscriptions and rules are not supported yet.")
        if first.startswith("$"):
            raise EntityNotFound("There is no such resource.")
        return await self._answer_about_queue(request, "/".join(segments))

    def _authorize(self, request: Request, path: str) -> None:
        token = request.headers.get("authorization")
        if token is None:
            raise Unauthorized("An Authorization header with the Manage claim is required.")
        # Where the SDK is given a ready-made signature, it writes it as a bearer token.
        token = token.removeprefix("Bearer ")
        now_s = self._clock.now().utc_ms // 1000 - TOKEN_LEEWAY_S
        audience = f"https://{self._namespace.name}/{quote(path)}"
        grant = self._namespace.authorizer.check_token(token, audience, now_s)
        if not grant.allows(MANAGE, path, now_s):
            raise Unauthorized("The Manage claim is required for this operation.")

    def _answer_about_namespace(self, request: Request, segments: list[str]) -> Response:
        if request.method not in ("GET", "HEAD"):
            return error_response(405, "The method is not allowed.", (("Allow", "GET, HEAD"),))
        resource = "/".join(segments).lower()
        base = _base(request)
        if resource == "$namespaceinfo":
            entry = namespace_entry(self._namespace.name, self._namespace.created_utc_ms, base)
            return Response(200, entry.encode(), _ENTRY_TYPE)
        if resource not in ("$resources/queues", "$resources/topics"):
            raise EntityNotFound("There is no such resource.")
        if "$filter" in request.query:
            raise NotSupported("$filter is not supported yet.")
        skip = _page_number(request, "$skip", 0, SKIP_MAX)
        top = _page_number(request, "$top", PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX)
        # One more than asked for tells whether there is a next page.
        views = self._namespace.list_queues(skip, top + 1) if resource.endswith("queues") else []
        next_query = f"$skip={skip + top}&$top={top}" if len(views) > top else ""
        now = utc_text(self._clock.now().utc_ms)
        page = feed(f"{base}/{'/'.join(segments)}", now, views[:top], base, next_query)
        return Response(200, page.encode(), _FEED_TYPE)

    async def _answer_about_queue(self, request: Request, name: str) -> Response:
        namespace = self._namespace
        if request.method == "DELETE":
            await namespace.delete_queue(name)
            return Response(200, b"")
        status = 200
        if request.method == "PUT":
            match = request.headers.get("if-match")
            if match is None:
                view = await namespace.create_queue(name, read_queue_description(request.body))
                status = 201
            elif match.strip() == "*":
                namespace.get_queue(name)  # a missing queue matters more than a bad document
                view = await namespace.update_queue(name, read_queue_description(request.body))
            else:
                raise ArgumentInvalid("If-Match must be * (update whatever is there).")
        else:
            view = namespace.get_queue(name)
        entry = queue_entry(view, _base(request))
        return Response(status, entry.encode(), _ENTRY_TYPE)


def _base(request: Request) -> str:
    """Where the client reached us, as it says itself; it is only shown back to it."""
    return f"https://{request.headers.get('host', 'localhost')}"


def _page_number(request: Request, name: str, default: int, ceiling: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    number = whole_number(name, text)
    if number > ceiling:
        raise ArgumentOutOfRange(f"{name} is {number}; at most {ceiling} is allowed.")
    return number
