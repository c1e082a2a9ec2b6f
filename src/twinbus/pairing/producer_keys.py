"""Producer keys: every message gets one once, and every copy of it keeps it (design §3).

A key is `<producer>/<number>`.  A twinbus destination drops the second message with the same key,
so nothing arrives twice, however often a message had to be sent.  Must never give one key to two
messages; that a message may get a second key is the lesser evil.

Messages that belong to one partition have numbers of their own, so that it sees few gaps:

    a1b2~7/12   has a session id or partition key, which leads to partition 7
    a1b2@7/12   has none: partition 7 was chosen here, before it was numbered (rotation.py)

As long as a message certainly has arrived nowhere, another partition can be chosen: its key asks
(message/producer_keys.py).  From the first send on whose outcome nobody knows, it keeps its key.
"""

import random
import weakref
from collections.abc import Iterable
from typing import Final, NamedTuple

from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.entities.partitions import (
    NO_PARTITION,
    NUMBERED_RUN,
    chosen_partition,
    hash_key,
    producer_at,
)
from twinbus.message import wire_names
from twinbus.pairing.rotation import Spread

# On the wire: a delivery annotation, which belongs to the hop and is never stored.
STAMP: Final = wire_names.PRODUCER_KEY
KEPT_MIN: Final = 1024


class Numbered(NamedTuple):
    """The keys of the messages of one send."""

    keys: list[str]
    is_asking: bool  # another partition can still be chosen


class ProducerKeys:
    """The keys of one pairing's messages."""

    def __init__(self, chance: random.Random, is_on: bool = True) -> None:
        self._chance = chance
        self._is_on = is_on
        self.can_ask = True  # told by the shell: whether it would hear what a partition answers
        self._producers: dict[str, str] = {}  # entity → producer
        self._spreads: dict[str, Spread] = {}  # by producer
        self._last: dict[str, int] = {}  # producer, with its partition → last number
        # By identity: the keys of messages whose last send has failed, so that what may have
        # arrived is not sent under another one.
        self._kept: dict[int, tuple[weakref.ref[AmqpAnnotatedMessage], str]] = {}
        self._kept_max = KEPT_MIN  # when to look for those whose messages are gone

    def take(
        self, entity: str, messages: list[AmqpAnnotatedMessage], now: float
    ) -> Numbered | None:
        """A key for each message of one send; None where the pairing gives none.

        A kept key is handed out once, so two sends of one message object at the same time never
        share it.  What is new goes where a kept one without another key has to go.
        """
        if not self._is_on:
            return None
        producer = self._producer_of(entity)
        buckets = [_bucket(message) for message in messages]
        kept = [self._take_kept(producer, *each) for each in zip(messages, buckets, strict=True)]
        home, is_asking = NO_PARTITION, False
        for bucket, key in zip(buckets, kept, strict=True):
            if bucket == NO_PARTITION and key is not None:
                home = chosen_partition(key.rpartition("/")[0])
        if home == NO_PARTITION and NO_PARTITION in buckets:
            home, is_asking = self._spreads[producer].choose(now)
        keys = [
            key or self._next_key(_name(producer, bucket, home))
            for bucket, key in zip(buckets, kept, strict=True)
        ]
        return Numbered(keys, is_asking and self.can_ask and not any(kept))

    def take_one(
        self, entity: str, message: AmqpAnnotatedMessage, now: float
    ) -> tuple[str, bool] | None:
        """As `take`, for a message that is sent alone, as most are: its key, and if it asks."""
        producer = self._producers.get(entity)
        properties = message.properties
        if (
            self._kept
            or producer is None
            or message.annotations
            or (properties is not None and properties.group_id is not None)
        ):
            numbered = self.take(entity, [message], now)
            return None if numbered is None else (numbered.keys[0], numbered.is_asking)
        home, is_asking = self._spreads[producer].choose(now)
        return self._next_key(producer_at(producer, home)), is_asking and self.can_ask

    def refused(self, entity: str, keys: list[str], now: float) -> None:
        """The partition that was chosen has not taken these, and none of them is anywhere."""
        spread = self._spreads[self._producer_of(entity)]
        chosen = {chosen_partition(key.rpartition("/")[0]) for key in keys}
        for partition in chosen - {NO_PARTITION}:
            spread.refused(partition, now)
        for key in reversed(keys):
            self._give_back(key)

    def keep(self, messages: list[AmqpAnnotatedMessage], keys: list[str]) -> None:
        """The outcome of the send is not known: these messages are known by these keys."""
        for message, key in zip(messages, keys, strict=True):
            self._kept[id(message)] = (weakref.ref(message), key)
        if len(self._kept) > self._kept_max:
            self._forget_the_dead()

    def _producer_of(self, entity: str) -> str:
        producer = self._producers.get(entity)
        if producer is None:
            producer = self._producers[entity] = f"{self._chance.getrandbits(96):024x}"
            self._spreads[producer] = Spread(self._chance)
        return producer

    def _next_key(self, name: str) -> str:
        number = self._last[name] = self._last.get(name, 0) + 1
        return f"{name}/{number}"

    def _give_back(self, key: str) -> None:
        """Nobody has seen this number: without it there would be a gap."""
        name, _, number = key.rpartition("/")
        if self._last.get(name) == int(number):
            self._last[name] -= 1

    def _take_kept(self, producer: str, message: AmqpAnnotatedMessage, bucket: int) -> str | None:
        reference, key = self._kept.get(id(message), (None, ""))
        if reference is None or reference() is not message:
            return None
        # Another producer: it was sent to another entity, or has another session by now.
        name = key.rpartition("/")[0]
        if name != _name(producer, bucket, chosen_partition(name)):
            return None
        del self._kept[id(message)]
        return key

    def _forget_the_dead(self) -> None:
        # Not by callbacks of the references: those run at any moment, in any thread.
        dead = [each for each, (reference, _) in self._kept.items() if reference() is None]
        for each in dead:
            del self._kept[each]
        self._kept_max = max(KEPT_MIN, 2 * len(self._kept))


def block_of(key: str | None, is_by_partition: bool = True) -> tuple[str, int]:
    """Messages without a session id or partition key may be sent together within one of these: all
    for one partition, or, of an earlier version, all of one producer and one run of numbers.

    A server parts those for several partitions, but can only refuse all of them.
    """
    producer, _, number = (key or "").rpartition("/")
    partition = chosen_partition(producer)
    if partition != NO_PARTITION:
        return "", partition if is_by_partition else NO_PARTITION
    return producer, int(number) // NUMBERED_RUN if number.isdecimal() else 0


def place_of(path: str, keys: Iterable[str | None]) -> str:
    """Where messages with these keys go: to one partition of an entity, or to several of them."""
    partitions: set[int] = set()
    for key in keys:
        producer = (key or "").rpartition("/")[0]
        partitions.add(chosen_partition(producer.replace("~", "@")))  # chosen, or by another key
    is_one = len(partitions) == 1 and NO_PARTITION not in partitions
    return f"{path}@{partitions.pop()}" if is_one else path


def _name(producer: str, bucket: int, home: int) -> str:
    """How a producer calls itself for the messages of one partition."""
    return producer_at(producer, home) if bucket == NO_PARTITION else f"{producer}~{bucket}"


def _bucket(message: AmqpAnnotatedMessage) -> int:
    """The partition of a message's key; NO_PARTITION if any will do."""
    key = _key_of(message)
    return NO_PARTITION if key is None else hash_key(key)


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
