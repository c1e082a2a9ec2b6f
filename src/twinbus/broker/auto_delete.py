"""Entities that are deleted when nobody has used them for a while (auto-delete on idle).

Use of a queue is sending, receiving, peeking, settling, or being told a new description; of a
subscription the same without what its topic puts into it; of a topic also the use of any of its
subscriptions.  The time counts on the monotonic clock, so a jump of UTC deletes nothing; a restart
counts as use, because nobody could use anything before it.

A partition is left alone: whether its entity is idle shows only over all of them, at the gateway.

Keeps the time and deletes nothing: that is the broker's.
"""

from collections.abc import Container

from twinbus.broker.forwarding import Forwarder
from twinbus.clock import Now
from twinbus.entities.message import NEVER_MS
from twinbus.entities.partitions import NO_PARTITION
from twinbus.entities.queue import Queue


class Watch:
    """Since when an entity is idle, as far as we have looked."""

    __slots__ = ("accessed_utc_ms", "since_ms")

    def __init__(self, accessed_utc_ms: int, since_ms: int) -> None:
        self.accessed_utc_ms = accessed_utc_ms  # what the entity said when we looked last
        self.since_ms = since_ms  # monotonic


class IdleEntities:
    """The entities with an end to their patience."""

    def __init__(self) -> None:
        self.watched: dict[int, Watch] = {}

    def note(self, queue: Queue, now: Now) -> None:
        """The entity is new or has a new description, or a server has just started."""
        is_whole = queue.partition == NO_PARTITION
        if queue.description.auto_delete_on_idle_ms == NEVER_MS or not is_whole:
            self.watched.pop(queue.entity_id, None)
        else:
            self.watched[queue.entity_id] = Watch(_accessed(queue), now.mono_ms)

    def forget(self, queue: Queue) -> None:
        self.watched.pop(queue.entity_id, None)

    def left_ms(self, queue: Queue, is_busy: bool, now: Now) -> int:
        """How long it may stay idle from now on; 0 when its time is over."""
        watch = self.watched[queue.entity_id]
        accessed_utc_ms = _accessed(queue)
        if is_busy or accessed_utc_ms != watch.accessed_utc_ms:
            watch.accessed_utc_ms = accessed_utc_ms
            watch.since_ms = now.mono_ms
        end_ms = watch.since_ms + queue.description.auto_delete_on_idle_ms
        return max(0, end_ms - now.mono_ms)


def _accessed(queue: Queue) -> int:
    return max(each.accessed_utc_ms for each in [queue, *queue.dependents()])


def is_busy(queue: Queue, received_from: Container[int], forwarder: Forwarder) -> bool:
    """Is it in use even if nothing happens to it?"""
    if queue.entity_id in received_from or forwarder.concerns(queue):
        return True
    if queue.counts().scheduled > 0:
        return True
    return any(is_busy(each, received_from, forwarder) for each in queue.dependents())
