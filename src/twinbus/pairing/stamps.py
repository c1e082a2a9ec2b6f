"""Stamps: producer keys on the messages that go out, as a delivery annotation (design §3).

A stamp is put on a copy: the caller's message stays as it is.  In a batch the SDK has encoded the
messages already; there a stamp is a section that is appended to the bytes of its message.
"""

import copy
from typing import Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.message.producer_keys import key_section
from twinbus.pairing.producer_keys import STAMP

DATA: Final = 5  # of the SDK's encoded batch: the messages


def with_stamp(message: AmqpAnnotatedMessage, key: str) -> AmqpAnnotatedMessage:
    """A message like this one that says its key."""
    stamped = copy.copy(message)
    stamped.delivery_annotations = {**(message.delivery_annotations or {}), STAMP: key}
    return stamped


def asking(key: str) -> str:
    """The same key, as it is written where another partition can still be chosen."""
    producer, _, digits = key.rpartition("/")
    return f"{producer}/0{digits}"


def _can_append() -> bool:
    """Whether the installed SDK encodes batches and annotations as expected."""
    message = AmqpAnnotatedMessage(data_body=b"body", properties={"message_id": "id"})
    try:
        expected = _encoded(with_stamp(message, "producer/1"))
        return _encoded(message) + key_section("producer/1") == expected
    except (AttributeError, IndexError, TypeError):
        return False


def _encoded(message: AmqpAnnotatedMessage) -> bytes:
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    return bytes(batch._message[DATA][0])  # noqa: SLF001


CAN_APPEND: Final = _can_append()
