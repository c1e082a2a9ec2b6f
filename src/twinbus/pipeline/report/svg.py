"""Small charts as inline SVG: bars, stacked columns, lines, bands, a percentile curve.

Pure: numbers in, text out.  Colours are classes (`s1` … `s6`, `bad`), which the page gives a value
for light and for dark.  Every text is escaped here, because ids and names come from anywhere.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NewType

Html = NewType("Html", str)  # text that has been escaped

WIDTH: Final = 760
_LEFT: Final = 76
_RIGHT: Final = 18
_TOP: Final = 12
_BOTTOM: Final = 44
_HEIGHT: Final = 250
_BAR: Final = 22
_X_LABELS_MAX: Final = 9
_MARK_CHARACTER: Final = 6.2  # about as wide as one is

Text = Callable[[float], str]
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Series:
    """Numbers of one kind, and the class of their colour."""

    name: str
    values: Sequence[float]
    tone: str


@dataclass(frozen=True)
class Band:
    """A stretch of a row of `bands`; its text is shown where a pointer rests on it."""

    start: float
    end: float
    text: str
    tone: str


Marks = Sequence[tuple[float, str]]  # places on the x axis where something began, and what


def number_text(value: float) -> str:
    """1,200 as 1.2k: for axes, where there is little room."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration_text(ms: float) -> str:
    """With the unit that fits: 0.4 ms, 12 s, 3 min, 2 h."""
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if abs(ms) >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def _decade_text(ms: float) -> str:
    """Powers of ten stay such: 100 s, not 1.67 min."""
    return f"{ms / 1_000:,g} s" if ms >= 1_000 else f"{ms:g} ms"


def ticks(high: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to where `high` fits below the last one."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    return [step * place for place in range(math.ceil(high / step - 1e-9) + 1)]


def bars(rows: Sequence[tuple[str, float]], about: str, tone: str = "s1") -> Html:
    """Horizontal bars, the name in front of each and its number behind."""
    top = max((value for _, value in rows), default=0) or 1
    left, room = 230, WIDTH - 230 - 90
    parts = []
    for place, (name, value) in enumerate(rows):
        y = place * _BAR + 4
        width = max(1.5, value / top * room) if value else 0
        shown = name if len(name) <= 34 else name[:16] + "…" + name[-17:]
        parts.append(
            f"<g>{_title(f'{name}: {value:,.0f}')}"
            f"{_text(left - 8, y + 12, shown, 'label', 'end')}"
            f'<rect class="{tone}" x="{left}" y="{y}" width="{width:.1f}" height="15" rx="2"/>'
            f"{_text(left + width + 6, y + 12, f'{value:,.0f}', 'label')}</g>"
        )
    return _svg(len(rows) * _BAR + 8, about, parts)


def columns(
    labels: Sequence[str],
    series: Sequence[Series],
    about: str,
    y_name: str,
    y_text: Text = number_text,
    x_name: str = "",
) -> Html:
    """Columns side by side, each a stack of the series; the first series is at the bottom."""
    sums = [sum(column) for column in zip(*(each.values for each in series), strict=True)]
    marks = ticks(max(sums, default=0))
    parts = _y_axis(marks, y_name, y_text, _linear(marks[-1]))
    slot = (WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    width = min(slot * 0.82, 60)
    every = math.ceil(len(labels) / _X_LABELS_MAX)
    for place, label in enumerate(labels):
        middle = _LEFT + (place + 0.5) * slot
        below = 0.0
        for each in series:
            value = each.values[place]
            if value:
                y, base = _linear(marks[-1])(below + value), _linear(marks[-1])(below)
                parts.append(
                    f'<rect class="{each.tone}" x="{middle - width / 2:.1f}" y="{y:.1f}" '
                    f'width="{width:.1f}" height="{max(base - y, 0.8):.1f}">'
                    f"{_title(f'{label}, {each.name}: {value:,.0f}')}</rect>"
                )
                below += value
        if place % every == 0:
            parts.append(_text(middle, _HEIGHT - _BOTTOM + 18, label, "tick", "middle"))
    return _svg(_HEIGHT, about, [*parts, *_x_name(x_name)])


def lines(
    xs: Sequence[float],
    series: Sequence[Series],
    about: str,
    y_name: str,
    x_text: Text,
    x_name: str = "",
    marks_at: Marks = (),
) -> Html:
    """Lines over a common axis; the first series is filled below."""
    marks = ticks(max((max(each.values, default=0) for each in series), default=0))
    y_of = _linear(marks[-1])
    parts = _y_axis(marks, y_name, number_text, y_of)
    first, last = min(xs, default=0.0), max(xs, default=1.0)
    x_of = _along(first, last, _LEFT)
    parts += _marks(marks_at, x_of, _HEIGHT - _BOTTOM)
    for place, each in enumerate(series):
        points = " ".join(
            f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, each.values, strict=True)
        )
        if place == 0 and points:
            floor = f"{y_of(0):.1f}"
            area = f"{x_of(first):.1f},{floor} {points} {x_of(last):.1f},{floor}"
            parts.append(f'<polygon class="{each.tone} area" points="{area}"/>')
        parts.append(
            f'<polyline class="{each.tone} line" points="{points}">{_title(each.name)}</polyline>'
        )
    parts += _x_ticks(first, last, x_of, x_text, _HEIGHT - _BOTTOM + 18)
    return _svg(_HEIGHT, about, [*parts, *_x_name(x_name)])


def bands(
    rows: Sequence[tuple[str, Sequence[Band]]], about: str, x_text: Text, marks_at: Marks = ()
) -> Html:
    """A row for each name, of stretches in colours, over a common axis."""
    every = [band for _, found in rows for band in found]
    first = min((band.start for band in every), default=0.0)
    last = max((band.end for band in every), default=1.0)
    x_of = _along(first, last, _LEFT)
    bottom = _TOP + 20 + len(rows) * _BAR
    parts = _marks(marks_at, x_of, bottom)
    for place, (name, found) in enumerate(rows):
        y = _TOP + 20 + place * _BAR
        parts.append(_text(_LEFT - 8, y + 12, name, "label", "end"))
        for band in found:
            x, width = x_of(band.start), max(x_of(band.end) - x_of(band.start), 1.0)
            parts.append(
                f'<rect class="{band.tone}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="16">'
                f"{_title(f'{name}: {band.text}')}</rect>"
            )
    parts += _x_ticks(first, last, x_of, x_text, bottom + 16)
    return _svg(bottom + 24, about, parts)


def percentile_curve(points: Sequence[tuple[float, float]], about: str, y_name: str) -> Html:
    """Milliseconds by percentile, both logarithmic: equal steps to 90, 99, 99.9 …

    The last point may be the 100th percentile; it is drawn one step behind the one before.
    """
    low = max(min((y for _, y in points if y > 0), default=0.1), 0.01)
    high = max(max((y for _, y in points), default=1.0), low * 10)
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    far = max((-math.log10(1 - p / 100) for p, _ in points if p < 100), default=1.0) + 0.5

    def x_of(p: float) -> float:
        nines = far if p >= 100 else -math.log10(1 - p / 100)
        return _LEFT + nines / far * (WIDTH - _LEFT - _RIGHT)

    def y_of(ms: float) -> float:
        part = (math.log10(max(ms, 10.0**bottom)) - bottom) / max(1, top - bottom)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    decades = [10.0**power for power in range(bottom, top + 1)]
    parts = _y_axis(decades, y_name, _decade_text, y_of)
    path = " ".join(f"{x_of(p):.1f},{y_of(ms):.1f}" for p, ms in points)
    parts.append(f'<polyline class="s1 line" points="{path}"/>')
    for p, ms in points:
        shown = f"{'max' if p >= 100 else f'p{p:g}'}: {duration_text(ms)}"
        parts.append(
            f'<circle class="s1" cx="{x_of(p):.1f}" cy="{y_of(ms):.1f}" r="3">'
            f"{_title(shown)}</circle>"
        )
    known = {p for p, _ in points}
    for p in (0, 50, 90, 99, 99.9, 99.99, 100):
        if p in known:
            label = "max" if p == 100 else f"p{p:g}" if p else "least"
            anchor = "start" if p == 0 else "end" if p == 100 else "middle"
            parts.append(_text(x_of(p), _HEIGHT - _BOTTOM + 18, label, "tick", anchor))
    return _svg(_HEIGHT, about, [*parts, *_x_name("percentile of messages")])


def legend(series: Sequence[Series]) -> Html:
    """Which colour is what."""
    keys = [f'<span><i class="key {each.tone}"></i>{escape(each.name)}</span>' for each in series]
    return Html(f'<p class="legend">{"".join(keys)}</p>')


def _along(first: float, last: float, left: float) -> Scale:
    """Where a value stands on an x axis from `first` to `last`."""
    span = (last - first) or 1.0

    def x_of(x: float) -> float:
        return left + (x - first) / span * (WIDTH - left - _RIGHT)

    return x_of


def _x_ticks(first: float, last: float, x_of: Scale, x_text: Text, y: float) -> list[str]:
    parts = []
    for place in range(5):
        x = first + (last - first) * place / 4
        anchor = "start" if place == 0 else "end" if place == 4 else "middle"
        parts.append(_text(x_of(x), y, x_text(x), "tick", anchor))
    return parts


def _marks(marks: Marks, x_of: Scale, bottom: float) -> list[str]:
    """Upright lines, each with its text beside it, or the first word where no more has room."""
    parts = []
    xs = [x_of(at) for at, _ in marks]
    for (_, text), x, end in zip(marks, xs, [*xs, WIDTH][1:], strict=True):
        shown = text if len(text) * _MARK_CHARACTER < end - x else text.split()[0]
        parts.append(
            f'<g>{_title(text)}<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" '
            f'y2="{bottom:.1f}"/>{_text(x + 4, _TOP + 9, shown, "tick")}</g>'
        )
    return parts


def _linear(top: float) -> Scale:
    """Where a value stands on the y axis that ends at `top`."""
    room = _HEIGHT - _TOP - _BOTTOM

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / (top or 1) * room

    return y_of


def _y_axis(marks: Sequence[float], name: str, text: Text, y_of: Scale) -> list[str]:
    parts = []
    for mark in marks:
        y = y_of(mark)
        grid = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        parts += [grid, _text(_LEFT - 8, y + 4, text(mark), "tick", "end")]
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" '
        f'transform="translate(11 {middle:.0f}) rotate(-90)">{escape(name)}</text>'
    )
    return parts


def _x_name(name: str) -> list[str]:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return [_text(middle, _HEIGHT - 6, name, "axis", "middle")] if name else []


def _text(x: float, y: float, text: str, tone: str, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{tone}" {where}>{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(height: float, about: str, parts: Sequence[str]) -> Html:
    shown = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(about)}"'
    return Html(f'<svg xmlns="http://www.w3.org/2000/svg" {shown}>{"".join(parts)}</svg>')
