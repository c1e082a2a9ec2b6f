"""The ping itself, and what its outcome does."""

import random

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusError,
)

from twinbus.pairing.core import Pairing, PairSettings
from twinbus.pairing.events import EntityRecovered, PingFailed, State
from twinbus.pairing.options import Policy
from twinbus.pairing.pinging import ping, ping_message
from twinbus.pairing.rewriting import encoded_size
from twinbus.pairing.steps import SendPing

pytestmark = pytest.mark.proves("P-13")


def pairing_over(policy: Policy = "documented") -> Pairing:
    """Failed over at 0, asked at 60."""
    settings = PairSettings(primary="p", secondary="s", policy=policy)
    pairing = Pairing(settings, ["p/0"], random.Random(1), lambda: 60.0)
    entity = pairing.entity("orders")
    entity.force_over(0.0)
    entity.forced = False
    assert pairing.tick() == ["orders"]
    pairing.take_events()
    return pairing


def test_the_message() -> None:
    message = ping_message(random.Random(1))
    assert message.properties is not None and message.header is not None
    assert message.properties.content_type == "application/vnd.ms-servicebus-ping"
    assert message.header.time_to_live == 1000
    assert b"".join(message.body) == b""
    assert len(str(message.properties.group_id)) == 32
    other = ping_message(random.Random(2))
    assert other.properties is not None
    assert other.properties.group_id != message.properties.group_id
    assert encoded_size(message) <= 512, "so that a twinbus server knows it for a ping"


def test_it_gets_through() -> None:
    pairing = pairing_over()
    flow = ping(pairing, "ORDERS")
    step = next(flow)
    assert isinstance(step, SendPing)
    assert (step.entity, step.timeout_s) == ("orders", 120.0)
    with pytest.raises(StopIteration):
        flow.send(None)
    assert pairing.entity("orders").state is State.RECOVERING
    assert pairing.take_events() == [EntityRecovered("orders", forced=False, after_s=60.0)]


@pytest.mark.parametrize(
    ("policy", "error", "is_refused"),
    [
        ("documented", MessagingEntityDisabledError(), False),
        ("documented", OperationTimeoutError(), False),
        ("legacy", MessagingEntityDisabledError(), True),
        ("legacy", OperationTimeoutError(), False),
    ],
)
def test_it_does_not(policy: Policy, error: ServiceBusError, is_refused: bool) -> None:
    pairing = pairing_over(policy)
    flow = ping(pairing, "orders")
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(error)
    entity = pairing.entity("orders")
    assert entity.state is State.FAILED_OVER
    assert entity.refusal is (error if is_refused else None)
    assert pairing.take_events() == [PingFailed("orders", error)]


def test_nobody_waits_for_it_any_more() -> None:
    pairing = pairing_over()
    flow = ping(pairing, "orders")
    next(flow)
    flow.close()
    assert pairing.take_events() == []
    assert pairing.next_deadline() == 120.0


def test_it_is_not_needed_any_more() -> None:
    pairing = pairing_over()
    pairing.force_failback("orders")
    assert list(ping(pairing, "orders")) == []
