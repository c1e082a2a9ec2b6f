"""The drill as one HTML file: the verdict, the timeline with its acts, the entities, the bill.

Pure: what was measured in, text out.  Drawn by the code that draws the pipeline's reports.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from twinbus.drill.events import Told
from twinbus.drill.judging import Bill, Counts, Verdict, bill_lines
from twinbus.drill.plan import ENTITIES, FAILOVER_INTERVAL_S, PING_INTERVAL_S, Act
from twinbus.drill.spread import Spread
from twinbus.drill.timeline import Timeline
from twinbus.pipeline.report.page import figure, page, paragraph, section, table
from twinbus.pipeline.report.svg import Band, Html, Series, bands, bars, legend, lines

# States of an entity, as the pair names them, and their colours.
STATES: Final = (
    ("healthy", "good"),
    ("failing", "s3"),
    ("failed over", "bad"),
    ("recovering", "s1"),
)
_TONES: Final = dict(STATES)
_SINCE: Final = "since the drill began"
_HEAD: Final = ("Where", "Expected", "Arrived", "Lost", "Duplicated", "Unexpected", "Altered",
                "Out of order")  # fmt: skip


def report_page(
    verdict: Verdict, timeline: Timeline, told: Sequence[Told], settings: str, made: str
) -> str:
    parts = [paragraph(settings)]
    parts += _over_time(timeline)
    parts.append(_outcome(verdict))
    if verdict.spread is not None:
        parts.append(_spread(verdict.spread))
    if verdict.bill is not None:
        parts.append(_bill(verdict.bill))
    parts.append(_log(told))
    by = f"twinbus drill, {made}. Drained, reconciled and priced by {verdict.by}. "
    order = (
        "Order is that of a session's messages which went the same way: straight to the primary, "
        "or through the backlog. What waited in the backlog is overtaken by what was sent later."
    )
    return page("Outage drill", verdict.sentence, verdict.is_good, parts, by + order)


def settings_text(duration_s: float, rate: float, faults: Sequence[str]) -> str:
    return (
        f"{rate:g} messages a second for {duration_s:g} s, outage by {', '.join(faults)}; failover "
        f"after {FAILOVER_INTERVAL_S:g} s and a ping every {PING_INTERVAL_S:g} s, not 60 s each."
    )


def _seconds(at: float) -> str:
    return f"{at:.0f} s"


def _over_time(timeline: Timeline) -> list[Html]:
    times, sent, arrived = timeline.rates()
    if len(times) < 2:
        return []
    # The first look comes a moment after the application has begun.
    marks = [
        (max(mark.time_s, times[0]), f"{mark.act.number} {mark.act.value.lower()}")
        for mark in timeline.marks
        if mark.act is not Act.STAGE and mark.time_s <= times[-1]
    ]
    series = [Series("sent (accepted)", sent, "s1"), Series("arrived", arrived, "s2")]
    title = "Sends go on through the outage; what waited arrives afterwards"
    rates = lines(times, series, title, "messages a second", _seconds, _SINCE, marks)
    at, depths = timeline.depths()
    most = max(depths, default=0.0)
    depth_title = f"The backlog: {most:,.0f} messages at most, {depths[-1]:,.0f} at the end"
    depth = lines(
        at,
        [Series("in the backlog", depths, "s3")],
        depth_title,
        "messages",
        _seconds,
        _SINCE,
        marks,
    )
    return [
        section(title, figure(rates, "", legend(series))),
        section(depth_title, figure(depth, "")),
        _states(timeline, marks),
    ]


def _states(timeline: Timeline, marks: Sequence[tuple[float, str]]) -> Html:
    found = timeline.spans()
    rows = [
        (
            entity.name,
            [
                Band(
                    span.start_s,
                    span.end_s,
                    f"{span.state}, {span.start_s:.1f} s to {span.end_s:.1f} s",
                    _TONES[span.state],
                )
                for span in found.get(entity.name, [])
            ],
        )
        for entity in ENTITIES
    ]
    title = "Each entity fails over and recovers for itself"
    key = legend([Series(state, [], tone) for state, tone in STATES])
    return section(title, figure(bands(rows, title, _seconds, marks), "", key))


def _outcome(verdict: Verdict) -> Html:
    def row(name: str, counts: Counts) -> list[str]:
        return [name, *(f"{number:,}" for number in asdict(counts).values())]

    rows = [row(place, counts) for place, counts in sorted(verdict.places.items())]
    rows.append(row("in all", verdict.total))
    said = (
        f"{verdict.sent:,} messages were accepted, {verdict.through_backlog:,} of them by the "
        f"backlog, where {verdict.left_in_backlog:,} are left. A topic's message is expected at "
        "each subscription. Sends that raised an error while the failover interval ran, and were "
        f"repeated by the application: {verdict.raised:,}. Messages handed out once more, because "
        f"their server was gone before they were completed: {verdict.redelivered:,}."
    )
    parts = [table(_HEAD, rows, found=range(3, 8), has_total=True), paragraph(said, is_dim=True)]
    if verdict.latency_ms:
        times = ", ".join(f"{name} {ms / 1_000:,.2f} s" for name, ms in verdict.latency_ms.items())
        parts.append(paragraph(f"From the send to the arrival: {times}.", is_dim=True))
    return section("What was accepted against what arrived", *parts)


def _spread(spread: Spread) -> Html:
    rows = [
        (f"partition {each}" + (", down for a while" if each == spread.down else ""), float(count))
        for each, count in enumerate(spread.counts)
    ]
    title = f"Messages without a key spread over the partitions of {spread.entity}"
    said = (
        f"{spread.words}. Senders evade a partition that is down. What they chose it for while the "
        "primary was away waits in the backlog until it is back."
    )
    return section(title, figure(bars(rows, title), said))


def _bill(bill: Bill) -> Html:
    rows = [(kind, float(units)) for kind, units in bill.kinds.items()]
    rows.append(("of all these, pairing", float(bill.pairing_units)))
    title = f"The bill: {bill.units:,} operations"
    said = "; ".join(f"{name}: {text}" for name, text in bill_lines(bill))
    dated = f"Standard tier, prices as of {bill.prices_date}: check the current price list."
    return section(
        title,
        figure(bars(rows, title), "Operations that Azure would bill, of both namespaces."),
        paragraph(f"{said[0].upper()}{said[1:]}. {dated}", is_dim=True),
    )


def _log(told: Sequence[Told]) -> Html:
    rows = [[each.text, f"{each.time_s:.1f} s"] for each in told]
    return section("What happened", table(["", "after"], rows))
