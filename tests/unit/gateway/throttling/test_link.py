"""The throttle where it acts: between the gateway and a store."""

import pytest

from tests.unit.broker.harness import BrokerHarness, SimSink
from twinbus.entities.commands import COMPLETE, PEEK_LOCK, Reply, Send, Settle
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import EntityNotFound, ServerBusy, ServiceError
from twinbus.gateway.throttling.throttle import Throttle, Usage
from twinbus.limits import PROFILES, Thresholds
from twinbus.links.store_link import SLOW, UP, ReceiverDescription

pytestmark = pytest.mark.proves("A-2")

FULL_MEMORY = Usage(memory_bytes=200)
FULL_CPU = Usage(cpu_share=1.0, lag_ms=9_000)


class Asker:
    """Sends and settles through the gateway, as a link would."""

    def __init__(self, profile: str) -> None:
        self.harness = BrokerHarness()
        self.throttle = Throttle(Thresholds(memory_bytes_max=100), PROFILES[profile])
        self.gateway = self.harness.gateway
        self.gateway.set_throttle(self.throttle)
        self.queue = self.harness.create_queue()
        self.answers: list[ServiceError | None] = []

    def replied(self, reply: Reply, rest: object) -> None:
        self.answers.append(reply.error)

    def take(self) -> ServiceError | None:
        self.harness.run()
        return self.answers.pop()

    def send(self, count: int = 1) -> ServiceError | None:
        messages = [NewMessage(b"body") for _ in range(count)]
        self.gateway.submit([Send(self.queue.entity_id, messages, (self, None))])
        return self.take()

    def complete(self, lock: tuple[int, int]) -> ServiceError | None:
        queue = self.queue.entity_id
        self.gateway.submit([Settle(queue, MAIN, [lock], COMPLETE, None, (self, None))])
        return self.take()

    def receive(self, credit: int) -> SimSink:
        sink = SimSink()
        receiver = self.gateway.open_receiver(
            ReceiverDescription(self.queue.entity_id, MAIN, PEEK_LOCK), sink
        )
        receiver.set_credit(credit, drain=False)
        self.harness.run()
        return sink

    def observe(self, usage: Usage) -> None:
        self.throttle.observe(usage)
        self.gateway.look_at_throttle()


def test_a_calm_server_does_not_ask() -> None:
    subject = Asker("premium")
    (link,) = subject.gateway.links
    assert link.submit == subject.harness.broker.submit
    subject.observe(FULL_MEMORY)
    assert link.submit != subject.harness.broker.submit
    for _ in range(3):
        subject.observe(Usage())
    assert link.submit == subject.harness.broker.submit


@pytest.mark.proves("A-1", "A-2")
def test_without_memory_nothing_is_sent_but_everything_received() -> None:
    subject = Asker("premium")
    assert subject.send(2) is None
    subject.observe(FULL_MEMORY)
    assert isinstance(subject.send(), ServerBusy)
    sink = subject.receive(2)
    assert len(sink.messages) == 2
    assert subject.complete(sink.locks[0]) is None
    assert subject.queue.counts().active == 1


@pytest.mark.proves("A-2")
def test_without_a_processor_nobody_begins_to_receive() -> None:
    subject = Asker("premium")
    subject.send()
    sink = subject.receive(1)
    subject.observe(FULL_CPU)
    with pytest.raises(ServerBusy, match="wait 10 seconds"):
        subject.receive(1)
    with pytest.raises(ServerBusy):
        subject.gateway.check_management("")
    assert subject.complete(sink.locks[0]) is None


@pytest.mark.proves("A-2")
def test_a_store_that_takes_no_sends_is_evaded() -> None:
    subject = Asker("premium")
    subject.throttle.observe_store(0, Usage(disk_free_bytes=0))
    subject.gateway.look_at_throttle()
    (link,) = subject.gateway.links
    assert (subject.harness.broker.health, link.health) == (UP, SLOW)


def test_a_refused_send_has_no_effect() -> None:
    subject = Asker("standard")
    assert subject.send(1_000) is None
    assert isinstance(subject.send(), ServerBusy)
    assert subject.queue.counts().active == 1_000


@pytest.mark.proves("A-2")
def test_messages_received_are_paid_for() -> None:
    subject = Asker("standard")
    assert subject.send(900) is None
    subject.receive(200)  # with what was sent, and the receiver itself, more than 1,000
    assert isinstance(subject.send(), ServerBusy)
    subject.harness.clock.advance(1_000)
    assert subject.send() is None


@pytest.mark.proves("A-2")
def test_managing_entities_is_paid_for() -> None:
    subject = Asker("standard")
    for _ in range(100):
        subject.gateway.check_management("")
    with pytest.raises(ServerBusy):
        subject.gateway.check_management("")


def test_what_becomes_of_the_entity_reaches_the_receiver() -> None:
    subject = Asker("standard")
    sink = subject.receive(1)
    subject.harness.delete(subject.queue)
    assert sink.is_removed
    assert isinstance(subject.send(), EntityNotFound)
