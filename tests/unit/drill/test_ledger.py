"""What the application writes down of its messages."""

import json

from tests.unit.drill.stories import COUNT, arrived, perfect, sent
from twinbus.drill.ledger import Ledger, Legs
from twinbus.drill.plan import NEWS, ORDERS


def test_a_topic_is_expected_at_each_subscription() -> None:
    ledger = Ledger()
    ledger.accept(sent("orders", 1))
    ledger.accept(sent("news", 1))
    assert (ledger.sent_count(), ledger.expected) == (2, 3)
    assert ledger.arrived_count() < ledger.expected
    ledger.receive(arrived("orders", sent("orders", 1)))
    for place in NEWS.places:
        ledger.receive(arrived(place, sent("news", 1)))
    assert ledger.is_complete
    assert (ledger.arrived_count("news"), ledger.arrived_count(), ledger.sent_count("news")) == (
        2, 3, 1,
    )  # fmt: skip


def test_handed_out_once_more_is_no_duplicate() -> None:
    ledger = Ledger()
    ledger.accept(sent("orders", 1))
    for _ in range(2):
        ledger.receive(arrived("orders", sent("orders", 1), sequence_number=7))
    assert (ledger.arrived_count(), ledger.redelivered) == (1, 1)
    ledger.receive(arrived("orders", sent("orders", 1), sequence_number=8))
    assert (ledger.arrived_count(), ledger.redelivered) == (2, 1)


def test_the_same_number_elsewhere_is_another_message() -> None:
    ledger = Ledger()
    for place in (*NEWS.places, *ORDERS.places):
        ledger.receive(arrived(place, sent("news", 1), sequence_number=1))
    assert (ledger.arrived_count(), ledger.redelivered) == (3, 0)


def test_legs_change_with_the_way() -> None:
    legs = Legs()
    ways = [False, False, True, True, False, True]
    assert [legs.took(is_backlog) for is_backlog in ways] == [1, 1, 2, 2, 3, 4]


def test_the_first_message_of_all_may_take_the_backlog() -> None:
    assert Legs().took(True) == 2


def test_lines_are_what_a_reconciliation_reads() -> None:
    ledger = perfect()
    lines = [json.loads(line) for line in ledger.sent_lines()]
    assert len(lines) == ledger.expected == 5 * COUNT
    keys = ["message_id", "entity", "session_id", "number", "time", "body_hash"]
    assert list(lines[0]) == keys
    back = [json.loads(line) for line in ledger.arrived_lines()]
    assert list(back[0]) == [*keys[:3], "sequence_number", *keys[4:]]
    assert {line["entity"] for line in back} == {line["entity"] for line in lines}
