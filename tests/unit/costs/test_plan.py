"""The planner: the published arithmetic, before there is a bill."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from twinbus.cli.cost.price_table import read_prices
from twinbus.costs.plan import Scenario, plan, premium_bill, standard_bill
from twinbus.errors import ConfigError

pytestmark = [pytest.mark.proves("C-2", "C-3"), pytest.mark.feature("ours.cost-plan")]


@pytest.mark.proves("C-2", "C-3")
def test_an_idle_pair_polls_28_800_times_a_month() -> None:
    """10 backlog queues and one syphon."""
    planned = plan(Scenario())
    assert planned.polls == 28_800
    assert (planned.pings, planned.backlog, planned.more) == (0, 0, 28_800)
    assert plan(Scenario(syphons=0)).more == 0
    assert plan(Scenario(syphons=3, backlog_queues=4)).polls == 3 * 4 * 4 * 24 * 30


@pytest.mark.proves("C-2", "C-3")
def test_a_message_through_the_backlog_costs_4_operations_of_which_2_anyway() -> None:
    month_s = 30 * 24 * 3_600
    planned = plan(
        Scenario(
            messages=month_s,  # one a second
            outage_hours=Fraction(1),
            failover_interval_s=Fraction(0),
        )
    )
    assert planned.backlog_messages == 3_600
    assert planned.backlog == 4 * 3_600
    assert planned.backlog_anyway == 2 * 3_600
    assert planned.without == 2 * month_s
    assert planned.total == 2 * month_s + 2 * 3_600 + planned.polls + planned.pings


@pytest.mark.proves("C-3")
def test_what_fails_before_the_failover_is_not_in_the_backlog() -> None:
    """Sends of the first minute of each outage are raised to the caller."""
    scenario = Scenario(messages=30 * 24 * 3_600, outage_hours=Fraction(1), outages=6)
    assert plan(scenario).backlog_messages == 3_600 - 6 * 60
    short = plan(Scenario(messages=30 * 24 * 3_600, outage_hours=Fraction(1, 60)))
    assert (short.backlog_messages, short.pings) == (0, 0)


@pytest.mark.proves("C-3")
def test_pings_go_on_until_one_gets_through() -> None:
    """Each client asks for each entity."""
    scenario = Scenario(outage_hours=Fraction(1), failover_interval_s=Fraction(0))
    assert plan(scenario).pings == 61
    many = Scenario(
        outage_hours=Fraction(1),
        failover_interval_s=Fraction(0),
        ping_interval_s=Fraction(30),
        entities=5,
        clients=2,
    )
    assert plan(many).pings == 5 * 2 * 121


@pytest.mark.proves("C-3")
@pytest.mark.parametrize("size, units", [(0, 1), (65_536, 1), (65_537, 2), (204_800, 4)])
def test_large_messages_are_several_operations(size: int, units: int) -> None:
    assert plan(Scenario(messages=100, message_bytes=size)).without == 200 * units


@pytest.mark.proves("C-3")
def test_what_it_costs() -> None:
    """Only the operations beyond what is included cost anything."""
    prices = read_prices(None)
    free = standard_bill(plan(Scenario(messages=1_000_000)), prices)
    assert free.without == free.total == Decimal("10.00")
    paid = standard_bill(plan(Scenario(messages=10_000_000)), prices)
    assert paid.without == Decimal("10.00") + 7 * Decimal("0.80")
    assert paid.more == Decimal("0.80") * 28_800 / 1_000_000
    premium = premium_bill(prices, 2, 1)
    assert premium.more * 2 == premium.without == prices.unit_hour * 720 * 2


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"messages": -1}, "--rate is 0 or more"),
        ({"message_bytes": -1}, "--message-size is 0 or more"),
        ({"backlog_queues": 0}, "--backlog-queues is 1 or more"),
        ({"syphons": -1}, "--syphons is 0 or more"),
        ({"entities": 0}, "--entities is 1 or more"),
        ({"clients": 0}, "--clients is 1 or more"),
        ({"outages": 0}, "--outages is 1 or more"),
        ({"outage_hours": Fraction(721)}, "--outage-hours lies between 0 and the 720"),
        ({"failover_interval_s": Fraction(-1)}, "--failover-interval is 0 or more"),
        ({"ping_interval_s": Fraction(0)}, "--ping-interval is longer than 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario(**given)
    assert reason in str(caught.value)
    with pytest.raises(ConfigError):
        premium_bill(read_prices(None), 0, 1)
