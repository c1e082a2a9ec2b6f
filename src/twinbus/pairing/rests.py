"""How long something that has failed rests before it is tried again: both syphons' back-off.

From one second, doubling, to two minutes; a busy destination rests for ten seconds at least.  Pure:
is told the time and talks to nobody.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

REST_S_MIN: Final = 1.0
REST_S_MAX: Final = 120.0
BUSY_REST_S: Final = 10.0
_REASON_LENGTH_MAX: Final = 200


class Backoff:
    """The lengths of rests that follow each other: each is twice the one before, up to `most`."""

    __slots__ = ("_least", "_most", "_next")

    def __init__(self, least: float = REST_S_MIN, most: float = REST_S_MAX) -> None:
        """Both are in the unit that `next` is to give."""
        self._least = least
        self._most = most
        self._next = least

    def next(self, at_least: float = 0.0) -> float:
        """How long the rest is that begins now."""
        length = max(self._next, at_least)
        self._next = min(2 * length, self._most)
        return length

    def reset(self) -> None:
        """It has succeeded: the next rest is a short one."""
        self._next = self._least


@dataclass(slots=True)
class _Rest:
    backoff: Backoff = field(default_factory=Backoff)
    until: float = 0.0
    reason: str = ""


class Rests:
    """Destinations that could not take a message, by path; "" stands for the whole namespace."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}

    def begin(self, path: str, error: Exception, now: float, *, is_busy: bool) -> float | None:
        """It has failed; again, if it has not succeeded since the last time.

        Gives the seconds for which it rests; None: it was resting already, and this is one of
        several sends that were under way together.
        """
        rest = self._rests.get(path)
        if rest is None:
            rest = self._rests[path] = _Rest()
        elif now < rest.until:
            return None
        seconds = rest.backoff.next(BUSY_REST_S if is_busy else 0.0)
        rest.until = now + seconds
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        rest.reason = text[:_REASON_LENGTH_MAX]
        return seconds

    def end(self, path: str) -> None:
        """It has succeeded, so the namespace is there as well."""
        self._rests.pop(path, None)
        self._rests.pop("", None)

    def is_resting(self, path: str, now: float) -> bool:
        return any(
            rest is not None and now < rest.until
            for rest in (self._rests.get(path), self._rests.get(""))
        )

    def wait_s(self, paths: Iterable[str], now: float) -> float:
        """How long to wait until the first of them may be tried again."""
        due = [self._rests[path].until - now for path in paths if path in self._rests]
        return min(max(REST_S_MIN, min(due, default=REST_S_MIN)), REST_S_MAX)

    def reason(self, path: str) -> str:
        """Why messages for it are held."""
        rest = self._rests.get(path) or self._rests.get("")
        return "" if rest is None else rest.reason
