"""Sums of metered usage: by day, namespace, entity and kind, with pairing shown apart.

The cost of pairing is every ping, and every operation at a backlog queue.  When a syphon sends a
message on to the primary, that is a send like any other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from twinbus.costs.prices import Prices
from twinbus.metered import MANAGEMENT, PING, RECEIVE, SEND, Metered

BACKLOG: Final = "/x-servicebus-transfer/"
BY: Final = ("day", "namespace", "entity", "kind")


@dataclass
class Sum:
    """Operations, the units they are billed as, and how many of them found nothing."""

    operations: int = 0
    units: int = 0
    empty: int = 0

    def add(self, line: Metered) -> None:
        self.operations += line.operations
        self.units += line.units
        self.empty += line.empty


@dataclass(frozen=True)
class Pairing:
    """What paired namespaces have cost, in units."""

    into_backlog: int  # messages
    out_of_backlog: int
    polls: int  # of backlog queues, that brought nothing
    pings: int
    management: int  # of backlog queues

    @property
    def units(self) -> int:
        return self.into_backlog + self.out_of_backlog + self.polls + self.pings + self.management


def sums_by(lines: Iterable[Metered], by: tuple[str, ...]) -> dict[tuple[str, ...], Sum]:
    """One sum for each of these, in order."""
    found: dict[tuple[str, ...], Sum] = {}
    for line in lines:
        key = tuple(str(getattr(line, name)) for name in by)
        found.setdefault(key, Sum()).add(line)
    return dict(sorted(found.items()))


def is_pairing(line: Metered) -> bool:
    return line.kind == PING or BACKLOG in line.entity.lower()


def pairing_of(lines: Iterable[Metered]) -> Pairing:
    """What of this is there only because namespaces are paired."""
    kinds: dict[str, Sum] = {}
    for line in lines:
        if is_pairing(line):
            kinds.setdefault(line.kind, Sum()).add(line)
    receives = kinds.get(RECEIVE, Sum())
    return Pairing(
        into_backlog=kinds.get(SEND, Sum()).units,
        out_of_backlog=receives.units - receives.empty,
        polls=receives.empty,
        pings=kinds.get(PING, Sum()).units,
        management=kinds.get(MANAGEMENT, Sum()).units,
    )


@dataclass(frozen=True)
class MonthBill:
    """What a calendar month came to in the standard tier."""

    month: str  # 2026-11
    units: int
    operations: Decimal  # what they cost beside the base charge
    base: Decimal
    pairing: Decimal  # how much less it would be without the pairing


def month_bills(lines: Iterable[Metered], prices: Prices) -> list[MonthBill]:
    """Tiers begin anew every month, so each is a bill of its own."""
    units: dict[str, int] = {}
    paired: dict[str, int] = {}
    for line in lines:
        month = line.day[:7]
        units[month] = units.get(month, 0) + line.units
        paired[month] = paired.get(month, 0) + (line.units if is_pairing(line) else 0)
    bills: list[MonthBill] = []
    for month, count in sorted(units.items()):
        cost = prices.operations_month(count)
        more = cost - prices.operations_month(count - paired[month])
        bills.append(MonthBill(month, count, cost, prices.base_month, more))
    return bills
