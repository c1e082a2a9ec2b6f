"""Reads the producer key that a pair has put on a message."""

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.message.producer_keys import read_producer_key
from twinbus.message.scan import scan
from twinbus.pairing.producer_keys import STAMP


def stamp_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str | None:
    """The key as a broker reads it, whether it asks or not; None if there is none."""
    found = scan(encoded(message)).delivery_annotation(STAMP)
    if found is None:
        return None
    key = read_producer_key(found)
    return f"{key.producer}/{key.number}"


def asks(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bool:
    """Could another partition still be chosen for it?"""
    return read_producer_key(scan(encoded(message)).delivery_annotation(STAMP)).is_asking


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """As the SDK writes it."""
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    return bytes(batch._message[5][0])
