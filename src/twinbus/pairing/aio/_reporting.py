"""Reports of a pair by a task of its own: after every event, and every ten seconds."""

import asyncio
import contextlib
from collections.abc import Callable

from twinbus.pairing.blocking._posting import Post
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.reporting import INTERVAL_S, PAUSE_S


class Reporter:
    """`describe` gives the report of this moment."""

    def __init__(self, posts: list[Post], describe: Callable[[], bytes]) -> None:
        self._posts = posts
        self._describe = describe
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._posts:
            self._task = asyncio.create_task(self._run(), name="reports of a pair")

    def wake(self) -> None:
        """Something has happened that is worth a report."""
        self._wake.set()

    async def stop(self) -> None:
        for post in self._posts:
            post.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                report = self._describe()
                for post in self._posts:
                    await asyncio.to_thread(post.bring, report)
            except Exception:  # noqa: BLE001 - a report is never worth more than a line of log
                LOGGER.exception("a report has met an error")
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await self._wake.wait()
