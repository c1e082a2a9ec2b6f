"""Stamps: producer keys on the messages that go out, as a delivery annotation (design §3).

A stamp is put on a copy: the caller's message stays as it is.  Every message of a healthy pair
gets one, so it has to be cheap.  The SDK encodes annotations in Python, which takes it 19 µs of the
450 that a send takes; where it can be done, the section is handed over encoded.  Whether it can be
is tried with the installed SDK when this module is imported; if not, the SDK does all of it.
"""

import importlib.util
from typing import Any, Final, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from twinbus.pairing.lean import CAN_BE_LEAN, ENCODERS, LeanMessage, encoded, outgoing_of
from twinbus.pairing.producer_keys import STAMP
from twinbus.pairing.value_types import TYPE, VALUE

T = TypeVar("T")

# To put a stamp behind a body is to copy the body.  Of longer ones that takes longer than to let
# the SDK encode the stamp.
TRAILED_BYTES_MAX: Final = 64 * 1024
DATA: Final = 5  # of the SDK's encoded batch: the messages

_NAME: Final = STAMP.encode()
# map8 { sym8 name: str8-utf8 text }, with room for two sizes and the text.
_SECTION: Final = b"\x00\x53\x71\xc1%%c\x02\xa3%c%b\xa1%%c%%b" % (len(_NAME), _NAME)
_REST_BYTES: Final = 1 + 2 + len(_NAME) + 2  # what the map's size counts beside the text


def with_stamp(message: AmqpAnnotatedMessage, key: str) -> AmqpAnnotatedMessage:
    """A message like this one that says its key."""
    stamped = twin_of(message)
    # The SDK finds the type of a value by trying, which takes it as long as the rest of a message.
    text: object = {TYPE: "STRING", VALUE: key.encode()} if CAN_SAY_TYPES else key
    stamped.delivery_annotations = {**(message.delivery_annotations or {}), _NAME: text}
    return stamped


def with_stamp_in_its_form(
    message: ServiceBusMessage | AmqpAnnotatedMessage, key: str
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """As `with_stamp`, for sending alone: the SDK is quicker with messages of its own class."""
    fields = message.__dict__.copy()
    raw = fields.get("_raw_amqp_message")
    if raw is None:
        if isinstance(message, AmqpAnnotatedMessage):
            return with_stamp(message, key)
        return with_stamp(message.raw_amqp_message, key)
    stamped = with_stamp_behind(raw, key) if CAN_TRAIL else None
    fields["_raw_amqp_message"] = with_stamp(raw, key) if stamped is None else stamped
    kind: type = type(message)
    if kind is ServiceBusMessage and CAN_BE_LEAN:
        kind = LeanMessage
    twin: ServiceBusMessage | AmqpAnnotatedMessage = object.__new__(kind)
    twin.__dict__ = fields
    return twin


class _BodyAndSection(bytes):
    """The last bytes of a body, and behind them a section that is encoded already.

    Its length is that of the body: the SDK writes the length of a body and then all its bytes, so
    what is written is the body and, where the next section begins, the section.
    """

    body_bytes: int

    def __len__(self) -> int:
        return self.body_bytes

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The SDK does so when somebody wants to see the message."""
        return self[: self.body_bytes].decode(encoding, errors)


def with_stamp_behind(message: AmqpAnnotatedMessage, key: str) -> AmqpAnnotatedMessage | None:
    """As `with_stamp`, the same bytes for a third of the time; None where it cannot be done.

    The SDK writes delivery annotations last, behind the body if there is no footer.
    """
    fields = message.__dict__.copy()
    parts = fields.get("_data_body")
    if not parts or fields["_delivery_annotations"] or fields["_footer"]:
        return None
    body = parts[-1]
    if type(body) is not bytes or len(body) > TRAILED_BYTES_MAX:
        return None
    both = _BodyAndSection(body + section_of(key))
    both.body_bytes = len(body)
    fields["_data_body"] = [both] if len(parts) == 1 else [*parts[:-1], both]
    _spare(fields)
    stamped = object.__new__(AmqpAnnotatedMessage)
    stamped.__dict__ = fields
    return stamped


class _KnownProperties(AmqpMessageProperties):
    """As they are, but quicker to look through."""

    def __bool__(self) -> bool:
        return True

    def values(self) -> list[Any]:
        return list(self.__dict__.values())


def _spare(fields: dict[str, Any]) -> None:
    """Spare the SDK what it does for nothing: this pays for half of the stamp.

    To find that nothing is set in a header, and something in the properties, it makes four lists by
    the names of all fields.  What it writes stays the same.
    """
    header = fields["_header"]
    if header is not None:
        values = list(header.__dict__.values())
        if values.count(None) == len(values):
            fields["_header"] = None
    properties = fields["_properties"]
    if type(properties) is AmqpMessageProperties:
        known = object.__new__(_KnownProperties)
        known.__dict__ = properties.__dict__
        fields["_properties"] = known


def section_of(key: str) -> bytes:
    """The section of delivery annotations with this one, as AMQP 1.0 §3.2.2 has it."""
    text = key.encode()
    size = len(text)
    return _SECTION % (size + _REST_BYTES, size, text)


def twin_of(thing: T) -> T:
    """Another one with the same fields."""
    twin = object.__new__(type(thing))
    twin.__dict__ = vars(thing).copy()
    return twin


# --- what the installed SDK does ------------------------------------------------------------------


def _encoded(message: AmqpAnnotatedMessage) -> bytes:
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    return bytes(batch._message[DATA][0])  # noqa: SLF001


def _message(body: bytes = b"body", stamp: object = None) -> AmqpAnnotatedMessage:
    message = AmqpAnnotatedMessage(data_body=body, properties={"message_id": "id"})
    if stamp is not None:
        message.delivery_annotations = {STAMP: stamp}
    return message


def _can_say_types() -> bool:
    """Whether this version of the SDK takes the type of an annotation's value from us."""
    if importlib.util.find_spec("uamqp") is not None:  # its older transport does not
        return False
    message = _message()
    message.delivery_annotations = {_NAME: {TYPE: "STRING", VALUE: b"producer/1"}}
    try:
        return _encoded(message) == _encoded(_message(stamp="producer/1"))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def _can_append() -> bool:
    """Whether this version of the SDK encodes batches and annotations as expected."""
    try:
        expected = _encoded(_message(stamp="producer/1"))
        return _encoded(_message()) + section_of("producer/1") == expected
    except (AttributeError, IndexError, TypeError):
        return False


def _can_trail() -> bool:
    """Whether this version of the SDK encodes bodies and annotations as expected.

    Asked of the very functions by which it sends: a body that took in the section would be a
    damaged message.
    """
    if importlib.util.find_spec("uamqp") is not None:  # its older transport has another encoder
        return False
    try:
        for body in (b"", b"body", bytes(256)):
            trailed = with_stamp_behind(_message(body), "producer/1")
            if trailed is None:
                return False
            outgoing, expected = outgoing_of(trailed), _encoded(_message(body, "producer/1"))
            if any(encoded(outgoing, encoder) != expected for encoder in ENCODERS):
                return False
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError):
        return False
    return True


CAN_SAY_TYPES: Final = _can_say_types()
CAN_APPEND: Final = _can_append()
CAN_TRAIL: Final = _can_trail()
