"""Which task reads what: the ranges between two offsets, divided.  Pure: no bus, no Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.pipeline.source.offsets import Offset, split_key
from twinbus.pipeline.source.runs import Runs, count, intersect, lowest, subtract

# Messages that were read before and lie between wanted ones: so many are fetched and thrown away
# rather than asked around, as a request costs about as much.
SKIPPED_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Span:
    """Messages to read: those of [first, end), of a sub-queue only those in `runs`."""

    path: str
    created_ms: int | None
    first: int
    end: int
    runs: Runs | None = None

    @property
    def size(self) -> int:
        return self.end - self.first if self.runs is None else count(self.runs)


Task = list[Span]


def tasks_between(start: Offset, end: Offset, spelled: Mapping[str, str]) -> list[Task]:
    """What lies between two offsets, one task for each partition that has anything.

    `spelled`: paths as they are shown, by their lower case.
    """
    tasks: list[Task] = []
    for key, position in end.positions.items():
        path, _ = split_key(key)
        created = end.created.get(path)
        if created != start.created.get(path, created):
            start = start.without([path])  # begun anew
        shown = spelled.get(path, path)
        if isinstance(position, int):
            first = start.number(key)
            task = [Span(shown, created, first, position)] if first < position else []
        else:
            read = start.runs(key)
            wanted = subtract(position, read)
            task = _around(shown, created, wanted, intersect(read, position))
        if task:
            tasks.append(task)
    return tasks


def _around(path: str, created_ms: int | None, wanted: Runs, read: Runs) -> Task:
    """Few spans that have all wanted numbers, and not too many of those that were read before."""
    spans: Task = []
    group: list[tuple[int, int]] = []
    for run in wanted:
        if group:
            between = intersect(read, ((group[-1][1], run[0]),))
            if count(between) > SKIPPED_MAX:
                spans.append(Span(path, created_ms, group[0][0], group[-1][1], tuple(group)))
                group = []
        group.append(run)
    if group:
        spans.append(Span(path, created_ms, group[0][0], group[-1][1], tuple(group)))
    return spans


def divided(tasks: Sequence[Task], task_count: int, splits: bool) -> list[Task]:
    """As many tasks as asked for (0: as they are): packed, or, if it `splits`, cut into parts.

    A packed task reads its spans one after the other, so the order in a partition stays.
    """
    if task_count == 0 or len(tasks) == task_count:
        return list(tasks)
    if len(tasks) > task_count:
        return _packed(tasks, task_count)
    if not splits or not tasks:
        return list(tasks)
    total = sum(_size(task) for task in tasks)
    extra = task_count - len(tasks)
    parts: list[Task] = []
    for task in tasks:
        parts += _cut(task, 1 + extra * _size(task) // total)
    return parts


def _size(task: Task) -> int:
    return sum(span.size for span in task)


def _packed(tasks: Sequence[Task], task_count: int) -> list[Task]:
    """The largest first, each to whoever has least."""
    packed: list[Task] = [[] for _ in range(task_count)]
    sizes = [0] * task_count
    for task in sorted(tasks, key=_size, reverse=True):
        least = sizes.index(min(sizes))
        packed[least] += task
        sizes[least] += _size(task)
    return packed


def _cut(task: Task, parts: int) -> list[Task]:
    """The same spans in order, in about equal parts; a range stays a range."""
    per_part = -(-_size(task) // parts)
    cut: list[Task] = [[]]
    room = per_part
    for span in task:
        rest: Span | None = span
        while rest is not None:
            if room == 0:
                cut.append([])
                room = per_part
            piece, rest = _split(rest, room)
            cut[-1].append(piece)
            room -= piece.size
    return cut


def _split(span: Span, size: int) -> tuple[Span, Span | None]:
    """The first `size` numbers of a span, and the rest of it."""
    if span.size <= size:
        return span, None
    path, created_ms = span.path, span.created_ms
    if span.runs is None:
        middle = span.first + size
        return (
            Span(path, created_ms, span.first, middle),
            Span(path, created_ms, middle, span.end),
        )
    head = lowest(span.runs, size)
    tail = subtract(span.runs, head)
    return (
        Span(path, created_ms, head[0][0], head[-1][1], head),
        Span(path, created_ms, tail[0][0], tail[-1][1], tail),
    )
