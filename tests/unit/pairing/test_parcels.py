"""What callers hand over, in every form that the SDK takes, and batches:"""

import copy
import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.unit.pairing.stamps import encoded as encoded_alone
from tests.unit.pairing.stamps import stamp_of
from twinbus.entities.partitions import hash_key
from twinbus.pairing import batch as batches
from twinbus.pairing.batch import PairedMessageBatch, raw_of
from twinbus.pairing.parcels import Parcel, collect
from twinbus.pairing.producer_keys import STAMP, ProducerKeys
from twinbus.pairing.stamps import CAN_APPEND, asking, with_stamp

pytestmark = pytest.mark.proves("P-6")

LIMIT = 256 * 1024


def opened(message: Any, batch_bytes: int = 0, keys: ProducerKeys | None = None) -> Parcel:
    parcel = collect(message, batch_bytes)
    parcel.open(keys or ProducerKeys(random.Random(1)), "orders", 0.0)
    return parcel


def stamps(parcel: Parcel) -> list[str]:
    """Its keys as they are written the first time: those that can, ask."""
    return [asking(key) if "@" in key else key for key in parcel.keys or []]


def encoded(batch: ServiceBusMessageBatch) -> list[bytes]:
    return [bytes(each) for each in batch._message[5]]


def built_by_the_sdk(messages: list[AmqpAnnotatedMessage], keys: list[str]) -> list[bytes]:
    """What it makes of messages that carry their stamps themselves."""
    batch = ServiceBusMessageBatch()
    for each in zip(messages, keys, strict=True):
        batch.add_message(with_stamp(*each))
    return encoded(batch)


def state_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str:
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    return repr(raw) + repr(raw.delivery_annotations) + repr(raw.properties) + repr(raw.header)


SINGLES = [
    ServiceBusMessage(b"body", session_id="s", time_to_live=dt.timedelta(seconds=5)),
    ServiceBusMessage("text", application_properties={"a": 1}),
    AmqpAnnotatedMessage(value_body={"any": ["value", 1]}),
    AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]], footer={"f": 1}),
    AmqpAnnotatedMessage(data_body=[b"a", b"b"], delivery_annotations={"theirs": 1}),
]


@pytest.mark.parametrize("message", SINGLES, ids=str)
def test_one_message(message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    before = state_of(message)
    parcel = opened(message)
    assert parcel.keys is not None
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    assert parcel.originals == [raw]
    assert stamp_of(parcel.outgoing) == parcel.keys[0]
    stamped = raw_of(parcel.outgoing)
    assert stamped.body_type is raw.body_type and str(stamped) == str(raw)
    theirs = raw.delivery_annotations or {}
    (key,) = stamps(parcel)
    assert stamped.delivery_annotations == {**theirs, STAMP: key}
    sent, came = (
        decode_payload(memoryview(encoded_alone(each)))._replace(delivery_annotations=None)
        for each in (parcel.outgoing, message)
    )
    assert sent == came, "all else of it is on the wire as without a pair"
    assert state_of(message) == before, "the caller's object is as it was"


def test_a_mapping_is_a_message() -> None:
    parcel = opened({"body": b"body", "session_id": "s"})
    (original,) = parcel.originals
    assert original.properties is not None and original.properties.group_id == "s"
    assert stamp_of(parcel.outgoing) == (parcel.keys or [])[0]


def generated() -> Iterator[Any]:
    yield ServiceBusMessage(b"0")
    yield AmqpAnnotatedMessage(data_body=b"1")
    yield {"body": b"2"}


@pytest.mark.parametrize("batch_bytes", [0, LIMIT])
@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "generator"])
def test_several_messages(make: Any, batch_bytes: int) -> None:
    parcel = opened(make(generated()), batch_bytes)
    assert parcel.keys is not None and len(set(parcel.keys)) == 3
    assert [str(each) for each in parcel.originals] == ["0", "1", "2"]
    if batch_bytes:
        assert encoded(parcel.outgoing) == built_by_the_sdk(parcel.originals, stamps(parcel))
    else:
        assert [stamp_of(each) for each in parcel.outgoing] == parcel.keys


@pytest.mark.parametrize("batch_bytes", [0, LIMIT])
def test_nothing(batch_bytes: int) -> None:
    assert len(collect([], batch_bytes)) == 0
    assert len(collect(iter(()), batch_bytes)) == 0
    assert len(collect(ServiceBusMessageBatch())) == 0


@pytest.mark.parametrize("wrong", [b"bytes", "text", 1, None, [1], [[ServiceBusMessage(b"")]]])
def test_what_is_no_message(wrong: object) -> None:
    with pytest.raises(TypeError, match="must be a ServiceBusMessage"):
        collect(wrong)


def test_a_mapping_with_an_unknown_argument() -> None:
    with pytest.raises(TypeError):
        collect({"no_such_argument": 1})


def test_a_list_that_does_not_fit_one_batch_is_refused_as_the_sdk_does() -> None:
    with pytest.raises(MessageSizeExceededError):
        collect([ServiceBusMessage(b"x" * 600)] * 2, 1024)


@pytest.mark.proves("P-6")
def test_stamps_never_make_a_list_too_large() -> None:
    """What fits without a pair fits with one."""
    messages = [ServiceBusMessage(b"x" * 400)] * 2
    size = collect(messages, LIMIT).outgoing.size_in_bytes
    parcel = opened(messages, size)
    assert parcel.keys is not None
    assert parcel.outgoing.size_in_bytes == size
    assert not parcel.take_stamps_off()


@pytest.mark.parametrize("message", [SINGLES[0], SINGLES[:2]])
@pytest.mark.parametrize("batch_bytes", [0, LIMIT])
def test_taking_stamps_off(message: Any, batch_bytes: int) -> None:
    parcel = opened(message, batch_bytes)
    assert parcel.take_stamps_off()
    if isinstance(parcel.outgoing, ServiceBusMessageBatch):
        assert encoded(parcel.outgoing) == encoded(collect(message, LIMIT).outgoing)
    else:
        assert parcel.outgoing == message
    assert not parcel.take_stamps_off()


def test_without_producer_keys_everything_goes_as_it_came() -> None:
    keys = ProducerKeys(random.Random(1), is_on=False)
    message = ServiceBusMessage(b"")
    assert opened(message, keys=keys).outgoing is message
    parcel = opened([message], keys=keys)
    assert parcel.outgoing == [message]
    parcel.close(succeeded=False)
    assert parcel.keys is None


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_key_outlives_a_failure(succeeded: bool) -> None:
    keys = ProducerKeys(random.Random(1))
    message = ServiceBusMessage(b"")
    first = opened(message, keys=keys)
    first.close(succeeded=succeeded)
    again = opened([message], LIMIT, keys)
    assert (again.keys == first.keys) is not succeeded


# --- batches ----------------------------------------------------------------------------------


def paired_batch(count: int = 3) -> PairedMessageBatch:
    batch = PairedMessageBatch(LIMIT)
    for number in range(count):
        batch.add_message(ServiceBusMessage(b"x" * 300 * number, session_id="s"))
    return batch


def sdk_batch(count: int = 3) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(LIMIT)
    for number in range(count):
        batch.add_message(ServiceBusMessage(b"x" * 300 * number, session_id="s"))
    return batch


def test_this_sdk_is_known() -> None:
    """If not, all is still sent, but takes longer: look at batch.py."""
    assert CAN_APPEND


@pytest.mark.parametrize("can_append", [True, False])
@pytest.mark.parametrize("make", [paired_batch, sdk_batch])
def test_batches(make: Any, can_append: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CAN_APPEND", can_append)
    batch = make()
    before = encoded(batch)
    parcel = opened(batch)
    assert parcel.keys is not None and len(parcel) == 3
    assert encoded(parcel.outgoing) == built_by_the_sdk(parcel.originals, stamps(parcel))
    assert parcel.outgoing is not batch
    assert len(parcel.outgoing) == 3
    assert parcel.outgoing._message[3:5] == batch._message[3:5], "and the envelope is the same"
    assert encoded(batch) == before


@pytest.mark.parametrize("make", [paired_batch, sdk_batch])
def test_a_batch_that_is_sent_again(make: Any) -> None:
    """After a success with new keys, after a failure with the same."""
    keys = ProducerKeys(random.Random(1))
    batch = make()
    first = opened(batch, keys=keys)
    first.close(succeeded=False)
    second = opened(batch, keys=keys)
    assert second.keys == first.keys
    second.close(succeeded=True)
    third = opened(batch, keys=keys)
    assert set(third.keys or []).isdisjoint(first.keys or [])
    assert encoded(third.outgoing) == built_by_the_sdk(third.originals, third.keys or [])


def test_a_batch_sent_by_two_threads_at_once() -> None:
    keys = ProducerKeys(random.Random(1))
    batch = paired_batch()
    one, two = opened(batch, keys=keys), opened(batch, keys=keys)
    assert encoded(one.outgoing) == built_by_the_sdk(one.originals, one.keys or [])
    assert encoded(two.outgoing) == built_by_the_sdk(two.originals, two.keys or [])
    assert set(one.keys or []).isdisjoint(two.keys or [])


def test_a_batch_holds_its_messages_as_they_were() -> None:
    """What goes to the backlog must be what would have gone to the primary."""
    message = ServiceBusMessage(
        b"body", application_properties={"a": 1}, session_id="s", partition_key="s"
    )
    message.time_to_live = dt.timedelta(seconds=7)
    batch = PairedMessageBatch(LIMIT)
    batch.add_message(message)
    before = state_of(batch.originals[0])
    assert message.application_properties is not None
    message.application_properties["a"] = 2
    message.session_id = message.partition_key = "t"
    message.time_to_live = dt.timedelta(seconds=8)
    message.raw_amqp_message.footer = {"f": 1}
    assert state_of(batch.originals[0]) == before


def test_annotations_of_the_callers_own_stay_next_to_the_stamp() -> None:
    batch = PairedMessageBatch(LIMIT)
    batch.add_message(AmqpAnnotatedMessage(data_body=b"", delivery_annotations={"theirs": 1}))
    parcel = opened(batch)
    assert encoded(parcel.outgoing) == built_by_the_sdk(parcel.originals, stamps(parcel))


def fill(batch: PairedMessageBatch, size: int) -> None:
    try:
        while True:
            batch.add_message(ServiceBusMessage(b"x" * size, session_id="s"))
    except MessageSizeExceededError:
        return


@pytest.mark.parametrize("size", [10, 250, 1000])
def test_a_full_batch_has_room_for_its_stamps(size: int) -> None:
    batch = PairedMessageBatch(16 * 1024)
    assert batch.max_size_in_bytes == 16 * 1024
    fill(batch, size)
    assert len(batch) == len(batch.originals)
    assert batch.max_size_in_bytes == 16 * 1024
    keys = ProducerKeys(random.Random(1))
    keys.take("orders", [AmqpAnnotatedMessage(data_body=b"")], 0.0)
    for producer in list(keys._producers.values()):
        keys._last[f"{producer}~{hash_key('s')}"] = 10**11
    parcel = opened(batch, keys=keys)
    assert parcel.outgoing is not batch
    sent = ServiceBusMessageBatch(16 * 1024)
    for each in zip(parcel.originals, parcel.keys or [], strict=True):
        sent.add_message(with_stamp(*each))
    assert sent.size_in_bytes <= parcel.outgoing.size_in_bytes <= 16 * 1024


def test_a_message_that_fills_a_batch_goes_without_a_stamp() -> None:
    probe = ServiceBusMessageBatch(LIMIT)
    message = ServiceBusMessage(b"x" * 1000)
    probe.add_message(message)
    batch = PairedMessageBatch(probe.size_in_bytes)
    batch.add_message(message)
    parcel = opened(batch)
    assert parcel.outgoing is batch
    assert parcel.keys is not None


def test_a_batch_takes_every_form_of_a_message() -> None:
    batch = PairedMessageBatch()
    for message in generated():
        batch.add_message(copy.copy(message))
    assert [str(each) for each in batch.originals] == ["0", "1", "2"]
    with pytest.raises(TypeError, match="must be a ServiceBusMessage"):
        batch.add_message(b"bytes")  # type: ignore[arg-type]
    assert len(batch) == 3


# --- partitions -----------------------------------------------------------------------------------


def outgoing_stamps(parcel: Parcel) -> list[bytes]:
    """Of a batch, as it goes out."""
    return [each.rpartition(b"@")[2] for each in encoded(parcel.outgoing)]


@pytest.mark.proves("P-20")
def test_another_partition_is_chosen_for_all_of_a_batch() -> None:
    parcel = opened([ServiceBusMessage(b"0"), ServiceBusMessage(b"1")], LIMIT)
    first, before = parcel.keys, outgoing_stamps(parcel)
    parcel.ask_another(True, 0.0)
    assert parcel.keys is not None and first is not None
    assert len({key.rpartition("/")[0] for key in parcel.keys}) == 1
    assert not set(first) & set(parcel.keys)
    assert not set(before) & set(outgoing_stamps(parcel))
    assert all(b"/0" in each for each in outgoing_stamps(parcel)), "it asks that one, too"


@pytest.mark.proves("P-20")
def test_who_insists_keeps_the_keys_and_asks_no_more() -> None:
    parcel = opened([ServiceBusMessage(b"0"), ServiceBusMessage(b"1")], LIMIT)
    before = parcel.keys
    parcel.ask_another(False, 0.0)
    assert parcel.keys == before
    assert not any(b"/0" in each for each in outgoing_stamps(parcel))
