"""Sends to a partitioned entity: which partition gets a message, and what if it is unhealthy.

    key (E-3)    session id, else partition key, else the message id where duplicates are detected
    keyed        to the partition of the key and to no other: its order and its repeats are there
    no key       round robin over the partitions that are well (E-6, E-7)
    numbered     by its producer, and no key: where the producer says (numbered_sends.py)

The messages of one delivery go to one partition, in one step.  Only where message ids are the keys
is a delivery split: if a part of it is refused, the client sends all of it again, and the messages
that were stored are dropped as duplicates.

Must never resend a message that may have been stored: that is for the client to decide.
"""

from typing import Final

from twinbus.entities.commands import Command, Reply, Send
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import NO_PARTITION, PARTITION_COUNT, hash_key, home_of, key_of
from twinbus.errors import (
    DiskFull,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.partitions.fan_out import Routes, all_down, shown
from twinbus.gateway.partitions.numbered_sends import numbered_partition, send_home, send_numbered
from twinbus.gateway.partitions.split_sends import SEVERAL, SplitSend
from twinbus.links.store_link import DOWN, SLOW, UP, StoreLink

UNKEYED: Final = -1  # in place of a partition: any will do


# --- choosing ---------------------------------------------------------------------------------


def key_partition(entity: Entity, messages: list[NewMessage]) -> int:
    """Where the keys of one delivery lead; UNKEYED or SEVERAL if that is not one partition."""
    by_message_id = entity.description.requires_duplicate_detection
    if len(messages) == 1:
        key = key_of(messages[0], by_message_id)
        return UNKEYED if key is None else hash_key(key)
    if by_message_id and _are_keyed_by_id(messages):
        partitions = {hash_key(message.message_id or "") for message in messages}
        return partitions.pop() if len(partitions) == 1 else SEVERAL
    keys = {key_of(message, by_message_id) for message in messages}
    if len(keys) > 1:
        raise InvalidOperation(
            "All messages of a batch must have the same partition key or session id, or none; "
            "send those with different keys one by one or in batches of their own."
        )
    common = keys.pop() if keys else None
    return UNKEYED if common is None else hash_key(common)


def _are_keyed_by_id(messages: list[NewMessage]) -> bool:
    for message in messages:
        if message.session_id is not None or message.partition_key is not None:
            return False
    return True


def next_partition(links: list[StoreLink], entity: Entity, tried: int = 0) -> int:
    """Whose turn it is to take what has no key: the next one that is well, else one that is slow.

    `tried` has a bit for each partition that is not to be asked again.
    """
    found = UNKEYED
    for step in range(PARTITION_COUNT):
        partition = (entity.cursor + step) % PARTITION_COUNT
        if tried >> partition & 1:
            continue
        health = links[entity.parts[partition].store].health
        if health == UP:
            found = partition
            break
        if health == SLOW and found == UNKEYED:
            found = partition
    if found == UNKEYED:
        raise all_down(entity)
    entity.cursor = (found + 1) % PARTITION_COUNT
    return found


def check_not_down(links: list[StoreLink], entity: Entity, part: Part) -> None:
    """Refuse what belongs to this partition and to no other, if it is down (E-5)."""
    if links[part.store].health == DOWN:
        raise Unavailable(
            f"Partition {part.partition} of '{shown(entity)}', to which messages with this key "
            "belong, is down. Nothing was stored: send again later, or, if the order does not "
            "matter, without a session id and partition key."
        )


def deal(
    links: list[StoreLink], entity: Entity, deliveries: list[list[NewMessage]]
) -> list[tuple[int, list[int]]]:
    """Which deliveries of one read go where: partitions, each with indices in order.

    Those without a key are dealt in runs, so that a read makes a few sends and not many.  −1 in
    place of a partition: `route` is to look at this one by itself; it is refused, or split.
    """
    keyed: dict[int, list[int]] = {}
    numbered: dict[tuple[int, bool], list[int]] = {}  # apart from the keyed: they may be refused
    unkeyed: list[int] = []
    alone: list[tuple[int, list[int]]] = []
    for index, messages in enumerate(deliveries):
        try:
            partition = key_partition(entity, messages)
        except InvalidOperation:
            partition = SEVERAL
        if partition == UNKEYED:
            partition = numbered_partition(messages)
            if partition == NO_PARTITION:
                unkeyed.append(index)
                continue
            if partition != SEVERAL:
                key = messages[0].producer_key
                is_asking = key is not None and key.is_asking
                numbered.setdefault((partition, is_asking), []).append(index)
                continue
        if partition == SEVERAL:
            alone.append((UNKEYED, [index]))
        else:
            keyed.setdefault(partition, []).append(index)
    homes = [(partition, indices) for (partition, _), indices in numbered.items()]
    return [*keyed.items(), *homes, *_runs(links, entity, unkeyed), *alone]


def _runs(
    links: list[StoreLink], entity: Entity, indices: list[int]
) -> list[tuple[int, list[int]]]:
    length = (len(indices) + PARTITION_COUNT - 1) // PARTITION_COUNT
    dealt: dict[int, list[int]] = {}
    try:
        for start in range(0, len(indices), max(1, length)):
            partition = next_partition(links, entity)
            dealt.setdefault(partition, []).extend(indices[start : start + length])
    except Unavailable:
        return [(UNKEYED, [index]) for index in indices]  # each is to hear it
    return list(dealt.items())


# --- sending ----------------------------------------------------------------------------------


def route_send(gateway: Routes, entity: Entity, command: Command) -> None:
    """Send to the partition that `deal` has found, or find it now."""
    assert isinstance(command, Send)
    links = gateway.links
    partition = command.partition
    if not command.messages:
        gateway.answer(Reply(command, [], None))
        return
    if partition < 0:
        partition = key_partition(entity, command.messages)
        if partition == SEVERAL:
            partitions = [hash_key(message.message_id or "") for message in command.messages]
            SplitSend(gateway, entity, command, partitions, send_keyed).start()
            return
        is_keyed = partition != UNKEYED
    else:
        by_message_id = entity.description.requires_duplicate_detection
        is_keyed = key_of(command.messages[0], by_message_id) is not None
    if command.carrier:
        # What is carried over is known again by its partition: the one it was tried at first.
        if partition == UNKEYED:
            partition = next_partition(links, entity)
        command.partition = partition
        _send_to(gateway, entity, command)
    elif is_keyed:
        command.partition = partition
        send_keyed(gateway, entity, command)
    elif home_of(command.messages[0].producer_key) != NO_PARTITION:
        send_numbered(gateway, entity, command)
    else:
        if partition == UNKEYED or links[entity.parts[partition].store].health != UP:
            partition = next_partition(links, entity)
        command.partition = partition
        _Evasion(gateway, entity, command).send()


def send_keyed(gateway: Routes, entity: Entity, command: Send) -> None:
    """To the partition of the key, or to where the gateway takes it meanwhile."""
    if gateway.divert(entity, entity.parts[command.partition], command):
        return
    key = command.messages[0].producer_key
    if key is None or key.is_ping:
        _send_to(gateway, entity, command)
    else:
        send_home(gateway, entity, command)


def _send_to(gateway: Routes, entity: Entity, command: Send) -> None:
    part = entity.parts[command.partition]
    check_not_down(gateway.links, entity, part)
    command.entity_id = part.entity_id
    gateway.links[part.store].submit([command])


class _Evasion:
    """A send without a key.  A partition that certainly has not taken it is passed over."""

    __slots__ = ("_command", "_context", "_entity", "_gateway", "_is_asking", "_tried")

    def __init__(self, gateway: Routes, entity: Entity, command: Send) -> None:
        self._gateway = gateway
        self._entity = entity
        self._command = command
        self._context = command.context
        self._tried = 0
        self._is_asking = False
        command.context = (self, None)

    def send(self) -> None:
        command = self._command
        part = self._entity.parts[command.partition]
        command.entity_id = part.entity_id
        self._is_asking = True
        self._gateway.links[part.store].submit([command])
        self._is_asking = False

    def replied(self, reply: Reply, rest: object) -> None:
        if reply.error is not None and self._moves_on(reply.error):
            self.send()
            return
        self._command.context = self._context
        self._gateway.answer(reply)

    def _moves_on(self, error: ServiceError) -> bool:
        """Is there another partition to try?  One that is full or refuses at once has nothing."""
        parts, command = self._entity.parts, self._command
        store = parts[command.partition].store
        is_refused_at_once = self._is_asking and isinstance(error, Unavailable | ServerBusy)
        is_down = is_refused_at_once and self._gateway.links[store].health == DOWN
        if isinstance(error, DiskFull) or is_down:
            for part in parts:
                if part.store == store:
                    self._tried |= 1 << part.partition
        elif is_refused_at_once or isinstance(error, QuotaExceeded):
            self._tried |= 1 << command.partition
        else:
            return False
        links = self._gateway.links
        try:
            command.partition = next_partition(links, self._entity, self._tried)
        except Unavailable:
            return False
        return True
