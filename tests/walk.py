"""`twinbus serve` that tells which of our modules call which, from SIGUSR1 until SIGUSR2.

    python -m tests.walk FILE serve --data DIR …

Pure Python only, since compiled calls are seen by no profiler.  What it saw is written to FILE:
every module that was on the way, and every pair of modules of which one called the other.
"""

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from twinbus.cli.main import main

PACKAGE: Final = "twinbus"


class Walk:
    """The modules that were called, and by whom."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._modules: set[str] = set()
        self._calls: set[tuple[str, str]] = set()

    def begin(self, signal_number: int, frame: FrameType | None) -> None:
        self._modules.clear()
        self._calls.clear()
        sys.setprofile(self._see)

    def end(self, signal_number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        text = json.dumps({"modules": sorted(self._modules), "calls": sorted(self._calls)})
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.replace(self._file)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        callee = str(frame.f_globals.get("__name__"))
        if not callee.startswith(PACKAGE + "."):
            return
        self._modules.add(callee)
        caller = frame.f_back
        if caller is not None and str(caller.f_globals.get("__name__")).startswith(PACKAGE + "."):
            self._calls.add((str(caller.f_globals["__name__"]), callee))


if __name__ == "__main__":
    walk = Walk(Path(sys.argv.pop(1)))
    signal.signal(signal.SIGUSR1, walk.begin)
    signal.signal(signal.SIGUSR2, walk.end)
    raise SystemExit(main(sys.argv[1:]))
