"""Which link to a backlog queue opens, and what is told of those that do not."""

import random

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
)

from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.errors import PairingError
from twinbus.pairing.events import BacklogQueueLost
from twinbus.pairing.fitness import open_one
from twinbus.pairing.steps import OpenBacklog

pytestmark = pytest.mark.proves("P-1", "P-10")

DISABLED = MessagingEntityDisabledError(message="it is off")


class Namespace:
    """Answers with a batch size or an error for each queue, and lets time pass."""

    def __init__(self, answers: dict[str, int | Exception], takes_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.answers = answers
        self.takes_s = takes_s
        self.asked: list[OpenBacklog] = []
        settings = PairSettings(primary="p", secondary="s")
        self.pairing = Pairing(settings, list(answers), random.Random(1), lambda: self.now_s)

    def open(self) -> int:
        flow = open_one(self.pairing, 60.0)
        step = next(flow)
        try:
            while True:
                assert isinstance(step, OpenBacklog)
                self.asked.append(step)
                self.now_s += min(self.takes_s, step.timeout_s)
                answer = self.answers[step.queue]
                step = flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
        except StopIteration as end:
            size: int = end.value
            return size


def test_the_first_that_opens_is_enough() -> None:
    namespace = Namespace({"p/0": 100, "p/1": DISABLED})
    assert namespace.open() == 100
    assert [step.queue for step in namespace.asked] == ["p/0"]
    assert namespace.pairing.take_events() == []


def test_one_that_does_not_open_is_lost_and_the_next_is_tried() -> None:
    namespace = Namespace({"p/0": DISABLED, "p/1": 100})
    assert namespace.open() == 100
    assert namespace.pairing.take_events() == [BacklogQueueLost("p/0", DISABLED, left=1)]


def test_one_that_hangs_leaves_time_for_the_others() -> None:
    hangs = OperationTimeoutError(message="hangs")
    namespace = Namespace({"p/0": hangs, "p/1": hangs, "p/2": 100}, takes_s=60.0)
    assert namespace.open() == 100
    assert [step.timeout_s for step in namespace.asked] == [30.0, 15.0, 15.0]


def test_a_wrong_credential_is_no_fault_of_a_queue() -> None:
    """The SDK's own error, at once."""
    namespace = Namespace({"p/0": ServiceBusAuthenticationError(message="who?"), "p/1": 100})
    with pytest.raises(ServiceBusAuthenticationError):
        namespace.open()
    assert namespace.pairing.take_events() == []


def test_where_none_opens_each_reason_is_told() -> None:
    namespace = Namespace({"p/0": DISABLED, "p/1": OperationTimeoutError(message="late"), "p/2": 1})
    unfit = PairingError("The backlog queue p/2 is no good")
    namespace.pairing.rotation.leave_out("p/2", unfit, 0.0)
    with pytest.raises(PairingError, match=r"p/0: it is off.*; p/1: late.*; .*p/2 is no good"):
        namespace.open()
