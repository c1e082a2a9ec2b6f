"""The live page: documents as server-sent events, each made once for all its viewers.

A new one is sent each second if anything has changed, and every fifteen seconds anyway, so that
both sides know the other is there.  If making them takes long, they come less often: the page gets
only a small share of the server's time.  A viewer's token is checked before every document.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from twinbus.errors import ServerBusy, ServiceError
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.limits import VIEWERS_MAX
from twinbus.server.http.page.state import NamespaceLook, PageState, PageText, PageView

INTERVAL_S: Final = 1.0
SILENCE_S_MAX: Final = 15.0
_SHARE: Final = 10  # at most one part in so many of the time goes into documents

log = logging.getLogger("twinbus.server")


class Viewer:
    """One viewer.  It gets the latest document, not every one."""

    def __init__(self, view: PageView, check: Callable[[], object]) -> None:
        self.view = view
        self.check = check  # raises when he may look no more
        self._waiting: bytes | None = None
        self._woken = asyncio.Event()
        self._mark = 0
        self._told_s = 0.0
        self._is_over = False

    def tell(self, text: PageText, now_s: float) -> None:
        if text.mark == self._mark and now_s - self._told_s < SILENCE_S_MAX:
            return
        self._mark, self._told_s = text.mark, now_s
        self._waiting = f"event: state\ndata: {text.data}\n\n".encode()
        self._woken.set()

    def end(self) -> None:
        self._is_over = True
        self._woken.set()

    async def next(self) -> bytes | None:
        """The next event; None: there are no more."""
        await self._woken.wait()
        self._woken.clear()
        if self._is_over:
            return None
        event, self._waiting = self._waiting, None
        return event


class LivePage:
    """All viewers of one server."""

    def __init__(self, state: PageState) -> None:
        self._state = state
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def viewer_count(self) -> int:
        return len(self._viewers)

    def join(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        """One more viewer, if there is room: his events, until he leaves."""
        if len(self._viewers) >= VIEWERS_MAX:
            raise ServerBusy(f"At most {VIEWERS_MAX} viewers can open the live page at a time.")
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._events(viewer)

    def leave(self, viewer: Viewer) -> None:
        """He has gone, or may look no more."""
        self._viewers.discard(viewer)
        viewer.end()

    def close(self) -> None:
        for viewer in list(self._viewers):
            self.leave(viewer)
        if self._task is not None:
            self._task.cancel()

    async def _events(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        try:
            text = await self._state.text(viewer.view)
            viewer.tell(text, asyncio.get_running_loop().time())
            while (event := await viewer.next()) is not None:
                yield event
        finally:
            self._viewers.discard(viewer)

    async def _run(self) -> None:
        """Round by round, while anybody looks."""
        loop = asyncio.get_running_loop()
        while self._viewers:
            begun_s = loop.time()
            await asyncio.sleep(INTERVAL_S)
            shown_s = loop.time()
            try:
                await self._show()
            except Exception:  # the next round may go well, and nobody else is to suffer
                log.exception("the live page could not be made")
            took_s = loop.time() - shown_s
            await asyncio.sleep(max(0.0, took_s * _SHARE - (shown_s - begun_s)))

    async def _show(self) -> None:
        looks: dict[Namespace, NamespaceLook] = {}
        texts: dict[PageView, PageText] = {}
        for viewer in list(self._viewers):
            try:
                viewer.check()
            except ServiceError:
                self.leave(viewer)
                continue
            view = viewer.view
            if view not in texts:
                if view.namespace not in looks:
                    looks[view.namespace] = await self._state.look(view.namespace)
                texts[view] = await self._state.text_of(view, looks[view.namespace])
            viewer.tell(texts[view], asyncio.get_running_loop().time())
