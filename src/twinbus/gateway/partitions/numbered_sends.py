"""Sends to a partitioned entity that have no key, but are numbered by their producer.

A copy is known again only in the partition where the first one is (entities/arrivals.py).  So a
number belongs to one partition, its home, for ever.  The producer chooses it before it numbers:
messages spread evenly, because producers take the partitions in turn.

    asking      the producer can still choose another home, since no copy of the message can have
                arrived: a home that is full, busy or not well refuses it
    insisting   a copy may be there already, or may come later from elsewhere, as with everything
                that a syphon moves: it goes home and nowhere else

What insists is helped where it goes.  If its home is not well, the home's journal takes it.  If its
home is full, it may use the room that other partitions have left: the entity's size is what counts.

A refusal is PartitionRefused where another partition takes messages at this moment, which a ping
tells: then a producer can choose that one, and a syphon can go on with what belongs there.
Otherwise the trouble is the whole entity's, and the client hears what it is.

Must never store a message at another partition than its home: nobody would know a copy.
"""

from typing import Final

from twinbus.entities.commands import GetRuntime, Reply, Runtime, Send
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.entities.partitions import NO_PARTITION, PARTITION_COUNT, home_of
from twinbus.errors import PartitionRefused, QuotaExceeded, ServerBusy, ServiceError, Unavailable
from twinbus.gateway.directory.directory import Entity, Part
from twinbus.gateway.partitions.fan_out import Gather, Routes, shown
from twinbus.gateway.partitions.split_sends import SEVERAL, SplitSend
from twinbus.links.store_link import DOWN, SLOW, UP

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
    home = command.partition  # as `deal` has found it, which looks at every message
    if home < 0:
        home = numbered_partition(command.messages)
    if home == SEVERAL:
        homes = [max(0, home_of(message.producer_key)) for message in command.messages]
        SplitSend(gateway, entity, command, homes, send_numbered).start()
        return
    command.partition = home
    send_home(gateway, entity, command)


def send_home(gateway: Routes, entity: Entity, command: Send) -> None:
    """To the partition it belongs to, or to where the gateway takes it meanwhile."""
    part = entity.parts[command.partition]
    health = gateway.links[part.store].health
    if health != UP and _is_asking(command):
        _Search(gateway, entity, command, _not_well(entity, part)).begin()
    elif health != UP and gateway.divert(entity, part, command):
        return
    elif health == DOWN:
        _Search(gateway, entity, command, _not_well(entity, part)).begin()
    else:
        _Numbered(gateway, entity, command).send()


class _Numbered:
    """A send to its home, whose refusal is looked at."""

    __slots__ = ("_command", "_context", "_entity", "_gateway", "_is_submitting")

    def __init__(self, gateway: Routes, entity: Entity, command: Send) -> None:
        self._gateway = gateway
        self._entity = entity
        self._command = command
        self._context = command.context
        self._is_submitting = False
        command.context = (self, None)

    def send(self) -> None:
        part = self._entity.parts[self._command.partition]
        self._command.entity_id = part.entity_id
        self._is_submitting = True
        self._gateway.links[part.store].submit([self._command])
        self._is_submitting = False

    def replied(self, reply: Reply, rest: object) -> None:
        command, error = self._command, reply.error
        command.context = self._context
        # What was refused at once has certainly not been stored.
        is_down = self._is_submitting and isinstance(error, Unavailable)
        is_busy = self._is_submitting and isinstance(error, ServerBusy)
        is_full = isinstance(error, QuotaExceeded)
        if error is not None and (is_down or (_is_asking(command) and (is_busy or is_full))):
            _Search(self._gateway, self._entity, command, error).begin()
        elif error is not None and _may_use_other_room(command) and is_full:
            _RoomSearch(self._gateway, self._entity, command, error).begin_round()
        else:
            self._gateway.answer(reply)


class _Search:
    """Looks for another partition that takes messages, to give the right refusal."""

    __slots__ = ("_command", "_entity", "_error", "_gateway", "_step")

    def __init__(self, gateway: Routes, entity: Entity, command: Send, error: ServiceError) -> None:
        self._gateway = gateway
        self._entity = entity
        self._command = command
        self._error = error
        self._step = 0

    def begin(self) -> None:
        """Ask the next one that is well."""
        entity, command = self._entity, self._command
        while self._step < PARTITION_COUNT - 1:
            self._step += 1
            part = entity.parts[(command.partition + self._step) % PARTITION_COUNT]
            link = self._gateway.links[part.store]
            if link.health == UP:
                ping = _ping(_body_bytes(command))
                link.submit([Send(part.entity_id, [ping], (self, None))])
                return
        self._found_none()

    def replied(self, reply: Reply, rest: object) -> None:
        if reply.error is not None:
            self.begin()
            return
        text = f"{self._error} Other partitions of '{shown(self._entity)}' take messages."
        self._gateway.answer(Reply(self._command, None, PartitionRefused(text)))

    def _found_none(self) -> None:
        """If its home is only slow, it is as good as any."""
        command = self._command
        part = self._entity.parts[command.partition]
        if self._gateway.links[part.store].health != SLOW:
            self._gateway.answer(Reply(command, None, self._error))
        elif not self._gateway.divert(self._entity, part, command):
            command.entity_id = part.entity_id
            self._gateway.links[part.store].submit([command])


class _RoomSearch(Gather):
    """Is there room for a send in the entity as a whole?  Then its home takes it."""

    __slots__ = ("_error", "_send")

    def __init__(self, gateway: Routes, entity: Entity, command: Send, error: ServiceError) -> None:
        super().__init__(gateway, entity, command)
        self._send = command
        self._error = error

    def begin_round(self) -> None:
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
        if _body_bytes(send) > room_bytes:
            self.answer(None, self._error)
            return
        send.has_room = True
        part = self.entity.parts[send.partition]
        self.gateway.links[part.store].submit([send])


def _is_asking(command: Send) -> bool:
    key = command.messages[0].producer_key
    return key is not None and key.is_asking


def _may_use_other_room(command: Send) -> bool:
    """Whether it has no key: what has one belongs to its partition's own size."""
    first = command.messages[0]
    return first.session_id is None and first.partition_key is None and not command.has_room


def _size_bytes(result: object) -> int:
    assert isinstance(result, list)
    (runtime,) = result
    return runtime.size_bytes if isinstance(runtime, Runtime) else 0


def _body_bytes(command: Send) -> int:
    return sum([len(message.body) for message in command.messages])


def _ping(size_bytes: int) -> NewMessage:
    """To be checked like a message of this size, and then forgotten."""
    message = NewMessage(bytes(size_bytes))
    message.producer_key = ProducerKey("", 0, is_ping=True)
    return message


def _not_well(entity: Entity, part: Part) -> Unavailable:
    return Unavailable(
        f"Partition {part.partition} of '{shown(entity)}', to which the message belongs, is not "
        "well. Nothing was stored; send it again later."
    )
