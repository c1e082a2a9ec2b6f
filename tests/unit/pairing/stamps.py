"""Reads the producer key that a pair has put on a message."""

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.message.scan import scan
from twinbus.pairing.producer_keys import STAMP


def stamp_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str | None:
    """As a broker reads it, whichever way the SDK is told of it; None if there is none."""
    found = scan(encoded(message)).delivery_annotation(STAMP)
    return None if found is None else str(found)


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """As the SDK writes it."""
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    return bytes(batch._message[5][0])
