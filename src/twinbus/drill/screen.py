"""What a person sees while a drill runs: a live view in a terminal, lines elsewhere.

Both write to standard error: standard output is for the verdict.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from twinbus.drill.director import Screen, Snapshot
from twinbus.drill.events import Told

STATUS_S: Final = 5.0  # between two lines of numbers


class LineScreen:
    """A line for each thing that happens, and for the numbers now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next_s = STATUS_S

    def tell(self, told: Told) -> None:
        self._write(told.time_s, told.text)

    def look(self, snapshot: Snapshot) -> None:
        if snapshot.time_s < self._next_s:
            return
        self._next_s = snapshot.time_s + STATUS_S
        self._write(
            snapshot.time_s,
            f"sent {snapshot.sent_rate:,.0f}/s, arrived {snapshot.arrived_rate:,.0f}/s, "
            f"backlog {snapshot.backlog:,}; {snapshot.clerk}",
        )

    def _write(self, time_s: float, text: str) -> None:
        # One write: events are told by several threads.
        self._stream.write(f"{time_s:6.1f} s  {text}\n")
        self._stream.flush()


@contextmanager
def open_screen(stream: TextIO, *, is_plain: bool) -> Iterator[Screen]:
    """A live view where that is possible and wanted."""
    if is_plain or not stream.isatty():
        yield LineScreen(stream)
        return
    try:
        from twinbus.drill.live import LiveScreen  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        yield LineScreen(stream)
        return
    with LiveScreen(stream) as live:
        yield live
