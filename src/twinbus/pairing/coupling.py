"""Close and fault of two paired clients (P-17).

When one of the two closes or faults, the other one has a few seconds to do the same; then it is to
be faulted.  Pure: told the time, it says whom; a shell does it.
"""

from enum import Enum
from typing import Final

GRACE_S: Final = 5.0


class Side(Enum):
    PRIMARY = "primary"
    SECONDARY = "secondary"


_PARTNER: Final = {Side.PRIMARY: Side.SECONDARY, Side.SECONDARY: Side.PRIMARY}


class Coupling:
    """Two clients that live and end together."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.reason = ""  # why the pair has ended, for the error of the partner
        self._grace_s = grace_s
        self._ended: dict[Side, float] = {}
        self._is_told = False

    def closed(self, side: Side, now: float) -> None:
        """The client of this side has been closed."""
        self._end(side, f"the {side.value} client has been closed", now)

    def faulted(self, side: Side, error: BaseException | str, now: float) -> None:
        """The client of this side cannot be used any more."""
        self._end(side, f"the {side.value} client has faulted: {error}", now)

    def next_deadline(self) -> float | None:
        """When due() has an answer; None: nothing is to be waited for."""
        if len(self._ended) != 1 or self._is_told:
            return None
        return next(iter(self._ended.values())) + self._grace_s

    def due(self, now: float) -> Side | None:
        """Whom to fault now; each answer is given once."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return None
        self._is_told = True
        return _PARTNER[next(iter(self._ended))]

    def _end(self, side: Side, reason: str, now: float) -> None:
        if not self._ended:
            self.reason = reason
        self._ended.setdefault(side, now)
