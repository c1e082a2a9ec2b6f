"""Producer keys: one a message, the same for every copy of it (design §3)."""

import gc
import random

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.entities.partitions import hash_key
from twinbus.pairing.producer_keys import BLOCK, KEPT_MIN, ProducerKeys


def message(
    session_id: str | None = None, partition_key: str | None = None
) -> AmqpAnnotatedMessage:
    return ServiceBusMessage(
        b"", session_id=session_id, partition_key=partition_key
    ).raw_amqp_message


def messages(count: int) -> list[AmqpAnnotatedMessage]:
    return [AmqpAnnotatedMessage(data_body=b"") for _ in range(count)]


def taken(keys: ProducerKeys, entity: str, some: list[AmqpAnnotatedMessage]) -> list[str]:
    given_out = keys.take(entity, some)
    assert given_out is not None
    return given_out


def parts(key: str) -> tuple[str, int]:
    producer, _, number = key.rpartition("/")
    return producer, int(number)


def test_numbers_count_from_one_for_each_entity() -> None:
    keys = ProducerKeys(random.Random(1))
    first, second = taken(keys, "a", messages(2))
    (other,) = taken(keys, "b", messages(1))
    (third,) = taken(keys, "a", messages(1))
    producer = parts(first)[0]
    assert [parts(each) for each in (first, second, third)] == [(producer, n) for n in (1, 2, 3)]
    assert parts(other)[0] != producer and parts(other)[1] == 1
    assert len(producer) <= 64 - len("~15") and "/" not in producer and "~" not in producer


def test_two_pairings_are_two_producers() -> None:
    a = taken(ProducerKeys(random.Random(1)), "a", messages(1))
    b = taken(ProducerKeys(random.Random(2)), "a", messages(1))
    assert a != b


def test_keys_that_decide_on_a_partition_have_counters_of_their_own() -> None:
    keys = ProducerKeys(random.Random(1))
    (plain,) = taken(keys, "a", [message()])
    (session,) = taken(keys, "a", [message(session_id="s")])
    (partition,) = taken(keys, "a", [message(partition_key="s")])
    producer = parts(plain)[0]
    assert session == f"{producer}~{hash_key('s')}/1"
    assert partition == f"{producer}~{hash_key('s')}/2"


def test_a_received_message_has_its_texts_in_bytes() -> None:
    keys = ProducerKeys(random.Random(1))
    received = message()
    assert received.properties is not None
    received.properties.group_id = b"s"  # as the SDK decodes it
    by_key = AmqpAnnotatedMessage(data_body=b"")
    by_key.annotations = {b"x-opt-partition-key": b"s"}
    first, second = taken(keys, "a", [received, by_key])
    assert first.endswith(f"~{hash_key('s')}/1")
    assert second.endswith(f"~{hash_key('s')}/2")


@settings(max_examples=50)
@given(st.lists(st.integers(1, BLOCK), max_size=5))
def test_what_travels_together_stays_within_a_block(counts: list[int]) -> None:
    """The partition of such messages is chosen by number // 4096."""
    keys = ProducerKeys(random.Random(1))
    one = messages(1)
    last = 0
    for count in counts:
        numbers = [parts(each)[1] for each in taken(keys, "a", one * count)]
        assert numbers == list(range(numbers[0], numbers[0] + count))
        assert numbers[0] > last
        assert numbers[0] // BLOCK == numbers[-1] // BLOCK
        # Not one number is passed over without need.
        assert numbers[0] == last + 1 or (last + 1) // BLOCK != (last + count) // BLOCK
        last = numbers[-1]


def test_more_than_a_block_at_once_is_numbered_all_the_same() -> None:
    keys = ProducerKeys(random.Random(1))
    numbers = [parts(each)[1] for each in taken(keys, "a", messages(BLOCK + 5))]
    assert len(set(numbers)) == BLOCK + 5


def test_a_failed_message_keeps_its_key_and_a_sent_one_gets_another() -> None:
    keys = ProducerKeys(random.Random(1))
    some = messages(2)
    first = taken(keys, "a", some)
    keys.keep(some, first)
    assert taken(keys, "a", some) == first
    assert set(taken(keys, "a", some)).isdisjoint(first), "it was not kept a second time"


def test_a_kept_key_is_handed_out_once() -> None:
    """Two threads that send one object send two messages."""
    keys = ProducerKeys(random.Random(1))
    some = messages(1)
    first = taken(keys, "a", some)
    keys.keep(some, first)
    assert taken(keys, "a", some + some)[0] == first[0]
    assert len(set(taken(keys, "a", some + some))) == 2


def test_a_kept_key_is_of_one_entity_and_one_session() -> None:
    keys = ProducerKeys(random.Random(1))
    some = [message(session_id="s")]
    first = taken(keys, "a", some)
    keys.keep(some, first)
    assert taken(keys, "b", some) != first
    assert some[0].properties is not None
    some[0].properties.group_id = "t"
    assert hash_key("s") != hash_key("t")
    assert taken(keys, "a", some) != first
    some[0].properties.group_id = "s"
    assert taken(keys, "a", some) == first


def test_equal_messages_are_not_the_same() -> None:
    keys = ProducerKeys(random.Random(1))
    some = messages(1)
    first = taken(keys, "a", some)
    keys.keep(some, first)
    assert taken(keys, "a", messages(1)) != first


def test_a_new_message_at_the_place_of_an_old_one() -> None:
    """Python uses memory again, and with it identities."""
    keys = ProducerKeys(random.Random(1))
    old, new = messages(1), messages(1)
    first = taken(keys, "a", old)
    keys.keep(old, first)
    keys._kept[id(new[0])] = keys._kept.pop(id(old[0]))
    del old
    assert taken(keys, "a", new) != first


def test_keys_of_messages_that_are_gone_are_forgotten() -> None:
    keys = ProducerKeys(random.Random(1))
    gone = messages(KEPT_MIN)
    keys.keep(gone, taken(keys, "a", gone))
    here = messages(5)
    del gone
    gc.collect()
    assert len(keys._kept) == KEPT_MIN, "not at every step"
    first = taken(keys, "a", here)
    keys.keep(here, first)
    assert len(keys._kept) == 5
    assert taken(keys, "a", here) == first


def test_none_where_they_are_switched_off() -> None:
    assert ProducerKeys(random.Random(1), is_on=False).take("a", messages(1)) is None


def test_one_alone_is_numbered_as_among_others() -> None:
    one_by_one, together = ProducerKeys(random.Random(1)), ProducerKeys(random.Random(1))
    some = [message(), message("s"), message(), message(partition_key="p"), message("s")]
    assert [one_by_one.take_one("a", each) for each in some] == taken(together, "a", some)
    again = some[1]
    one_by_one.keep([again], ["of another try/7"])
    assert one_by_one.take_one("a", again) not in {None, "of another try/7"}, "another producer's"
    key = one_by_one.take_one("a", again)
    assert key is not None
    one_by_one.keep([again], [key])
    assert one_by_one.take_one("a", again) == key
    assert one_by_one.take_one("a", again) != key
    assert ProducerKeys(random.Random(1), is_on=False).take_one("a", again) is None
