"""Spans of what passes a link: of real stores on simulated disks, step by step."""

import random
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.broker.harness import SimSink
from tests.unit.gateway.sim_stores import Answers, SimStores
from twinbus.entities.commands import ABANDON, COMPLETE, DEFER, PEEK_LOCK, Lock, Send, Settle
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import Unavailable
from twinbus.links.store_link import ReceiverDescription
from twinbus.telemetry import traced_link
from twinbus.telemetry.traced_link import TracedLink
from twinbus.telemetry.tracing import Tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
TRACED = b"one|\xa1\x0btraceparent\xa1\x37" + PARENT + b"\xa1\x0atracestate\xa1\x03a=b"
DISPOSITION = "messaging.servicebus.disposition_status"


class Scene:
    """One store with a queue behind a traced link."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(self.exporter)
        self.stores = SimStores(1)
        self.queue = self.stores.create("shop:orders", [0]).entity_id
        self.link = TracedLink(
            self.stores.stores[0],
            0,
            self.tracing,
            lambda stored: stored.partition(b"|")[0].decode(),
            "first",
            lambda: self.stores.directory,
        )
        self.answers = Answers()
        self.sink = SimSink()

    def send(self, *bodies: bytes) -> None:
        messages = [NewMessage(body) for body in bodies]
        self.link.submit([Send(self.queue, messages, (self.answers, "mine"))])
        self.stores.settle_down()

    def receive(self, count: int) -> list[Lock]:
        before = len(self.sink.messages)
        receiver = self.link.open_receiver(
            ReceiverDescription(self.queue, MAIN, PEEK_LOCK), self.sink
        )
        receiver.set_credit(count, False)
        self.stores.settle_down()
        receiver.close()
        found = self.sink.messages[before:]
        return [(message.sequence_number, message.grant) for message in found]

    def settle(self, locks: list[Lock], outcome: int = COMPLETE) -> None:
        self.link.submit([Settle(self.queue, MAIN, locks, outcome, None, (self.answers, "mine"))])
        self.stores.settle_down()

    def spans(self) -> list[ReadableSpan]:
        """So far; nothing is exported after."""
        self.tracing.close()
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.tracing.close()


def test_only_what_carries_a_trace(scene: Scene) -> None:
    scene.send(b"two|", TRACED, b"three|")
    locks = scene.receive(3)
    scene.settle(locks)
    spans = scene.spans()
    assert [span.name for span in spans] == ["store orders", "deliver orders", "settle orders"]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert spans[0].context.trace_state.get("a") == "b"
    for span in spans:
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == "one"
        assert span.attributes["twinbus.namespace"] == "shop"
    assert len(scene.answers.replies) == 2  # whoever asked has been told


def test_each_lock_has_its_own_answer(scene: Scene) -> None:
    scene.send(b"two|", TRACED, TRACED)
    other, (first, grant), second = scene.receive(3)
    scene.settle([other, (first, grant + 100), second])
    failed, done = scene.spans()[-2:]
    assert failed.status.status_code.name == "ERROR"
    assert failed.attributes is not None and failed.attributes["error.type"] == "MessageLockLost"
    assert done.status.is_unset


def test_what_comes_again_is_settled_again(scene: Scene) -> None:
    scene.send(TRACED)
    scene.settle(scene.receive(1), ABANDON)
    scene.settle(scene.receive(1), DEFER)
    spans = scene.spans()
    attributes = [span.attributes or {} for span in spans]
    counts = [each.get("messaging.servicebus.message.delivery_count") for each in attributes]
    assert [count for count in counts if count] == [1, 2]
    assert [each[DISPOSITION] for each in attributes if DISPOSITION in each] == ["abandon", "defer"]


def test_a_store_that_is_down(scene: Scene) -> None:
    scene.stores.crash(0, random.Random(1))
    scene.send(TRACED)
    [span] = scene.spans()
    assert span.status.status_code.name == "ERROR"
    assert isinstance(scene.answers.errors[0], Unavailable)


def test_who_never_settles_is_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_link, "DELIVERED_MAX", 2)
    scene.send(TRACED, TRACED, TRACED)
    locks = scene.receive(3)
    scene.settle(locks)
    assert [span.name for span in scene.spans()].count("settle orders") == 2


def test_what_belongs_to_no_entity_has_no_span(scene: Scene) -> None:
    """A journal of the gateway's own."""
    hidden = scene.stores.create("journal", [0])
    scene.stores.directory.remove(hidden)
    scene.link.submit([Send(hidden.entity_id, [NewMessage(TRACED)], (scene.answers, "mine"))])
    scene.stores.settle_down()
    assert scene.spans() == []
    assert scene.answers.errors == [None]
