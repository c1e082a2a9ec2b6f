"""What a source finds in the entities it reads: resolves names, asks the bus, says clearly why not.

Spark asks for the latest offset every few milliseconds while nothing happens.  The bus is asked ten
times a second at most and half of the time at most, if there are many entities; which of them match
a pattern, every ten seconds.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from twinbus.client.admin import QUEUE, SUBSCRIPTION, TOPIC, AdminClient
from twinbus.clock import monotonic_s
from twinbus.errors import EntityNotFound, ServiceError, TwinbusError, Unauthorized
from twinbus.pipeline.bus import Bus, EntityState, PartitionState
from twinbus.pipeline.bus.pool import bus_for, forget
from twinbus.pipeline.options import SourceOptions, is_sub_queue
from twinbus.pipeline.source.offsets import Offset, PartitionStock, first_of
from twinbus.pipeline.source.runs import Runs, merge

STOCKS_FRESH_S: Final = 0.1
NAMES_FRESH_S: Final = 10.0
_RUNS_MAX: Final = 1_000_000  # of one partition; beyond that a checkpoint would not hold them


class SourceError(TwinbusError):
    """An entity cannot be read, for a reason that no answer of the bus has named."""


@contextmanager
def reading(options: SourceOptions, path: str) -> Iterator[Bus]:
    """The bus, to read one entity; whatever goes wrong names it, and ends the connection."""
    bus = _connected(options)
    try:
        yield bus
    except TwinbusError as error:
        forget(bus)
        reason = str(error).removeprefix(f"'{path[:64]}': ")
        raise _told(error, f"cannot read {path[:64]!r} of {options.namespace}: {reason}") from None


def _connected(options: SourceOptions) -> Bus:
    try:
        return bus_for(options.connection_string, options.operations)
    except (TwinbusError, OSError) as error:
        raise _told(error, f"cannot reach {options.namespace}: {error}") from None


def _told(error: Exception, text: str) -> TwinbusError:
    """The same kind of error, for who decides by it whether to try again, with a better text."""
    return type(error)(text) if isinstance(error, ServiceError) else SourceError(text)


class Survey:
    """Asks what is there.  Lives as long as a query, in one process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._paths: list[str] = list(options.paths)
        self._list_again_s = 0.0
        self._stocks: list[PartitionStock] = []
        self._down: list[str] = []
        self._look_again_s = 0.0
        self._settled: dict[str, Runs] = {}

    @property
    def known(self) -> list[PartitionStock]:
        """What was there when it was last asked."""
        return self._stocks

    def paths(self) -> list[str]:
        """All that is to be read; with a pattern, all that matches it now."""
        pattern = self._options.pattern
        if pattern is not None and monotonic_s() >= self._list_again_s:
            self._paths = _matching(self._options, pattern)
            self._list_again_s = monotonic_s() + NAMES_FRESH_S
        return self._paths

    def spelled(self) -> dict[str, str]:
        """Paths as they are shown, by their lower case."""
        return {path.lower(): path for path in self._paths}

    def stocks(self) -> list[PartitionStock]:
        """What each partition holds; one that is down is left out."""
        now_s = monotonic_s()
        if now_s >= self._look_again_s:
            self._stocks, self._down = self._look()
            done_s = monotonic_s()
            self._look_again_s = done_s + max(STOCKS_FRESH_S, done_s - now_s)
        return self._stocks

    def all_stocks(self) -> list[PartitionStock]:
        """The same for who cannot come back later: a partition that is down is an error."""
        stocks = self.stocks()
        if self._down and self._options.fail_on_data_loss:
            raise SourceError(
                f"{self._down[0]} is down. Try again later, or give failOnDataLoss=false to read "
                "what is there."
            )
        return stocks

    def settle(self, read: Offset) -> None:
        """Delete what has been read.  Again and again is as good as once."""
        for stock in self._stocks:
            ranges = read.own(stock.key)
            if ranges and ranges != self._settled.get(stock.key):
                with reading(self._options, stock.path) as bus:
                    bus.settle(stock.path, ranges)
                self._settled[stock.key] = ranges

    def _look(self) -> tuple[list[PartitionStock], list[str]]:
        stocks: list[PartitionStock] = []
        down: list[str] = []
        for path in self.paths():
            try:
                state = self._state(path)
            except EntityNotFound:
                # One that matched a pattern may be deleted at any time; it is just not there.
                if self._options.pattern is None:
                    raise
                self._list_again_s = 0.0
                continue
            for partition in state.partitions:
                if partition.is_up:
                    stocks.append(self._stock(path, state.created_ms, partition))
                else:
                    down.append(f"partition {partition.partition} of {path[:64]!r}")
        return stocks, down

    def _state(self, path: str) -> EntityState:
        try:
            with reading(self._options, path) as bus:
                return bus.entity(path)
        except EntityNotFound:
            # A connection that has known it may not know the new one of the same name yet.
            with reading(self._options, path) as bus:
                return bus.entity(path)

    def _stock(self, path: str, created_ms: int | None, state: PartitionState) -> PartitionStock:
        number = state.partition
        runs: Runs | None = None
        if is_sub_queue(path):
            with reading(self._options, path) as bus:
                found = bus.numbers(path, first_of(number), first_of(number + 1), _RUNS_MAX)
            runs = merge(found)
        return PartitionStock(path, number, created_ms, state.first, state.next, state.count, runs)


def _matching(options: SourceOptions, pattern: str) -> list[str]:
    """Queues and subscriptions whose whole path matches, in any case."""
    admin = AdminClient(options.connection_string)
    try:
        paths = [entry.name for entry in admin.list(QUEUE)]
        for topic in admin.list(TOPIC):
            below = admin.list(SUBSCRIPTION, (topic.name,))
            paths += [f"{topic.name}/Subscriptions/{entry.name}" for entry in below]
    except (TwinbusError, OSError) as error:
        needs = ", which takes the Manage right" if isinstance(error, Unauthorized) else ""
        text = f"cannot list what {options.namespace} has{needs}: {error}"
        raise _told(error, text) from None
    wanted = re.compile(pattern, re.IGNORECASE)
    return sorted(path + options.suffix for path in paths if wanted.fullmatch(path))
