"""The judge must be able to say no: whatever is planted is found, and the exit code says so."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from tests.unit.drill.stories import COUNT, arrived, perfect, sent, verdict_of
from twinbus.cli.drill import answer
from twinbus.drill.clerks import read_reconciliation
from twinbus.drill.judging import KINDS, Counts, reconcile, verdict_lines
from twinbus.drill.ledger import Ledger
from twinbus.drill.plan import DOWN_PARTITION
from twinbus.drill.spread import COUNTER_BITS, Spread

pytestmark = pytest.mark.feature("drill.verdict")


def lose(ledger: Ledger) -> None:
    del ledger.arrived[3]


def duplicate(ledger: Ledger) -> None:
    ledger.receive(dataclasses.replace(ledger.arrived[3], sequence_number=99))


def alter(ledger: Ledger) -> None:
    ledger.arrived[3] = dataclasses.replace(ledger.arrived[3], body_hash="another")


def invent(ledger: Ledger) -> None:
    ledger.receive(arrived("orders", sent("nobody", 99)))


def disorder(ledger: Ledger) -> None:
    """The first two of a session change places."""
    first, second = [each for each in ledger.arrived if each.session_id == "cart-1, leg 1"][:2]
    places = ledger.arrived.index(first), ledger.arrived.index(second)
    numbers = (second.sequence_number, first.sequence_number)
    for place, number in zip(places, numbers, strict=True):
        ledger.arrived[place] = dataclasses.replace(ledger.arrived[place], sequence_number=number)


PLANTED: dict[str, Callable[[Ledger], None]] = {
    "lost": lose,
    "duplicated": duplicate,
    "altered": alter,
    "unexpected": invent,
    "out_of_order": disorder,
}


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = verdict_of(perfect())
    assert verdict.is_good
    assert verdict.total == Counts(sent=5 * COUNT, arrived=5 * COUNT)
    assert answer(verdict, None, is_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["sent"], told["expected"]) == ("yes", 4 * COUNT, 5 * COUNT)
    assert told["bill"]["units"] == 110
    assert told["partitions"]["counts"] == [100] * 5 + [60] + [100] * 9 + [101]
    assert told["report"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_planted_is_found(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = perfect()
    PLANTED[kind](ledger)
    verdict = verdict_of(ledger)
    found = {name: getattr(verdict.total, name) for name in KINDS}
    assert found == {**dict.fromkeys(KINDS, 0), kind: 1}
    assert answer(verdict, None, is_json=True) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told[kind], len(told["reasons"])) == ("no", 1, 1)


@pytest.mark.parametrize(
    "told",
    [{"left_in_backlog": 1}, {"dead_lettered": 1}, {"through_backlog": 0}],
    ids=lambda told: next(iter(told)),
)
def test_other_reasons_to_say_no(told: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    verdict = verdict_of(perfect(), **told)
    assert answer(verdict, None, is_json=False) == 3
    assert "✖ No: " in capsys.readouterr().out


def test_nothing_sent_is_no_proof() -> None:
    assert verdict_of(Ledger()).reasons() == ["nothing was sent"]


def test_partitions_that_got_nothing_are_not_used() -> None:
    words = Spread.of("orders", [7 << COUNTER_BITS], DOWN_PARTITION, 0.0).words
    assert words.startswith("1 of 16 used, 0 to 1 messages each; 0 in partition 5")


def test_order_is_that_of_a_leg() -> None:
    """What waited in the backlog may arrive after what was sent later, straight."""
    ledger = Ledger()
    legs = ("cart-1, leg 1", "cart-1, leg 2", "cart-1, leg 3")
    for number, leg in enumerate(legs):
        ledger.accept(sent("carts", number, leg))
    for place, number in enumerate((0, 2, 1)):
        ledger.receive(arrived("carts", sent("carts", number, legs[number]), place))
    assert reconcile(ledger)["carts"].out_of_order == 0


def test_a_lost_message_is_not_an_altered_one() -> None:
    ledger = perfect()
    lose(ledger)
    counts = reconcile(ledger)["orders"]
    assert (counts.lost, counts.altered) == (1, 0)


def test_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = verdict_of(perfect())
    lines = dict(verdict_lines(verdict))
    assert lines["lost"] == "0"
    assert lines["failed over after"] == "3.3 s"
    assert lines["orders, partitions"] == (
        "16 of 16 used, 100 to 101 messages each; 60 in partition 5, down for 17 s"
    )
    assert lines["operations"] == "110 billed, of which pairing 22 (20%)"
    assert answer(verdict, None, is_json=False) == 0
    assert "✔ All 48 messages arrived, once and in order; 5 of" in capsys.readouterr().out


def test_what_spark_found_is_judged_alike() -> None:
    counts = {"sent": 3, "arrived": 4, "lost": 0, "duplicated": 1, "unexpected": 0, "altered": None}
    counts["out_of_order"] = None
    latency = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p99.9": 3.5, "max": 4.0, "count": 3}
    document = {
        "total": {**counts, "latency_ms": latency},
        "entities": [{"entity": "orders", **counts, "latency_ms": latency}],
    }
    places, shown = read_reconciliation(document)
    assert places == {"orders": Counts(sent=3, arrived=4, duplicated=1)}
    assert shown == {"p50": 1.0, "p99": 3.0, "max": 4.0}
