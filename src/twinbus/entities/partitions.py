"""The partitions of an entity: their names, their numbers, and which of them a message belongs to.

In its store a partition is a queue, topic or subscription like any other, but for its name and its
sequence numbers:

    orders                    orders#3                      partition 3 of a queue or topic
    topic/Subscriptions/s     topic#3/Subscriptions/s       the subscription in partition 3 of it
    1, 2, 3, …                3 << 48 | 1, 3 << 48 | 2, …   so a number tells where its message is

No entity may have a `#` in its name, so nobody reaches a partition from outside.  All this is
written into stores: neither the names, nor the numbers, nor the hash may ever change, or a key
would lead to another partition than the messages that are there already.
"""

import zlib
from typing import Final

from twinbus.entities.descriptions import PREFIX_END, SUBSCRIPTIONS
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.errors import InvalidOperation

PARTITION_COUNT: Final = 16  # Service Bus: of every partitioned entity
COUNTER_BITS: Final = 48  # of a sequence number; the partition is in those above
NO_PARTITION: Final = -1  # of an entity that has none
NUMBERED_RUN: Final = 4_096  # numbers of a producer that go to one partition, then to the next

_MARK: Final = "#"
_HOME: Final = "@"  # in the name of a producer, before the number of a partition
_NUMBERS: Final[dict[str, int]] = {str(each): each for each in range(PARTITION_COUNT)}
_SUBSCRIPTIONS: Final = SUBSCRIPTIONS.lower()


# --- names ------------------------------------------------------------------------------------


def partition_name(path: str, partition: int) -> str:
    """What a partition of an entity is called in its store."""
    at = path.lower().find(_SUBSCRIPTIONS)
    if at < 0:
        at = len(path)
    return f"{path[:at]}{_MARK}{partition}{path[at:]}"


def split_partition(name: str) -> tuple[str, int]:
    """The entity and the partition of a name in a store; NO_PARTITION of a plain one."""
    before, _, after = name.partition(_MARK)
    number, slash, rest = after.partition("/")
    partition = _NUMBERS.get(number, NO_PARTITION)
    if partition == NO_PARTITION:
        return name, NO_PARTITION
    return before + slash + rest, partition


def shown_name(name: str) -> str:
    """A name in a store as users know it: without namespace and partition."""
    return split_partition(name)[0].rpartition(PREFIX_END)[2]


# --- numbers ----------------------------------------------------------------------------------


def first_number(partition: int) -> int:
    """Below every sequence number of a partition: what a new one has given out last."""
    return 0 if partition == NO_PARTITION else partition << COUNTER_BITS


def partition_of(sequence_number: int) -> int:
    """Where the message with this number would be.  A client may ask for any number: what is not
    within 0 … 15 is no partition's."""
    return sequence_number >> COUNTER_BITS


# --- keys -------------------------------------------------------------------------------------


def hash_key(key: str) -> int:
    """The partition of a key: the same one in every version, always."""
    return zlib.crc32(key.encode()) % PARTITION_COUNT


def producer_at(producer: str, partition: int) -> str:
    """What a producer calls itself where it numbers the messages for one partition."""
    return f"{producer}{_HOME}{partition}"


def chosen_partition(producer: str) -> int:
    """The partition for which this producer numbers messages; NO_PARTITION if it does not say."""
    _, mark, number = producer.rpartition(_HOME)
    return _NUMBERS.get(number, NO_PARTITION) if mark else NO_PARTITION


def home_of(key: ProducerKey | None) -> int:
    """The partition of a message without another key that its producer has numbered, so that copies
    of it meet there; NO_PARTITION of any other.

    Producers number what they have for a partition by itself (`producer_at`): an entity remembers
    runs of numbers (arrivals.py).  Those of earlier versions, whose messages may still wait in a
    backlog, have runs of numbers that go to one partition, then to the next.
    """
    if key is None or key.is_ping:
        return NO_PARTITION
    partition = chosen_partition(key.producer)
    if partition != NO_PARTITION:
        return partition
    start = zlib.crc32(key.producer.encode())
    return (start + key.number // NUMBERED_RUN) % PARTITION_COUNT


def key_of(message: NewMessage, by_message_id: bool) -> str | None:
    """What decides on the partition of a message; None if any will do.

    `by_message_id` is for entities that detect duplicates: there an id must find its repeats.
    """
    session_id = message.session_id
    partition_key = message.partition_key
    if session_id is not None:
        if partition_key is not None and partition_key != session_id:
            raise InvalidOperation(
                "The partition key differs from the session id; a message that has both needs the "
                "same text in both."
            )
        return session_id
    if partition_key is not None:
        return partition_key
    return message.message_id if by_message_id else None
