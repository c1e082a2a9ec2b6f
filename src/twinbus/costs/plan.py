"""The plan: what pairing costs in a month, before there is a bill.

    polls      each syphon asks each backlog queue once in 15 minutes while that is empty
    pings      each client asks each entity that it has failed over, until one gets through
    backlog    a message through the backlog costs 4 operations (into the backlog, out of it, to
               the primary, from the primary) in place of the 2 that it costs anyway

A month has 30 days.  Everything is an upper bound: a backlog queue that has messages is not polled
in vain, and a ping that never reaches a namespace is not billed there.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from twinbus.costs.prices import Prices
from twinbus.errors import ConfigError
from twinbus.metered import UNIT_BYTES

MONTH_HOURS: Final = 720
MONTH_S: Final = MONTH_HOURS * 3_600
POLL_S: Final = 900  # how long a syphon's receive waits
ANYWAY: Final = 2  # operations of a message: sent and received
THROUGH_BACKLOG: Final = 4


@dataclass(frozen=True)
class Scenario:
    """What is known before."""

    messages: int = 0  # a month
    message_bytes: int = 1_024
    backlog_queues: int = 10
    syphons: int = 1
    entities: int = 1  # that are sent to, and pinged
    clients: int = 1  # paired, each with its own idea of what is down
    outage_hours: Fraction = Fraction(0)  # a month, all together
    outages: int = 1  # into which these are divided
    failover_interval_s: Fraction = Fraction(60)
    ping_interval_s: Fraction = Fraction(60)

    def __post_init__(self) -> None:
        _check("--rate", self.messages, 0)
        _check("--message-size", self.message_bytes, 0)
        _check("--backlog-queues", self.backlog_queues, 1)
        _check("--syphons", self.syphons, 0)
        _check("--entities", self.entities, 1)
        _check("--clients", self.clients, 1)
        _check("--outages", self.outages, 1)
        _check("--failover-interval", self.failover_interval_s, 0)
        if not 0 <= self.outage_hours <= MONTH_HOURS:
            raise ConfigError(f"--outage-hours lies between 0 and the {MONTH_HOURS} of a month")
        if self.ping_interval_s <= 0:
            raise ConfigError("--ping-interval is longer than 0 seconds")


def _check(name: str, number: int | Fraction, lowest: int) -> None:
    if number < lowest:
        raise ConfigError(f"{name} is {lowest} or more")


@dataclass(frozen=True)
class Plan:
    """What it comes to in a month.  Operations are counted as they are billed: in units."""

    polls: int
    pings: int
    backlog_messages: int
    backlog: int  # operations of these messages, of which…
    backlog_anyway: int  # … so many had been needed without a pairing too
    without: int  # operations without a pairing

    @property
    def more(self) -> int:
        """Operations that are only there because of the pairing."""
        return self.polls + self.pings + self.backlog - self.backlog_anyway

    @property
    def total(self) -> int:
        return self.without + self.more


def plan(scenario: Scenario) -> Plan:
    """What pairing comes to in such a month."""
    units = max(1, -(-scenario.message_bytes // UNIT_BYTES))
    polls = scenario.backlog_queues * scenario.syphons * (MONTH_S // POLL_S)
    outage_s = scenario.outage_hours * 3_600 / scenario.outages
    # Sends that fail before the failover are raised to the caller; they cost nothing.
    failed_over_s = max(Fraction(0), outage_s - scenario.failover_interval_s)
    pings = messages = 0
    if failed_over_s > 0:
        # Those that fail, and the one that gets through.
        each = failed_over_s // scenario.ping_interval_s + 1
        pings = scenario.outages * scenario.entities * scenario.clients * each
        messages = round(scenario.messages * failed_over_s * scenario.outages / MONTH_S)
    return Plan(
        polls=polls,
        pings=pings,
        backlog_messages=messages,
        backlog=messages * units * THROUGH_BACKLOG,
        backlog_anyway=messages * units * ANYWAY,
        without=scenario.messages * units * ANYWAY,
    )


@dataclass(frozen=True)
class Bill:
    """What a month costs without the pairing, and with it."""

    without: Decimal
    total: Decimal

    @property
    def more(self) -> Decimal:
        return self.total - self.without


def standard_bill(planned: Plan, prices: Prices) -> Bill:
    """In the standard tier: both namespaces in one subscription, which shares the base charge."""
    return Bill(prices.month(planned.without), prices.month(planned.total))


def premium_bill(prices: Prices, messaging_units: int, secondary_units: int) -> Bill:
    """In the premium tier operations cost nothing, but the secondary has units of its own."""
    _check("--messaging-units", messaging_units, 1)
    _check("--secondary-units", secondary_units, 1)
    each = prices.unit_hour * MONTH_HOURS
    return Bill(each * messaging_units, each * (messaging_units + secondary_units))
