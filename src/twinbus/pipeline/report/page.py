"""A report as one HTML file: a verdict on top, figures and tables below, light and dark.

Self-contained: no script, no font, no picture, no address that anything would be fetched from; a
policy in its head forbids it as well.  Whatever is not `Html` is escaped on its way in.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigError
from twinbus.pipeline.report.svg import Html

_STYLE: Final = """
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #ffffff; --ink: #1c2126;
  --dim: #5d6873; --rule: #dfe3e6; --good: #1a7f4b; --bad: #c2352b;
  --s1: #2f6fb3; --s2: #2a9d8f; --s3: #d9932b; --s4: #8a62b8; --s5: #7d8a96; --s6: #c0628c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181c; --card: #1c2227;
  --ink: #e4e8eb; --dim: #98a4ae; --rule: #333c44; --good: #4cc38a; --bad: #f2766b;
  --s1: #6aa8e8; --s2: #4fc3b3; --s3: #ebb35a; --s4: #b795e0; --s5: #93a1ad; --s6: #e08fb4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .2rem 0 .6rem; }
h1.good { color: var(--good); } h1.bad { color: var(--bad); }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .5rem; }
.kicker, .dim, figcaption, footer { color: var(--dim); font-size: .87rem; }
.kicker { margin: 0; }
figure { margin: 0 0 .8rem; padding: 1rem 1rem .6rem; background: var(--card);
  border: 1px solid var(--rule); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; font-family: inherit; }
svg .tick, svg .axis { fill: var(--dim); font-size: 11px; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
.s1 { fill: var(--s1); background: var(--s1); } .s2 { fill: var(--s2); background: var(--s2); }
.s3 { fill: var(--s3); background: var(--s3); } .s4 { fill: var(--s4); background: var(--s4); }
.s5 { fill: var(--s5); background: var(--s5); } .s6 { fill: var(--s6); background: var(--s6); }
.bad { fill: var(--bad); } i.bad { background: var(--bad); }
.good { fill: var(--good); } i.good { background: var(--good); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.s1 { stroke: var(--s1); } svg .line.s2 { stroke: var(--s2); }
svg .line.s3 { stroke: var(--s3); } svg .line.bad { stroke: var(--bad); }
svg .area { opacity: .18; }
svg .mark { stroke: var(--dim); stroke-width: 1; stroke-dasharray: 3 3; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 0 0 .5rem;
  font-size: .87rem; }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px;
  margin-right: .45em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--dim); font-weight: 500; }
.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
.text:first-child { min-width: 8.5rem; }
td.found { color: var(--bad); font-weight: 600; }
tr.total td { font-weight: 600; }
footer { margin-top: 3rem; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    found: Sequence[int] = (),
    has_total: bool = False,
) -> Html:
    """So many columns of text, the others numbers.

    `found`: columns in which anything but 0 stands out.  `has_total`: the last row is a sum.
    """

    def cell(tag: str, column: int, value: str) -> str:
        stands_out = tag == "td" and column in found and value not in {"0", "–", ""}
        names = ["text"] * (column < texts) + ["found"] * stands_out
        shown = f' class="{" ".join(names)}"' if names else ""
        return f"<{tag}{shown}>{escape(value)}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", at, name) for at, name in enumerate(head)) + "</tr>"]
    for place, row in enumerate(rows):
        is_total = has_total and place == len(rows) - 1
        cells = "".join(cell("td", at, value) for at, value in enumerate(row))
        lines.append(f'<tr class="total">{cells}</tr>' if is_total else f"<tr>{cells}</tr>")
    return Html(f'<div class="scroll"><table>{"".join(lines)}</table></div>')


def figure(chart: Html, caption: str, key: Html | None = None) -> Html:
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Html(f"<figure>{key or ''}{chart}{said}</figure>")


def paragraph(text: str, is_dim: bool = False) -> Html:
    return Html(f'<p class="dim">{escape(text)}</p>' if is_dim else f"<p>{escape(text)}</p>")


def section(title: str, *parts: Html) -> Html:
    return Html(f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>")


def page(
    kicker: str, verdict: str, is_good: bool | None, parts: Sequence[Html], footer: str
) -> str:
    """The whole file.  `is_good`: None for a report that judges nothing."""
    tone = {True: ' class="good"', False: ' class="bad"', None: ""}[is_good]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(kicker)}: {escape(verdict)}</title><style>{_STYLE}</style></head>"
        f'<body><p class="kicker">{escape(kicker)}</p><h1{tone}>{escape(verdict)}</h1>'
        f"{''.join(parts)}<footer>{escape(footer)}</footer></body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    try:
        # An id may hold half a character, which UTF-8 has no bytes for.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); check --html") from error
