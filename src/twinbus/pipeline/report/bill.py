"""What was metered and what it costs, as a page."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from twinbus.costs.prices import Prices
from twinbus.costs.rollup import Pairing
from twinbus.metered import KINDS
from twinbus.pipeline.jobs.cost import Bill, Day
from twinbus.pipeline.report.page import figure, page, paragraph, section, table
from twinbus.pipeline.report.svg import Html, Series, bars, columns, legend

# Field of `Pairing`, what it is called, colour.
PAIRING: Final = (
    ("into_backlog", "messages into backlog queues", "s1"),
    ("out_of_backlog", "messages out of backlog queues", "s2"),
    ("polls", "polls of backlog queues that found nothing", "s3"),
    ("pings", "pings", "s4"),
    ("management", "management of backlog queues", "s5"),
)
_TOP: Final = 15


def moved_on(pairing: Pairing) -> str:
    """What else a message cost that went through the backlog, which is not pairing's."""
    return (
        f"what came out of the backlog, {pairing.out_of_backlog:,} units, was also sent to and "
        "received from the primary, as it would have been without pairing"
    )


def bill_page(bill: Bill, prices: Prices, sources: Sequence[str], made: str) -> str:
    parts: list[Html] = [paragraph("Metered in: " + ", ".join(sources) + ".")]
    if bill.damaged:
        parts.append(paragraph(f"{bill.damaged:,} damaged lines are not counted."))
    parts.append(_months(bill, prices))
    if bill.days:
        parts += [_per_day(bill.days), _pairing(bill)]
    parts += _rows(bill)
    by = f"twinbus pipeline cost, {made}. Days are UTC. Standard tier, prices in "
    dated = f"{prices.currency} as of {prices.date}: check the current price list. "
    unit = "A unit is an operation, for each begun 64 KiB of its message."
    return page("Cost", headline(bill, prices), None, parts, by + dated + unit)


def headline(bill: Bill, prices: Prices) -> str:
    """One sentence."""
    if not bill.months:
        return "Nothing was metered in this time"
    whole = sum((month.base + month.operations for month in bill.months), Decimal(0))
    pairing = sum((month.pairing for month in bill.months), Decimal(0))
    months = len(bill.months)
    span = bill.months[0].month if months == 1 else f"{months} months"
    share = bill.pairing.units / max(1, bill.total.units)
    return (
        f"{prices.currency} {whole:,.2f} for {bill.total.units:,} units in {span}, "
        f"of which pairing {pairing:,.2f} ({share:.1%} of the units)"
    )


def _months(bill: Bill, prices: Prices) -> Html:
    head = ["Month", "Units", "Base", "Operations", "Total", "Of which pairing"]
    rows = [
        [
            month.month,
            f"{month.units:,}",
            *(
                f"{amount:,.2f}"
                for amount in (
                    month.base,
                    month.operations,
                    month.base + month.operations,
                    month.pairing,
                )
            ),
        ]
        for month in bill.months
    ]
    return section(f"By month, in {prices.currency}", table(head, rows))


def _per_day(days: Sequence[Day]) -> Html:
    series = [
        Series(kind, [float(day.kinds.get(kind, 0)) for day in days], f"s{place}")
        for place, kind in enumerate(KINDS, start=1)
        if any(day.kinds.get(kind) for day in days)
    ]
    most = max(days, key=lambda day: sum(day.kinds.values()))
    title = f"Units a day; most on {most.day}: {sum(most.kinds.values()):,}"
    chart = columns([day.day for day in days], series, title, "units", x_name="day")
    return section(title, figure(chart, "", legend(series)))


def _pairing(bill: Bill) -> Html:
    rows = [[name, f"{getattr(bill.pairing, field):,}"] for field, name, _ in PAIRING]
    rows.append(["pairing in all", f"{bill.pairing.units:,}"])
    shown = table(["Of this, pairing", "Units"], rows, has_total=True)
    if not bill.pairing.units:
        return section("Pairing cost nothing", shown)
    series = [
        Series(name, [float(getattr(day.pairing, field)) for day in bill.days], tone)
        for field, name, tone in PAIRING
        if getattr(bill.pairing, field)
    ]
    share = bill.pairing.units / max(1, bill.total.units)
    title = f"Pairing: {bill.pairing.units:,} units, {share:.1%} of all"
    chart = columns([day.day for day in bill.days], series, title, "units", x_name="day")
    note = moved_on(bill.pairing)
    return section(title, figure(chart, note[0].upper() + note[1:] + ".", legend(series)), shown)


def _rows(bill: Bill) -> list[Html]:
    parts = []
    named = [(" · ".join(each or "(namespace)" for each in key), each) for key, each in bill.rows]
    top = sorted(((name, float(each.units)) for name, each in named), key=lambda row: -row[1])
    if len(top) > 1:
        title = f"Most units: {top[0][0]}"
        parts.append(section(title, figure(bars(top[:_TOP], title), "Units.")))
    head = [*(name.capitalize() for name in bill.by), "Operations", "Empty", "Units"]
    rows = [
        [*key, f"{each.operations:,}", f"{each.empty:,}", f"{each.units:,}"]
        for key, each in bill.rows
    ]
    if bill.rows_left_out:
        rows.append([f"… and {bill.rows_left_out:,} more", *[""] * (len(head) - 1)])
    total = [f"{n:,}" for n in (bill.total.operations, bill.total.empty, bill.total.units)]
    rows.append(["total", *[""] * (len(bill.by) - 1), *total])
    parts.append(section("All of it", table(head, rows, len(bill.by), has_total=True)))
    return parts
