"""A loop that listens a moment longer before it goes to sleep.

A client that sends one message at a time sends the next one as soon as it has its answer.  A loop
that sleeps meanwhile has to be woken, which is an eighth of the time that a durable acknowledgement
takes (docs/performance.md).

    answer ─▶ listen for 100 µs ──▶ the next message is there: nobody had to be woken
                     └────────────▶ nothing: sleep, as always

Listening keeps a processor busy, so it is done only where it pays:

- after an answer to a client that talks alone; with more of them there is work;
- where this process may use several processors: the only one would be the client's to use;
- while most of it is heard.  After too much silence so many answers go by without, and twice as
  many the next time.
"""

import asyncio
import os
import selectors
from typing import Final

from twinbus.clock import monotonic_s

LISTEN_S: Final = 0.0001  # a client in C is back within 70 µs, 9 times of 10; the SDK after 200
TRUST_MAX: Final = 8
SILENCE_PRICE: Final = 2  # so a third of the times may pass in silence
PAUSE_MIN: Final = 8  # answers
PAUSE_MAX: Final = 128  # so a client that is always late costs less than a µs an answer more


class Attention:
    """What the last times say about the next one."""

    __slots__ = ("_has_answered", "_is_possible", "_left", "_pause", "_trust")

    def __init__(self, processor_count: int) -> None:
        self._is_possible = processor_count > 1
        self._has_answered = False
        self._trust = 0
        self._left = 0  # so many answers go by without listening
        self._pause = PAUSE_MIN

    def answered(self) -> None:
        """A client that talks alone has its answer."""
        if self._left > 0:
            self._left -= 1
        else:
            self._has_answered = self._is_possible

    def is_wanted(self) -> bool:
        """Is the loop to listen now, before it sleeps?  Once for an answer."""
        is_wanted, self._has_answered = self._has_answered, False
        return is_wanted

    def listened(self, has_heard: bool) -> None:
        """It has, and somebody spoke, or nobody did."""
        if has_heard:
            self._trust = min(self._trust + 1, TRUST_MAX)
            if self._trust == TRUST_MAX:
                self._pause = PAUSE_MIN
            return
        self._trust -= SILENCE_PRICE
        if self._trust < 0:
            self._trust = 0
            self._left = self._pause
            self._pause = min(2 * self._pause, PAUSE_MAX)


class AttentiveSelector(selectors.DefaultSelector):
    """Selects as any other, but listens first where attention is wanted."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self._attention = attention

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        is_long = timeout is None or timeout > LISTEN_S
        if is_long and self._attention.is_wanted():
            heard = self._listen()
            self._attention.listened(bool(heard))
            if heard:
                return heard
        return super().select(timeout)

    def _listen(self) -> list[tuple[selectors.SelectorKey, int]]:
        end_s = monotonic_s() + LISTEN_S
        while not (heard := super().select(0)) and monotonic_s() < end_s:
            pass  # Python's lock is free while the system is asked
        return heard


class AttentiveLoop(asyncio.SelectorEventLoop):
    """asyncio's loop; what runs on it may say that it has answered."""

    def __init__(self, processor_count: int | None = None) -> None:
        self.attention = Attention(processor_count or _processor_count())
        super().__init__(AttentiveSelector(self.attention))


def _processor_count() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
