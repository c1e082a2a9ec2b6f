"""What the page asks, over HTTP (docs/reference/page.md).

    GET     /                     the page, for a browser
    GET     /$page/{file}         a part of it
    GET     /$page/state          everything, as JSON
    GET     /$page/live           the same, again and again
    GET     /$page/messages       messages of an entity
    POST    /$page/resubmit       dead letters go back
    POST    /$page/delete         messages are deleted

Anyone may load the page: it shows nothing until it has asked for data.  viewers.py decides who may
see that.  Messages need a token with Listen on their entity, and changes one with Manage, in the
Authorization header, which no other site can make a browser send.
"""

from functools import partial
from typing import Final

from twinbus import page
from twinbus.errors import ServiceError
from twinbus.gateway.access.shared_access import MANAGE
from twinbus.limits import PAGE_COUNT_MAX
from twinbus.server.http.access import Claim
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.page.answers import (
    HEADERS,
    json_answer,
    not_allowed,
    query_number,
    refusal,
)
from twinbus.server.http.page.files import answer_file, is_file, is_for_browser
from twinbus.server.http.page.live import LivePage, Viewer
from twinbus.server.http.page.messages import PageMessages
from twinbus.server.http.page.scope import PageScope
from twinbus.server.http.page.state import PageState, PageView

PAGE: Final = "$page"
ENTITIES_DEFAULT: Final = 200
_EVENTS: Final = "text/event-stream; charset=utf-8"
_SKIP_MAX: Final = 1 << 31


def is_about_page(request: Request, segments: list[str]) -> bool:
    return segments[0].lower() == PAGE or is_for_browser(request)


class PageRequests:
    """Answers what `is_about_page`."""

    def __init__(
        self, scope: PageScope, state: PageState, live: LivePage, messages: PageMessages
    ) -> None:
        self._scope = scope
        self._state = state
        self._live = live
        self._messages = messages

    def claim(self, request: Request) -> Claim | None:
        """What changes something says in its body which entity it is about."""
        return Claim(MANAGE, "", is_in_body=True) if request.method == "POST" else None

    async def answer(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except ServiceError as error:
            return refusal(error)

    async def _answer(self, request: Request) -> Response:
        segments = request.segments()
        name = page.INDEX if len(segments) < 2 else segments[1] if len(segments) == 2 else ""
        if name in ("resubmit", "delete"):
            if request.method != "POST":
                return not_allowed("POST")
            return await self._messages.change(request, name)
        if request.method not in ("GET", "HEAD"):
            return not_allowed("GET, HEAD")
        if name == "messages":
            return await self._messages.browse(request)
        if name == "state":
            text = await self._state.text(self._view(request))
            return Response(200, text.data.encode(), "application/json", HEADERS)
        if name == "live":
            return self._show(request)
        if is_file(name):
            return answer_file(name)
        reason = "There is nothing here; the page is at /."
        return json_answer(404, {"error": "EntityNotFound", "reason": reason})

    def _show(self, request: Request) -> Response:
        viewer = Viewer(self._view(request), lambda: self._view(request))
        response = Response(200, b"", _EVENTS, HEADERS)
        if request.method == "GET":
            response.stream = self._live.join(viewer)
            response.when_unsent = request.when_gone = partial(self._live.leave, viewer)
        return response

    def _view(self, request: Request) -> PageView:
        namespace, sees_all = self._scope.look(request)
        prefix = request.query.get("entities", "").lower()
        skip = query_number(request, "skip", 0, 0, _SKIP_MAX)
        top = query_number(request, "top", ENTITIES_DEFAULT, 1, PAGE_COUNT_MAX)
        return PageView(namespace, sees_all, prefix, skip, top)
