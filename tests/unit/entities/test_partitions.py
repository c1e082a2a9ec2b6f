"""Partitions: their names, their numbers, and where a key leads."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.entities.scene import MONO_MS, UTC_MS, copy_fact, locks_of, numbers_of, overview
from twinbus.clock import Now
from twinbus.entities.commands import ABANDON, COMPLETE, DEFER, PEEK_LOCK
from twinbus.entities.commands import DEAD_LETTER as DEAD_LETTER_IT
from twinbus.entities.descriptions import QueueDescription, TopicDescription
from twinbus.entities.duplicates import digest_of
from twinbus.entities.facts import DEAD_LETTER, MAIN, Fact
from twinbus.entities.kinds import make_queue
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    first_number,
    hash_key,
    key_of,
    partition_name,
    partition_of,
    shown_name,
    split_partition,
)
from twinbus.entities.queue import Queue
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.state import Grants
from twinbus.entities.topic import Topic
from twinbus.errors import EntityDisabled, InvalidOperation, QuotaExceeded, ServiceError
from twinbus.message.lock_tokens import lock_token, parse_lock_token

pytestmark = [pytest.mark.proves("E-1", "E-3", "E-4"), pytest.mark.feature("entity.partitions")]

NOW = Now(UTC_MS, MONO_MS)
LAST = PARTITION_COUNT - 1
NAMES = st.from_regex(r"[A-Za-z0-9]{1,9}(/[A-Za-z0-9._~-]{0,9}[A-Za-z0-9]){0,2}", fullmatch=True)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, name",
    [
        ("orders", "orders#3"),
        ("a/b", "a/b#3"),
        ("bus:orders", "bus:orders#3"),
        ("topic/Subscriptions/s", "topic#3/Subscriptions/s"),
        ("topic/subscriptions/s", "topic#3/subscriptions/s"),
        ("a/b/Subscriptions/s", "a/b#3/Subscriptions/s"),
        ("subscriptions/Subscriptions/s", "subscriptions#3/Subscriptions/s"),
        ("bus:t/Subscriptions/s/Rules/r", "bus:t#3/Subscriptions/s/Rules/r"),
    ],
)
def test_names_of_partitions(path: str, name: str) -> None:
    assert partition_name(path, 3) == name
    assert split_partition(name) == (path, 3)
    assert split_partition(path) == (path, NO_PARTITION)
    assert shown_name(name) == shown_name(path) == path.removeprefix("bus:")


@pytest.mark.parametrize("name", ["a#", "#", "a#16", "a#-1", "a#03", "a#1x", "a#٣", "a#3#4", ""])
def test_what_is_no_partition(name: str) -> None:
    assert split_partition(name) == (name, NO_PARTITION)


@given(
    st.sampled_from(["", "bus:"]),
    NAMES,
    st.sampled_from(["", "/Subscriptions/s", "/subscriptions/1"]),
    st.integers(0, LAST),
)
def test_a_name_leads_back_to_its_entity(
    prefix: str, name: str, subscription: str, partition: int
) -> None:
    path = prefix + name + subscription
    assert split_partition(partition_name(path, partition)) == (path, partition)


# --- keys -------------------------------------------------------------------------------------


@pytest.mark.proves("E-3")
@pytest.mark.parametrize(
    "key, partition",
    [
        ("", 0),
        ("a", 3),
        ("order-1", 15),
        ("session-1", 14),
        ("customer 42", 6),
        ("ü", 5),
        ("x" * 128, 7),
    ],
)
def test_a_key_has_its_partition_for_ever(key: str, partition: int) -> None:
    """Messages lie in stores by this; whoever changes a number here loses their order."""
    assert hash_key(key) == partition


@pytest.mark.parametrize("shape", ["{}", "order-{}", "{:08}", "{}@example.com"])
def test_keys_are_spread_evenly(shape: str) -> None:
    counts = [0] * PARTITION_COUNT
    for number in range(16_000):
        counts[hash_key(shape.format(number))] += 1
    assert min(counts) > 800, "an even share is 1,000"
    assert max(counts) < 1_200


@given(st.text(max_size=128))
@example("\U0001f600")
def test_every_key_has_a_partition(key: str) -> None:
    assert 0 <= hash_key(key) < PARTITION_COUNT


def message(**keys: str) -> NewMessage:
    return NewMessage(b"", **keys)  # type: ignore[arg-type]  # only its ids


@pytest.mark.proves("E-3")
def test_which_key_counts() -> None:
    assert key_of(message(), by_message_id=True) is None
    assert key_of(message(message_id="m"), by_message_id=False) is None
    assert key_of(message(message_id="m"), by_message_id=True) == "m"
    assert key_of(message(message_id="m", partition_key="p"), by_message_id=True) == "p"
    assert key_of(message(message_id="m", session_id="s"), by_message_id=True) == "s"
    assert key_of(message(session_id="s", partition_key="s"), by_message_id=False) == "s"
    assert key_of(message(message_id="m", partition_key=""), by_message_id=True) == ""


@pytest.mark.proves("E-4")
def test_two_different_keys_are_refused() -> None:
    for session_id, partition_key in (("s", "p"), ("s", "S"), ("", "p"), ("s", "")):
        with pytest.raises(InvalidOperation, match="partition key differs from the session id"):
            key_of(message(session_id=session_id, partition_key=partition_key), False)


KEYED = st.builds(
    NewMessage,
    st.just(b""),
    message_id=st.sampled_from(["", "a", "1 a", "- a"]),
    session_id=st.none() | st.sampled_from(["", "a"]),
    partition_key=st.none() | st.sampled_from(["", "a"]),
)


@given(KEYED, KEYED)
def test_what_counts_as_a_repeat_goes_where_the_first_one_went(
    first: NewMessage, again: NewMessage
) -> None:
    try:
        keys = [key_of(each, by_message_id=True) for each in (first, again)]
    except InvalidOperation:
        return
    if digest_of(first, partitioned=True) == digest_of(again, partitioned=True):
        assert first.message_id == again.message_id
        assert keys[0] == keys[1]


# --- numbers ----------------------------------------------------------------------------------


def test_numbers_tell_their_partition() -> None:
    for partition in range(PARTITION_COUNT):
        first = first_number(partition)
        assert first == partition << 48
        assert partition_of(first + 1) == partition_of(first + 2**48 - 1) == partition
    assert first_number(LAST + 1) < 2**63, "it is an AMQP long"
    assert first_number(NO_PARTITION) == 0
    assert partition_of(-1) not in range(PARTITION_COUNT)
    assert partition_of(2**63 - 1) not in range(PARTITION_COUNT)


@pytest.mark.parametrize("partition", [NO_PARTITION, 0, 7, LAST])
def test_every_kind_starts_at_its_first_number(partition: int) -> None:
    name = "orders" if partition == NO_PARTITION else partition_name("bus:orders", partition)
    description = QueueDescription(enable_partitioning=True)
    with_sessions = QueueDescription(requires_session=True)
    queues = [
        make_queue("queue", 1, name, description, [], Grants()),
        make_queue("queue", 1, name, with_sessions, [], Grants()),
        Topic(1, name, TopicDescription(enable_partitioning=True), [], Grants()),
    ]
    assert [type(queue) for queue in queues] == [Queue, SessionQueue, Topic]
    for queue in queues:
        assert queue.partition == partition
        assert queue.last_sequence_number == queue.published == first_number(partition)
        assert not queue.has_ready(MAIN)


class Part:
    """The last partition of a queue, its facts, and what a restart makes of them."""

    def __init__(self, **settings: bool | int | str) -> None:
        self.description = QueueDescription(enable_partitioning=True, **settings)  # type: ignore[arg-type]
        self.facts: list[Fact] = []
        self.log: list[Fact] = []
        self.queue = self._new_queue(self.facts)

    def _new_queue(self, facts: list[Fact]) -> Queue:
        name = partition_name("bus:orders", LAST)
        return make_queue("queue", 7, name, self.description, facts, Grants())

    def send(self, *messages: NewMessage) -> list[int]:
        numbers = self.queue.send(list(messages), NOW)
        self.commit()
        return [number - first_number(LAST) for number in numbers]

    def commit(self) -> None:
        self.log += [copy_fact(fact) for fact in self.facts]
        del self.facts[:]
        self.queue.publish(self.queue.last_sequence_number)

    def rebuilt(self) -> Queue:
        queue = self._new_queue([])
        for fact in self.log:
            queue.replay(copy_fact(fact), NOW)
        return queue


def test_a_partition_works_like_any_queue() -> None:
    """Everything that goes by number, far up: deliver, settle, defer, dead-letter, peek, cancel."""
    part = Part()
    queue = part.queue
    assert part.send(*[NewMessage(b"%d" % each) for each in range(1_200)])[-1] == 1_200
    assert part.send(NewMessage(b"later", scheduled_ms=UTC_MS + 1_000)) == [1_201]
    first = first_number(LAST)
    locks = locks_of(queue.lock_next(MAIN, 600, NOW))
    assert locks[0][0] == first + 1
    assert [parse_lock_token(lock_token(*lock)) for lock in locks] == locks
    assert queue.settle(MAIN, locks[:500], COMPLETE, None, NOW) is None
    assert queue.settle(MAIN, locks[500:501], ABANDON, None, NOW) is None
    assert queue.settle(MAIN, locks[501:502], DEFER, None, NOW) is None
    assert queue.settle(MAIN, locks[502:503], DEAD_LETTER_IT, None, NOW) is None
    part.commit()
    assert numbers_of(queue.lock_next(MAIN, 1, NOW)) == [first + 501], "the abandoned one is next"
    assert numbers_of(queue.receive_deferred(MAIN, [first + 502], PEEK_LOCK, NOW)) == [first + 502]
    assert numbers_of(queue.peek(DEAD_LETTER, 0, 9, NOW)) == [first + 503]
    assert numbers_of(queue.peek(MAIN, 1, 1, NOW)) == [first + 501]
    assert numbers_of(queue.peek(MAIN, first + 700, 1, NOW)) == [first + 700]
    assert queue.peek(MAIN, first_number(LAST + 1), 1, NOW) == []
    due = Now(UTC_MS + 1_000, MONO_MS + 1_000)
    queue.tick(due)
    part.commit()
    assert queue.last_sequence_number == first + 1_202, "the one that was scheduled, activated"
    assert overview(part.rebuilt()) == overview(queue)
    assert part.rebuilt().published == first + 1_202


def test_sessions_of_a_partition() -> None:
    part = Part(requires_session=True)
    assert part.send(*[NewMessage(b"", session_id="s"), NewMessage(b"", session_id="t")]) == [1, 2]
    queue = part.queue
    assert isinstance(queue, SessionQueue)
    lock = queue.accept_session(None, NOW)
    assert lock is not None
    assert lock.session_id == "s"
    found = queue.lock_next_of("s", lock.grant, 5, NOW)
    assert numbers_of(found) == [first_number(LAST) + 1]


def test_users_see_neither_namespace_nor_partition() -> None:
    disabled = Part(status="Disabled").queue
    full = Part(max_size_megabytes=1)
    with_sessions = Part(requires_session=True)
    refusals: list[ServiceError] = []
    for kind, queue, sent in (
        (EntityDisabled, disabled, NewMessage(b"")),
        (QuotaExceeded, full.queue, NewMessage(bytes(1_048_577))),
        (InvalidOperation, with_sessions.queue, NewMessage(b"")),
    ):
        with pytest.raises(kind) as caught:
            queue.send([sent], NOW)
        refusals.append(caught.value)
    for refusal in refusals:
        assert "'orders'" in str(refusal)
