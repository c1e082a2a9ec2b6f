"""Processor time on the client's side: this process and everything below it but the servers."""

import os
import threading
import time
from pathlib import Path
from typing import Self


class ClientClock:
    """Runs while it is entered.

    Spark's workers come and go and take their times with them, so they are looked at all the time.
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._own_s = 0.0  # what looking costs: nobody's work

    def __enter__(self) -> Self:
        self._first = ticks_of_clients()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / os.sysconf("SC_CLK_TCK") - self._own_s

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            self._last |= ticks_of_clients()
        self._last |= ticks_of_clients()
        self._own_s = time.thread_time()


def ticks_of_clients() -> dict[int, int]:
    children: dict[int, list[tuple[int, int]]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            own = int(fields[11]) + int(fields[12])
            children.setdefault(int(fields[1]), []).append((int(entry.name), own))
            if int(entry.name) == os.getpid():
                ticks[os.getpid()] = own
    waiting = [os.getpid()]
    while waiting:
        for child, own in children.get(waiting.pop(), []):
            if "serve" not in command_of(child):
                ticks[child] = own
                waiting.append(child)
    return ticks


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
