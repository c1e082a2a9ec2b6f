"""What `twinbus doctor` has found: one line each, with what to do about it."""

from dataclasses import dataclass
from typing import Final, Literal

State = Literal["ok", "warn", "bad"]
OK: Final[State] = "ok"
WARN: Final[State] = "warn"  # it works, but not as it could
BAD: Final[State] = "bad"  # something will not work


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: State
    found: str
    fix: str = ""
