"""Charts and pages: well-formed, self-contained, and deaf to what an id would like to be."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from twinbus.errors import ConfigError
from twinbus.pipeline.report.page import figure, page, paragraph, section, table, write_page
from twinbus.pipeline.report.svg import (
    Series,
    bars,
    columns,
    duration_text,
    legend,
    lines,
    number_text,
    percentile_curve,
    ticks,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "\"><script>alert(1)</script>&'<!--"


def parsed(chart: str) -> ET.Element:
    """A chart as XML: what is not escaped would not be well-formed."""
    return ET.fromstring(chart)


def texts(chart: str) -> list[str]:
    return [element.text or "" for element in parsed(chart).iter(f"{SVG}text")]


class Tags(HTMLParser):
    """The tags of a page, and everything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [name for name, _ in attrs if name in {"src", "href", "srcset", "data"}]


def test_bars_show_names_and_numbers_in_proportion() -> None:
    chart = bars([("orders", 200), ("bills", 100), ("none", 0)], "units")
    rects = list(parsed(chart).iter(f"{SVG}rect"))
    widths = [float(rect.attrib["width"]) for rect in rects]
    assert widths[0] == pytest.approx(2 * widths[1]) and widths[2] == 0
    assert {"orders", "200", "bills", "100"} <= set(texts(chart))


def test_columns_stand_on_each_other() -> None:
    series = [Series("send", [10, 20], "s1"), Series("receive", [5, 0], "s2")]
    chart = columns(["Mon", "Tue"], series, "units a day", "units", x_name="day")
    rects = [
        (rect.attrib["class"], float(rect.attrib["y"]), float(rect.attrib["height"]))
        for rect in parsed(chart).iter(f"{SVG}rect")
    ]
    assert [tone for tone, _, _ in rects] == ["s1", "s2", "s1"], "a 0 is not drawn"
    (_, send_y, _), (_, receive_y, receive_height), _ = rects
    assert receive_y + receive_height == pytest.approx(send_y, abs=0.2)
    assert {"Mon", "Tue", "units", "day"} <= set(texts(chart))


def test_many_columns_have_few_labels() -> None:
    labels = [f"day {n}" for n in range(365)]
    chart = columns(labels, [Series("n", [1.0] * 365, "s1")], "a year", "n")
    assert len([text for text in texts(chart) if text.startswith("day")]) <= 9


def test_lines_and_curve_have_a_point_for_each_number() -> None:
    chart = lines([0, 60, 120], [Series("sent", [1, 5, 2], "s1")], "sent", "n", str, "time")
    line = next(parsed(chart).iter(f"{SVG}polyline"))
    assert len(line.attrib["points"].split()) == 3
    curve = percentile_curve([(0, 0.0), (50, 3.0), (99, 80.0), (100, 5_000.0)], "latency", "ms")
    assert len(list(parsed(curve).iter(f"{SVG}circle"))) == 4
    assert {"p50", "p99", "max"} <= set(texts(curve))
    places = [float(each.attrib["cx"]) for each in parsed(curve).iter(f"{SVG}circle")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "chart",
    [
        bars([], "nothing"),
        columns([], [], "nothing", "n"),
        columns(["a"], [Series("n", [0], "s1")], "zero", "n"),
        lines([], [], "nothing", "n", str),
        lines([5], [Series("n", [0], "s1")], "one point", "n", str),
        percentile_curve([(50, 0.0)], "no time at all", "ms"),
    ],
)
def test_nothing_is_a_chart_too(chart: str) -> None:
    assert parsed(chart).attrib["role"] == "img"


@pytest.mark.parametrize("high, last", [(0, 1), (1, 1), (7, 8), (99, 100), (1_234, 1_500)])
def test_ticks_are_round_and_reach_the_top(high: float, last: float) -> None:
    found = ticks(high)
    assert found[0] == 0 and found[-1] == last
    assert 2 <= len(found) <= 6


def test_numbers_and_times_are_short() -> None:
    assert [number_text(n) for n in (0, 950, 1_200, 3_400_000, 2e9)] == [
        "0",
        "950",
        "1.2k",
        "3.4M",
        "2G",
    ]
    assert [duration_text(ms) for ms in (0.25, 12, 1_500, 90_000, 7_200_000)] == [
        "0.25 ms",
        "12 ms",
        "1.5 s",
        "1.5 min",
        "2 h",
    ]


def test_hostile_names_stay_text() -> None:
    series = [Series(HOSTILE, [1.0, 2.0], "s1")]
    charts = [
        bars([(HOSTILE, 1.0)], HOSTILE),
        columns([HOSTILE, "b"], series, HOSTILE, HOSTILE, x_name=HOSTILE),
        lines([0.0, 1.0], series, HOSTILE, HOSTILE, lambda _: HOSTILE, HOSTILE),
        percentile_curve([(50, 1.0)], HOSTILE, HOSTILE),
    ]
    assert all(parsed(chart).attrib["aria-label"] == HOSTILE for chart in charts)
    body = [figure(chart, HOSTILE, legend(series)) for chart in charts]
    body += [paragraph(HOSTILE), section(HOSTILE, table([HOSTILE], [[HOSTILE]]))]
    tags = Tags()
    tags.feed(page(HOSTILE, HOSTILE, False, body, HOSTILE))
    assert "script" not in tags.tags
    assert not tags.fetched, "a report asks nobody for anything"


def test_a_page_tells_good_from_bad_and_light_from_dark() -> None:
    good, bad = (page("Report", "all is well", is_good, [], "") for is_good in (True, False))
    assert '<h1 class="good">all is well</h1>' in good
    assert '<h1 class="bad">' in bad
    assert "prefers-color-scheme: dark" in good
    assert "default-src 'none'" in good
    assert "<h1>fine</h1>" in page("Report", "fine", None, [], "")


def test_what_was_found_stands_out_in_a_table() -> None:
    shown = table(["entity", "lost"], [["a", "0"], ["b", "3"]], found=[1], has_total=True)
    assert '<td class="found">3</td>' in shown
    assert "<td>0</td>" in shown
    assert shown.count('<tr class="total">') == 1


def test_writing_a_page(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_page(target, "half a character: \ud800")
    assert target.read_text() == "half a character: \\ud800"
    with pytest.raises(ConfigError, match="check --html"):
        write_page(tmp_path / "nowhere" / "report.html", "")
