"""Topics in a broker on a simulated disk: who gets a copy, when, and what a restart finds."""

from dataclasses import replace

import pytest

from tests.unit.broker.actions import (
    answer,
    arrived,
    by_subject,
    found,
    restarted,
    send,
    sql,
    taken,
)
from tests.unit.broker.harness import BrokerHarness
from tests.unit.broker.stored_messages import content, new
from twinbus.entities.carried import JOURNAL
from twinbus.entities.commands import (
    COMPLETE,
    AddRule,
    CancelScheduled,
    ListRules,
    Peek,
    RemoveRule,
    Send,
    Settle,
)
from twinbus.entities.descriptions import (
    DISABLED,
    RECEIVE_DISABLED,
    SEND_DISABLED,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.topic import Topic
from twinbus.errors import (
    EntityAlreadyExists,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
)

# -- fan-out ---------------------------------------------------------------------------------------


@pytest.mark.proves("M-1", "M-6")
@pytest.mark.feature("topic.fan-out")
def test_every_subscription_gets_its_own_copy() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    first = bench.create_subscription(topic, "first")
    second = bench.create_subscription(topic, "second")
    assert send(bench, topic, new(b"one"), new(b"two")) == [1, 2]
    assert arrived(bench, first) == [b"one", b"two"]
    again = restarted(bench)
    assert arrived(again, found(again, first.name)) == []
    assert arrived(again, found(again, second.name)) == [b"one", b"two"]


@pytest.mark.proves("M-1")
def test_a_send_is_answered_and_delivered_only_when_all_copies_are_durable() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    subscriptions = [bench.create_subscription(topic, f"s{i}") for i in range(3)]
    sinks = [bench.receiver(each, 10)[1] for each in subscriptions]
    command = Send(topic.entity_id, [new(b"one")])
    bench.submit(command)
    commit = bench.turn()
    assert commit is not None
    bench.turn()
    assert bench.reply_to(command) is None
    assert [sink.bodies for sink in sinks] == [[], [], []]
    bench.write(commit)
    bench.run()
    assert bench.reply_to(command) is not None
    assert [len(sink.bodies) for sink in sinks] == [1, 1, 1]


@pytest.mark.feature("topic.fan-out")
def test_copies_share_one_body_on_the_disk() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    subscriptions = [bench.create_subscription(topic, f"s{i}") for i in range(50)]
    bench.submit(Send(topic.entity_id, [new(bytes(2_000))]))
    commit = bench.turn()
    assert commit is not None
    assert commit.size < 2_000 + 50 * 100
    bench.write(commit)
    positions = {each.messages_from(MAIN, 1, 1)[0].position for each in subscriptions}
    assert len(positions) == 1


@pytest.mark.proves("M-6")
def test_the_number_of_the_topic_stays_with_every_copy() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    bench.create_subscription(topic, "early")
    send(bench, topic, new(b"one"), new(b"two"))
    late = bench.create_subscription(topic, "late")
    later = bench.create_subscription(topic, "later")
    send(bench, topic, new(b"three"))
    bench = restarted(bench)
    for queue in (late, later):
        messages, _ = taken(bench, found(bench, queue.name))
        assert [message.sequence_number for message in messages] == [1]
        overlay = messages[0].overlay
        assert overlay is not None
        assert overlay.enqueued_sequence_number == 3


def test_copies_whose_number_is_the_topics_carry_nothing_extra() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    subscriptions = [bench.create_subscription(topic, f"s{i}") for i in range(3)]
    send(bench, topic, new(b"one"))
    assert all(each.messages_from(MAIN, 1, 1)[0].overlay is None for each in subscriptions)


def test_the_topic_counts_on_after_a_restart() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    bench.create_subscription(topic, "only")
    send(bench, topic, new(b"one"), new(b"two"))
    bench = restarted(bench)
    assert send(bench, found(bench, "news"), new(b"three")) == [3]


@pytest.mark.proves("M-6")
def test_without_a_rule_nothing_arrives_and_the_send_is_accepted() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    assert send(bench, topic, new(b"no subscription")) == [1]
    queue = bench.create_subscription(topic, "mute")
    answer(bench, RemoveRule(queue.entity_id, "$default"))
    send(bench, topic, new(b"no rule"))
    assert queue.counts().message_count == 0


@pytest.mark.proves("M-1")
def test_a_message_nobody_wants_is_accepted_when_the_reason_is_durable() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "mute")
    command = Send(topic.entity_id, [new(b"one")])
    bench.submit(RemoveRule(queue.entity_id, "$Default"), command)
    commit = bench.turn()
    assert commit is not None
    assert bench.reply_to(command) is None
    bench.write(commit)
    bench.run()
    assert bench.reply_to(command) is not None


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.sql-filter", "topic.correlation-filter")
def test_filters_choose() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    red = bench.create_subscription(topic, "red", rule=sql("color = 'red'"))
    urgent = bench.create_subscription(topic, "urgent", rule=by_subject("urgent"))
    everything = bench.create_subscription(topic, "everything")
    send(
        bench,
        topic,
        new(b"1", color="red"),
        new(b"2", "urgent", color="blue"),
        new(b"3", "urgent", color="red"),
        new(b"4"),
    )
    assert arrived(bench, red) == [b"1", b"3"]
    assert arrived(bench, urgent) == [b"2", b"3"]
    assert arrived(bench, everything) == [b"1", b"2", b"3", b"4"]


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.action")
def test_one_copy_for_all_rules_without_action_and_one_for_each_action() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "busy")
    for rule in (
        sql("1 = 1", name="plain"),
        sql("1 = 1", "SET step = 'a'", "first"),
        sql("1 = 1", "SET step = 'b'", "second"),
    ):
        answer(bench, AddRule(queue.entity_id, rule))
    send(bench, topic, new(b"one"))
    bench = restarted(bench)
    _, bodies = taken(bench, found(bench, queue.name))
    assert [b"step" in body for body in bodies] == [False, True, True]
    assert [content(body) for body in bodies] == [b"one"] * 3


def test_the_copies_of_one_subscription_become_visible_together() -> None:
    """A plain copy that shares its body with nobody is stated with those of the actions."""
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one", rule=sql("1 = 1", "SET step = 'a'"))
    answer(bench, AddRule(queue.entity_id, sql("1 = 1", name="plain")))
    send(bench, topic, new(b"one"))
    assert arrived(bench, queue) == [b"one", b"one"]


@pytest.mark.proves("M-6", "M-10")
def test_rules_come_and_go() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    answer(bench, AddRule(queue.entity_id, by_subject("b", "Zebra")))
    answer(bench, AddRule(queue.entity_id, by_subject("a", "ape")))
    with pytest.raises(EntityAlreadyExists):
        answer(bench, AddRule(queue.entity_id, by_subject("c", "zebra")))
    bench = restarted(bench)
    queue = found(bench, queue.name)
    names = [rule.name for rule in answer(bench, ListRules(queue.entity_id, 0, 10))]  # type: ignore[attr-defined]
    assert names == ["$Default", "ape", "Zebra"]
    page = answer(bench, ListRules(queue.entity_id, 1, 1))
    assert [rule.name for rule in page] == ["ape"]  # type: ignore[attr-defined]
    answer(bench, RemoveRule(queue.entity_id, "APE"))
    with pytest.raises(EntityNotFound):
        answer(bench, RemoveRule(queue.entity_id, "ape"))
    with pytest.raises(InvalidOperation):
        answer(bench, AddRule(queue.topic_id, by_subject("a")))


@pytest.mark.proves("M-6")
def test_a_rule_counts_for_what_is_sent_after_it_and_is_answered_when_durable() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one", rule=by_subject("a"))
    add = AddRule(queue.entity_id, by_subject("b", "more"))
    bench.submit(
        Send(topic.entity_id, [new(b"1", "b")]), add, Send(topic.entity_id, [new(b"2", "b")])
    )
    assert bench.reply_to(add) is None
    bench.run()
    assert bench.reply_to(add) is not None
    assert arrived(bench, queue) == [b"2"]


@pytest.mark.proves("M-6")
def test_an_action_changes_session_and_life_of_its_copy() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    rule = sql("1 = 1", "SET sys.SessionId = 'tuesday'")
    sessions = SubscriptionDescription(requires_session=True)
    queue = bench.create_subscription(topic, "by-day", sessions, rule)
    send(bench, topic, new(b"one", session_id="monday"), new(b"two"))
    assert [message.session_id for message in queue.messages_from(MAIN, 1, 10)] == ["tuesday"] * 2


@pytest.mark.proves("M-4", "M-6")
def test_a_copy_for_sessions_needs_a_session_id() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    keyed = bench.create_subscription(
        topic, "keyed", SubscriptionDescription(requires_session=True)
    )
    plain = bench.create_subscription(topic, "plain")
    send(bench, topic, new(b"one", session_id="s"), new(b"two"), new(b"three", session_id=""))
    assert [message.session_id for message in keyed.messages_from(MAIN, 1, 10)] == ["s", ""]
    assert all(message.session_id is None for message in plain.messages_from(MAIN, 1, 10))
    bench = restarted(bench)
    messages, bodies = taken(bench, found(bench, keyed.name), DEAD_LETTER)
    assert [content(body) for body in bodies] == [b"two"]
    overlay = messages[0].overlay
    assert overlay is not None
    assert overlay.reason == "Session id is null."


@pytest.mark.proves("M-6")
@pytest.mark.feature("topic.filter-error")
def test_a_filter_that_fails_sends_to_the_dead_letter_queue() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    strict = bench.create_subscription(topic, "strict", rule=sql("1 / number = 1"))
    lenient = bench.create_subscription(
        topic,
        "lenient",
        SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=False),
        sql("1 / number = 1"),
    )
    send(bench, topic, new(b"bad", number=0), new(b"good", number=1))
    for queue in (strict, lenient):
        assert arrived(bench, queue) == [b"good"]
    messages, bodies = taken(bench, strict, DEAD_LETTER)
    assert [content(body) for body in bodies] == [b"bad"]
    overlay = messages[0].overlay
    assert overlay is not None
    assert overlay.reason == "FilterException"
    assert overlay.description
    assert lenient.counts().message_count == 0


@pytest.mark.proves("M-1")
def test_a_dead_letter_of_a_filter_is_not_seen_before_it_is_durable() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "strict", rule=sql("1 / number = 1"))
    _, sink = bench.receiver(queue, 10, subqueue=DEAD_LETTER)
    bench.submit(Send(topic.entity_id, [new(b"bad", number=0)]))
    commit = bench.turn()
    bench.turn()
    assert sink.bodies == []
    assert commit is not None
    bench.write(commit)
    bench.run()
    assert len(sink.bodies) == 1


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.proves("M-3")
@pytest.mark.parametrize(
    ("message_ms", "topic_ms", "subscription_ms"),
    [(5_000, 60_000, 60_000), (60_000, 5_000, 60_000), (60_000, 60_000, 5_000)],
)
def test_the_shortest_life_counts(message_ms: int, topic_ms: int, subscription_ms: int) -> None:
    """Message, topic and subscription each may shorten a message's life, none prolong it."""
    bench = BrokerHarness()
    topic = bench.create_topic(description=TopicDescription(default_time_to_live_ms=topic_ms))
    queue = bench.create_subscription(
        topic,
        "short",
        SubscriptionDescription(
            default_time_to_live_ms=subscription_ms, dead_lettering_on_message_expiration=True
        ),
    )
    send(bench, topic, new(b"one", time_to_live_ms=message_ms))
    bench.pass_time(4_900)
    assert queue.counts().active == 1
    bench.pass_time(5_200)
    assert queue.counts().dead_letter == 1


@pytest.mark.proves("M-3", "M-6")
@pytest.mark.feature("topic.schedule")
def test_scheduled_messages_wait_in_the_topic() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    due_ms = bench.clock.now().utc_ms + 10_000
    numbers = send(bench, topic, new(b"later", "a", scheduled_ms=due_ms), new(b"now", "a"))
    queue = bench.create_subscription(topic, "after", rule=by_subject("a"))
    seen = answer(bench, Peek(topic.entity_id, MAIN, 1, 10))
    assert isinstance(seen, list)
    assert [content(each.body) for each in seen] == [b"later"]
    assert numbers == [1, 2]
    bench = restarted(bench)
    queue, kept = found(bench, queue.name), found(bench, topic.name)
    bench.pass_time(9_000)
    assert queue.counts().message_count == 0
    bench.pass_time(2_000)
    bench = restarted(bench)
    queue, kept = found(bench, queue.name), found(bench, topic.name)
    assert kept.counts().message_count == 0
    messages, bodies = taken(bench, queue)
    assert [content(body) for body in bodies] == [b"later"]
    assert messages[0].enqueued_ms >= due_ms
    overlay = messages[0].overlay
    assert overlay is not None
    assert overlay.enqueued_sequence_number == 3


@pytest.mark.proves("M-3")
def test_a_scheduled_message_can_be_cancelled() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    due_ms = bench.clock.now().utc_ms + 10_000
    send(bench, topic, new(b"never", scheduled_ms=due_ms))
    answer(bench, CancelScheduled(topic.entity_id, [1]))
    bench.pass_time(20_000)
    assert queue.counts().message_count == 0


@pytest.mark.proves("M-3")
def test_the_life_of_a_scheduled_message_begins_when_it_is_due() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    due_ms = bench.clock.now().utc_ms + 60_000
    send(bench, topic, new(b"later", time_to_live_ms=20_000, scheduled_ms=due_ms))
    bench.pass_time(65_000)
    assert queue.counts().active == 1
    bench.pass_time(25_000)
    assert queue.counts().message_count == 0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.proves("M-9")
@pytest.mark.parametrize("status", [DISABLED, SEND_DISABLED])
def test_a_disabled_topic_refuses(status: str) -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    bench.update(topic, replace(topic.description, status=status))
    with pytest.raises(EntityDisabled):
        send(bench, topic, new(b"one"))


@pytest.mark.proves("A-3")
def test_a_disabled_topic_takes_what_was_acknowledged_before() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    bench.update(topic, replace(topic.description, status=SEND_DISABLED))
    for carrier, expected in (("far", 0), (JOURNAL + "1", 1)):
        command = Send(topic.entity_id, [new(b"one")])
        command.carrier, command.carrier_numbers = carrier, [1]
        bench.submit(command)
        bench.run()
        assert queue.counts().active == expected


@pytest.mark.proves("M-9")
@pytest.mark.parametrize(
    ("status", "count"), [(DISABLED, 0), (SEND_DISABLED, 0), (RECEIVE_DISABLED, 1)]
)
def test_the_status_of_a_subscription(status: str, count: int) -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    bench.update(queue, replace(queue.description, status=status))
    send(bench, topic, new(b"one"))
    assert queue.counts().message_count == count


@pytest.mark.proves("M-9")
@pytest.mark.feature("entity.quota")
def test_a_full_subscription_refuses_the_send_for_all() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic(description=TopicDescription(max_size_megabytes=1))
    full = bench.create_subscription(topic, "full", rule=by_subject("a"))
    other = bench.create_subscription(topic, "other")
    for _ in range(20):
        send(bench, topic, new(bytes(50_000), "a"))
    arrived(bench, other)
    with pytest.raises(QuotaExceeded, match="full"):
        send(bench, topic, new(b"small"), new(bytes(50_000), "a"))
    assert other.counts().message_count == 0
    assert topic.last_sequence_number == 20
    send(bench, topic, new(bytes(50_000), "b"))
    assert other.counts().message_count == 1
    arrived(bench, full)
    send(bench, topic, new(bytes(50_000), "a"))


def test_nobody_receives_from_a_topic_or_sends_to_a_subscription() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    with pytest.raises(InvalidOperation):
        bench.receiver(topic)
    with pytest.raises(InvalidOperation):
        send(bench, queue, new(b"one"))


@pytest.mark.proves("M-5")
def test_duplicates_are_dropped_before_they_fan_out() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic(description=TopicDescription(requires_duplicate_detection=True))
    queue = bench.create_subscription(topic, "one")
    assert topic.needs_keys
    for _ in range(2):
        message = new(b"one")
        message.message_id = "same"
        send(bench, topic, message)
    bench = restarted(bench)
    message = new(b"one")
    message.message_id = "same"
    send(bench, found(bench, "news"), message)
    assert arrived(bench, found(bench, queue.name)) == [b"one"]


# -- deleting --------------------------------------------------------------------------------------


@pytest.mark.proves("M-9")
def test_a_topic_takes_everything_along() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one")
    _, sink = bench.receiver(queue)
    send(bench, topic, new(b"one"))
    bench.delete(topic)
    assert sink.is_removed
    assert not bench.store.entities
    assert not bench.store.rules
    again = restarted(bench)
    assert not again.store.names
    assert isinstance(again.create_topic(), Topic)


@pytest.mark.proves("M-9")
def test_a_deleted_subscription_gets_nothing_more() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    gone = bench.create_subscription(topic, "gone")
    kept = bench.create_subscription(topic, "kept")
    send(bench, topic, new(b"one"))
    bench.delete(gone)
    send(bench, topic, new(b"two"))
    assert arrived(bench, kept) == [b"one", b"two"]
    assert topic.rules.rules_of(gone.entity_id) == []


@pytest.mark.proves("M-2")
def test_copies_are_settled_one_by_one() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    first = bench.create_subscription(topic, "first")
    second = bench.create_subscription(topic, "second")
    send(bench, topic, new(b"one"))
    _, sink = bench.receiver(first, 10)
    bench.run()
    answer(bench, Settle(first.entity_id, MAIN, sink.locks, COMPLETE))
    assert first.counts().message_count == 0
    assert second.counts().message_count == 1


# -- much at once ----------------------------------------------------------------------------------


@pytest.mark.proves("M-1")
def test_a_large_send_comes_in_pieces_and_is_answered_when_all_are_durable() -> None:
    bench = BrokerHarness(segment_size=1 << 24)
    topic = bench.create_topic()
    rule = sql("1 = 1", "SET a = 1")
    queues = [bench.create_subscription(topic, f"s{index}", rule=rule) for index in range(4)]
    messages = [new(bytes(50_000)) for _ in range(60)]
    command = Send(topic.entity_id, messages)
    bench.submit(command)
    assert len(bench.store.facts) > 1
    assert bench.reply_to(command) is None
    bench.run()
    reply = bench.reply_to(command)
    assert reply is not None
    assert reply.result == list(range(1, 61))
    assert {queue.counts().active for queue in queues} == {60}


def test_copies_that_cannot_be_written_at_once_are_refused() -> None:
    bench = BrokerHarness()
    topic = bench.create_topic()
    queue = bench.create_subscription(topic, "one", rule=sql("1 = 1", "SET a = 1", "r0"))
    for index in range(1, 40):
        answer(bench, AddRule(queue.entity_id, sql("1 = 1", "SET a = 1", f"r{index}")))
    with pytest.raises(QuotaExceeded, match="written at once"):
        topic.send([new(bytes(1_000_000))], bench.clock.now())
    assert topic.last_sequence_number == 0
    assert not bench.store.facts


def test_that_a_rule_exists_is_told_only_when_it_is_durable() -> None:
    """Who is told so goes on as if he had made it; a crash must not undo it."""
    bench = BrokerHarness()
    number = bench.create_subscription(bench.create_topic(), "all").entity_id
    first, second = (
        AddRule(number, by_subject("a", "mine")),
        AddRule(number, by_subject("b", "MINE")),
    )
    listed = ListRules(number, 0, 9)
    bench.submit(first, second, listed)
    commit = bench.turn()
    assert commit is not None
    waiting = (first, second, listed)
    assert [bench.reply_to(each) for each in waiting] == [None, None, None]
    bench.write(commit)
    replies = [bench.reply_to(each) for each in waiting]
    assert [None if each is None else type(each.error) for each in replies] == [
        type(None),
        EntityAlreadyExists,
        type(None),
    ]
    removed, missing = RemoveRule(number, "mine"), RemoveRule(number, "mine")
    bench.submit(removed, missing)
    assert bench.reply_to(missing) is None
    bench.run()
    reply = bench.reply_to(missing)
    assert reply is not None
    assert isinstance(reply.error, EntityNotFound)
    again = RemoveRule(number, "mine")
    bench.submit(again)
    assert bench.reply_to(again) is not None, "nothing is on its way: the answer comes at once"
