"""What was measured along the way, as rates and spans.  Pure: readings in, series out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from twinbus.drill.plan import Act

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
RATE_SPAN_S: Final = 2.0  # a rate on the screen is over so much time


@dataclass(frozen=True)
class Sample:
    """One look at everything."""

    time_s: float  # since the drill began
    sent: int
    arrived: int
    backlog: int | None  # None: the secondary did not say
    states: Mapping[str, str]  # by entity


@dataclass(frozen=True)
class Mark:
    """When an act began."""

    time_s: float
    act: Act


@dataclass(frozen=True)
class Span:
    """An entity was in one state for so long."""

    start_s: float
    end_s: float
    state: str


class Timeline:
    """Samples in the order of time, and the marks of acts."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)

    def mark(self, time_s: float, act: Act) -> None:
        self.marks.append(Mark(time_s, act))

    def rates(self) -> tuple[list[float], list[float], list[float]]:
        """Times, and at each of them what was sent and what arrived in a second around it."""
        last = len(self.samples) - 1
        sent, arrived = [], []
        for place in range(last + 1):
            before, after = self.samples[max(0, place - 1)], self.samples[min(last, place + 1)]
            span_s = max(after.time_s - before.time_s, 0.001)
            sent.append((after.sent - before.sent) / span_s)
            arrived.append((after.arrived - before.arrived) / span_s)
        return [each.time_s for each in self.samples], sent, arrived

    def rate_now(self, count: str) -> float:
        """Of `sent` or `arrived`, over the last seconds."""
        if len(self.samples) < 2:
            return 0.0
        last = self.samples[-1]
        first = next(
            (each for each in self.samples if last.time_s - each.time_s <= RATE_SPAN_S), last
        )
        if first is last:
            first = self.samples[-2]
        difference: int = getattr(last, count) - getattr(first, count)
        return difference / max(last.time_s - first.time_s, 0.001)

    def depths(self) -> tuple[list[float], list[float]]:
        """Times, and how much waited in the backlog."""
        known = [each for each in self.samples if each.backlog is not None]
        return [each.time_s for each in known], [float(each.backlog or 0) for each in known]

    def spans(self) -> dict[str, list[Span]]:
        """By entity, its states one after the other."""
        found: dict[str, list[Span]] = {}
        for sample in self.samples:
            for entity, state in sample.states.items():
                spans = found.setdefault(entity, [])
                if spans:
                    spans[-1] = Span(spans[-1].start_s, sample.time_s, spans[-1].state)
                if not spans or spans[-1].state != state:
                    spans.append(Span(sample.time_s, sample.time_s, state))
        return found


def sparkline(values: Sequence[float], width: int) -> str:
    """All values as so many blocks at most, each a mean of neighbours, the highest one full."""
    count = min(width, len(values))
    edges = [place * len(values) // count for place in range(count + 1)] if count else []
    groups = [values[start:end] for start, end in pairwise(edges)]
    means = [sum(group) / len(group) for group in groups]
    top = max(means, default=0.0) or 1.0
    return "".join(_BLOCKS[round(mean / top * (len(_BLOCKS) - 1))] for mean in means)
