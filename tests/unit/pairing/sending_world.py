"""A pairing whose shell answers from a list, for tests of the flow of a send."""

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from tests.unit.pairing.stamps import stamp_of
from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.options import Policy
from twinbus.pairing.parcels import collect
from twinbus.pairing.sending import SenderState, batch_bytes, send
from twinbus.pairing.steps import Flow, Pause, ScheduleOnPrimary, SendToBacklog, SendToPrimary, Step

DOWN = ServiceBusConnectionError()
BUSY = ServiceBusServerBusyError()
TIME = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
Answer = Exception | list[int] | int | None


class World:
    """A pairing, its clock, and a shell that answers from a list and notes the steps."""

    def __init__(
        self, interval_s: float = 60.0, queues: int = 3, policy: Policy = "documented"
    ) -> None:
        self.now = 1000.0
        settings = PairSettings(
            primary="p",
            secondary="s",
            failover_interval_s=interval_s,
            ping_interval_s=10.0,
            policy=policy,
            send_timeout_s=20.0,
        )
        names = [f"p/{each}" for each in range(queues)]
        self.pairing = Pairing(settings, names, random.Random(1), self.clock)
        self.sender = SenderState("Orders")
        self.entity = self.pairing.entity("Orders")
        self.steps: list[Step] = []
        self.took_s: list[float] = []  # of each step, otherwise none

    def clock(self) -> float:
        return self.now

    def run(self, flow: Flow[Any], *answers: Answer | Callable[[], Answer]) -> Any:
        """Until the flow ends; steps without an answer succeed.  Returns what it returned."""
        self.steps = []
        left, took_s = list(answers), list(self.took_s)
        try:
            step = next(flow)
            while True:
                self.steps.append(step)
                if isinstance(step, Pause):
                    self.now += step.seconds
                    step = flow.send(None)
                    continue
                self.now += took_s.pop(0) if took_s else 0.0
                answer = left.pop(0) if left else None
                if callable(answer):
                    answer = answer()
                if isinstance(answer, Exception):
                    step = flow.throw(answer)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            assert not left, "more answers than steps"
            return end.value

    def send(
        self, message: Any, *answers: Answer | Callable[[], Answer], timeout_s: float | None = None
    ) -> None:
        parcel = collect(message, batch_bytes(self.pairing, self.sender))
        self.run(send(self.pairing, self.sender, parcel, timeout_s), *answers)

    def fail_over(self) -> None:
        self.pairing.force_failover("Orders")
        self.pairing.take_events()

    def to_backlog(self) -> list[SendToBacklog]:
        return [step for step in self.steps if isinstance(step, SendToBacklog)]

    def kinds(self) -> list[str]:
        return [type(step).__name__ for step in self.steps]


def message(body: bytes = b"body") -> ServiceBusMessage:
    return ServiceBusMessage(body)


def key_on_primary(step: Step) -> Any:
    assert isinstance(step, SendToPrimary | ScheduleOnPrimary)
    outgoing = step.outgoing[0] if isinstance(step.outgoing, list) else step.outgoing
    return stamp_of(outgoing)


def property_in_backlog(message: AmqpAnnotatedMessage, name: str) -> Any:
    assert message.application_properties is not None
    return message.application_properties[name]
