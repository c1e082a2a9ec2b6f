"""The live view: both namespaces, the entities, rates, the backlog, what happens.

`render` makes a picture of a snapshot and nothing else; the rest keeps it on the terminal.
"""

from types import TracebackType
from typing import Final, Self, TextIO

from rich.align import Align
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from twinbus.drill.director import Snapshot
from twinbus.drill.events import Told
from twinbus.drill.plan import Act
from twinbus.drill.timeline import sparkline

WIDTH: Final = 96
_LEFT: Final = 47
_RIGHT: Final = WIDTH - 1 - _LEFT
_SPARKS: Final = 34
_TOLD: Final = 9
_TOLD_MIN: Final = 3
_OTHERS: Final = 18  # lines of everything but the log
_REFRESHES: Final = 4  # a second

_STATES: Final = {
    "healthy": "green",
    "failing": "yellow",
    "failed over": "red",
    "recovering": "cyan",
}
_NAMESPACES: Final = {"starting": "yellow", "up": "green", "stopped": "bright_black"}
_TONES: Final = {"good": "green", "bad": "red", "act": "bold cyan"}


class LiveScreen:
    """Keeps the picture up to date; the last one stays."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=_REFRESHES)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def tell(self, told: Told) -> None:
        """The next picture has it."""

    def look(self, snapshot: Snapshot) -> None:
        # The log takes what room is left, so that a small terminal does not cut the picture.
        room = self._console.height - _OTHERS
        self._live.update(render(snapshot, max(_TOLD_MIN, min(_TOLD, room))))


def render(snapshot: Snapshot, told_max: int = _TOLD) -> RenderableType:
    return Group(
        _head(snapshot),
        Columns([_primary(snapshot), _secondary(snapshot)], padding=(0, 1)),
        _entities(snapshot),
        _told(snapshot, told_max),
    )


def _head(snapshot: Snapshot) -> RenderableType:
    steps = Text()
    for act in Act:
        if act.number > 1:
            steps.append(" › ", "dim")
        style = "bold cyan" if act is snapshot.act else "dim"
        if act.number < snapshot.act.number:
            style = "green"
        steps.append(f"{act.number} {act.value}", style)
    time = f"{snapshot.time_s // 60:02.0f}:{snapshot.time_s % 60:02.0f}"
    lines = Group(Align.center(steps), Align.center(Text(snapshot.words, "italic")))
    return Panel(lines, title="[bold]twinbus drill", subtitle=time, width=WIDTH)


def _namespace(
    title: str, authority: str, state: str, rows: list[tuple[str, Text]], width: int
) -> Panel:
    colour = _NAMESPACES.get(state, "red")
    grid = Table.grid(padding=(0, 1))
    grid.add_row("", Text(f"{'✖' if colour == 'red' else '●'} {state}", f"bold {colour}"))
    for name, text in rows:
        grid.add_row(Text(name, "dim"), text)
    return Panel(grid, title=f"[bold]{title}[/] [dim]{authority}", width=width, border_style=colour)


def _primary(snapshot: Snapshot) -> Panel:
    sparks = sparkline(snapshot.sent_rates, _SPARKS)
    rows = [
        ("sent", Text(f"{snapshot.sent_rate:6,.0f}/s")),
        ("arrived", Text(f"{snapshot.arrived_rate:6,.0f}/s")),
        ("sends", Text(sparks, "cyan")),
    ]
    return _namespace("primary", snapshot.authorities[0], snapshot.primary, rows, _LEFT)


def _secondary(snapshot: Snapshot) -> Panel:
    sparks = sparkline(snapshot.depths, _SPARKS)
    rows = [
        ("backlog", Text(f"{snapshot.backlog:,}", "bold yellow" if snapshot.backlog else "")),
        ("depth", Text(sparks, "yellow")),
        ("", Text(snapshot.clerk, "magenta")),
    ]
    return _namespace("secondary", snapshot.authorities[1], snapshot.secondary, rows, _RIGHT)


def _entities(snapshot: Snapshot) -> RenderableType:
    table = Table(width=WIDTH, box=None, header_style="dim", padding=(0, 2))
    for title, width in (("entity", 9), ("", 22), ("state", 11)):
        table.add_column(title, width=width)
    for title in ("sent", "by the backlog", "arrived"):
        table.add_column(title, justify="right")
    for row in snapshot.entities:
        table.add_row(
            Text(row.name, "bold"),
            Text(row.kind, "dim"),
            Text(row.state, _STATES.get(row.state, "")),
            f"{row.sent:,}",
            f"{row.to_backlog:,}",
            f"{row.arrived:,}",
        )
    return table


def _told(snapshot: Snapshot, count: int) -> RenderableType:
    lines = Text()
    for told in snapshot.told[-count:]:
        lines.append(f"{told.time_s:6.1f} s  ", "dim")
        lines.append(f"{told.text}\n", _TONES.get(told.tone, ""))
    lines.rstrip()
    return Panel(lines, title="[dim]what happens", width=WIDTH, height=count + 2)
