"""What a reconciliation found, in words and as a page.  Says only what was looked at."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Row

from twinbus.pipeline.jobs.reconcile import (
    ACCURACY,
    EXAMPLES_MAX,
    KINDS,
    PERCENTILES,
    Counts,
    Outcome,
    Plots,
)
from twinbus.pipeline.report.page import figure, page, paragraph, section, table
from twinbus.pipeline.report.svg import (
    Html,
    Series,
    bars,
    columns,
    duration_text,
    legend,
    lines,
    number_text,
    percentile_curve,
)

WORDS: Final = {
    "lost": "lost",
    "duplicated": "duplicated",
    "unexpected": "unexpected",
    "altered": "altered",
    "out_of_order": "out of order",
    "without_id": "without an id",
}
HEAD: Final = ("ENTITY", "SENT", "ARRIVED", "LOST", "DUPLICATED", "UNEXPECTED", "ALTERED",
               "OUT OF ORDER", "P50", "P99", "MAX")  # fmt: skip
NOT_KNOWN: Final = "–"


def verdict(outcome: Outcome, allowed: Sequence[str] = ()) -> str:
    """One sentence."""
    sent = f"{outcome.total.sent:,} message{'s' * (outcome.total.sent != 1)}"
    found = outcome.differences(allowed)
    if found:
        return f"{_listed(found)}, of {sent} sent"
    let_pass = outcome.differences()
    behind = f" ({_listed(let_pass)}: allowed)" if let_pass else ""
    if let_pass:
        return f"Nothing is wrong with {sent} sent{behind}"
    how = ["exactly once"]
    if outcome.bodies_compared:
        how.append("unaltered")
    if outcome.order_checked:
        how.append("in order")
    said = how[0] if len(how) == 1 else ", ".join(how[:-1]) + " and " + how[-1]
    return f"All {sent} sent arrived {said}" if outcome.total.sent else "Nothing was sent"


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {WORDS[kind]}" for kind, count in found.items())


def cells(name: str, counts: Counts, outcome: Outcome) -> list[str]:
    """A line of the summary, as HEAD has it."""
    shown = [f"{counts.of(kind):,}" for kind in KINDS]
    if outcome.bodies_compared is None:
        shown[3] = NOT_KNOWN
    if outcome.order_checked is None:
        shown[4] = NOT_KNOWN
    times = [NOT_KNOWN] * 3
    if counts.latency is not None:
        halves = counts.latency.percentiles
        times = [duration_text(each) for each in (halves[0], halves[2], counts.latency.max)]
    return [name, f"{counts.sent:,}", f"{counts.arrived:,}", *shown, *times]


def summary(outcome: Outcome) -> list[list[str]]:
    """Entity by entity, and in all."""
    rows = [
        cells(NOT_KNOWN if name is None else name, counts, outcome)
        for name, counts in outcome.entities
    ]
    if outcome.entities_left_out:
        rows.append([f"… and {outcome.entities_left_out:,} more", *[""] * (len(HEAD) - 1)])
    return [*rows, cells("in all", outcome.total, outcome)]


def notes(outcome: Outcome) -> list[str]:
    """What the numbers do not say."""
    said = []
    if outcome.sent_without_id or outcome.arrived_without_id:
        said.append(
            f"without an id, and therefore matched with nothing: {outcome.sent_without_id:,} sent, "
            f"{outcome.arrived_without_id:,} arrived (lines that cannot be read are among them)"
        )
    if outcome.bodies_compared is None:
        said.append("bodies were not compared: one side has neither bodies nor hashes of them")
    if outcome.order_checked is None:
        said.append("order was not checked: a session or an order is not known on both sides")
    latency = outcome.total.latency
    if latency is None:
        said.append("how long they took is not known: one side has no times")
    elif latency.negative:
        said.append(f"{latency.negative:,} arrived before they were sent: the clocks differ")
    return said


def document(outcome: Outcome, allowed: Sequence[str] = ()) -> dict[str, object]:
    """For programs."""
    return {
        "verdict": verdict(outcome, allowed),
        "clean": not outcome.differences(allowed),
        "allowed": list(allowed),
        "total": _counted(outcome.total, outcome),
        "entities": [
            {"entity": name, **_counted(counts, outcome)} for name, counts in outcome.entities
        ],
        "entities_left_out": outcome.entities_left_out,
        "sent_without_id": outcome.sent_without_id,
        "arrived_without_id": outcome.arrived_without_id,
        "bodies_compared": outcome.bodies_compared,
        "order_checked": outcome.order_checked,
        "percentile_accuracy": 1 / ACCURACY,
    }


def _counted(counts: Counts, outcome: Outcome) -> dict[str, object]:
    found: dict[str, object] = {"sent": counts.sent, "arrived": counts.arrived}
    found |= {kind: counts.of(kind) for kind in KINDS}
    if outcome.bodies_compared is None:
        found["altered"] = None
    if outcome.order_checked is None:
        found["out_of_order"] = None
    latency = counts.latency
    found["latency_ms"] = latency and {
        "count": latency.count,
        **{f"p{p:g}": ms for p, ms in zip(PERCENTILES, latency.percentiles, strict=True)},
        "max": latency.max,
        "negative": latency.negative,
    }
    return found


# -- the page --------------------------------------------------------------------------------------


def reconciliation_page(
    outcome: Outcome, sent: str, arrived: str, allowed: Sequence[str], made: str
) -> str:
    parts: list[Html] = [paragraph(f"Sent: {sent}. Arrived: {arrived}.")]
    parts += [paragraph(note[0].upper() + note[1:] + ".", is_dim=True) for note in notes(outcome)]
    head = [name.capitalize() for name in HEAD]
    parts.append(
        section("Summary", table(head, summary(outcome), found=range(3, 8), has_total=True))
    )
    if outcome.plots is not None:
        parts += _over_time(outcome.plots)
        parts += _latency(outcome, outcome.plots)
    parts += _where(outcome)
    parts += _examples(outcome)
    by = f"twinbus pipeline reconcile, {made}. Times are UTC. "
    accuracy = f"Percentiles are off by at most {100 / ACCURACY:g} % of all messages; "
    return page(
        "Reconciliation",
        verdict(outcome, allowed),
        not outcome.differences(allowed),
        parts,
        by + accuracy + "everything else is exact.",
    )


def _clock(width_s: float, first: float, last: float) -> str:
    if last - first > 2 * 86_400:
        return "%m-%d %H:%M" if width_s < 43_200 else "%Y-%m-%d"
    return "%H:%M:%S" if last - first < 7_200 else "%H:%M"


def _over_time(plots: Plots) -> list[Html]:
    if len(plots.timeline) < 2:
        return []
    xs = [at + plots.timeline_width_s / 2 for at, *_ in plots.timeline]
    form = _clock(plots.timeline_width_s, xs[0], xs[-1])

    def clock(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).strftime(form)

    series = [
        Series("sent", [row[1] for row in plots.timeline], "s1"),
        Series("arrived", [row[2] for row in plots.timeline], "s2"),
    ]
    title = "Sent and arrived over time"
    lost_at = [at for at, _, _, lost in plots.timeline if lost]
    if lost_at:
        series.append(
            Series("lost, when they were sent", [row[3] for row in plots.timeline], "bad")
        )
        until = lost_at[-1] + plots.timeline_width_s
        title = f"What is lost was sent between {clock(lost_at[0])} and {clock(until)}"
    day = datetime.fromtimestamp(xs[0], UTC).strftime("%Y-%m-%d")
    span = duration_text(plots.timeline_width_s * 1_000)
    chart = lines(xs, series, title, f"messages in {span}", clock, f"time (UTC), from {day}")
    return [section(title, figure(chart, "", legend(series)))]


def _latency(outcome: Outcome, plots: Plots) -> list[Html]:
    latency = outcome.total.latency
    if latency is None or not plots.curve:
        return []
    half, most = duration_text(latency.percentiles[0]), duration_text(latency.percentiles[2])
    title = f"Half of them took {half} or less, 99 % took {most} or less"
    curve = percentile_curve(plots.curve, title, "from sent to arrived")
    parts = [figure(curve, "")]
    if len(plots.histogram) > 1:
        labels = [duration_text(float(f"{low:.2g}")) for low, _, _ in plots.histogram]
        counts = [float(count) for _, _, count in plots.histogram]
        chart = columns(
            labels,
            [Series("messages", counts, "s1")],
            "how many messages took how long",
            "messages",
            number_text,
            "from sent to arrived, from this on",
        )
        parts.append(figure(chart, ""))
    return [section(title, *parts)]


def _where(outcome: Outcome) -> list[Html]:
    worst = [
        (NOT_KNOWN if name is None else name, float(sum(counts.of(kind) for kind in KINDS)))
        for name, counts in outcome.entities
    ]
    worst = sorted((each for each in worst if each[1]), key=lambda each: -each[1])[:15]
    if not worst or len(outcome.entities) < 2:
        return []
    is_tie = len(worst) > 1 and worst[0][1] == worst[1][1]
    title = "Differences, by entity" if is_tie else f"Most differences are at {worst[0][0]}"
    return [section(title, figure(bars(worst, title, "bad"), "Messages that differ, by entity."))]


def _examples(outcome: Outcome) -> list[Html]:
    parts = []
    for kind, rows in outcome.examples.items():
        if rows:
            head = [name.replace("_", " ").capitalize() for name in rows[0].asDict()]
            texts = list(rows[0].asDict()).index("session_id") + 1
            shown = table(head, [[_cell(value) for value in _in_row(row)] for row in rows], texts)
            more = outcome.total.of(kind) > EXAMPLES_MAX
            title = WORDS[kind].capitalize() + (f": {EXAMPLES_MAX} examples" if more else "")
            parts.append(section(title, shown))
    return parts


def _in_row(row: Row) -> list[object]:
    return list(row.asDict().values())


def _cell(value: object) -> str:
    if value is None:
        return NOT_KNOWN
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 128 else text[:127] + "…"
