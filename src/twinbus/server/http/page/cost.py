"""What Azure would have billed a namespace this month, from the meter's files.

A past day is read once and kept as a few sums.  The current day is read again from time to time,
for a small share of the time at most, because with many entities the files are long.  Callers get
what is known so far and never wait.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, Final

from twinbus.clock import Clock
from twinbus.costs.prices import Prices, parse_prices
from twinbus.costs.rollup import Sum, is_pairing
from twinbus.errors import ServiceError
from twinbus.metered import DAY_MS, KINDS, Metered, iso, parse_iso

AGE_S_MAX: Final = 5.0
_PATIENCE: Final = 20  # so many times as long as a reading took nobody reads again

_SLICE: Final = 2_000  # lines added up before somebody else may do something

# Reads what was metered between two moments.
Reader = Callable[[int, int], Awaitable[list[Metered]]]
# Namespace in lower case, kind, whether it is there only because of pairing.
Key = tuple[str, str, bool]

log = logging.getLogger("twinbus.server")


class CostBook:
    """The month so far, of all namespaces."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._days: dict[int, dict[Key, Sum]] = {}  # by the moment the day begins
        self._closed: set[int] = set()  # days that were read after their end
        self._task: asyncio.Task[None] | None = None
        self._next_ms = 0  # monotonic: not to be read again before
        self.is_complete = False  # has all of the month been read?

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def begin(self, patience_s: float) -> None:
        """Read the month for the first time; whoever has no patience gets what there is."""
        self._refresh()
        if not self.is_complete and self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    def document(self, namespace: str) -> dict[str, Any]:
        """What is known by now; what is not is on its way."""
        self._refresh()
        name = namespace.lower()
        kinds = {kind: Sum() for kind in KINDS}
        pairing_units = 0
        for sums in self._days.values():
            for (owner, kind, is_paired), each in sums.items():
                if owner != name:
                    continue
                kinds[kind].operations += each.operations
                kinds[kind].units += each.units
                kinds[kind].empty += each.empty
                pairing_units += each.units if is_paired else 0
        prices, units = shipped_prices(), sum(each.units for each in kinds.values())
        cost = prices.operations_month(units)
        return {
            "month": iso(self._clock.now().utc_ms)[:7],
            "currency": prices.currency,
            "prices_as_of": prices.date.isoformat(),
            "operations": [
                {"kind": kind, **vars(each)} for kind, each in kinds.items() if each.operations
            ],
            "units": units,
            "pairing_units": pairing_units,
            "base": _money(prices.base_month),
            "operations_cost": _money(cost),
            "total": _money(prices.base_month + cost),
            "is_complete": self.is_complete,
        }

    async def read(self) -> None:
        """Read the days of this month that are not known for good."""
        now_ms = self._clock.now().utc_ms
        month_ms, today_ms = parse_iso(iso(now_ms)[:7] + "-01"), now_ms - now_ms % DAY_MS
        if any(day_ms < month_ms for day_ms in self._days):
            self._days.clear()
            self._closed.clear()
            self.is_complete = False
        for day_ms in range(today_ms, month_ms - 1, -DAY_MS):
            if day_ms not in self._closed:
                lines = await self._reader(day_ms, day_ms + DAY_MS)
                self._days[day_ms] = await _summed(lines)
                if day_ms < today_ms:
                    self._closed.add(day_ms)
        self.is_complete = True

    def _refresh(self) -> None:
        is_busy = self._task is not None and not self._task.done()
        if not is_busy and self._clock.now().mono_ms >= self._next_ms:
            self._task = asyncio.get_running_loop().create_task(self._read_and_rest())

    async def _read_and_rest(self) -> None:
        begun_ms = self._clock.now().mono_ms
        try:
            await self.read()
        except ServiceError as error:
            log.warning("what was metered is not shown: %s", error)
        took_ms = self._clock.now().mono_ms - begun_ms
        self._next_ms = begun_ms + max(int(AGE_S_MAX * 1_000), _PATIENCE * took_ms)


async def _summed(lines: list[Metered]) -> dict[Key, Sum]:
    sums: dict[Key, Sum] = {}
    for number, line in enumerate(lines, 1):
        key = (line.namespace.lower(), line.kind, is_pairing(line))
        sums.setdefault(key, Sum()).add(line)
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return sums


@cache
def shipped_prices() -> Prices:
    """The table that comes along."""
    text = resources.files("twinbus.costs").joinpath("prices.toml").read_text(encoding="utf-8")
    return parse_prices(text, "prices.toml")


def _money(amount: Decimal) -> str:
    return f"{amount:.2f}" if amount == 0 or amount >= 1 else f"{amount:.4f}"
