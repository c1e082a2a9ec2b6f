"""The meter: units, kinds, and which receives have ended without a message."""

import pytest

from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    Delivered,
    Peek,
    ReceiveDeferred,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import Message, NewMessage, ProducerKey
from twinbus.entities.selections import Selected, Selection, SettleRanges
from twinbus.errors import QuotaExceeded
from twinbus.gateway.counting.counters import RETURN_MS_MAX, Enlisted, EntityMeter, measure
from twinbus.gateway.counting.meter import METERS_MAX, Meter, ReceiveWatch, metered_path

pytestmark = pytest.mark.proves("C-1", "C-2")

Counts = dict[tuple[str, str], tuple[int, int]]


def taken(meter: Meter) -> Counts:
    """Operations and units by entity and kind."""
    lines = meter.take(0, 1_000)
    return {(line.entity, line.kind): (line.operations, line.units) for line in lines}


def orders() -> tuple[Meter, EntityMeter]:
    meter = Meter()
    return meter, meter.of("ns", "orders")


def messages(*sizes: int) -> list[NewMessage]:
    return [NewMessage(bytes(size)) for size in sizes]


@pytest.mark.proves("C-1")
@pytest.mark.parametrize(
    "size, units",
    [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (131_072, 2), (131_073, 3), (204_800, 4)],
)
def test_a_message_counts_each_begun_64_kib(size: int, units: int) -> None:
    meter, entity = orders()
    entity.replied(Reply(Send(1, messages(size)), [1], None))
    assert taken(meter) == {("orders", "send"): (1, units)}
    assert measure(messages(size)) == (size, units, 0)
    entity.delivered([bytes(size)], size + 90)
    assert taken(meter) == {("orders", "receive"): (1, units)}


@pytest.mark.proves("C-1")
def test_messages_of_a_batch_count_each_by_its_own_size() -> None:
    """Many small ones are not one large one, and a large one does not make others larger."""
    meter, entity = orders()
    entity.replied(Reply(Send(1, messages(*[1_000] * 100)), [], None))
    assert taken(meter) == {("orders", "send"): (100, 100)}
    entity.replied(Reply(Send(1, messages(10, 70_000, 10, 200_000)), [], None))
    assert taken(meter) == {("orders", "send"): (4, 1 + 2 + 1 + 4)}


@pytest.mark.proves("P-18", "C-1")
def test_pings_are_no_sends() -> None:
    meter, entity = orders()
    ping, numbered = messages(10, 10)
    ping.producer_key, numbered.producer_key = ProducerKey("", 0, is_ping=True), ProducerKey("p", 1)
    entity.replied(Reply(Send(1, [ping, numbered]), [0, 7], None))
    assert taken(meter) == {("orders", "ping"): (1, 1), ("orders", "send"): (1, 1)}


@pytest.mark.proves("C-1", "C-2")
def test_what_is_settled_by_number_counts_as_received() -> None:
    """Reading a message and settling it costs as much as receiving it would."""
    meter, entity = orders()
    settle = SettleRanges(1, MAIN, Selection(), 9)
    selected = Selected()
    entity.replied(Reply(settle, selected, None))
    assert taken(meter) == {("orders", "management"): (1, 1)}
    selected.count, selected.units = 3, 5
    entity.replied(Reply(settle, selected, None))
    assert taken(meter) == {("orders", "receive"): (3, 5)}
    entity.replied(Reply(settle, None, QuotaExceeded("no")))
    assert taken(meter) == {}


@pytest.mark.proves("C-1")
def test_requests_count_as_what_they_do() -> None:
    """Scheduling is a send, deferred messages are received, settling is free."""
    meter, entity = orders()
    deferred = ReceiveDeferred(1, MAIN, [1], PEEK_LOCK)
    found = [Delivered(Message(1, None, 70_000, 0), bytes(70_000), 0)]
    for reply in (
        Reply(Send(1, messages(10)), [1], None),
        Reply(deferred, found, None),
        Reply(deferred, [], None),
        Reply(Peek(1, MAIN, 0, 10), [], None),
        Reply(Settle(1, MAIN, [(1, 1)], COMPLETE), None, None),
        Reply(Peek(1, MAIN, 0, 10), None, QuotaExceeded("no")),
        Reply(Send(1, messages(10)), None, QuotaExceeded("no")),
    ):
        entity.replied(reply)
    assert taken(meter) == {
        ("orders", "send"): (1, 1),
        ("orders", "receive"): (2, 3),
        ("orders", "management"): (1, 1),
    }


def test_a_transaction_counts_when_it_is_committed() -> None:
    meter, entity = orders()
    enlisted = Enlisted(entity, Send(1, messages(70_000)))
    enlisted.rolled_back()
    assert taken(meter) == {}
    enlisted.committed()
    assert taken(meter) == {("orders", "send"): (1, 2)}


def test_what_was_taken_is_not_taken_again() -> None:
    meter, entity = orders()
    entity.managed_once()
    [line] = meter.take(5, 1_005)
    assert (line.from_ms, line.to_ms, line.namespace) == (5, 1_005, "ns")
    assert taken(meter) == {}
    entity.managed_once()
    entity.received_nothing()
    assert taken(meter) == {("orders", "receive"): (1, 1), ("orders", "management"): (1, 1)}


@pytest.mark.proves("C-1")
def test_namespaces_and_entities_are_told_apart() -> None:
    meter = Meter()
    for namespace, entity in (("a", "q"), ("b", "q"), ("a", "Q2"), ("a", "")):
        meter.of(namespace, entity).managed_once()
    found = [(line.namespace, line.entity, line.operations) for line in meter.take(0, 1)]
    assert found == [("a", "q", 1), ("b", "q", 1), ("a", "Q2", 1), ("a", "", 1)]
    assert metered_path("q", MAIN) == "q"
    assert metered_path("q", DEAD_LETTER) == "q/$deadletterqueue"
    assert metered_path("q", TRANSFER_DEAD_LETTER) == "q/$transfer/$deadletterqueue"


def test_more_names_than_are_remembered_lose_nothing() -> None:
    meter = Meter()
    first = meter.of("ns", "0")
    for number in range(METERS_MAX):
        meter.of("ns", str(number))
    assert meter.of("ns", str(METERS_MAX)) is not None
    assert meter.of("ns", "0") is not first, "forgotten, but a link has it"
    first.managed_once()
    meter.of("ns", "0").managed_once()
    assert [line.operations for line in meter.take(0, 1)] == [1, 1]


# --- receives without a message -------------------------------------------------------------------


class Link:
    """The flows of one receiving link, as the broker sees them."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter or Meter()
        self.watch = ReceiveWatch(self.meter.of("ns", "q"))

    def flow(self, credit: int, drain: bool = False) -> None:
        self.watch.flowed(credit, drain)

    def deliver(self, count: int) -> None:
        self.watch.delivered(count)

    def empty(self, now_ms: int = 1) -> int:
        """Receives without a message since the last look."""
        return sum(line.empty for line in self.meter.take(0, now_ms))


@pytest.mark.proves("C-2")
def test_ten_idle_backlog_queues_are_received_from_40_times_an_hour() -> None:
    """10 queues, one syphon, polls of 15 minutes: 40 an hour, 960 a day, 28,800 in 30 days.

    That it is so with a real syphon, whose links are detached meanwhile, is shown by
    tests/interop/test_idle_receives.py.
    """
    links = [Link() for _ in range(10)]
    for link in links:
        link.flow(0)  # the SDK's first word on a new link
        link.flow(100)  # receive_messages(max_message_count=100, max_wait_time=900)
    hourly: list[int] = []
    for _ in range(24 * 30):
        for _ in range(4):
            for link in links:
                link.flow(100)  # 15 minutes later: nothing came, so it asks again
        hourly.append(sum(link.empty() for link in links))
    assert set(hourly) == {40}
    assert sum(hourly[:24]) == 960
    assert sum(hourly) == 28_800


@pytest.mark.proves("C-2")
def test_a_receive_that_got_something_is_not_empty() -> None:
    """Credit that is left over belongs to a receive that has ended well."""
    link = Link()
    for count in (3, 10, 1):
        link.flow(10)
        link.deliver(count)
    link.flow(10)
    assert link.empty() == 0
    link.flow(10)
    assert link.empty() == 1


@pytest.mark.proves("C-2")
def test_credit_that_the_sdk_adds_by_itself_begins_no_receive() -> None:
    """With its credit used up it grants one more while the same receive goes on."""
    link = Link()
    link.flow(7)
    link.deliver(7)
    link.flow(1)
    link.deliver(1)
    link.flow(1)
    link.flow(10)  # the next receive
    assert link.empty() == 0
    link.watch.ended()
    assert link.empty() == 1


@pytest.mark.proves("C-2")
def test_receives_of_one_message_each() -> None:
    link = Link()
    link.flow(1)
    link.deliver(1)
    link.flow(1)
    link.flow(1)
    assert link.empty() == 1
    link.deliver(1)
    link.watch.ended()
    assert link.empty() == 0


@pytest.mark.proves("C-2")
@pytest.mark.parametrize("how", ["closed", "withdrawn", "drained", "drained to nothing"])
def test_the_end_of_an_empty_receive(how: str) -> None:
    """However it ends, it is one."""
    link = Link()
    link.flow(5)
    if how == "withdrawn":
        link.flow(0)
    elif how == "drained":  # .NET and JavaScript end a receive so
        link.flow(5, drain=True)
        link.watch.ended()
    elif how == "drained to nothing":  # so does Python, when it closes
        link.flow(0, drain=True)
    link.watch.ended()
    assert link.empty() == 1


def test_what_is_drained_after_messages_is_not_empty() -> None:
    link = Link()
    link.flow(5)
    link.deliver(2)
    link.flow(3, drain=True)
    link.watch.ended()
    assert link.empty() == 0
    link.flow(4, drain=True)  # a receive that takes what there is, and waits for nothing
    link.watch.ended()
    assert link.empty() == 1


@pytest.mark.proves("C-2")
def test_a_receive_that_the_server_interrupts_goes_on_with_the_next_link() -> None:
    """Idle links are detached after 10 minutes, in the middle of polls of 15."""
    first = Link()
    again = first
    for _ in range(5):
        again.flow(0)
        again.flow(100)
        again.watch.interrupted()
        again.watch.ended()
        assert again.empty() == 0
        again = Link(first.meter)
    again.flow(100)
    again.flow(100)
    assert again.empty() == 1
    again.watch.ended()
    assert again.empty() == 1
    assert again.empty(RETURN_MS_MAX) == again.empty(2 * RETURN_MS_MAX) == 0


@pytest.mark.proves("C-2")
def test_interrupted_receives_of_several_links() -> None:
    """Whoever comes first goes on: the sum is the same."""
    meter = Meter()
    for link in (Link(meter), Link(meter)):
        link.flow(10)
        link.watch.interrupted()
    fresh, back = Link(meter), Link(meter)
    for link in (fresh, back):
        link.flow(10)
    assert back.empty() == 0
    fresh.watch.ended()
    back.watch.ended()
    assert back.empty(2 * RETURN_MS_MAX) == 2


@pytest.mark.proves("C-2")
def test_an_interrupted_receive_of_a_client_that_does_not_come_back() -> None:
    link = Link()
    link.flow(10)
    link.watch.interrupted()
    link.watch.ended()
    assert link.empty(1_000) == 0
    assert link.empty(1_000 + RETURN_MS_MAX - 1) == 0
    assert link.empty(1_000 + RETURN_MS_MAX) == 1
    assert link.empty(2_000 + 2 * RETURN_MS_MAX) == 0
    late = Link(link.meter)
    late.flow(10)
    late.watch.ended()
    assert late.empty(3_000 + 2 * RETURN_MS_MAX) == 1, "a receive of its own"


@pytest.mark.proves("C-2")
def test_what_ends_with_a_message_or_unasked_is_not_interrupted() -> None:
    served, unasked = Link(), Link()
    served.flow(10)
    served.deliver(1)
    unasked.flow(0)
    for link in (served, unasked):
        link.watch.interrupted()
        assert link.empty() == link.empty(2 * RETURN_MS_MAX) == 0


def test_a_clock_that_is_set_back_ends_an_interrupted_receive() -> None:
    link = Link()
    link.flow(10)
    link.watch.interrupted()
    assert link.empty(5_000) == 0
    assert link.empty(4_000) == 1


def test_a_link_that_never_asked() -> None:
    link = Link()
    link.flow(0)
    link.watch.ended()
    assert link.empty() == 0
