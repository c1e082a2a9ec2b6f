"""Reports of a pair by a thread of its own: after every event, and every ten seconds."""

import threading
from collections.abc import Callable
from typing import Final

from twinbus.pairing.blocking._posting import Post
from twinbus.pairing.blocking._steady import CLOSE_S_MAX
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.reporting import INTERVAL_S, PAUSE_S

_NAME: Final = "twinbus-pairing-reports"


class Reporter:
    """`describe` gives the report of this moment."""

    def __init__(self, posts: list[Post], describe: Callable[[], bytes]) -> None:
        self._posts = posts
        self._describe = describe
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def start(self) -> None:
        if self._posts:
            self._thread.start()

    def wake(self) -> None:
        """Something has happened that is worth a report."""
        self._wake.set()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        for post in self._posts:
            post.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                report = self._describe()
                for post in self._posts:
                    post.bring(report)
            except Exception:  # noqa: BLE001 - a report is never worth more than a line of log
                LOGGER.exception("a report has met an error")
            if not self._stopping.wait(PAUSE_S):
                self._wake.wait(INTERVAL_S)
