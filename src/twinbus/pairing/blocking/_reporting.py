"""Reports of a pair by a thread of its own: after every event, and every ten seconds."""

from collections.abc import Callable

from twinbus.pairing.blocking._background import WokenThread
from twinbus.pairing.blocking._posting import Post
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.reporting import INTERVAL_S, PAUSE_S


class Reporter(WokenThread):
    """`describe` gives the report of this moment."""

    def __init__(self, posts: list[Post], describe: Callable[[], bytes]) -> None:
        super().__init__("twinbus-pairing-reports")
        self._posts = posts
        self._describe = describe

    def start(self) -> None:
        if self._posts:
            super().start()

    def _interrupt(self) -> None:
        for post in self._posts:
            post.end()

    def _turn(self) -> float:
        try:
            report = self._describe()
            for post in self._posts:
                post.bring(report)
        except Exception:  # noqa: BLE001 - a report is never worth more than a line of log
            LOGGER.exception("a report has met an error")
        self._stopping.wait(PAUSE_S)
        return INTERVAL_S
