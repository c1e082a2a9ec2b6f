"""Producer keys: one a message, the same for every copy of it (design §3)."""

import gc
import random

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.entities.partitions import PARTITION_COUNT, chosen_partition, hash_key
from twinbus.pairing.producer_keys import KEPT_MIN, ProducerKeys, block_of, place_of
from twinbus.pairing.rotation import PARTITION_REST_S


def message(
    session_id: str | None = None, partition_key: str | None = None
) -> AmqpAnnotatedMessage:
    return ServiceBusMessage(
        b"", session_id=session_id, partition_key=partition_key
    ).raw_amqp_message


def messages(count: int) -> list[AmqpAnnotatedMessage]:
    return [AmqpAnnotatedMessage(data_body=b"") for _ in range(count)]


def taken(keys: ProducerKeys, entity: str, some: list[AmqpAnnotatedMessage]) -> list[str]:
    given_out = keys.take(entity, some, 0.0)
    assert given_out is not None
    return given_out.keys


def parts(key: str) -> tuple[str, int]:
    producer, _, number = key.rpartition("/")
    return producer, int(number)


def home(key: str) -> int:
    return chosen_partition(parts(key)[0])


def test_numbers_count_from_one_for_each_entity_and_partition() -> None:
    keys = ProducerKeys(random.Random(1))
    first, second = taken(keys, "a", messages(2))
    (other,) = taken(keys, "b", messages(1))
    rest = [taken(keys, "a", messages(1))[0] for _ in range(PARTITION_COUNT)]
    producer = parts(first)[0].rpartition("@")[0]
    assert [first, second] == [f"{producer}@{home(first)}/{number}" for number in (1, 2)]
    assert [parts(each)[1] for each in rest] == [1] * (PARTITION_COUNT - 1) + [3]
    assert parts(other)[0].rpartition("@")[0] != producer and parts(other)[1] == 1
    assert len(producer) <= 64 - len("~15") and not set(producer) & set("/~@")


def test_two_pairings_are_two_producers() -> None:
    a = taken(ProducerKeys(random.Random(1)), "a", messages(1))
    b = taken(ProducerKeys(random.Random(2)), "a", messages(1))
    assert a != b


def test_keys_that_decide_on_a_partition_have_counters_of_their_own() -> None:
    keys = ProducerKeys(random.Random(1))
    (plain,) = taken(keys, "a", [message()])
    (session,) = taken(keys, "a", [message(session_id="s")])
    (partition,) = taken(keys, "a", [message(partition_key="s")])
    producer = parts(plain)[0].rpartition("@")[0]
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


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.proves("P-20")
@pytest.mark.parametrize("count", [1, 5])
def test_sends_without_a_key_take_the_partitions_in_turn(count: int) -> None:
    keys = ProducerKeys(random.Random(1))
    homes: list[int] = []
    for _ in range(2 * PARTITION_COUNT):
        given_out = taken(keys, "a", messages(count))
        assert len({home(each) for each in given_out}) == 1, "what is sent together stays together"
        homes.append(home(given_out[0]))
    assert sorted(homes) == sorted([*range(PARTITION_COUNT)] * 2)
    assert homes[:PARTITION_COUNT] == homes[PARTITION_COUNT:]


@pytest.mark.proves("P-20")
def test_a_partition_that_refuses_is_passed_over_for_a_while() -> None:
    keys = ProducerKeys(random.Random(1))
    some = messages(2)
    first = keys.take("a", some, 0.0)
    assert first is not None and first.is_asking
    keys.refused("a", first.keys, 0.0)
    again = keys.take("a", some, 0.0)
    assert again is not None and again.is_asking
    assert home(again.keys[0]) != home(first.keys[0])
    homes = [home(taken(keys, "a", messages(1))[0]) for _ in range(2 * PARTITION_COUNT)]
    assert set(homes) == {*range(PARTITION_COUNT)} - {home(first.keys[0])}
    later = [keys.take("a", messages(1), PARTITION_REST_S) for _ in range(PARTITION_COUNT)]
    (back,) = [each for each in later if each and home(each.keys[0]) == home(first.keys[0])]
    assert parts(back.keys[0])[1] == 1, "a number that nobody has seen leaves no gap"


@pytest.mark.proves("P-20")
def test_when_all_have_refused_the_next_one_has_to_say_why() -> None:
    keys = ProducerKeys(random.Random(1))
    some = messages(1)
    numbered = keys.take("a", some, 0.0)
    tried: list[int] = []
    while numbered is not None and numbered.is_asking:
        tried.append(home(numbered.keys[0]))
        keys.refused("a", numbered.keys, 0.0)
        numbered = keys.take("a", some, 0.0)
    assert sorted(tried) == [*range(PARTITION_COUNT)]
    numbered = keys.take("a", messages(1), 1.0)
    assert numbered is not None and not numbered.is_asking
    numbered = keys.take("a", messages(1), PARTITION_REST_S + 1)
    assert numbered is not None and numbered.is_asking


@pytest.mark.proves("P-20")
def test_what_may_have_arrived_does_not_ask() -> None:
    """Neither does anything that is sent with it: it goes to the same partition."""
    keys = ProducerKeys(random.Random(1))
    old = messages(1)
    first = taken(keys, "a", old)
    keys.keep(old, first)
    numbered = keys.take("a", [*messages(1), *old], 0.0)
    assert numbered is not None and not numbered.is_asking
    assert numbered.keys[1] == first[0]
    assert home(numbered.keys[0]) == home(first[0])


def test_a_shell_that_would_not_hear_the_answer_does_not_ask() -> None:
    keys = ProducerKeys(random.Random(1))
    keys.can_ask = False
    numbered = keys.take("a", messages(1), 0.0)
    assert numbered is not None and not numbered.is_asking
    one = keys.take_one("a", message(), 0.0)
    assert one is not None and not one[1]


def test_keyed_messages_have_no_choice() -> None:
    keys = ProducerKeys(random.Random(1))
    numbered = keys.take("a", [message("s")], 0.0)
    assert numbered is not None and not numbered.is_asking
    assert chosen_partition(parts(numbered.keys[0])[0]) < 0


def test_what_a_syphon_may_send_together() -> None:
    assert block_of("a@3/1") == block_of("b@3/5000") != block_of("a@4/1")
    assert block_of("a@3/1", False) == block_of("b@4/5000", False) != block_of("a/1", False)
    assert block_of("a/1") == block_of("a/4095") != block_of("a/4096")
    assert block_of("a/1") != block_of("b/1")
    assert block_of(None) == block_of(None)


def test_where_messages_go() -> None:
    """A partition can rest by itself, also one that a session id or partition key leads to."""
    assert place_of("q", ["a@3/1", "b@3/7"]) == place_of("q", ["a~3/2"]) == "q@3"
    assert place_of("q", ["a@4/1"]) not in ("q", place_of("q", ["a@3/1"]))
    for several in (["a@3/1", "a@4/1"], ["a@3/1", "a/1"], [None], ["~run.1.2.check/7"]):
        assert place_of("q", several) == "q"


# --- what has failed ------------------------------------------------------------------------------


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
    assert ProducerKeys(random.Random(1), is_on=False).take("a", messages(1), 0.0) is None


def test_one_alone_is_numbered_as_among_others() -> None:
    one_by_one, together = ProducerKeys(random.Random(1)), ProducerKeys(random.Random(1))
    some = [message(), message("s"), message(), message(partition_key="p"), message("s")]
    for each in some:
        numbered = together.take("a", [each], 0.0)
        assert numbered is not None
        assert one_by_one.take_one("a", each, 0.0) == (numbered.keys[0], numbered.is_asking)
    again = some[1]
    one_by_one.keep([again], ["of another try/7"])
    assert one_by_one.take_one("a", again, 0.0) not in {None, ("of another try/7", False)}
    for each in (again, some[0]):
        taken_one = one_by_one.take_one("a", each, 0.0)
        assert taken_one is not None
        one_by_one.keep([each], [taken_one[0]])
        assert one_by_one.take_one("a", each, 0.0) == (taken_one[0], False), "it does not ask"
        assert one_by_one.take_one("a", each, 0.0) != (taken_one[0], False)
    assert ProducerKeys(random.Random(1), is_on=False).take_one("a", again, 0.0) is None
