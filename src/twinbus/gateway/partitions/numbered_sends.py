"""Sends to a partitioned entity that have no key, but are numbered by their producer.

A copy is known again only in the partition where the first one is (entities/arrivals.py).  So a
number belongs to one partition, its home, for ever.  The producer chooses it before it numbers:
messages spread evenly, because producers take the partitions in turn.

    asking      the producer can still choose another home, since no copy of the message can have
                arrived: a home that does not take it at once refuses it (PartitionRefused)
    insisting   a copy may be there already, or may come later from elsewhere, as with everything
                that a syphon moves: it goes home and nowhere else

What insists is helped where it goes.  If its home is not well, the home's journal takes it.  If its
home is full, it may use the room that other partitions have left: the entity's size is what counts.

Must never store a message at another partition than its home: nobody would know a copy.
"""

from typing import Final

from twinbus.entities.commands import GetRuntime, Reply, Runtime, Send
from twinbus.entities.message import NewMessage
from twinbus.entities.partitions import NO_PARTITION, home_of
from twinbus.errors import (
    DiskFull,
    PartitionRefused,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions.fan_out import Gather, Routes, shown
from twinbus.gateway.partitions.split_sends import SEVERAL, SplitSend
from twinbus.links.store_link import DOWN, UP

MEGABYTE: Final = 1 << 20


def numbered_partition(messages: list[NewMessage]) -> int:
    """The home of a delivery without a key; NO_PARTITION if its first message has none.

    SEVERAL if messages of different producers have different homes.
    """
    first = messages[0].producer_key if messages else None
    home = home_of(first)
    if home != NO_PARTITION:
        for message in messages:
            key = message.producer_key
            if key is None or first is None or key.producer == first.producer:
                continue
            if home_of(key) not in (home, NO_PARTITION):
                return SEVERAL
    return home


def send_numbered(gateway: Routes, entity: Entity, command: Send) -> None:
    """To its home; messages with different homes go their own ways."""
    home = numbered_partition(command.messages)
    if home == SEVERAL:
        homes = [max(0, home_of(message.producer_key)) for message in command.messages]
        SplitSend(gateway, entity, command, homes, send_numbered).start()
        return
    command.partition = home
    part = entity.parts[home]
    health = gateway.links[part.store].health
    key = command.messages[0].producer_key
    if key is not None and key.is_asking:
        if health != UP:
            raise _refusal(entity, home, "Its store is not well.")
        _Asking(gateway, entity, command).send()
        return
    if health != UP and gateway.divert(entity, part, command):
        return
    if health == DOWN:
        raise Unavailable(
            f"Partition {home} of '{shown(entity)}' is down, and a copy of this message may be "
            "there. Nothing was stored now: send it again later."
        )
    _Insisting(gateway, entity, command).send()


class _Numbered:
    """Base: a send to its home whose refusal is looked at."""

    __slots__ = ("_context", "command", "entity", "gateway", "is_submitting")

    def __init__(self, gateway: Routes, entity: Entity, command: Send) -> None:
        self.gateway = gateway
        self.entity = entity
        self.command = command
        self.is_submitting = False
        self._context = command.context
        command.context = (self, None)

    def send(self) -> None:
        part = self.entity.parts[self.command.partition]
        self.command.entity_id = part.entity_id
        self.is_submitting = True
        self.gateway.links[part.store].submit([self.command])
        self.is_submitting = False

    def replied(self, reply: Reply, rest: object) -> None:
        self.command.context = self._context
        if reply.error is not None and self.mends(reply.error):
            return
        self.gateway.answer(reply)

    def mends(self, error: ServiceError) -> bool:
        """True: there will be another answer than this refusal."""
        raise NotImplementedError


class _Asking(_Numbered):
    """Whatever certainly was not stored may go to another partition."""

    __slots__ = ()

    def mends(self, error: ServiceError) -> bool:
        is_refused_at_once = self.is_submitting and isinstance(error, Unavailable | ServerBusy)
        if not is_refused_at_once and not isinstance(error, QuotaExceeded):
            return False
        refusal = _refusal(self.entity, self.command.partition, str(error))
        self.gateway.answer(Reply(self.command, None, refusal))
        return True


class _Insisting(_Numbered):
    """Where its home is full, it asks for room elsewhere."""

    __slots__ = ()

    def mends(self, error: ServiceError) -> bool:
        is_full = isinstance(error, QuotaExceeded) and not isinstance(error, DiskFull)
        if not is_full or self.command.has_room:
            return False
        _RoomSearch(self.gateway, self.entity, self.command, error).start()
        return True


class _RoomSearch(Gather):
    """Is there room for a send in the entity as a whole?  Then its home takes it."""

    __slots__ = ("_error", "_send")

    def __init__(self, gateway: Routes, entity: Entity, command: Send, error: ServiceError) -> None:
        super().__init__(gateway, entity, command)
        self._send = command
        self._error = error

    def start(self) -> None:
        for part in self.entity.parts:
            if self.gateway.links[part.store].health == UP:  # any other has no room to offer
                question = GetRuntime([part.entity_id])
                self.ask(part.partition, question)
                question.entity_id = 0  # it is the store that answers it
        self.begin()

    def gathered(self, replies: list[Reply]) -> None:
        send = self._send
        share_bytes = self.entity.description.max_size_megabytes * MEGABYTE
        room_bytes = 0
        for reply in replies:
            if reply.error is None:
                room_bytes += share_bytes - _size_bytes(reply.result)
        if sum([len(message.body) for message in send.messages]) > room_bytes:
            self.answer(None, self._error)
            return
        send.has_room = True
        part = self.entity.parts[send.partition]
        self.gateway.links[part.store].submit([send])


def _size_bytes(result: object) -> int:
    assert isinstance(result, list)
    (runtime,) = result
    return runtime.size_bytes if isinstance(runtime, Runtime) else 0


def _refusal(entity: Entity, partition: int, reason: str) -> PartitionRefused:
    return PartitionRefused(
        f"Partition {partition} of '{shown(entity)}' does not take the message: {reason} Nothing "
        "was stored; another partition may take it."
    )
