"""Requests about many messages: what they choose, what they do to it, and that nobody waits."""

import pytest

from tests.unit.broker.actions import answer, arrived, found, restarted, send
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import content, new
from twinbus.amqp.encoding import encode_value
from twinbus.broker.bulk import SLICE_BODIES_MAX, SLICE_COUNT_MAX
from twinbus.entities.commands import ABANDON, DEAD_LETTER, DEFER, Settle
from twinbus.entities.descriptions import (
    DISABLED,
    SEND_DISABLED,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.entities.facts import DEAD_LETTER as DEAD_LETTERS
from twinbus.entities.facts import MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import ACTIVE, DEFERRED, SCHEDULED, NewMessage, Overlay
from twinbus.entities.queue import Queue
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    Resubmit,
    Selected,
    Selection,
    SelectionCommand,
    Undefer,
)
from twinbus.errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageNotFound,
    ServerBusy,
)
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX, WALKS_MAX

MANY = 1_000_000


def chosen(
    states: list[int] | None = None,
    expression: str = "",
    session_id: str | None = None,
    before_ms: int | None = None,
    from_number: int = 0,
) -> Selection:
    selection = Selection()
    selection.states = states or []
    selection.expression = expression
    selection.session_id = session_id
    selection.from_sequence_number = from_number
    if before_ms is not None:
        selection.before_ms = before_ms
    return selection


def asked(
    bench: BrokerHarness,
    kind: type[SelectionCommand],
    queue: Queue,
    selection: Selection | None = None,
    count: int = MANY,
    subqueue: int = MAIN,
) -> Selected:
    result = answer(bench, kind(queue.entity_id, subqueue, selection or chosen(), count))
    assert isinstance(result, Selected)
    return result


def bodies(selected: Selected) -> list[bytes]:
    assert selected.count == len(selected.delivered)
    return [content(delivered.body) for delivered in selected.delivered]


def settle(
    bench: BrokerHarness, queue: Queue, count: int, outcome: int, overlay: Overlay | None = None
) -> None:
    """Receive the next messages and settle them in one way."""
    receiver, sink = bench.receiver(queue, count)
    bench.run()
    assert len(sink.locks) == count
    answer(bench, Settle(queue.entity_id, MAIN, sink.locks, outcome, overlay))
    receiver.close()


@pytest.fixture
def bench() -> BrokerHarness:
    return BrokerHarness()


@pytest.fixture
def large() -> BrokerHarness:
    """With room for large bodies."""
    return BrokerHarness(segment_size=1 << 24)


@pytest.fixture
def mixed(bench: BrokerHarness) -> Queue:
    """1 deferred, 2 and 3 active, 4 locked, 5 scheduled."""
    queue = bench.create_queue()
    send(bench, queue, new(b"deferred", n=1))
    settle(bench, queue, 1, ABANDON)
    settle(bench, queue, 1, DEFER)
    send(bench, queue, new(b"locked", n=4))
    bench.receiver(queue, 1)
    bench.run()
    send(bench, queue, new(b"two", "red", n=2), new(b"three", "blue", n=3))
    later = bench.clock.now().utc_ms + 60_000
    send(bench, queue, new(b"scheduled", scheduled_ms=later, n=5))
    return queue


# --- browse -----------------------------------------------------------------------------------


@pytest.mark.feature("ours.browse")
@pytest.mark.parametrize(
    "selection, expected",
    [
        (chosen(), [b"deferred", b"locked", b"two", b"three", b"scheduled"]),
        (chosen([ACTIVE]), [b"locked", b"two", b"three"]),
        (chosen([DEFERRED, SCHEDULED]), [b"deferred", b"scheduled"]),
        (chosen(expression="n > 2"), [b"locked", b"three", b"scheduled"]),
        (chosen(expression="sys.label = 'red' OR n = 5"), [b"two", b"scheduled"]),
        (chosen([ACTIVE], "n > 2"), [b"locked", b"three"]),
        (chosen(expression="sys.sequencenumber >= 4"), [b"three", b"scheduled"]),
        (chosen(expression="sys.state = 'Deferred'"), [b"deferred"]),
        (chosen(expression="sys.deliverycount = 1"), [b"deferred"]),
        (chosen(expression="n / 0 = 1"), []),  # cannot be answered for any of them
        (chosen(from_number=4), [b"three", b"scheduled"]),
        (chosen(from_number=99), []),
        (chosen(before_ms=0), []),
    ],
)
def test_browse_chooses(
    bench: BrokerHarness, mixed: Queue, selection: Selection, expected: list[bytes]
) -> None:
    assert bodies(asked(bench, Browse, mixed, selection)) == expected


def test_browse_before_a_time(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"old"))
    bench.pass_time(5_000)
    now_ms = bench.clock.now().utc_ms
    send(bench, queue, new(b"young"))
    assert bodies(asked(bench, Browse, queue, chosen(before_ms=now_ms))) == [b"old"]
    assert bodies(asked(bench, Browse, queue, chosen(before_ms=now_ms + 1))) == [b"old", b"young"]


def test_browse_pages_by_count_and_by_size(large: BrokerHarness) -> None:
    queue = large.create_queue()
    each = PEEK_RESPONSE_BYTES_MAX // 3
    send(large, queue, *[new(b"%d" % number + bytes(each), n=number) for number in range(7)])
    pages: list[list[bytes]] = []
    number = 1
    while number:
        page = asked(large, Browse, queue, chosen(expression="n <> 1", from_number=number), 3)
        pages.append([body[:1] for body in bodies(page)])
        number = page.next_sequence_number
    assert pages == [[b"0", b"2"], [b"3", b"4"], [b"5", b"6"]]
    first = asked(large, Browse, queue, count=1)
    assert (first.count, first.next_sequence_number) == (1, 2)


def test_a_single_message_larger_than_a_page_is_shown(large: BrokerHarness) -> None:
    queue = large.create_queue()
    send(large, queue, new(bytes(PEEK_RESPONSE_BYTES_MAX + 1)), new(b"next"))
    page = asked(large, Browse, queue)
    assert (page.count, page.next_sequence_number) == (1, 2)


def test_browse_sees_what_was_changed_since_a_message_was_sent(bench: BrokerHarness) -> None:
    """Reason, description and changed properties are the message's as a receiver gets it."""
    queue = bench.create_queue()
    send(bench, queue, new(b"a", color="red"), new(b"b", color="red"))
    properties = encode_value({"Color": "green"})
    settle(bench, queue, 1, DEAD_LETTER, Overlay("Bad", "very", properties=properties))
    settle(bench, queue, 1, DEAD_LETTER, Overlay("Worse"))
    for expression, expected in (
        ("DeadLetterReason = 'Bad'", [b"a"]),
        ("DeadLetterReason LIKE 'W%'", [b"b"]),
        ("DeadLetterErrorDescription = 'very'", [b"a"]),
        ("color = 'green'", [b"a"]),
        ("color = 'red'", [b"b"]),
    ):
        selection = chosen(expression=expression)
        assert bodies(asked(bench, Browse, queue, selection, subqueue=DEAD_LETTERS)) == expected


def test_what_was_browsed_stays_as_it_was_seen(bench: BrokerHarness) -> None:
    """A walk takes many turns; a message that is activated meanwhile gets another number."""
    queue = bench.create_queue()
    due = bench.clock.now().utc_ms + 1_000
    send(bench, queue, new(b"scheduled", scheduled_ms=due, n=1))
    send(bench, queue, *[new(n=0) for _ in range(3 * SLICE_BODIES_MAX)])
    command = Browse(queue.entity_id, MAIN, chosen(expression="n = 1"), 10)
    bench.submit(command)
    assert bench.turn() is None
    bench.clock.advance(2_000)
    bench.broker.entities.tick()
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    assert isinstance(reply.result, Selected)
    [delivered] = reply.result.delivered
    assert (delivered.message.sequence_number, delivered.message.state) == (1, SCHEDULED)


# --- delete -----------------------------------------------------------------------------------


@pytest.mark.feature("ours.browse")
@pytest.mark.parametrize(
    "selection, count, left",
    [
        (chosen(), MANY, [2]),  # a locked message is its holder's
        (chosen([ACTIVE]), MANY, [1, 2, 5]),
        (chosen([ACTIVE]), 1, [1, 2, 4, 5]),  # oldest first
        (chosen([DEFERRED]), MANY, [2, 3, 4, 5]),
        (chosen([SCHEDULED]), MANY, [1, 2, 3, 4]),
        (chosen(expression="n = 3"), MANY, [1, 2, 3, 5]),
        (chosen(before_ms=0), MANY, [1, 2, 3, 4, 5]),
    ],
)
def test_delete_removes_what_is_chosen_and_free(
    bench: BrokerHarness, mixed: Queue, selection: Selection, count: int, left: list[int]
) -> None:
    deleted = asked(bench, DeleteMessages, mixed, selection, count)
    assert deleted.count == 5 - len(left)
    page = asked(bench, Browse, mixed)
    assert [delivered.message.sequence_number for delivered in page.delivered] == left


@pytest.mark.proves("M-1")
def test_what_was_deleted_does_not_come_back(bench: BrokerHarness, mixed: Queue) -> None:
    """The answer waits until it is durable; the power may go right after it."""
    asked(bench, DeleteMessages, mixed)
    again = restarted(bench)
    assert bodies(asked(again, Browse, found(again, "orders"))) == [b"locked"]


def test_delete_in_the_dead_letter_queue(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"dead"), new(b"alive"))
    settle(bench, queue, 1, DEAD_LETTER)
    assert asked(bench, DeleteMessages, queue, subqueue=DEAD_LETTERS).count == 1
    assert queue.counts().message_count == 1
    assert arrived(bench, queue) == [b"alive"]


def test_what_has_expired_is_not_deleted_but_dead_lettered(bench: BrokerHarness) -> None:
    queue = bench.create_queue(
        description=QueueDescription(dead_lettering_on_message_expiration=True)
    )
    send(bench, queue, new(b"over", time_to_live_ms=1_000), new(b"here"))
    bench.clock.advance(2_000)
    assert asked(bench, DeleteMessages, queue).count == 1
    bench.broker.entities.tick()
    bench.run()
    assert arrived(bench, queue, DEAD_LETTERS) == [b"over"]


# --- slices -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression, slice_size", [("", SLICE_COUNT_MAX), ("n=1", SLICE_BODIES_MAX)]
)
def test_a_large_request_takes_many_turns(
    bench: BrokerHarness, expression: str, slice_size: int
) -> None:
    """10,000 messages: no turn does more than a slice, and others are served in between."""
    queue = bench.create_queue()
    other = bench.create_queue("other")
    for _ in range(10):
        send(bench, queue, *[new(n=1) for _ in range(1_000)])
    command = DeleteMessages(queue.entity_id, MAIN, chosen(expression=expression), MANY)
    bench.submit(command)
    turns = 0
    left = 10_000
    while bench.reply_to(command) is None:
        sent = bench.send(other, b"x")
        commit = bench.turn()
        assert commit is not None
        bench.write(commit)
        assert bench.reply_to(sent) is not None
        now_left = queue.counts().message_count
        assert left - now_left <= slice_size
        left = now_left
        turns += 1
    assert left == 0
    assert turns >= 10_000 // slice_size
    reply = bench.reply_to(command)
    assert reply is not None
    assert isinstance(reply.result, Selected)
    assert reply.result.count == 10_000


def test_large_bodies_make_small_slices(large: BrokerHarness) -> None:
    queue = large.create_queue()
    for _ in range(10):
        send(large, queue, new(bytes(1_000_000), n=1))
    command = DeleteMessages(queue.entity_id, MAIN, chosen(expression="n=1"), MANY)
    large.submit(command)
    commit = large.turn()
    assert commit is not None
    assert queue.counts().message_count == 10 - 4
    large.write(commit)
    large.run()
    assert queue.counts().message_count == 0


def test_walks_take_turns(bench: BrokerHarness) -> None:
    """A short request behind a long one does not wait for its end."""
    queue, other = bench.create_queue(), bench.create_queue("other")
    for _ in range(5):
        send(bench, queue, *[NewMessage(b"x") for _ in range(1_000)])
    send(bench, other, new(b"y"))
    long = DeleteMessages(queue.entity_id, MAIN, chosen(), MANY)
    short = DeleteMessages(other.entity_id, MAIN, chosen(), MANY)
    bench.submit(long, short)
    for _ in range(2):
        commit = bench.turn()
        assert commit is not None
        bench.write(commit)
    assert bench.reply_to(short) is not None
    assert bench.reply_to(long) is None
    bench.run()
    assert bench.reply_to(long) is not None


def test_a_walk_ends_at_what_was_there_when_it_began(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    for _ in range(2):
        send(bench, queue, *[NewMessage(b"old") for _ in range(1_000)])
    command = DeleteMessages(queue.entity_id, MAIN, chosen(), MANY)
    bench.submit(command)
    bench.send(queue, b"young")
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    assert isinstance(reply.result, Selected)
    assert reply.result.count == 2_000
    assert queue.counts().message_count == 1


def test_an_entity_that_is_deleted_ends_its_walks(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    for _ in range(3):
        send(bench, queue, *[NewMessage(b"x") for _ in range(1_000)])
    begun = DeleteMessages(queue.entity_id, MAIN, chosen(), MANY)
    waiting = Browse(queue.entity_id, MAIN, chosen(), MANY)
    bench.submit(begun)
    commit = bench.turn()
    assert commit is not None
    bench.write(commit)
    bench.submit(waiting)
    bench.delete(queue)
    told = bench.reply_to(begun)
    assert told is not None
    assert isinstance(told.result, Selected)
    assert told.result.count == SLICE_COUNT_MAX  # what was done was done
    told = bench.reply_to(waiting)
    assert told is not None
    assert isinstance(told.error, EntityNotFound)


def test_too_many_walks_are_refused(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    commands = [Browse(queue.entity_id, MAIN, chosen(), 1) for _ in range(WALKS_MAX + 1)]
    bench.submit(*commands)
    told = bench.reply_to(commands[-1])
    assert told is not None
    assert isinstance(told.error, ServerBusy)
    bench.run()
    assert all(bench.reply_to(command) for command in commands)


@pytest.mark.parametrize("kind", [Browse, DeleteMessages, Undefer])
def test_what_cannot_be_asked(bench: BrokerHarness, kind: type[SelectionCommand]) -> None:
    queue = bench.create_queue()
    with pytest.raises(ArgumentInvalid, match="5"):
        asked(bench, kind, queue, chosen(expression="n = = 1"))
    with pytest.raises(InvalidOperation, match="sessions"):
        asked(bench, kind, queue, chosen(session_id="s"))
    bench.update(queue, QueueDescription(status=DISABLED))
    with pytest.raises(EntityDisabled):
        asked(bench, kind, queue)


# --- undefer ----------------------------------------------------------------------------------


@pytest.mark.feature("ours.undefer")
def test_undefer_by_selection(bench: BrokerHarness) -> None:
    """They are received in their old places, before what came later."""
    queue = bench.create_queue()
    send(bench, queue, *[new(b"%d" % n, n=n) for n in range(4)])
    settle(bench, queue, 3, DEFER)
    assert asked(bench, Undefer, queue, chosen(expression="n <> 1")).count == 2
    again = restarted(bench)
    queue = found(again, "orders")
    assert (queue.counts().active, queue.counts().deferred) == (3, 1)
    assert arrived(again, queue) == [b"0", b"2", b"3"]


def test_undefer_by_numbers_is_all_or_none(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"a"), new(b"b"), new(b"c"))
    settle(bench, queue, 2, DEFER)
    command = Undefer(queue.entity_id, MAIN, chosen(), MANY)
    command.sequence_numbers = [1, 3]
    with pytest.raises(MessageNotFound):
        answer(bench, command)
    assert queue.counts().deferred == 2
    command = Undefer(queue.entity_id, MAIN, chosen(), MANY)
    command.sequence_numbers = [2, 1]
    result = answer(bench, command)
    assert isinstance(result, Selected)
    assert result.count == 2
    assert arrived(bench, queue) == [b"a", b"b", b"c"]


def test_undefer_in_the_dead_letter_queue(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"dead"))
    settle(bench, queue, 1, DEAD_LETTER)
    receiver, sink = bench.receiver(queue, 1, subqueue=DEAD_LETTERS)
    bench.run()
    answer(bench, Settle(queue.entity_id, DEAD_LETTERS, sink.locks, DEFER))
    receiver.close()
    assert arrived(bench, queue, DEAD_LETTERS) == []
    assert asked(bench, Undefer, queue, subqueue=DEAD_LETTERS).count == 1
    assert arrived(bench, queue, DEAD_LETTERS) == [b"dead"]


def test_a_waiting_receiver_gets_what_is_undeferred(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"a"))
    settle(bench, queue, 1, DEFER)
    _, sink = bench.receiver(queue, 1)
    bench.run()
    assert sink.bodies == []
    asked(bench, Undefer, queue)
    assert [content(body) for body in sink.bodies] == [b"a"]


# --- resubmit ---------------------------------------------------------------------------------


@pytest.mark.proves("M-4")
@pytest.mark.feature("ours.resubmit")
def test_a_dead_letter_comes_back_as_a_new_message(bench: BrokerHarness) -> None:
    """A new number, no deliveries, no reason; what was changed about it stays changed."""
    queue = bench.create_queue()
    send(bench, queue, new(b"a", time_to_live_ms=5_000, n=1), new(b"b", n=2))
    settle(bench, queue, 1, ABANDON)
    overlay = Overlay("Bad", "very", properties=encode_value({"tried": True}))
    settle(bench, queue, 2, DEAD_LETTER, overlay)
    bench.pass_time(60_000)
    selected = asked(bench, Resubmit, queue, chosen(expression="n = 1"), subqueue=DEAD_LETTERS)
    assert (selected.count, selected.next_sequence_number) == (1, 0)
    again = restarted(bench)
    queue = found(again, "orders")
    assert (queue.counts().active, queue.counts().dead_letter) == (1, 1)
    [delivered] = asked(again, Browse, queue, chosen(expression="tried = TRUE")).delivered
    message = delivered.message
    assert content(delivered.body) == b"a"
    assert (message.sequence_number, message.delivery_count) == (3, 0)
    assert message.enqueued_ms == bench.clock.now().utc_ms
    assert message.expires_ms == message.enqueued_ms + 5_000
    assert message.overlay is not None
    assert (message.overlay.reason, message.overlay.description) == (None, None)


def test_a_resubmitted_message_is_in_one_place_whenever_the_power_goes(
    bench: BrokerHarness,
) -> None:
    queue = bench.create_queue()
    send(bench, queue, *[new(b"%d" % n) for n in range(3)])
    settle(bench, queue, 3, DEAD_LETTER)
    bench.submit(Resubmit(queue.entity_id, DEAD_LETTERS, chosen(), MANY))
    commit = bench.turn()
    assert commit is not None
    before = restarted(bench)
    assert found(before, "orders").counts().dead_letter == 3
    commit.write()
    after = restarted(bench)
    assert found(after, "orders").counts().dead_letter == 0
    assert arrived(after, found(after, "orders")) == [b"0", b"1", b"2"]


@pytest.mark.feature("ours.resubmit")
def test_a_walk_cut_short_has_moved_whole_messages(bench: BrokerHarness) -> None:
    """The power goes before and after every commit of a resubmit: each message is in one place."""
    queue = bench.create_queue()
    wanted = sorted(b"%d" % number for number in range(2 * SLICE_BODIES_MAX + 1))
    send(bench, queue, *[new(body) for body in wanted])
    messages = queue.take_ready(MAIN, len(wanted), bench.clock.now())
    queue.dead_letter(MAIN, messages, Overlay("moved"), DEAD_LETTERS)
    bench.broker.touch(queue)
    bench.run()
    command = Resubmit(queue.entity_id, DEAD_LETTERS, chosen(), MANY)
    bench.submit(command)
    moved: list[int] = []
    while bench.reply_to(command) is None:
        commit = bench.turn()
        assert commit is not None
        for _ in range(2):
            cut = restarted(bench)
            copy = found(cut, "orders")
            alive, dead = arrived(cut, copy), arrived(cut, copy, DEAD_LETTERS)
            assert sorted(alive + dead) == wanted
            moved.append(len(alive))
            if len(moved) % 2:
                commit.write()
        bench.broker.committed(commit)
    one, two = SLICE_BODIES_MAX, 2 * SLICE_BODIES_MAX
    assert moved == [0, one, one, two, two, two + 1]


def test_resubmit_is_not_stopped_by_duplicate_detection(bench: BrokerHarness) -> None:
    """The id is known, of course: it is the same message."""
    queue = bench.create_queue(description=QueueDescription(requires_duplicate_detection=True))
    message = new(b"a")
    message.message_id = "id"
    send(bench, queue, message)
    settle(bench, queue, 1, DEAD_LETTER)
    assert asked(bench, Resubmit, queue, subqueue=DEAD_LETTERS).count == 1
    assert arrived(bench, queue) == [b"a"]


def test_resubmit_in_a_full_queue(large: BrokerHarness) -> None:
    """It takes up no more room than before."""
    queue = large.create_queue(description=QueueDescription(max_size_megabytes=1))
    send(large, queue, new(bytes(700_000)))
    settle(large, queue, 1, DEAD_LETTER)
    assert asked(large, Resubmit, queue, subqueue=DEAD_LETTERS).count == 1
    assert queue.counts().active == 1


def test_resubmit_keeps_sessions(bench: BrokerHarness) -> None:
    queue = bench.create_queue(description=QueueDescription(requires_session=True))
    for session in ("a", "b"):
        message = new(session.encode(), session_id=session)
        message.session_id = session
        send(bench, queue, message)
    messages = queue.peek(MAIN, 1, 2, bench.clock.now())
    queue.dead_letter(MAIN, messages, Overlay("moved"), DEAD_LETTERS)
    bench.broker.touch(queue)
    bench.run()
    selection = chosen(session_id="b")
    assert asked(bench, Resubmit, queue, selection, subqueue=DEAD_LETTERS).count == 1
    [delivered] = asked(bench, Browse, queue, selection).delivered
    assert delivered.message.session_id == "b"
    assert asked(bench, Browse, queue, chosen(session_id="a")).count == 0
    assert asked(bench, DeleteMessages, queue, selection).count == 1


def test_resubmit_to_a_subscription_and_from_a_transfer_dead_letter_queue(
    bench: BrokerHarness,
) -> None:
    topic = bench.create_topic()
    subscription = bench.create_subscription(topic, "all", SubscriptionDescription())
    send(bench, topic, new(b"a"))
    settle(bench, subscription, 1, DEAD_LETTER)
    assert asked(bench, Resubmit, subscription, subqueue=DEAD_LETTERS).count == 1
    assert arrived(bench, subscription) == [b"a"]
    target = bench.create_queue("target", QueueDescription(status=SEND_DISABLED))
    source = bench.create_queue("source", QueueDescription(forward_to="target"))
    send(bench, source, new(b"b"))
    bench.run()
    assert source.counts().transfer_dead_letter == 1
    bench.update(target, QueueDescription())
    assert asked(bench, Resubmit, source, subqueue=TRANSFER_DEAD_LETTER).count == 1
    assert arrived(bench, target) == [b"b"]


def test_what_cannot_be_resubmitted(bench: BrokerHarness) -> None:
    queue = bench.create_queue()
    send(bench, queue, new(b"a"))
    settle(bench, queue, 1, DEAD_LETTER)
    with pytest.raises(InvalidOperation, match="dead letters"):
        asked(bench, Resubmit, queue)
    bench.update(queue, QueueDescription(status=SEND_DISABLED))
    with pytest.raises(EntityDisabled):
        asked(bench, Resubmit, queue, subqueue=DEAD_LETTERS)
    assert queue.counts().dead_letter == 1
