"""Forwarding: what is ready in one entity moves on to another, in the broker's own turn.

    source: ready messages ─▶ target.apply, with an overlay that says where they come from
                           └▶ Removed at the source         both in one `Together`

A message is therefore in exactly one of the two, whatever is cut off when.  What cannot move goes
to the transfer dead-letter queue of its source, with the reason: the target is gone, disabled or
full, or the message has been forwarded too often, which is how circles end.  Messages wait where
they are only while the disk is full, or their source takes no receivers (its status says so).

Body, ids and application properties stay.  A message keeps what is left of its life; a dead letter,
whose life may be over, starts it anew.

What one frame cannot do is left alone here, and a relay carries it (gateway/transfer/relay.py):
from or to an entity with partitions, and to another store. What both do is in
entities/forwarded.py.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.commands import Send
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, gather
from twinbus.entities.fields import MessageCodec
from twinbus.entities.forwarded import (
    forwarded,
    read_keys,
    refusal,
    target_name,
    target_not_found,
    too_many_hops,
)
from twinbus.entities.message import Message, NewMessage, overlay_bytes
from twinbus.entities.partitions import NO_PARTITION, partition_name
from twinbus.entities.queue import Queue
from twinbus.errors import QuotaExceeded, ServiceError
from twinbus.links.sink import LARGE_BODY_BYTES
from twinbus.storage.store import Store

# So many move in one go; large bodies then take a few megabytes, as deliveries do.
CHUNK: Final = 64
CHUNK_LARGE: Final = 4
OVERHEAD_BYTES: Final = 256  # what the facts of one move take beyond the body


class Forwarder:
    """Moves messages between the entities of one store."""

    def __init__(
        self, store: Store, codec: MessageCodec | None, is_one_of_many: bool = False
    ) -> None:
        self._is_one_of_many = is_one_of_many  # then a target that is not here may be elsewhere
        self._store = store
        self._codec = codec
        self.sources: dict[int, Queue] = {}
        self.stalled: set[int] = set()  # sources that wait for room on the disk
        self._large: set[int] = set()  # sources whose last chunk had large bodies

    def note(self, queue: Queue) -> None:
        """The entity is new or has a new description."""
        description = queue.description
        forwards = description.forward_to or description.forward_dead_lettered_messages_to
        if forwards and queue.partition == NO_PARTITION:
            self.sources[queue.entity_id] = queue
            self._large.add(queue.entity_id)  # at first we do not know
        else:
            self.forget(queue)

    def forget(self, queue: Queue) -> None:
        self.sources.pop(queue.entity_id, None)
        self.stalled.discard(queue.entity_id)
        self._large.discard(queue.entity_id)

    def concerns(self, queue: Queue) -> bool:
        """Is it the source or the target of any forwarding?"""
        if queue.entity_id in self.sources:
            return True
        return any(queue in self._targets(source) for source in self.sources.values())

    def _targets(self, source: Queue) -> list[Queue | None]:
        description = source.description
        names = (description.forward_to, description.forward_dead_lettered_messages_to)
        return [self._target(source, name) for name in names if name is not None]

    def _target(self, source: Queue, name: str) -> Queue | None:
        """An entity by its name in the namespace of the source."""
        entity_id = self._store.names.get(target_name(source.name, name).lower(), 0)
        return self._store.entities.get(entity_id)

    def _is_for_relay(self, source: Queue, name: str) -> bool:
        """Is the target one that no frame of this store reaches?"""
        if self._target(source, name) is not None:
            return False
        first = partition_name(target_name(source.name, name), 0).lower()
        return self._is_one_of_many or first in self._store.names

    # -- moving ----------------------------------------------------------------------------------

    def move(self, source: Queue, now: Now) -> int:
        """Move what is ready, a chunk at most; returns how many messages went."""
        self.stalled.discard(source.entity_id)
        description = source.description
        moved = 0
        if description.forward_to is not None:
            moved += self._move(source, MAIN, description.forward_to, now)
        if description.forward_dead_lettered_messages_to is not None:
            name = description.forward_dead_lettered_messages_to
            moved += self._move(source, DEAD_LETTER, name, now)
        return moved

    def _move(self, source: Queue, subqueue: int, name: str, now: Now) -> int:
        if not source.has_ready(subqueue) or self._is_for_relay(source, name):
            return 0
        is_large = source.entity_id in self._large
        messages = source.take_ready(subqueue, CHUNK_LARGE if is_large else CHUNK, now)
        if not messages:
            return 0
        count, size = _fitting(messages, self._store.together_size_max // 4)
        if count < len(messages):  # they go next; all of a chunk must fit into one frame
            source.put_back(subqueue, messages[count:])
            del messages[count:]
        if not self._store.room_for(size):
            source.put_back(subqueue, messages)
            self.stalled.add(source.entity_id)
            return 0
        if messages[-1].length > LARGE_BODY_BYTES:
            self._large.add(source.entity_id)
        else:
            self._large.discard(source.entity_id)
        target = self._target(source, name)
        if target is None or target is source:
            self._fail(source, subqueue, messages, target_not_found(name))
            return len(messages)
        fresh: list[Message] = []
        for message in messages:
            overlay = too_many_hops(message)
            if overlay is not None:
                source.dead_letter(subqueue, [message], overlay, TRANSFER_DEAD_LETTER)
            else:
                fresh.append(message)
        if fresh:
            self._hand_over(source, subqueue, fresh, target, now)
        return len(messages)

    def _hand_over(
        self, source: Queue, subqueue: int, messages: list[Message], target: Queue, now: Now
    ) -> None:
        """All at once if they are let in, else one by one."""
        bodies = self._store.read_bodies(messages)
        news: list[NewMessage] = []
        for message, body in zip(messages, bodies, strict=True):
            new = forwarded(source.name, subqueue, message, body, now)
            if target.needs_keys and self._codec is not None:
                read_keys(new, self._codec)
            news.append(new)
        try:
            self._send(source, subqueue, messages, news, target, now)
        except ServiceError as error:
            if len(messages) == 1:
                self._fail(source, subqueue, messages, error)
                return
            for message, new in zip(messages, news, strict=True):
                try:
                    self._send(source, subqueue, [message], [new], target, now)
                except ServiceError as refused:
                    self._fail(source, subqueue, [message], refused)

    def _send(
        self,
        source: Queue,
        subqueue: int,
        messages: list[Message],
        news: list[NewMessage],
        target: Queue,
        now: Now,
    ) -> None:
        check_copies(self._store, target, news, now)
        facts = self._store.facts
        mark = len(facts)
        target.apply(Send(target.entity_id, news), now)
        source.remove(subqueue, messages)
        gather(facts, mark)

    def _fail(
        self, source: Queue, subqueue: int, messages: list[Message], error: ServiceError
    ) -> None:
        """Where the target refuses, messages wait for somebody to look at them."""
        source.dead_letter(subqueue, messages, refusal(error), TRANSFER_DEAD_LETTER)


def check_copies(store: Store, target: Queue, messages: list[NewMessage], now: Now) -> None:
    """Refuse what would not fit into one frame once a topic has made its copies."""
    size = target.copied_bytes(messages, now)
    if size > store.together_size_max // 2:
        raise QuotaExceeded(f"The copies take {size} bytes, too many for one commit.")


def check_carried(store: Store, queue: Queue, command: Send, now: Now) -> None:
    """Refuse a send from another store if its messages, with their numbers, are not one frame."""
    size = 0
    for message in command.messages:
        size += len(message.body) + overlay_bytes(message.overlay) + OVERHEAD_BYTES
    if size > store.together_size_max // 2 and len(command.messages) > 1:
        raise QuotaExceeded(f"The messages take {size} bytes, too many for one commit.")
    check_copies(store, queue, command.messages, now)


def _fitting(messages: list[Message], size_max: int) -> tuple[int, int]:
    """How many of the first messages have room in so many bytes, one at least, and their size."""
    size = 0
    for count, message in enumerate(messages):
        grown = size + message.length + overlay_bytes(message.overlay) + OVERHEAD_BYTES
        if grown > size_max and count:
            return count, size
        size = grown
    return len(messages), size
