"""What a caller hands over to be sent: the originals for the backlog, the outgoing for the primary.

The SDK takes one message, several of them, or a batch, and each message in three forms.  A parcel
keeps what was meant, and puts the producer keys on copies: the caller's objects stay as they are.
It has to be cheap, since every message of a healthy pair goes through here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.pairing.batch import originals_of, raw_of, sendable_of, stamped_batch
from twinbus.pairing.producer_keys import ProducerKeys
from twinbus.pairing.stamps import asking, with_stamp


class Parcel:
    """The messages of one send.  The flow opens it before its first step, and closes it."""

    def __init__(self, plain: Any, originals: list[AmqpAnnotatedMessage]) -> None:
        self.originals = originals
        self.keys: list[str] | None = None  # of the originals; none where the pairing gives none
        self.is_asking = False  # whether another partition can be chosen if one refuses it
        self.outgoing: Any = plain  # for the SDK's sender
        self._plain = plain
        self._source: ProducerKeys | None = None
        self._entity = ""

    def __len__(self) -> int:
        return len(self.originals)

    def open(self, source: ProducerKeys, entity: str, now: float) -> None:
        """Take keys, and put them on what goes to the primary."""
        self._source = source
        self._entity = entity
        numbered = source.take(entity, self.originals, now)
        if numbered is not None:
            self._stamp(numbered.keys, numbered.is_asking)

    def ask_another(self, is_certain: bool, now: float) -> None:
        """Its partition refuses it.  If it certainly is not there either, another is chosen."""
        assert self._source is not None and self.keys is not None
        if is_certain:
            self._source.refused(self._entity, self.keys, now)
            self.open(self._source, self._entity, now)
        else:
            self._stamp(self.keys, is_asking=False)

    def _stamp(self, keys: list[str], is_asking: bool) -> None:
        self.keys = keys
        self.is_asking = is_asking
        stamps = [asking(key) for key in keys] if is_asking else keys
        if isinstance(self._plain, ServiceBusMessageBatch):
            stamped = stamped_batch(self._plain, self.originals, stamps)
            self.outgoing = self._plain if stamped is None else stamped
        elif isinstance(self._plain, list):
            self.outgoing = list(map(with_stamp, self.originals, stamps))
        else:
            self.outgoing = with_stamp(self.originals[0], stamps[0])

    def take_stamps_off(self) -> bool:
        """They made it too large: from now on it goes as it came.  False: there were none."""
        had_stamps = self.outgoing is not self._plain
        self.outgoing = self._plain
        return had_stamps

    def close(self, succeeded: bool) -> None:
        """The send is over.  If nobody knows what came of it, its messages keep their keys."""
        if self._source is not None and self.keys is not None and not succeeded:
            self._source.keep(self.originals, self.keys)


def collect(message: Any, batch_bytes: int = 0) -> Parcel:
    """Whatever `send_messages` and `schedule_messages` of the SDK take, as a parcel.

    Runs the caller's generators and encodes the messages of a list (if `batch_bytes`, the size of
    a batch on the primary's link, is known), so it is not to be called under a lock.
    """
    if isinstance(message, ServiceBusMessageBatch):
        return Parcel(message, originals_of(message))
    if isinstance(message, Iterable) and not isinstance(message, Mapping):
        sendables = [sendable_of(each) for each in message]
        originals = [raw_of(each) for each in sendables]
        if not (sendables and batch_bytes):
            return Parcel(sendables, originals)
        # What the SDK does with a list, done before keys are taken: all or none of it fits.
        batch = ServiceBusMessageBatch(max_size_in_bytes=batch_bytes)
        for each in sendables:
            batch.add_message(each)
        return Parcel(batch, originals)
    sendable = sendable_of(message)
    return Parcel(sendable, [raw_of(sendable)])


def as_outgoing(messages: list[Any]) -> Any:
    """A list costs a batch, whose limit is lower than that of a single message."""
    return messages[0] if len(messages) == 1 else messages
