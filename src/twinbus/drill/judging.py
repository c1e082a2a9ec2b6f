"""The verdict: compares what was accepted with what arrived, and adds the cost.  Pure.

`reconcile` is the arithmetic of `twinbus pipeline reconcile` for ledgers that fit in memory, where
there is no Spark; what either finds is judged by the same `Verdict`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from twinbus.drill.ledger import Arrived, Ledger, Sent
from twinbus.drill.spread import Spread

KINDS: Final = ("lost", "duplicated", "unexpected", "altered", "out_of_order")


@dataclass
class Counts:
    """What came out, of one place or of all."""

    sent: int = 0
    arrived: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    altered: int = 0
    out_of_order: int = 0

    def add(self, other: "Counts") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Counts":
        """From the JSON of a reconciliation; what could not be found out there is None."""
        return cls(**{name: document[name] or 0 for name in asdict(cls())})


def reconcile(ledger: Ledger) -> dict[str, Counts]:
    """By place, what a reconciliation finds."""
    sent: dict[str, dict[str, Sent]] = defaultdict(dict)
    for place, each in ledger.expectations():
        sent[place][each.message_id] = each
    arrived: dict[str, list[Arrived]] = defaultdict(list)
    for here in ledger.arrived:
        arrived[here.place].append(here)
    places = sorted(sent.keys() | arrived.keys())
    return {place: _counted(sent[place], arrived[place]) for place in places}


def _counted(sent: Mapping[str, Sent], arrived: list[Arrived]) -> Counts:
    times = Counter(each.message_id for each in arrived)
    return Counts(
        sent=len(sent),
        arrived=len(arrived),
        lost=sum(1 for name in sent if name not in times),
        duplicated=sum(count - 1 for name, count in times.items() if name in sent),
        unexpected=sum(count for name, count in times.items() if name not in sent),
        altered=sum(
            1
            for each in arrived
            if each.message_id in sent and sent[each.message_id].body_hash != each.body_hash
        ),
        out_of_order=_late(sent, arrived),
    )


def _late(sent: Mapping[str, Sent], arrived: Iterable[Arrived]) -> int:
    """Those that arrived after one that was sent later in the same session (and leg of it)."""
    latest: dict[str, int] = {}
    late = 0
    for each in sorted(arrived, key=lambda each: each.sequence_number):
        origin = sent.get(each.message_id)
        if origin is None or origin.session_id is None:
            continue
        before = latest.get(origin.session_id, -1)
        late += before > origin.number
        latest[origin.session_id] = max(before, origin.number)
    return late


@dataclass(frozen=True)
class Bill:
    """The usage of both namespaces, priced as a month of its own."""

    operations: int
    units: int
    pairing_units: int
    kinds: Mapping[str, int]  # units of each kind of operation
    currency: str
    prices_date: str
    base: float  # a month
    cost: float  # of the operations, beside the base charge
    list_price: float  # of the units at the first tier's price, were none included
    pairing_list_price: float


@dataclass(frozen=True)
class Verdict:
    """The answer of a drill."""

    sent: int  # messages
    places: Mapping[str, Counts]
    through_backlog: int
    left_in_backlog: int
    dead_lettered: int
    redelivered: int
    raised: int
    outages_s: tuple[float, ...]
    failover_s: float | None  # from the first outage to the first send into the backlog
    drain_s: float
    by: str  # who drained, reconciled and priced
    bill: Bill | None = None
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    spread: Spread | None = None

    @property
    def total(self) -> Counts:
        total = Counts()
        for each in self.places.values():
            total.add(each)
        return total

    def reasons(self) -> list[str]:
        """Why the answer is no; nothing: it is yes."""
        total = self.total
        found = [
            f"{getattr(total, kind):,} {WORDS[kind]}" for kind in KINDS if getattr(total, kind)
        ]
        if self.left_in_backlog:
            found.append(f"{self.left_in_backlog:,} left in the backlog")
        if self.dead_lettered:
            found.append(f"{self.dead_lettered:,} dead-lettered")
        if not self.sent:
            found.append("nothing was sent")
        elif not self.through_backlog:
            found.append("nothing took the way through the backlog")
        return found

    @property
    def is_good(self) -> bool:
        return not self.reasons()

    @property
    def sentence(self) -> str:
        if self.is_good:
            return (
                f"All {self.sent:,} messages arrived, once and in order; "
                f"{self.through_backlog:,} of them waited in the backlog"
            )
        return f"No: {', '.join(self.reasons())}"

    def document(self) -> dict[str, object]:
        """For programs."""
        total = asdict(self.total)
        expected = total.pop("sent")
        return {
            "verdict": "yes" if self.is_good else "no",
            "sentence": self.sentence,
            "reasons": self.reasons(),
            "sent": self.sent,
            "expected": expected,
            **total,
            "through_backlog": self.through_backlog,
            "left_in_backlog": self.left_in_backlog,
            "dead_lettered": self.dead_lettered,
            "redelivered": self.redelivered,
            "raised": self.raised,
            "outages_s": [round(each, 1) for each in self.outages_s],
            "failover_s": None if self.failover_s is None else round(self.failover_s, 1),
            "drain_s": round(self.drain_s, 1),
            "by": self.by,
            "latency_ms": dict(self.latency_ms),
            "entities": {place: asdict(each) for place, each in self.places.items()},
            "partitions": None if self.spread is None else {**asdict(self.spread)},
            "bill": None if self.bill is None else {**asdict(self.bill)},
        }


WORDS: Final = {
    "lost": "lost",
    "duplicated": "duplicated",
    "unexpected": "that nobody sent",
    "altered": "altered",
    "out_of_order": "out of order",
}


def verdict_lines(verdict: Verdict) -> list[tuple[str, str]]:
    """What a person reads, line by line."""
    total = verdict.total
    lines = [
        ("sent", f"{verdict.sent:,} messages, {total.sent:,} arrivals expected"),
        ("arrived", f"{total.arrived:,}"),
        ("lost", f"{total.lost:,}"),
        ("duplicated", f"{total.duplicated:,}"),
        ("out of order", f"{total.out_of_order:,} in sessions"),
        (
            "through the backlog",
            f"{verdict.through_backlog:,}, left there {verdict.left_in_backlog:,}",
        ),
    ]
    if verdict.spread is not None:
        lines.append((f"{verdict.spread.entity}, partitions", verdict.spread.words))
    if verdict.failover_s is not None:
        lines.append(("failed over after", f"{verdict.failover_s:.1f} s"))
    lines.append(("drained in", f"{verdict.drain_s:.1f} s, by {verdict.by}"))
    if verdict.bill is not None:
        lines += bill_lines(verdict.bill)
    return lines


def bill_lines(bill: Bill) -> list[tuple[str, str]]:
    share = bill.pairing_units / max(1, bill.units)
    return [
        (
            "operations",
            f"{bill.units:,} billed, of which pairing {bill.pairing_units:,} ({share:.0%})",
        ),
        ("cost", f"{bill.currency} {bill.base:,.2f} a month and {bill.cost:,.2f} for operations"),
        (
            "were none included",
            f"{bill.list_price:,.4f}, of which pairing {bill.pairing_list_price:,.4f}",
        ),
    ]
