"""What waits for its destination, and what must wait for it."""

import pytest

from twinbus.pairing import held as held_module
from twinbus.pairing.held import LAPSE_S, Held, SentBefore

pytestmark = pytest.mark.proves("P-14")


def test_a_message_waits_for_earlier_ones_of_its_session() -> None:
    held = Held()
    held.hold(5, "q", "s", now=0.0)
    assert held.must_wait(6, "q", "s")
    assert not held.must_wait(4, "q", "s")
    assert not held.must_wait(5, "q", "s")
    assert not held.must_wait(6, "q", "t")
    assert not held.must_wait(6, "other", "s")
    assert not held.must_wait(6, "q", None)


def test_released_one_by_one() -> None:
    held = Held()
    held.hold(5, "q", "s", now=0.0)
    held.hold(6, "q", "s", now=0.0)
    held.release(5)
    assert held.must_wait(7, "q", "s")
    held.release(6)
    held.release(6)
    assert not held.must_wait(7, "q", "s")
    assert len(held) == 0


def test_without_a_session_it_only_counts() -> None:
    held = Held()
    held.hold(5, "q", None, now=0.0)
    assert len(held) == 1
    assert not held.must_wait(6, "q", "s")
    held.release(5)
    assert len(held) == 0


def test_what_does_not_come_back_is_forgotten() -> None:
    held = Held()
    held.hold(5, "q", "s", now=0.0)
    held.hold(6, "q", "s", now=1.0)
    held.hold(5, "q", "s", now=2.0)  # seen again
    held.forget(LAPSE_S)
    assert len(held) == 2
    held.forget(LAPSE_S + 1.0)
    assert len(held) == 1
    assert held.must_wait(6, "q", "s")
    held.forget(LAPSE_S + 2.0)
    assert len(held) == 0


def test_sent_before_is_known_by_number_and_time() -> None:
    sent = SentBefore()
    sent.add(1, "monday")
    assert (1, "monday") in sent
    assert (1, "tuesday") not in sent  # the queue was made again and counts from 1
    sent.discard(1, "monday")
    sent.discard(1, "monday")
    assert (1, "monday") not in sent


def test_sent_before_is_bounded() -> None:
    sent = SentBefore()
    for number in range(held_module.SENT_COUNT_MAX + 1):
        sent.add(number, None)
    assert (0, None) not in sent
    assert (1, None) in sent
