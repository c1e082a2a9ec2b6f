"""When the syphon goes through the backlog again: the planner's side of its back-off.

A round goes through everything that is there.  The next one begins at once if the last one has
brought something home, or something new has come.  Otherwise all that is left is held, because its
destinations do not take it, and the next round waits: a second, doubling, up to two minutes.

Pure: is told what is there and the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.pairing.rests import REST_S_MAX, REST_S_MIN, Backoff
from twinbus.pipeline.source.offsets import key_of

REST_MS_MIN: Final = round(1_000 * REST_S_MIN)
REST_MS_MAX: Final = round(1_000 * REST_S_MAX)
# Each look at ten queues is ten operations, so an idle pair is looked at less and less often.
LOOK_MS_MAX: Final = 60_000

ROUND: Final = "round"


@dataclass(frozen=True, slots=True)
class BacklogStock:
    """One partition of a backlog queue, as it is now."""

    queue: str
    partition: int
    is_up: bool
    next: int
    count: int

    @property
    def key(self) -> str:
        return key_of(self.queue, self.partition)


class Rounds:
    """Decides on the next round of one query."""

    def __init__(self) -> None:
        self._left: int | None = None  # when the last round began
        self._next: dict[str, int] = {}
        self._rests_ms = Backoff(REST_MS_MIN, REST_MS_MAX)
        self._due_ms: float | None = None  # when held ones are tried again; None: nothing is held
        self._looks_ms = Backoff(REST_MS_MIN, LOOK_MS_MAX)
        self._look_due_ms = 0.0
        self._progress_ms: int | None = None
        self.is_empty = False

    def should_look(self, now_ms: int) -> bool:
        """Whether it is worth asking what is there."""
        due_ms = self._look_due_ms
        if self._due_ms is not None:
            due_ms = min(due_ms, self._due_ms)
        return now_ms >= due_ms

    def should_go(self, stocks: Sequence[BacklogStock], now_ms: int) -> bool:
        """Whether a round begins now."""
        left = sum(stock.count for stock in stocks if stock.is_up)
        self.is_empty = left == 0 and all(stock.is_up for stock in stocks)
        positions = {stock.key: stock.next for stock in stocks if stock.is_up}
        if self._progress_ms is None:
            self._progress_ms = now_ms
        has_moved = self._left is None or left < self._left
        if left and (has_moved or self._has_news(positions)):
            self._progress_ms = now_ms
            self._rests_ms.reset()
            return self._go(left, positions)
        if has_moved:
            self._progress_ms = now_ms
            self._left = left
        if not left:
            self._due_ms = None
        elif self._due_ms is None:
            self._due_ms = now_ms + self._rests_ms.next()
        elif now_ms >= self._due_ms:
            return self._go(left, positions)
        self._look_due_ms = now_ms + self._looks_ms.next()
        return False

    def is_hopeless(self, now_ms: int, patience_ms: int) -> bool:
        """Whether nothing has moved for so long."""
        return self._progress_ms is not None and now_ms - self._progress_ms > patience_ms

    def _has_news(self, positions: Mapping[str, int]) -> bool:
        return any(number > self._next.get(key, 0) for key, number in positions.items())

    def _go(self, left: int, positions: Mapping[str, int]) -> bool:
        self._left = left
        self._next.update(positions)
        self._due_ms = None
        self._looks_ms.reset()
        self._look_due_ms = 0.0
        return True


def next_offset(start: Mapping[str, int], stocks: Sequence[BacklogStock]) -> dict[str, int]:
    """The offset of a new round: it ends where the partitions end now."""
    positions = {key: number for key, number in start.items() if key != ROUND}
    for stock in stocks:
        if stock.is_up:
            positions[stock.key] = max(stock.next, positions.get(stock.key, 0))
    return dict(sorted({**positions, ROUND: start.get(ROUND, 0) + 1}.items()))
