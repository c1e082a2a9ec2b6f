"""How long destinations rest, for the syphon of a pair and the pipeline's."""

import pytest

from twinbus.pairing.rests import Backoff, Rests

pytestmark = pytest.mark.proves("P-14", "D-2")

ERROR = OSError("x")


def test_lengths_double_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_rests_double_and_end() -> None:
    rests = Rests()
    assert rests.begin("q", ERROR, 0.0, is_busy=False) == 1.0
    assert rests.begin("q", OSError("was under way"), 0.01, is_busy=False) is None
    assert rests.is_resting("q", 0.999)
    assert not rests.is_resting("q", 1.0)
    assert rests.begin("q", ERROR, 1.0, is_busy=False) == 2.0
    assert rests.is_resting("q", 2.999)
    assert not rests.is_resting("q", 3.0)
    rests.begin("", OSError("all"), 5.0, is_busy=False)
    assert rests.is_resting("other", 5.5)
    rests.end("q")
    assert not rests.is_resting("q", 5.5)
    assert rests.begin("q", ERROR, 6.0, is_busy=False) == 1.0


def test_a_busy_destination_rests_longer() -> None:
    rests = Rests()
    assert rests.begin("q", ERROR, 0.0, is_busy=True) == 10.0
    assert rests.begin("q", ERROR, 10.0, is_busy=False) == 20.0
    assert rests.begin("q", ERROR, 30.0, is_busy=True) == 40.0


def test_the_first_of_several_to_end_is_waited_for() -> None:
    rests = Rests()
    rests.begin("busy", ERROR, 0.0, is_busy=True)
    rests.begin("down", ERROR, 0.0, is_busy=False)
    assert rests.wait_s({"busy"}, 2.0) == 8.0
    assert rests.wait_s({"busy", "down"}, 0.0) == 1.0
    assert rests.wait_s({"down"}, 0.9) == 1.0, "never less than a second"
    assert rests.wait_s({"well"}, 0.0) == 1.0


def test_the_reason_is_one_short_line() -> None:
    rests = Rests()
    rests.begin("q", OSError("two\n lines"), 0.0, is_busy=False)
    rests.begin("", OSError("long " * 100), 0.0, is_busy=False)
    assert rests.reason("q") == "OSError: two lines"
    assert len(rests.reason("other")) == 200
    assert not Rests().reason("q")
