"""Messages that their producers have numbered, and pings, on their way to a store."""

import zlib

import pytest

from tests.unit.gateway.partitions.partitioned_harness import Bus, new
from tests.unit.gateway.sim_stores import keyed
from tests.unit.gateway.transfer.test_journal import SICK, Scene
from twinbus.entities.commands import Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    hash_key,
    partition_of,
    producer_at,
)
from twinbus.errors import (
    EntityDisabled,
    InvalidOperation,
    PartitionRefused,
    QuotaExceeded,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.numbered_sends import numbered_partition
from twinbus.gateway.partitions.sends import deal
from twinbus.gateway.transfer.journal import JOURNALLING
from twinbus.gateway.transfer.journal_entries import decode_entry, encode_entry
from twinbus.links.store_link import DOWN, SLOW


def numbered(number: int, key: str | None = None, producer: str = "producer") -> NewMessage:
    message = new(b"%d" % number, key)
    message.producer_key = ProducerKey(producer, number)
    return message


def ping() -> NewMessage:
    message = NewMessage(b"")
    message.producer_key = ProducerKey("", 0, True)
    return message


HOME = zlib.crc32(b"producer") % PARTITION_COUNT


# --- partitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "distance"), [(1, 0), (4_095, 0), (4_096, 1), (8_191, 1), (70_000, 17)]
)
def test_the_partition_of_a_number(number: int, distance: int) -> None:
    """It may never change: a copy from before an update would not be known again."""
    expected = (HOME + distance) % PARTITION_COUNT
    assert numbered_partition([numbered(number)]) == expected
    assert numbered_partition([numbered(number), numbered(1), new(b"x")]) == expected
    assert numbered_partition([new(b"x")]) == numbered_partition([ping()]) == NO_PARTITION


def test_copies_meet_in_one_partition() -> None:
    bus = Bus()
    queue = bus.create()
    first = bus.send(queue, numbered(7))[0]
    assert partition_of(first) == HOME
    assert bus.send(queue, numbered(7)) == [0]
    assert bus.send(queue, numbered(7), numbered(8)) == [0, first + 1]
    assert sum(bus.counts(queue)) == 2


def test_a_key_goes_before_the_number() -> None:
    bus = Bus()
    queue = bus.create()
    assert partition_of(bus.send(queue, numbered(7, "a"))[0]) == hash_key("a")
    assert bus.send(queue, numbered(7, "a")) == [0]


def test_ids_go_before_numbers_where_duplicates_are_detected() -> None:
    bus = Bus()
    queue = bus.create(description=QueueDescription(requires_duplicate_detection=True))
    numbers = bus.send(queue, *[numbered(number) for number in range(1, 40)])
    assert len({partition_of(number) for number in numbers}) > 8
    assert bus.send(queue, *[numbered(number) for number in range(1, 40)]) == [0] * 39


def test_those_of_one_read_are_dealt_by_their_numbers() -> None:
    bus = Bus()
    queue = bus.create()
    deliveries = [[numbered(1)], [new(b"x")], [numbered(4_096), numbered(4_097)], [numbered(2)]]
    dealt = deal(bus.links, queue, deliveries)
    assert dealt[:2] == [(HOME, [0, 3]), ((HOME + 1) % PARTITION_COUNT, [2])]
    assert [indices for _, indices in dealt[2:]] == [[1]]


def test_a_slow_partition_is_not_evaded() -> None:
    """Its answer may be late, and the client's next try must meet the first."""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[HOME % 4].health = SLOW
    assert partition_of(bus.send(queue, numbered(7))[0]) == HOME
    assert bus.send(queue, numbered(7)) == [0]


@pytest.mark.parametrize("health", [SLOW, DOWN])
def test_the_journal_leads_to_the_same_partition(health: int) -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[HOME % 4].health = health
    bus.diverts = True
    bus.start(queue, Send(0, [numbered(7)]))
    ((part, command),) = bus.diverted
    assert part.partition == command.partition == HOME


def test_without_a_journal_a_partition_that_is_down_refuses() -> None:
    """It may have a copy already, and elsewhere nobody would know that."""
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.sims[HOME % 4].health = DOWN
    refused = bus.ask(queue, Send(queue.entity_id, [numbered(7)]))
    assert isinstance(refused.error, PartitionRefused)
    assert f"Partition {HOME} of 'orders'" in str(refused.error)
    assert "Nothing was stored" in str(refused.error)
    assert sum(bus.counts(queue)) == 0


@pytest.mark.parametrize("is_asking", [False, True])
@pytest.mark.parametrize("key", [None, "a"])
def test_without_any_partition_the_trouble_is_the_entitys(is_asking: bool, key: str | None) -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    for sim in bus.sims:
        sim.health = DOWN
    message = new(b"x", key)
    message.producer_key = ProducerKey("p@3", 1, is_asking=is_asking)
    refused = bus.ask(queue, Send(queue.entity_id, [message]))
    assert isinstance(refused.error, Unavailable)


@pytest.mark.proves("P-20")
def test_where_all_partitions_are_slow_nobody_has_to_choose() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    for sim in bus.sims:
        sim.health = SLOW
    assert partition_of(bus.send(queue, at(3, 7, is_asking=True))[0]) == 3


# --- partitions that producers have chosen --------------------------------------------------------


def at(partition: int, number: int, is_asking: bool = False, size: int = 0) -> NewMessage:
    message = new(bytes(size) or b"%d" % number)
    key = ProducerKey(producer_at("producer", partition), number, is_asking=is_asking)
    message.producer_key = key
    return message


def fill(bus: Bus, queue: Entity, partition: int, size: int = 1 << 20) -> None:
    part = queue.parts[partition]
    full = bus.sims[part.store].store.entities[part.entity_id]
    full.send([NewMessage(bytes(size))], bus.clock.now())
    bus.settle()


@pytest.mark.parametrize("partition", range(PARTITION_COUNT))
def test_the_partition_that_a_producer_has_chosen(partition: int) -> None:
    assert numbered_partition([at(partition, 1)]) == partition
    assert numbered_partition([at(partition, 70_000), at(partition, 70_001)]) == partition


@pytest.mark.parametrize("producer", ["a@16", "a@x", "a@", "a@-1", "a@07", "7"])
def test_what_is_no_choice_of_a_partition(producer: str) -> None:
    expected = zlib.crc32(producer.encode()) % PARTITION_COUNT
    assert numbered_partition([numbered(1, producer=producer)]) == expected


@pytest.mark.proves("P-20")
def test_messages_with_several_homes_go_their_own_ways() -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    mixed = [at(3, 1), at(9, 1), at(3, 2)]
    first, second, third = bus.send(queue, *mixed)
    assert [partition_of(each) for each in (first, second, third)] == [3, 9, 3]
    assert bus.send(queue, *[at(3, 1), at(9, 1), at(3, 2)]) == [0, 0, 0]
    assert deal(bus.links, queue, [mixed]) == [(-1, [0])]


@pytest.mark.proves("P-20")
@pytest.mark.parametrize("health", [SLOW, DOWN])
def test_an_unhealthy_partition_refuses_who_can_choose_another(health: int) -> None:
    bus = Bus(store_count=4)
    queue = bus.create()
    bus.diverts = True
    bus.sims[3].health = health
    refused = bus.ask(queue, Send(queue.entity_id, [at(3, 7, is_asking=True)]))
    assert isinstance(refused.error, PartitionRefused)
    assert "Partition 3 of 'orders'" in str(refused.error)
    assert bus.diverted == []
    bus.start(queue, Send(0, [at(3, 7)]))  # who cannot is helped by the journal
    ((part, command),) = bus.diverted
    assert part.partition == command.partition == 3


@pytest.mark.proves("P-20")
def test_a_full_partition_refuses_who_can_choose_another() -> None:
    bus = Bus(store_count=2)
    queue = bus.create(description=QueueDescription(max_size_megabytes=1))
    fill(bus, queue, 3)
    refused = bus.ask(queue, Send(queue.entity_id, [at(3, 7, is_asking=True)]))
    assert isinstance(refused.error, PartitionRefused)
    assert partition_of(bus.send(queue, at(4, 1, is_asking=True))[0]) == 4
    assert sum(bus.counts(queue)) == 1 + 1


@pytest.mark.proves("P-20")
def test_who_cannot_choose_uses_the_room_of_other_partitions() -> None:
    """Elsewhere a copy would be a second message; refused, a syphon would wait for ever."""
    bus = Bus(store_count=2)
    queue = bus.create(description=QueueDescription(max_size_megabytes=1))
    fill(bus, queue, 3)
    first, second = bus.send(queue, at(3, 7), at(3, 8))
    assert [partition_of(first), partition_of(second)] == [3, 3]
    assert bus.send(queue, at(3, 7), at(3, 8)) == [0, 0]
    assert bus.counts(queue)[3] == 1 + 2


@pytest.mark.proves("P-20")
def test_a_full_entity_refuses_everybody() -> None:
    bus = Bus(store_count=8)
    queue = bus.create(description=QueueDescription(max_size_megabytes=1))
    for partition in range(PARTITION_COUNT):
        fill(bus, queue, partition)
    for message in (at(3, 7, size=2_000), at(3, 7, is_asking=True, size=2_000)):
        refused = bus.ask(queue, Send(queue.entity_id, [message]))
        assert isinstance(refused.error, QuotaExceeded)
    assert sum(bus.counts(queue)) == PARTITION_COUNT


def test_a_disabled_entity_refuses_what_found_room_elsewhere() -> None:
    bus = Bus(store_count=2)
    queue = bus.create(description=QueueDescription(max_size_megabytes=1))
    fill(bus, queue, 3)
    part = queue.parts[3]
    home = bus.sims[part.store].store.entities[part.entity_id]
    command = Send(part.entity_id, [at(3, 7)])
    command.has_room = True
    home.update(QueueDescription(max_size_megabytes=1, status="SendDisabled"))
    with pytest.raises(EntityDisabled):
        home.apply(command, bus.clock.now())


@pytest.mark.proves("P-13")
def test_a_ping_gets_through_where_any_partition_is_well() -> None:
    bus = Bus(store_count=2)
    queue = bus.create()
    bus.sims[0].health = DOWN
    assert bus.send(queue, ping()) == [0]
    assert sum(bus.counts(queue)) == 0


# --- the journal --------------------------------------------------------------------------------


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_copy_that_comes_while_the_first_is_in_the_journal(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    for number in (1, 2, 1):
        scene.submit(queue, Send(queue.entity_id, [numbered(number)]))
    scene.settle_down()
    assert scene.state == JOURNALLING
    assert scene.answers.errors == [None] * 3
    scene.recover()
    scene.pass_time(1_000)
    scene.submit(queue, Send(queue.entity_id, [numbered(2)]))
    scene.settle_down()
    assert scene.arrived(queue) == [b"1", b"2"]


def test_a_copy_of_what_came_before_the_journal(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.submit(queue, Send(queue.entity_id, [numbered(1)]))
    scene.settle_down()
    scene.fall_ill()
    scene.submit(queue, Send(queue.entity_id, [numbered(1), numbered(2)]))
    scene.settle_down()
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [b"1", b"2"]


@pytest.mark.proves("P-13")
def test_a_ping_leaves_no_entry(scene: Scene) -> None:
    """It gets through, because a send would."""
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.submit(queue, Send(queue.entity_id, [ping()]))
    scene.submit(queue, Send(queue.entity_id, [keyed(b"|1"), ping()]))
    scene.settle_down()
    assert scene.answers.errors == [None, None]
    assert [reply.result for reply in scene.answers.replies] == [[0], [0, 0]]
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [b"|1"]
    assert scene.journal_names() == []


def test_a_ping_needs_no_session_on_its_way_to_the_journal(scene: Scene) -> None:
    queue = scene.create("orders", [SICK], QueueDescription(requires_session=True))
    scene.fall_ill()
    scene.submit(queue, Send(queue.entity_id, [ping()]))
    scene.submit(queue, Send(queue.entity_id, [NewMessage(b"")]))
    scene.settle_down()
    refused, accepted = sorted(scene.answers.replies, key=lambda reply: reply.error is None)
    assert accepted.result == [0]
    assert isinstance(refused.error, InvalidOperation)


@pytest.mark.parametrize("producer", ["p", "grün/~7", "x" * 120])
def test_a_numbered_entry_survives_the_way_to_bytes_and_back(producer: str) -> None:
    message = new(b"body", "key")
    message.producer_key = ProducerKey(producer, 10**17)
    data = encode_entry("orders", 7, 8, message)
    entry = decode_entry(data)
    assert entry.producer_key is not None
    assert (entry.producer_key.producer, entry.producer_key.number) == (producer, 10**17)
    assert entry.keys == (b"body".hex(), None, "key")
    assert (entry.name, entry.body) == ("orders", b"body")
    for size in range(len(data) - 4):
        with pytest.raises(ValueError, match="entry"):
            decode_entry(data[:size])


def test_an_entry_without_a_number_is_as_it_always_was() -> None:
    data = encode_entry("orders", 7, 8, new(b"body"))
    assert data[0] == 1
    assert decode_entry(data).producer_key is None
