"""Destinations that could not take a message rest a while before they are tried again.

From one second, doubling, to two minutes.  Is told the time and talks to nobody.
"""

from dataclasses import dataclass
from typing import Final

from twinbus.errors import ServerBusy

REST_MS_MIN: Final = 1_000
REST_MS_MAX: Final = 120_000
BUSY_REST_MS: Final = 10_000
_REASON_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class _Rest:
    length_ms: int
    until_ms: int
    reason: str


class Rests:
    """By path; the path "" stands for the whole namespace."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}

    def begin(self, path: str, error: Exception, now_ms: int) -> None:
        """It has failed; again, if it has not succeeded since the last time."""
        rest = self._rests.get(path)
        if rest is not None and now_ms < rest.until_ms:
            return  # of several sends that were under way together
        length_ms = REST_MS_MIN if rest is None else min(2 * rest.length_ms, REST_MS_MAX)
        if isinstance(error, ServerBusy):
            length_ms = max(length_ms, BUSY_REST_MS)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self._rests[path] = _Rest(length_ms, now_ms + length_ms, reason[:_REASON_LENGTH_MAX])

    def end(self, path: str) -> None:
        """It has succeeded, so the namespace is there as well."""
        self._rests.pop(path, None)
        self._rests.pop("", None)

    def is_resting(self, path: str, now_ms: int) -> bool:
        return any(
            rest is not None and now_ms < rest.until_ms
            for rest in (self._rests.get(path), self._rests.get(""))
        )

    def reason(self, path: str) -> str:
        """Why messages for it are held."""
        rest = self._rests.get(path) or self._rests.get("")
        return "" if rest is None else rest.reason
