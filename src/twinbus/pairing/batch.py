"""Batches of messages with producer keys.

`PairedMessageBatch` is the SDK's batch that also remembers its messages, which the SDK's keeps to
itself: a pair needs them when the batch has to go to the backlog.  Keys are put on when a batch is
sent, onto a copy, so that one batch can be sent twice, or by two threads at once.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.message.producer_keys import key_section
from twinbus.pairing.stamps import CAN_APPEND, DATA, with_stamp

# The most that a stamp adds to a message: section, map and annotation's name, a key of 48
# characters, and what the batch itself needs for a message that got longer.
STAMP_BYTES_MAX: Final = 96


class PairedMessageBatch(ServiceBusMessageBatch):
    """What a paired sender's `create_message_batch` gives; used as the SDK's own."""

    def __init__(self, max_size_in_bytes: int | None = None) -> None:
        self._room_bytes = 0
        super().__init__(max_size_in_bytes=max_size_in_bytes)
        self.originals: list[AmqpAnnotatedMessage] = []

    @property
    def max_size_in_bytes(self) -> int:
        return super().max_size_in_bytes - self._room_bytes

    def add_message(
        self, message: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
    ) -> None:
        """Try to add a message; `MessageSizeExceededError` if it does not fit any more."""
        sendable = sendable_of(message)
        # Room for the stamps; one message that fills the batch has to do without.
        self._room_bytes = STAMP_BYTES_MAX * (len(self) + 1) if len(self) else 0
        try:
            super().add_message(sendable)
        finally:
            self._room_bytes = 0
        # The batch holds the message as it is now, and so must what may go to the backlog.
        self.originals.append(snapshot(raw_of(sendable)))


def batch_within(limit_bytes: int, asked_bytes: int | None) -> PairedMessageBatch:
    """A batch of the size that was asked for, if links to the entity take it."""
    if asked_bytes is not None and asked_bytes > limit_bytes:
        raise ValueError(
            f"Max message size: {asked_bytes} is too large, acceptable max batch size "
            f"is: {limit_bytes} bytes."
        )
    return PairedMessageBatch(asked_bytes or limit_bytes)


def sendable_of(message: object) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A message in one of the forms that the SDK takes; `TypeError` for anything else."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "A message must be a ServiceBusMessage, an AmqpAnnotatedMessage or a mapping of a "
        f"ServiceBusMessage's arguments, not {type(message).__name__}."
    )


def raw_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


def snapshot(message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A copy that does not change when the caller changes the message; bodies are shared."""
    taken = copy.copy(message)
    properties = message.properties
    if properties is not None:
        taken.properties = copy.copy(properties)
    header = message.header
    if header is not None:
        taken.header = copy.copy(header)
    if message.application_properties:
        taken.application_properties = message.application_properties.copy()
    if message.annotations:
        taken.annotations = message.annotations.copy()
    return taken


def originals_of(batch: ServiceBusMessageBatch) -> list[AmqpAnnotatedMessage]:
    """The messages in a batch."""
    if isinstance(batch, PairedMessageBatch):
        return batch.originals
    # The SDK's own batch does not show them, but applications have such batches.
    return [message.raw_amqp_message for message in batch._messages]  # noqa: SLF001


def stamped_batch(
    batch: ServiceBusMessageBatch, originals: list[AmqpAnnotatedMessage], keys: list[str]
) -> ServiceBusMessageBatch | None:
    """The same batch with keys on its messages; None if they make it too large."""
    if not CAN_APPEND or any(message.delivery_annotations for message in originals):
        return _rebuilt(batch, originals, keys)
    # The SDK encodes each message twice when it is added, in Python.  To let it encode a stamp as
    # well would cost a quarter more; this is what it would have written, at the same place.
    stamped = copy.copy(batch)
    encoded = batch._message  # noqa: SLF001
    messages = [
        message + key_section(key) for message, key in zip(encoded[DATA], keys, strict=True)
    ]
    grown = sum(map(len, messages)) - sum(map(len, encoded[DATA]))
    # A message of 256 bytes or more needs three bytes more in the batch than a short one.
    size_bytes = batch.size_in_bytes + grown + 3 * len(messages)
    if size_bytes > batch.max_size_in_bytes:
        return None
    stamped._message = [*encoded[:DATA], messages, *encoded[DATA + 1 :]]  # noqa: SLF001
    stamped._size = size_bytes  # noqa: SLF001
    return stamped


def of_sender(sender: Any, outgoing: Any) -> Any:
    """What is handed to this sender of the SDK, so that it sends a batch as it is.

    The async SDK encodes a batch that it has not made anew, from the messages it was made of: those
    have no stamps.  Both of its transports write the same bytes.
    """
    if not isinstance(outgoing, ServiceBusMessageBatch):
        return outgoing
    mine, its = getattr(sender, "_amqp_transport", None), getattr(outgoing, "_amqp_transport", None)
    if mine is its or getattr(mine, "KIND", None) != getattr(its, "KIND", None):
        return outgoing
    adopted = copy.copy(outgoing)
    adopted._amqp_transport = mine  # noqa: SLF001
    return adopted


def _rebuilt(
    batch: ServiceBusMessageBatch, originals: list[AmqpAnnotatedMessage], keys: list[str]
) -> ServiceBusMessageBatch | None:
    """By the SDK's public interface alone."""
    rebuilt = ServiceBusMessageBatch(max_size_in_bytes=batch.max_size_in_bytes)
    try:
        for message, key in zip(originals, keys, strict=True):
            rebuilt.add_message(with_stamp(message, key))
    except MessageSizeExceededError:
        return None
    return rebuilt
