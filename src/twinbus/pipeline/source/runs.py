"""Runs of sequence numbers: `((first, end), …)`, sorted, apart from each other, ends exclusive.

Dead letters keep the numbers that they had, so what has been read of a dead-letter queue is no
range but a set; a set of numbers is mostly a few runs.
"""

from bisect import bisect_right
from collections.abc import Iterable

Run = tuple[int, int]
Runs = tuple[Run, ...]


def merge(runs: Iterable[Run]) -> Runs:
    """Any runs, in any order, as one set of numbers."""
    merged: list[Run] = []
    for first, end in sorted(runs):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return tuple(merged)


def count(runs: Runs) -> int:
    return sum(end - first for first, end in runs)


def intersect(left: Runs, right: Runs) -> Runs:
    """The numbers that are in both."""
    found: list[Run] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if first < end:
            found.append((first, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def subtract(runs: Runs, others: Runs) -> Runs:
    """The numbers that are in `runs` and not in `others`."""
    found: list[Run] = []
    j = 0
    for first, end in runs:
        while j < len(others) and others[j][1] <= first:
            j += 1
        k = j
        while k < len(others) and others[k][0] < end:
            if first < others[k][0]:
                found.append((first, others[k][0]))
            first = others[k][1]
            k += 1
        if first < end:
            found.append((first, end))
    return tuple(found)


def lowest(runs: Runs, limit: int) -> Runs:
    """The lowest `limit` numbers."""
    found: list[Run] = []
    for first, end in runs:
        if limit <= 0:
            break
        found.append((first, min(end, first + limit)))
        limit -= end - first
    return tuple(found)


def contains(runs: Runs, number: int) -> bool:
    at = bisect_right(runs, (number, 1 << 64))
    return at > 0 and runs[at - 1][0] <= number < runs[at - 1][1]
