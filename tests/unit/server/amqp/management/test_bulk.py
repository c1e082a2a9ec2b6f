"""Batch delete and our own operations over $management, and abandoning with a delay."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from tests.unit.server.amqp.test_coordinator import Person
from tests.unit.server.asking import Asking
from tests.unit.server.wired import KEY, Client, Scene
from twinbus.amqp.composites import (
    AmqpError,
    Rejected,
    TransactionalState,
    modified,
    rejected,
    transactional,
)
from twinbus.amqp.events import IncomingSettled
from twinbus.amqp.ingress import DeliveryReceived, IngressLink
from twinbus.amqp.types import Array, Int, Symbol, Timestamp
from twinbus.entities.queue import Queue
from twinbus.gateway.access.shared_access import AuthorizationRule, Authorizer
from twinbus.limits import ABANDON_DELAY_MS_MAX, DELETE_COUNT_MAX
from twinbus.message.plain import DecodedMessage, data_section, decode_message, encode_message
from twinbus.server.amqp.management.node import OPERATIONS

pytestmark = pytest.mark.asyncio

OPERATIONS_PAGE = Path(__file__).parents[5] / "docs" / "reference" / "management-operations.md"

BATCH_DELETE = "com.microsoft:batch-delete-messages"
BROWSE = "twinbus:browse"
PURGE = "twinbus:purge"
UNDEFER = "twinbus:undefer"
RESUBMIT = "twinbus:resubmit"
DELAY = "twinbus:delay-ms"


class Bench:
    """A client with a sender, a receiver and the management nodes of one queue."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.client: Client = scene.connect()
        self.sender = self.client.attach_sender("orders")
        self.receiver = self.client.attach_receiver("orders", credit=0)
        self.asking = Asking(self.client, "orders")
        self.dead = Asking(self.client, "orders/$DeadLetterQueue")

    @property
    def queue(self) -> Queue:
        return self.scene.harness.store.entities[
            self.scene.namespaces.default.find_entity("orders").entity_id
        ]

    def send(self, *bodies: bytes, **properties: object) -> None:
        for body in bodies:
            data = encode_message(data_section(body), application_properties=dict(properties))
            self.sender.send(b"tag" + body, data, b"", True, None)
        self.client.pump()

    def receive(self, count: int = 1) -> list[DeliveryReceived]:
        self.receiver.grant(count)
        received = deliveries(self.client, self.receiver)
        self.receiver.grant(0)
        return received

    def settle(self, event: DeliveryReceived, state: bytes) -> str:
        """Settle and give what the bus said: confirmed, or the condition of its refusal."""
        self.receiver.settle(event.delivery_id, event.delivery_id, state, settled=False)
        [told] = [each for each in self.client.pump() if isinstance(each, IncomingSettled)]
        if isinstance(told.state, Rejected) and told.state.error is not None:
            return told.state.error.condition
        return "confirmed"

    def browse(self, body: dict[object, object] | None = None) -> list[DecodedMessage]:
        answer = self.asking.ask(BROWSE, body or {})
        return [decode_message(entry["message"]) for entry in answer.body.get("messages", [])]


def deliveries(client: Client, link: IngressLink) -> list[DeliveryReceived]:
    events = client.pump()
    return [e for e in events if isinstance(e, DeliveryReceived) and e.link is link]


def bodies(messages: list[DecodedMessage]) -> list[object]:
    return [message.body for message in messages]


@pytest_asyncio.fixture
async def bench() -> Bench:
    scene = Scene()
    scene.harness.create_queue("orders")
    return Bench(scene)


# --- batch delete -------------------------------------------------------------------------------


@pytest.mark.proves("M-5")
@pytest.mark.feature("receive.batch-delete")
async def test_batch_delete(bench: Bench) -> None:
    """The oldest free and active messages, as many as asked for; 204 when there are none."""
    bench.send(b"deferred", b"locked", b"a", b"b", b"c")
    deferred, _ = bench.receive(2)
    assert bench.settle(deferred, modified(True, True)) == "confirmed"
    later = bench.scene.clock.now().utc_ms + 1
    body = {"message-count": Int(2), "enqueued-time-utc": Timestamp(later)}
    answer = bench.asking.ask(BATCH_DELETE, body)
    assert (answer.status, answer.body["message-count"]) == (200, 2)
    assert isinstance(answer.body["message-count"], Int)
    assert bodies(bench.browse()) == [b"deferred", b"locked", b"c"]
    assert bench.asking.ask(BATCH_DELETE, body).body["message-count"] == 1
    answer = bench.asking.ask(BATCH_DELETE, body)
    assert (answer.status, answer.body) == (204, {})


async def test_batch_delete_before_a_time_and_in_the_dead_letter_queue(bench: Bench) -> None:
    bench.send(b"old")
    bench.scene.clock.advance(1_000)
    now = Timestamp(bench.scene.clock.now().utc_ms)
    bench.send(b"young")
    body = {"message-count": Int(10), "enqueued-time-utc": now}
    assert bench.asking.ask(BATCH_DELETE, body).body["message-count"] == 1
    assert bodies(bench.browse()) == [b"young"]
    [event] = bench.receive()
    bench.settle(event, rejected(AmqpError("com.microsoft:dead-letter", "x")))
    assert bench.dead.ask(BATCH_DELETE, {"message-count": Int(10)}).body["message-count"] == 1


@pytest.mark.parametrize(
    "operation, body, text",
    [
        (BATCH_DELETE, {}, "message-count"),
        (BATCH_DELETE, {"message-count": Int(0)}, "message-count"),
        (BATCH_DELETE, {"message-count": Int(-1)}, "message-count"),
        (BATCH_DELETE, {"message-count": Int(DELETE_COUNT_MAX + 1)}, str(DELETE_COUNT_MAX)),
        (BATCH_DELETE, {"message-count": "all"}, "message-count"),
        (BATCH_DELETE, {"message-count": True}, "message-count"),
        (BATCH_DELETE, {"message-count": Int(1), "enqueued-time-utc": "now"}, "enqueued-time-utc"),
        (BATCH_DELETE, {"message-count": Int(1), "session-id": 5}, "session-id"),
        (BATCH_DELETE, {"message-count": Int(1), "session-id": "s"}, "session"),
        (BROWSE, {"message-count": Int(0)}, "message-count"),
        (BROWSE, {"message-count": Int(1_001)}, "1000"),
        (BROWSE, {"message-count": 1.5}, "message-count"),
        (BROWSE, {"filter": "a = = 1"}, "5"),
        (BROWSE, {"filter": 5}, "filter"),
        (BROWSE, {"filter": "a = '" + "x" * 2_000 + "'"}, "1024"),
        (BROWSE, {"states": ["active", "asleep"]}, "scheduled"),
        (BROWSE, {"states": []}, "states"),
        (BROWSE, {"states": "active"}, "states"),
        (BROWSE, {"states": ["active"] * 2_000}, "1000"),
        (BROWSE, {"states": [5]}, "states"),
        (BROWSE, {"from-sequence-number": "first"}, "from-sequence-number"),
        (PURGE, {"message-count": Int(-5)}, "message-count"),
        (PURGE, {"message-count": 1 << 40}, "message-count"),
        (PURGE, ["everything"], "map"),
        (UNDEFER, {"sequence-numbers": []}, "sequence-numbers"),
        (UNDEFER, {"sequence-numbers": ["1"]}, "sequence-numbers"),
        (UNDEFER, {"sequence-numbers": [True]}, "sequence-numbers"),
        (UNDEFER, {"sequence-numbers": Array([1] * 1_001)}, "1000"),
        (UNDEFER, {"sequence-numbers": [1, 1]}, "twice"),
        (UNDEFER, {"sequence-numbers": [1], "filter": "a = 1"}, "not both"),
        (UNDEFER, {"sequence-numbers": [1], "message-count": Int(1)}, "not both"),
        (RESUBMIT, {}, "dead letters"),
    ],
)
async def test_what_is_refused_changes_nothing(
    bench: Bench, operation: str, body: object, text: str
) -> None:
    bench.send(b"a")
    answer = bench.asking.ask(operation, body)
    assert answer.status == 400, answer.text
    assert text in answer.text
    assert bodies(bench.browse()) == [b"a"]


# --- ours ---------------------------------------------------------------------------------------


@pytest.mark.feature("ours.browse")
async def test_browse_by_state_and_filter_in_pages(bench: Bench) -> None:
    for number in range(6):
        bench.send(b"%d" % number, even=number % 2 == 0)
    body: dict[object, Any] = {"states": [Symbol("active")], "filter": "even = TRUE"}
    first = bench.asking.ask(BROWSE, {**body, "message-count": Int(2)})
    assert first.body["message-count"] == 2
    seen = [decode_message(entry["message"]) for entry in first.body["messages"]]
    assert bodies(seen) == [b"0", b"2"]
    assert [message.annotations["x-opt-sequence-number"] for message in seen] == [1, 3]
    assert all("lock-token" not in entry for entry in first.body["messages"])
    start = first.body["next-sequence-number"]
    rest = bench.asking.ask(BROWSE, {**body, "from-sequence-number": start})
    assert [decode_message(entry["message"]).body for entry in rest.body["messages"]] == [b"4"]
    assert "next-sequence-number" not in rest.body
    nothing = bench.asking.ask(BROWSE, {"filter": "no = 'such'"})
    assert (nothing.status, nothing.body) == (204, {})


@pytest.mark.feature("ours.browse")
async def test_purge(bench: Bench) -> None:
    for number in range(6):
        bench.send(b"%d" % number, even=number % 2 == 0)
    answer = bench.asking.ask(PURGE, {"filter": "even = TRUE", "message-count": Int(2)})
    assert answer.body == {"message-count": 2, "next-sequence-number": 5}
    assert bodies(bench.browse()) == [b"1", b"3", b"4", b"5"]
    assert bench.asking.ask(PURGE, {}).body == {"message-count": 4}
    assert bench.asking.ask(PURGE, {}).status == 204


@pytest.mark.feature("ours.undefer")
async def test_undefer(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    for event in bench.receive(3):
        bench.settle(event, modified(True, True))
    assert bench.receive(3) == []
    answer = bench.asking.ask(UNDEFER, {"sequence-numbers": Array([1])})
    assert answer.body == {"message-count": 1}
    assert bench.asking.ask(UNDEFER, {"sequence-numbers": [1]}).status == 404
    assert bench.asking.ask(UNDEFER, {"from-sequence-number": 3}).body == {"message-count": 1}
    assert [decode_message(event.data).body for event in bench.receive(3)] == [b"a", b"c"]


@pytest.mark.feature("ours.resubmit")
async def test_resubmit(bench: Bench) -> None:
    bench.send(b"a", b"b")
    for event in bench.receive(2):
        info: dict[object, object] = {"DeadLetterReason": "bad", "fixed": False}
        state = rejected(AmqpError("com.microsoft:dead-letter", "very", info))
        assert bench.settle(event, state) == "confirmed"
    answer = bench.dead.ask(RESUBMIT, {"filter": "DeadLetterReason = 'bad'"})
    assert answer.body == {"message-count": 2}
    assert bench.dead.ask(RESUBMIT, {}).status == 204
    [first, _] = bench.receive(2)
    message = decode_message(first.data)
    assert message.body == b"a"
    assert message.delivery_count == 0
    assert message.annotations["x-opt-sequence-number"] == 3
    assert message.application_properties == {"fixed": False}


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "operation, listen, manage",
    [(BROWSE, True, True), (PURGE, False, True), (UNDEFER, False, True), (RESUBMIT, False, True)],
)
async def test_rights(operation: str, listen: bool, manage: bool) -> None:
    """Looking takes Listen; what changes many messages at a stroke takes Manage."""
    for rights, allowed in (({"Listen"}, listen), ({"Send"}, False), ({"Manage"}, manage)):
        scene = Scene()
        scene.harness.create_queue("orders")
        rule = AuthorizationRule("Root", frozenset(rights), KEY, KEY)
        scene.namespaces.default.authorizer = Authorizer([rule])
        answer = Asking(scene.connect(), "orders/$DeadLetterQueue").ask(operation, {})
        assert answer.status == (204 if allowed else 401), (rights, answer.text)


async def test_many_requests_at_once_are_all_answered(bench: Bench) -> None:
    bench.send(*[b"%d" % number for number in range(20)])
    for _ in range(20):
        bench.asking.send(PURGE, {"message-count": Int(1)})
    answers = bench.asking.answers()
    assert [answer.body["message-count"] for answer in answers] == [1] * 20
    assert bench.queue.counts().message_count == 0


async def test_a_topic_shows_what_waits_in_it(bench: Bench) -> None:
    """A topic holds scheduled messages only; they can be looked at and purged like any."""
    bench.scene.harness.create_topic("news")
    later = bench.scene.clock.now().utc_ms + 60_000
    data = encode_message(
        data_section(b"later"), annotations={"x-opt-scheduled-enqueue-time": Timestamp(later)}
    )
    bench.client.attach_sender("news").send(b"tag", data, b"", True, None)
    bench.client.pump()
    topic = Asking(bench.client, "news")
    [entry] = topic.ask(BROWSE, {"states": ["scheduled"]}).body["messages"]
    assert decode_message(entry["message"]).body == b"later"
    assert topic.ask(PURGE, {}).body == {"message-count": 1}
    assert topic.ask(BROWSE, {}).status == 204


async def test_every_operation_is_documented_with_its_right() -> None:
    text = OPERATIONS_PAGE.read_text()
    rows = re.findall(r"^\| `([\w:-]+)` \| ([A-Z]\w+) \|", text, re.MULTILINE)
    documented = {name if ":" in name else f"com.microsoft:{name}": right for name, right in rows}
    assert documented == {name: right for name, (right, _) in OPERATIONS.items()}


# --- abandoning with a delay ----------------------------------------------------------------------


@pytest.mark.feature("ours.delay")
@pytest.mark.parametrize("over", ["link", "management"])
async def test_an_abandoned_message_comes_back_after_its_delay(bench: Bench, over: str) -> None:
    """One delivery more, other changes kept, and the marker is no property of the message."""
    bench.send(b"a", kept=1)
    [event] = bench.receive()
    changes: dict[object, object] = {DELAY: Int(30_000), "tried": True}
    if over == "link":
        assert bench.settle(event, modified(True, False, changes)) == "confirmed"
    else:
        body = {
            "disposition-status": "abandoned",
            "lock-tokens": [UUID(bytes_le=event.tag)],
            "properties-to-modify": changes,
        }
        assert bench.asking.ask("com.microsoft:update-disposition", body).status == 200
    assert bench.receive() == []
    assert bodies(bench.browse({"states": ["scheduled"]})) == [b"a"]
    bench.scene.harness.pass_time(29_999)
    assert bench.receive() == []
    bench.scene.harness.pass_time(1)
    [event] = bench.receive()
    message = decode_message(event.data)
    assert message.delivery_count == 1
    assert message.application_properties == {"kept": 1, "tried": True}


@pytest.mark.feature("ours.delay")
async def test_an_abandon_with_a_delay_in_a_transaction(bench: Bench) -> None:
    """It waits from the commit on; a delay that makes no sense is no part of the transaction."""
    person = Person(bench.scene)
    bench.send(b"a", b"b")
    receiver = person.client.attach_receiver("orders", credit=2)
    events = [each for each in person.client.events if isinstance(each, DeliveryReceived)]
    txn_id = person.declare()
    for event, delay, confirmed in zip(events, (0, 30_000), (False, True), strict=True):
        state = transactional(txn_id, modified(True, False, {DELAY: Int(delay)}))
        told = person.dispose(receiver, event.delivery_id, state)
        assert told is not None
        assert isinstance(told.state, TransactionalState) is confirmed
    assert bench.queue.counts().scheduled == 0
    assert person.discharge(txn_id) == "accepted"
    assert (bench.queue.counts().scheduled, bench.queue.counts().active) == (1, 1)
    bench.scene.harness.pass_time(30_000)
    assert bench.queue.counts().scheduled == 0


@pytest.mark.parametrize("outcome", ["abandoned", "defered", "suspended"])
@pytest.mark.parametrize("delay", [0, -1, ABANDON_DELAY_MS_MAX + 1, "soon", 1.5, True])
async def test_a_delay_that_makes_no_sense_is_refused(
    bench: Bench, outcome: str, delay: object
) -> None:
    """The message stays locked as it was: the next word about it counts."""
    bench.send(b"a")
    [event] = bench.receive()
    if outcome != "suspended":
        state = modified(True, outcome == "defered", {DELAY: delay})
        assert bench.settle(event, state).startswith("com.microsoft:argument-")
    token = UUID(bytes_le=event.tag)
    body = {
        "disposition-status": outcome,
        "lock-tokens": [token],
        "properties-to-modify": {DELAY: delay},
    }
    assert bench.asking.ask("com.microsoft:update-disposition", body).status == 400
    done = {"disposition-status": "completed", "lock-tokens": [token]}
    assert bench.asking.ask("com.microsoft:update-disposition", done).status == 200


@pytest.mark.parametrize("undeliverable_here", [False, True])
async def test_a_delay_of_null_is_none(bench: Bench, undeliverable_here: bool) -> None:
    bench.send(b"a")
    [event] = bench.receive()
    assert bench.settle(event, modified(True, undeliverable_here, {DELAY: None})) == "confirmed"
    state = "deferred" if undeliverable_here else "active"
    [message] = bench.browse({"states": [state]})
    assert message.application_properties == {}
