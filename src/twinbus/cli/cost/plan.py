"""`twinbus cost plan`: what pairing costs in a month, before there is a bill."""

import argparse
import re
from fractions import Fraction
from typing import Final

from twinbus.cli.arguments import Commands, add_json, add_option
from twinbus.cli.cost.price_table import add_prices, money, origin, read_prices
from twinbus.cli.printing import print_json, print_table
from twinbus.costs.plan import MONTH_S, Bill, Plan, Scenario, plan, premium_bill, standard_bill
from twinbus.costs.prices import Prices

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,9})?)"
_RATE: Final = re.compile(_NUMBER + r"(?:/(s|h|day|month))?", re.ASCII)
_RATE_S: Final = {"s": 1, "h": 3_600, "day": 86_400, "month": MONTH_S}
_SIZE: Final = re.compile(_NUMBER + r"(|k|kb|m|mb)", re.ASCII | re.IGNORECASE)
_SIZE_BYTES: Final = {"": 1, "k": 1_024, "m": 1_024 * 1_024}
_SPAN: Final = re.compile(_NUMBER + r"(s|m|h|)", re.ASCII)
_SPAN_S: Final = {"": 1, "s": 1, "m": 60, "h": 3_600}


def add_arguments(actions: Commands) -> None:
    parser = actions.add_parser(
        "plan",
        help="estimate what pairing costs in a month",
        description="Estimate what pairing costs in a month of 30 days, at most.",
    )
    option = parser.add_argument
    add_option(parser, "--rate N/T", "messages sent: 20/s, 5000000/month", _rate, required=True)
    add_option(parser, "--message-size N", "size of a message: bytes, 4k, 1m (1k)", _size, 1_024)
    add_option(parser, "--outage-hours N", "hours of outage a month (0)", _fraction, Fraction(0))
    add_option(parser, "--outages N", "number of outages a month (1)", int, 1)
    add_option(parser, "--backlog-queues N", "backlog queues of the pair (10)", int, 10)
    add_option(parser, "--syphons N", "clients that run a syphon (1)", int, 1)
    add_option(parser, "--entities N", "queues and topics that clients send to (1)", int, 1)
    add_option(parser, "--clients N", "paired clients that send (1)", int, 1)
    add_option(
        parser,
        "--ping-interval TIME",
        "time between two pings of a primary that is down (60s)",
        _span,
        Fraction(60),
    )
    add_option(
        parser,
        "--failover-interval TIME",
        "how long the primary must fail before clients send to the secondary (60s)",
        _span,
        Fraction(60),
    )
    option(
        "--tier",
        choices=("standard", "premium"),
        default="standard",
        help="tier whose prices apply (standard)",
    )
    add_option(parser, "--messaging-units N", "premium: units of the primary (1)", int, 1)
    add_option(parser, "--secondary-units N", "premium: units of the secondary (1)", int, 1)
    add_prices(parser, "a table of prices (default: the built-in one)")
    add_json(parser)
    parser.set_defaults(run=run)


def _parse(pattern: re.Pattern[str], text: str, example: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text[:64]}' is not understood; write {example}")
    return match


def _rate(text: str) -> int:
    """Messages a month."""
    match = _parse(_RATE, text, "20/s, 1000/h, 50000/day or 5000000/month")
    return round(Fraction(match[1]) * MONTH_S / _RATE_S[match[2] or "s"])


def _size(text: str) -> int:
    match = _parse(_SIZE, text, "200, 4k or 1m")
    return round(Fraction(match[1]) * _SIZE_BYTES[match[2].lower().removesuffix("b")])


def _span(text: str) -> Fraction:
    match = _parse(_SPAN, text, "30s, 5m or 1h")
    return Fraction(match[1]) * _SPAN_S[match[2]]


def _fraction(text: str) -> Fraction:
    return Fraction(_parse(re.compile(_NUMBER, re.ASCII), text, "a number such as 4 or 0.5")[1])


def run(options: argparse.Namespace) -> int:
    scenario = Scenario(
        messages=options.rate,
        message_bytes=options.message_size,
        backlog_queues=options.backlog_queues,
        syphons=options.syphons,
        entities=options.entities,
        clients=options.clients,
        outage_hours=options.outage_hours,
        outages=options.outages,
        failover_interval_s=options.failover_interval,
        ping_interval_s=options.ping_interval,
    )
    planned = plan(scenario)
    prices = read_prices(options.prices)
    if options.tier == "premium":
        bill = premium_bill(prices, options.messaging_units, options.secondary_units)
    else:
        bill = standard_bill(planned, prices)
    if options.json:
        print_json(_document(planned, bill, prices, options.tier))
    else:
        _print(scenario, planned, bill, prices, options.tier)
    return 0


def _document(planned: Plan, bill: Bill, prices: Prices, tier: str) -> dict[str, object]:
    return {
        "operations": {**vars(planned), "more": planned.more, "total": planned.total},
        "tier": tier,
        "currency": prices.currency,
        "prices_date": str(prices.date),
        "cost": {
            "without": float(bill.without),
            "more": float(bill.more),
            "total": float(bill.total),
        },
    }


def _print(scenario: Scenario, planned: Plan, bill: Bill, prices: Prices, tier: str) -> None:
    queues, syphons = scenario.backlog_queues, scenario.syphons
    operations = [
        [
            f"polls of {queues} backlog queues by {syphons} syphon{'s' * (syphons != 1)}",
            planned.polls,
        ],
        ["pings", planned.pings],
        [f"{planned.backlog_messages:,} messages through the backlog, 4 each", planned.backlog],
        ["minus the 2 each that they cost anyway", -planned.backlog_anyway],
        ["pairing adds", planned.more],
        ["without pairing", planned.without],
        ["with pairing", planned.total],
    ]
    rows = [[str(label), f"{count:,}"] for label, count in operations]
    print_table(["A MONTH OF 30 DAYS", "OPERATIONS"], rows, 1)
    print()
    costs = [
        ["without pairing", money(bill.without)],
        ["pairing adds", money(bill.more)],
        ["with pairing", money(bill.total)],
    ]
    print_table([f"{tier.upper()} TIER", prices.currency], costs, 1)
    print(f"an upper bound; {origin(prices)}")
