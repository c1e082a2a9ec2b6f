"""Which backlog queue a send goes to."""

import random

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from twinbus.pairing.events import BacklogQueueLost, Event
from twinbus.pairing.rotation import REST_S, BacklogRotation

pytestmark = pytest.mark.proves("P-9", "P-10")

QUEUES = ["p/0", "p/1", "p/2"]
ERROR = ServiceBusConnectionError()


def rotation() -> tuple[BacklogRotation, list[Event]]:
    events: list[Event] = []
    return BacklogRotation(QUEUES, random.Random(1), events), events


def test_picks_at_random() -> None:
    some, _ = rotation()
    assert {some.pick(0.0) for _ in range(50)} == set(QUEUES)


def test_a_send_picks_what_it_has_not_tried() -> None:
    some, _ = rotation()
    assert {some.pick(0.0, {"p/0", "p/2"}) for _ in range(20)} == {"p/1"}
    assert some.pick(0.0, set(QUEUES)) is None


def test_a_lost_queue_is_lost_for_everybody_and_rests() -> None:
    some, events = rotation()
    some.lost("p/1", ERROR, 10.0)
    assert events == [BacklogQueueLost("p/1", ERROR, left=2)]
    assert {some.pick(10.0 + REST_S - 0.1) for _ in range(50)} == {"p/0", "p/2"}
    assert {some.pick(10.0 + REST_S) for _ in range(50)} == set(QUEUES)
    assert some.last_error("p/1") is ERROR
    assert some.last_error("p/0") is None


def test_losing_what_is_lost_is_told_once_but_prolongs_the_rest() -> None:
    some, events = rotation()
    some.lost("p/1", ERROR, 10.0)
    some.lost("p/1", ERROR, 20.0)
    assert len(events) == 1
    assert not some.is_in_use("p/1", 20.0 + REST_S - 1)
    some.lost("p/1", ERROR, 20.0 + REST_S)
    assert len(events) == 2


def test_the_longest_lost_is_tried_when_none_is_left() -> None:
    some, events = rotation()
    for now, queue in enumerate(["p/2", "p/0", "p/1", "p/2"]):
        some.lost(queue, ERROR, float(now))
    assert [event.left for event in events if isinstance(event, BacklogQueueLost)] == [2, 1, 0]
    assert some.pick(5.0) == "p/0"
    assert some.pick(5.0, {"p/0"}) is None, "one such try a send"


def test_a_queue_that_takes_a_message_is_back() -> None:
    some, _ = rotation()
    some.lost("p/1", ERROR, 10.0)
    some.found("p/1")
    assert some.in_use(11.0) == QUEUES


def test_an_unfit_queue_never_comes_back_by_itself() -> None:
    """Not even when no other is left: what it takes would not come home."""
    some, events = rotation()
    some.leave_out("p/1", ERROR, 0.0)
    assert events == [BacklogQueueLost("p/1", ERROR, left=2)]
    assert some.last_error("p/1") is ERROR
    assert some.in_use(10 * REST_S) == ["p/0", "p/2"]
    for queue in ("p/0", "p/2"):
        some.lost(queue, ERROR, 1.0)
    assert some.pick(2.0) == "p/0"
