"""Reads the producer key that a pair has put on a message."""

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.pairing.producer_keys import STAMP


def stamp_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> str | None:
    """As text, whichever way the SDK is told its type; None if there is none."""
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    for name, value in (raw.delivery_annotations or {}).items():
        if name in {STAMP, STAMP.encode()}:
            return value["VALUE"].decode() if isinstance(value, dict) else str(value)
    return None
