"""Sends to a partitioned entity: which partition gets a message, and what if it is unhealthy.

    key (E-3)    session id, else partition key, else the message id where duplicates are detected
    keyed        to the partition of the key and to no other: its order and its repeats are there
    no key       round robin over the partitions that are well (E-6, E-7)
    numbered     by its producer, and no key: to the partition of the number, because only there a
                 copy is known again (entities/arrivals.py).  If that is not well, into its journal;
                 if there can be none, and it is down, to the next partition that is well.  Full or
                 busy it refuses, as a plain queue does: a copy might find it otherwise

The messages of one delivery go to one partition, in one step.  Only where message ids are the keys
is a delivery split: if a part of it is refused, the client sends all of it again, and the messages
that were stored are dropped as duplicates.

Must never resend a message that may have been stored: that is for the client to decide.
"""

from typing import Final

from twinbus.entities.commands import Command, Reply, Send
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import (
    NO_PARTITION,
    PARTITION_COUNT,
    hash_key,
    key_of,
    numbered_partition,
)
from twinbus.errors import (
    DiskFull,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.partitions.fan_out import Gather, Routes, all_down, shown
from twinbus.links.store_link import DOWN, SLOW, UP, StoreLink

UNKEYED: Final = -1  # in place of a partition: any will do
SPLIT: Final = -2  # in place of a partition: the messages belong to several


# --- choosing ---------------------------------------------------------------------------------


def key_partition(entity: Entity, messages: list[NewMessage]) -> int:
    """Where the keys of one delivery lead; UNKEYED or SPLIT if that is not one partition."""
    by_message_id = entity.description.requires_duplicate_detection
    if len(messages) == 1:
        key = key_of(messages[0], by_message_id)
        return UNKEYED if key is None else hash_key(key)
    if by_message_id and _are_keyed_by_id(messages):
        partitions = {hash_key(message.message_id or "") for message in messages}
        return partitions.pop() if len(partitions) == 1 else SPLIT
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
    partition = _well_partition(links, entity, entity.cursor, tried)
    entity.cursor = (partition + 1) % PARTITION_COUNT
    return partition


def _well_partition(links: list[StoreLink], entity: Entity, start: int, tried: int) -> int:
    """The first partition from `start` on that is well, else one that is slow."""
    slow = UNKEYED
    partition = start
    for _ in range(PARTITION_COUNT):
        if not tried >> partition & 1:
            health = links[entity.parts[partition].store].health
            if health == UP:
                return partition
            if health == SLOW and slow == UNKEYED:
                slow = partition
        partition = (partition + 1) % PARTITION_COUNT
    if slow == UNKEYED:
        raise all_down(entity)
    return slow


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
    numbered: dict[int, list[int]] = {}  # apart from the keyed: `route_send` may choose another
    unkeyed: list[int] = []
    alone: list[tuple[int, list[int]]] = []
    for index, messages in enumerate(deliveries):
        try:
            partition = key_partition(entity, messages)
        except InvalidOperation:
            partition = SPLIT
        if partition == UNKEYED:
            partition = numbered_partition(messages)
            if partition == NO_PARTITION:
                unkeyed.append(index)
            else:
                numbered.setdefault(partition, []).append(index)
        elif partition == SPLIT:
            alone.append((UNKEYED, [index]))
        else:
            keyed.setdefault(partition, []).append(index)
    return [*keyed.items(), *numbered.items(), *_runs(links, entity, unkeyed), *alone]


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
        if partition == SPLIT:
            _SplitSend(gateway, entity, command).start()
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
    elif numbered_partition(command.messages) != NO_PARTITION:
        _send_numbered(gateway, entity, command)
    else:
        if partition == UNKEYED or links[entity.parts[partition].store].health != UP:
            partition = next_partition(links, entity)
        command.partition = partition
        _Evasion(gateway, entity, command).send()


def send_keyed(gateway: Routes, entity: Entity, command: Send) -> None:
    """To the partition of the key, or to where the gateway takes it meanwhile."""
    if not gateway.divert(entity, entity.parts[command.partition], command):
        _send_to(gateway, entity, command)


def _send_numbered(gateway: Routes, entity: Entity, command: Send) -> None:
    """To the partition of the first number, also through its journal; elsewhere if it must be."""
    partition = numbered_partition(command.messages)
    part = entity.parts[partition]
    health = gateway.links[part.store].health
    command.partition = partition
    if health != UP and gateway.divert(entity, part, command):
        return
    if health == DOWN:
        command.partition = _well_partition(gateway.links, entity, partition, 0)
    _Evasion(gateway, entity, command).send()


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
        numbered = numbered_partition(command.messages)
        if numbered != NO_PARTITION and not is_down:
            return False
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
            if numbered == NO_PARTITION:
                command.partition = next_partition(links, self._entity, self._tried)
            else:  # a copy that has to evade, too, takes the same way
                command.partition = _well_partition(links, self._entity, numbered, self._tried)
        except Unavailable:
            return False
        return True


class _SplitSend(Gather):
    """A delivery whose message ids belong to several partitions."""

    __slots__ = ("_places", "_sends")

    def __init__(self, gateway: Routes, entity: Entity, command: Send) -> None:
        super().__init__(gateway, entity, command)
        self._places: list[list[int]] = []  # for each send, where its messages were
        self._sends: list[Send] = []
        places: dict[int, list[int]] = {}
        for place, message in enumerate(command.messages):
            places.setdefault(hash_key(message.message_id or ""), []).append(place)
        for partition, found in places.items():
            send = Send(0, [command.messages[place] for place in found])
            send.partition = partition
            self._places.append(found)
            self._sends.append(send)

    def start(self) -> None:
        self.expect(len(self._sends))
        for index, send in enumerate(self._sends):
            send.context = (self, index)
            try:
                send_keyed(self.gateway, self.entity, send)
            except Unavailable as error:
                self.replied(Reply(send, None, error), index)

    def gathered(self, replies: list[Reply]) -> None:
        self.answer_in_order(self._places, replies)
