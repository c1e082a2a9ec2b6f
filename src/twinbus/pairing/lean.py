"""Messages that cost the SDK less to encode: without the nulls at the end of their properties.

A message has 13 properties, and mostly only the first is set, its id.  The SDK writes a null for
each of the others, which takes it a quarter of its time for a message; AMQP 1.0 (§1.4) has those at
the end of a list left out.  What is saved pays for what a pair does beside the SDK.

Whether the installed SDK can be had to do so is tried when this module is imported.
"""

import importlib
import importlib.util
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

PROPERTIES: Final = 3  # of the SDK's message as it is encoded
# What encodes a message that is sent alone, in each of the SDK's flavours.
ENCODERS: Final = ("azure.servicebus._pyamqp.sender", "azure.servicebus._pyamqp.aio._sender_async")


class _Properties(tuple[Any, ...]):
    """The first of a message's properties; how they are encoded is learned below."""

    __slots__ = ()
    _code: int
    _definition: Any


class LeanMessage(ServiceBusMessage):
    """A message that is going out.  The SDK puts what it is going to encode into `_message`."""

    @property
    def _message(self) -> Any:
        return self.__dict__["_message"]

    @_message.setter
    def _message(self, outgoing: Any) -> None:
        self.__dict__["_message"] = lean(outgoing)


def lean(outgoing: Any) -> Any:
    """What the SDK encodes, with properties that end with the last that is set."""
    properties = outgoing[PROPERTIES]
    if properties is None or type(properties) is _Properties:
        return outgoing
    end = len(properties)
    if properties[0] is not None and properties.count(None) == end - 1:
        end = 1  # nearly always, and sooner found so
    while end and properties[end - 1] is None:
        end -= 1
    if end == 0:  # an expiry of 0, say, for which the SDK writes a null: the section stays
        return outgoing
    fields = list(outgoing)
    fields[PROPERTIES] = _Properties(properties[:end])
    return type(outgoing)(*fields)


# --- what the installed SDK does ------------------------------------------------------------------

# The message id, and the reply-to with three nulls before it: list8 of str8-utf8.
_SAMPLES: Final = {
    b"\x00\x53\x73\xc0\x05\x01\xa1\x02id": {"message_id": "id"},
    b"\x00\x53\x73\xc0\x0c\x05\xa1\x02id@@@\xa1\x02to": {"message_id": "id", "reply_to": "to"},
}
_BODY: Final = b"\x00\x53\x75\xa0\x04body"


def encoded(message: Any, encoder: str) -> bytes:
    """By the very function that one of the SDK's flavours sends with."""
    written = bytearray()
    importlib.import_module(encoder).encode_payload(written, message)
    return bytes(written)


def outgoing_of(message: AmqpAnnotatedMessage) -> Any:
    """What the SDK would encode."""
    transport: Any = ServiceBusMessageBatch()._amqp_transport  # noqa: SLF001
    return transport.to_outgoing_amqp_message(message)


def _can_be_lean() -> bool:
    if importlib.util.find_spec("uamqp") is not None:  # the SDK's older transport encodes in C
        return False
    try:
        for expected, properties in _SAMPLES.items():
            sample = AmqpAnnotatedMessage(data_body=b"body", properties=properties)
            outgoing = outgoing_of(sample)
            like = type(outgoing[PROPERTIES])
            _Properties._code, _Properties._definition = like._code, like._definition  # noqa: SLF001
            for encoder in ENCODERS:
                if encoded(lean(outgoing), encoder) != expected + _BODY:
                    return False
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError):
        return False
    return True


CAN_BE_LEAN: Final = _can_be_lean()
