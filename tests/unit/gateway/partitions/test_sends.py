"""Which partition takes a message, and what if it is not well."""

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, key_in, new
from twinbus.entities.commands import Command, Reply, Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.partitions import PARTITION_COUNT, hash_key, partition_of
from twinbus.errors import (
    DiskFull,
    EntityDisabled,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.partitions.sends import deal, key_partition
from twinbus.gateway.partitions.split_sends import SEVERAL
from twinbus.links.store_link import DOWN, SLOW, UP

DETECTING = QueueDescription(requires_duplicate_detection=True)


@pytest.mark.proves("E-3")
def test_same_key_same_partition() -> None:
    bus = Bus()
    queue = bus.create()
    for key in ("a", "b", "ä", ""):
        numbers = [bus.send(queue, new(b"%d" % i, key))[0] for i in range(3)]
        assert {partition_of(number) for number in numbers} == {hash_key(key)}
        assert numbers == sorted(numbers)


@pytest.mark.proves("E-3")
def test_session_id_is_the_key_before_partition_key_before_message_id() -> None:
    bus = Bus()
    queue = bus.create(description=DETECTING)
    assert key_partition(queue, [new(b"x")]) == hash_key(b"x".hex())
    assert key_partition(queue, [new(b"x", "k")]) == hash_key("k")
    assert key_partition(queue, [new(b"x", session_id="s")]) == hash_key("s")
    assert key_partition(queue, [new(b"x", "s", "s")]) == hash_key("s")


@pytest.mark.proves("E-4")
def test_different_partition_key_and_session_id_are_refused() -> None:
    bus = Bus()
    queue = bus.create()
    asker = bus.ask(queue, Send(0, [new(b"x", "k", "s")]))
    assert isinstance(asker.error, InvalidOperation)
    assert sum(bus.counts(queue)) == 0


def test_batch_of_different_keys_is_refused() -> None:
    bus = Bus()
    queue = bus.create()
    for second in (new(b"y", "b"), new(b"y")):
        asker = bus.ask(queue, Send(0, [new(b"x", "a"), second]))
        assert isinstance(asker.error, InvalidOperation)
        assert "same partition key" in str(asker.error)
    assert sum(bus.counts(queue)) == 0
    assert len(bus.send(queue, new(b"x", "a"), new(b"y", "a"))) == 2


def test_batch_without_keys_goes_to_one_partition() -> None:
    bus = Bus()
    queue = bus.create()
    numbers = bus.send(queue, *[new(b"%d" % i) for i in range(5)])
    assert numbers == list(range(numbers[0], numbers[0] + 5))


@pytest.mark.proves("E-6")
def test_round_robin() -> None:
    bus = Bus()
    queue = bus.create()
    found = [partition_of(bus.send(queue, new(b"x"))[0]) for _ in range(2 * PARTITION_COUNT)]
    assert found == [*range(PARTITION_COUNT), *range(PARTITION_COUNT)]


@pytest.mark.proves("E-7", "E-15")
def test_unkeyed_message_moves_to_a_healthy_partition() -> None:
    """Partitions of a store that is down or slow are passed over, and"""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[1].health = DOWN
    bus.sims[2].health = SLOW
    for i in range(2 * PARTITION_COUNT):
        bus.send(queue, new(b"%d" % i))
    assert bus.counts(queue) == [4, 0, 0, 4] * 4
    bus.sims[1].health = UP
    for i in range(12):
        bus.send(queue, new(b"%d" % i))
    assert sum(bus.counts(queue)[1::4]) == 4


def test_slow_partitions_take_it_when_none_is_well() -> None:
    bus = Bus(store_count=2)
    queue = bus.create()
    bus.sims[0].health = DOWN
    bus.sims[1].health = SLOW
    for i in range(8):
        bus.send(queue, new(b"%d" % i))
    assert bus.counts(queue) == [0, 1] * 8


def test_all_down() -> None:
    bus = Bus(store_count=2)
    queue = bus.create()
    for sim in bus.sims:
        sim.health = DOWN
    assert isinstance(bus.ask(queue, Send(0, [new(b"x")])).error, Unavailable)
    assert deal(bus.links, queue, [[new(b"x")], [new(b"y")]]) == [(-1, [0]), (-1, [1])]


@pytest.mark.proves("E-5")
def test_key_whose_partition_is_down_is_refused_at_once() -> None:
    """The message stays with the caller, and the text says what to do."""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[1].health = DOWN
    asker = bus.start(queue, Send(0, [new(b"x", key_in(5))]))
    assert isinstance(asker.error, Unavailable)
    assert "Partition 5 of 'orders'" in str(asker.error)
    assert "send again later" in str(asker.error)
    assert partition_of(bus.send(queue, new(b"x", key_in(6)))[0]) == 6


def test_slow_partition_takes_its_keys() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[1].health = SLOW
    assert partition_of(bus.send(queue, new(b"x", key_in(5)))[0]) == 5


@pytest.mark.proves("A-3")
def test_keyed_sends_may_be_diverted_unkeyed_ones_are_not() -> None:
    """The journal is asked for whatever can go nowhere else."""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.diverts = True
    bus.sims[1].health = DOWN
    keyed = Send(0, [new(b"x", key_in(5))])
    assert bus.start(queue, keyed).replies == []
    assert [(part.partition, send) for part, send in bus.diverted] == [(5, keyed)]
    bus.send(queue, new(b"y"))
    assert len(bus.diverted) == 1


def test_full_disk_moves_unkeyed_messages_on() -> None:
    """A store that has certainly not taken it is passed over, with all its partitions."""
    bus = Bus(store_count=4)
    queue = bus.create()

    def is_full(command: Command) -> ServiceError | None:
        return DiskFull("full") if isinstance(command, Send) else None

    for sim in bus.sims[:3]:
        sim.refuses = is_full
    numbers = bus.send(queue, new(b"x"))
    assert partition_of(numbers[0]) == 3
    assert [len(sim.submitted) for sim in bus.sims] == [1, 1, 1, 1]
    bus.sims[3].refuses = is_full
    assert isinstance(bus.ask(queue, Send(0, [new(b"x")])).error, DiskFull)
    assert isinstance(bus.ask(queue, Send(0, [new(b"x", key_in(3))])).error, DiskFull)


def test_full_partition_moves_unkeyed_messages_on() -> None:
    bus = Bus(store_count=2)
    queue = bus.create()
    first = queue.parts[0].entity_id

    def is_full(command: Command) -> ServiceError | None:
        return QuotaExceeded("full") if command.entity_id == first else None

    bus.sims[0].refuses = is_full
    assert partition_of(bus.send(queue, new(b"x"))[0]) == 1


@pytest.mark.proves("E-7")
def test_store_that_refuses_at_once_is_passed_over_and_one_that_may_have_taken_it_is_not() -> None:
    """E-7, and nothing is sent twice."""
    bus = Bus(store_count=2)
    queue = bus.create()
    bus.sims[0].refuses = lambda command: Unavailable("it is just going down")
    assert partition_of(bus.send(queue, new(b"x"))[0]) == 1
    bus.sims[0].refuses = lambda command: None
    bus.sims[0].lags = True
    queue.cursor = 0
    asker = bus.start(queue, Send(0, [new(b"y")]))
    command = bus.sims[0].submitted[-1]
    assert asker.replies == []
    context = command.context
    assert isinstance(context, tuple)
    context[0].replied(Reply(command, None, Unavailable("it may have happened")), context[1])
    assert isinstance(asker.error, Unavailable)
    assert bus.counts(queue)[1] == 1


@pytest.mark.proves("A-2")
def test_partition_that_is_busy_is_passed_over() -> None:
    """Partitioning lowers the odds of being throttled."""
    bus = Bus(store_count=2)
    queue = bus.create()
    busy = [queue.parts[0].entity_id, queue.parts[2].entity_id]
    bus.sims[0].refuses = lambda each: ServerBusy("busy") if each.entity_id in busy else None
    assert partition_of(bus.send(queue, new(b"x"))[0]) == 1
    queue.cursor = 2
    assert partition_of(bus.send(queue, new(b"x"))[0]) == 3
    for sim in bus.sims:
        sim.refuses = lambda each: ServerBusy("busy")
    assert isinstance(bus.ask(queue, Send(0, [new(b"x")])).error, ServerBusy)


def test_other_refusals_are_answers() -> None:
    bus = Bus()
    queue = bus.create()
    bus.sims[0].refuses = lambda command: EntityDisabled("disabled")
    asker = bus.ask(queue, Send(0, [new(b"x")]))
    assert isinstance(asker.error, EntityDisabled)
    command = asker.replies[0].command
    assert command.context == (asker, "mine")


def test_what_is_carried_over_stays_with_its_partition() -> None:
    """A relay's send is known again by its partition: it is neither moved nor diverted."""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.diverts = True
    send = Send(0, [new(b"x")])
    send.carrier, send.carrier_numbers, send.partition = "journal", [1], 1
    bus.sims[1].health = DOWN
    assert isinstance(bus.ask(queue, send).error, Unavailable)
    assert bus.diverted == []
    other = Send(0, [new(b"y")])
    other.carrier, other.carrier_numbers = "journal", [2]
    bus.start(queue, other)
    assert other.partition == 0


# --- duplicates -------------------------------------------------------------------------------


@pytest.mark.proves("E-3")
def test_batch_of_message_ids_is_split_and_its_numbers_are_in_order() -> None:
    bus = Bus()
    queue = bus.create(description=DETECTING)
    messages = [new(b"%d" % i) for i in range(40)]
    assert key_partition(queue, messages) == SEVERAL
    numbers = bus.send(queue, *messages)
    partitions = [hash_key(message.message_id or "") for message in messages]
    assert [partition_of(number) for number in numbers] == partitions
    assert len(set(numbers)) == 40
    assert bus.send(queue, *messages) == [0] * 40  # E-3: every repeat is found
    assert sum(bus.counts(queue)) == 40


def test_split_batch_is_accepted_only_when_all_of_it_is() -> None:
    """What went in before is found again as a duplicate."""
    bus = Bus(store_count=4)
    queue = bus.create(description=DETECTING)
    bus.sims[1].health = DOWN
    messages = [new(b"%d" % i) for i in range(40)]
    assert isinstance(bus.ask(queue, Send(0, messages)).error, Unavailable)
    assert 0 < sum(bus.counts(queue)) < 40
    bus.sims[1].health = UP
    bus.send(queue, *messages)
    assert sum(bus.counts(queue)) == 40


def test_explicit_keys_are_not_split() -> None:
    bus = Bus()
    queue = bus.create(description=DETECTING)
    asker = bus.ask(queue, Send(0, [new(b"x", "a"), new(b"y", "b")]))
    assert isinstance(asker.error, InvalidOperation)


# --- many deliveries at once ------------------------------------------------------------------


def test_read_of_many_messages_is_dealt_in_runs() -> None:
    bus = Bus()
    queue = bus.create()
    for count, sends in ((1, 1), (16, 16), (17, 9), (60, 15), (2_000, 16)):
        dealt = deal(bus.links, queue, [[new(b"x")]] * count)
        assert len(dealt) == sends
        assert sorted(index for _, indices in dealt for index in indices) == list(range(count))


def test_dealing_passes_over_what_is_down() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[0].health = DOWN
    dealt = deal(bus.links, queue, [[new(b"x")]] * 60)
    assert all(partition % 4 for partition, _ in dealt)
    assert sum(len(indices) for _, indices in dealt) == 60


def test_keyed_ones_are_dealt_by_partition_in_order() -> None:
    bus = Bus()
    queue = bus.create()
    keys = [key_in(i % 3) for i in range(30)]
    dealt = deal(bus.links, queue, [[new(b"x", key)] for key in keys])
    assert dealt == [(p, list(range(p, 30, 3))) for p in range(3)]


def test_what_cannot_be_dealt_is_left_to_routing() -> None:
    bus = Bus()
    queue = bus.create(description=DETECTING)
    split = [new(b"%d" % i) for i in range(9)]
    refused = [new(b"x", "a"), new(b"y", "b")]
    wrong = [new(b"x", "k", "s")]
    assert deal(bus.links, queue, [split, refused, wrong]) == [(-1, [0]), (-1, [1]), (-1, [2])]


def test_dealt_sends_are_trusted_while_their_store_is_well() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    unkeyed, keyed = Send(0, [new(b"x")]), Send(0, [new(b"y", key_in(9)), new(b"z", key_in(9))])
    unkeyed.partition, keyed.partition = 7, 9
    assert partition_of(bus.ask(queue, unkeyed).result[0]) == 7
    assert partition_of(bus.ask(queue, keyed).result[0]) == 9
    bus.sims[3].health = DOWN
    unkeyed.partition = 7
    assert partition_of(bus.ask(queue, unkeyed).result[0]) != 7
    bus.sims[1].health = DOWN
    assert isinstance(bus.ask(queue, keyed).error, Unavailable)


def test_empty_batch() -> None:
    bus = Bus()
    queue = bus.create()
    assert bus.send(queue) == []
    assert [indices for _, indices in deal(bus.links, queue, [[]])] == [[0]]
