"""Producer keys: every message gets one once, and every copy of it keeps it (design §3).

A key is `<producer>/<number>`.  A twinbus destination drops the second message with the same key,
so nothing arrives twice, however often a message had to be sent.  Must never give one key to two
messages; that a message may get a second key is the lesser evil.
"""

import random
import weakref
from typing import Final

from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.entities.partitions import hash_key
from twinbus.message import wire_names

# On the wire: a delivery annotation, which belongs to the hop and is never stored.
STAMP: Final = wire_names.PRODUCER_KEY
# The partition of a message without a session or partition key is chosen by number // BLOCK, so
# messages that travel together keep within a block.
BLOCK: Final = 4096
KEPT_MIN: Final = 1024


class ProducerKeys:
    """The keys of one pairing's messages."""

    def __init__(self, chance: random.Random, is_on: bool = True) -> None:
        self._chance = chance
        self._is_on = is_on
        self._producers: dict[str, str] = {}  # entity → producer
        self._last: dict[str, int] = {}  # producer, with its bucket → last number
        # By identity: the keys of messages whose last send has failed, so that what may have
        # arrived is not sent under another one.
        self._kept: dict[int, tuple[weakref.ref[AmqpAnnotatedMessage], str]] = {}
        self._kept_max = KEPT_MIN  # when to look for those whose messages are gone

    def take(self, entity: str, messages: list[AmqpAnnotatedMessage]) -> list[str] | None:
        """A key for each message of one send; None where the pairing gives none.

        A kept key is handed out once, so two sends of one message object at the same time never
        share it.
        """
        if not self._is_on:
            return None
        producer = self._producers.get(entity)
        if producer is None:
            producer = self._producers[entity] = f"{self._chance.getrandbits(96):024x}"
        producers = [_with_bucket(producer, message) for message in messages]
        kept: list[str | None] = [None] * len(messages)
        if self._kept:
            kept = self._take_kept(messages, producers)
        self._stay_within_a_block(producer, producers, kept)
        last = self._last
        keys: list[str] = []
        for each, known in zip(producers, kept, strict=True):
            if known is None:
                number = last[each] = last.get(each, 0) + 1
                known = f"{each}/{number}"
            keys.append(known)
        return keys

    def take_one(self, entity: str, message: AmqpAnnotatedMessage) -> str | None:
        """As `take`, for a message that is sent alone: most are."""
        producer = self._producers.get(entity)
        if self._kept or producer is None:
            keys = self.take(entity, [message])
            return None if keys is None else keys[0]
        properties = message.properties
        if message.annotations or (properties is not None and properties.group_id is not None):
            producer = _with_bucket(producer, message)
        number = self._last[producer] = self._last.get(producer, 0) + 1
        return f"{producer}/{number}"

    def keep(self, messages: list[AmqpAnnotatedMessage], keys: list[str]) -> None:
        """The outcome of the send is not known: these messages are known by these keys."""
        for message, key in zip(messages, keys, strict=True):
            self._kept[id(message)] = (weakref.ref(message), key)
        if len(self._kept) > self._kept_max:
            self._forget_the_dead()

    def _take_kept(
        self, messages: list[AmqpAnnotatedMessage], producers: list[str]
    ) -> list[str | None]:
        taken: list[str | None] = []
        for message, producer in zip(messages, producers, strict=True):
            reference, key = self._kept.get(id(message), (None, ""))
            # Another producer: it was sent to another entity, or has another session by now.
            if (
                reference is None
                or reference() is not message
                or key.rpartition("/")[0] != producer
            ):
                taken.append(None)
            else:
                del self._kept[id(message)]
                taken.append(key)
        return taken

    def _stay_within_a_block(
        self, producer: str, producers: list[str], kept: list[str | None]
    ) -> None:
        if len(producers) == 1:
            return
        new = sum(
            1 for each, key in zip(producers, kept, strict=True) if not key and each == producer
        )
        last = self._last.get(producer, 0)
        if new and (last + 1) // BLOCK != (last + new) // BLOCK:
            self._last[producer] = ((last + 1) // BLOCK + 1) * BLOCK - 1

    def _forget_the_dead(self) -> None:
        # Not by callbacks of the references: those run at any moment, in any thread.
        dead = [each for each, (reference, _) in self._kept.items() if reference() is None]
        for each in dead:
            del self._kept[each]
        self._kept_max = max(KEPT_MIN, 2 * len(self._kept))


def block_of(key: str | None) -> tuple[str, int]:
    """Producer and block of a key: messages without another key that are sent together share it."""
    producer, _, number = (key or "").rpartition("/")
    return producer, int(number) // BLOCK if number.isdecimal() else 0


def _with_bucket(producer: str, message: AmqpAnnotatedMessage) -> str:
    """Messages of one partition have a counter of their own, so that it sees few gaps."""
    key = _key_of(message)
    return producer if key is None else f"{producer}~{hash_key(key)}"


def _key_of(message: AmqpAnnotatedMessage) -> str | None:
    """Session id or partition key: what decides on the partition of a message."""
    properties = message.properties
    key = None if properties is None else properties.group_id
    if key is None and message.annotations:
        annotations = message.annotations
        key = annotations.get(wire_names.PARTITION_KEY) or annotations.get(
            wire_names.PARTITION_KEY.encode()
        )
    if isinstance(key, bytes):  # of a received message that is sent on
        return key.decode(errors="replace")
    return None if key is None else str(key)
