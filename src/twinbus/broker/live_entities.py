"""The entities of a running store: new, changed, due, idle, gone."""

from collections.abc import Callable
from typing import Final

from twinbus.broker.auto_delete import IdleEntities, is_busy
from twinbus.broker.delivery import QueueReceivers
from twinbus.broker.forwarding import Forwarder
from twinbus.broker.receivers import StoreReceivers
from twinbus.broker.store_run import StoreRun
from twinbus.broker.timers import Timers
from twinbus.clock import Now
from twinbus.entities.queue import Queue
from twinbus.limits import PENDING_BYTES_MAX

# UTC may jump, so a timer that waits for a UTC time looks again at least this often.
TIMER_MS_MAX: Final = 5_000
# Bodies of scheduled messages that a topic fans out in one go.
DUE_SIZE_BYTES_MAX: Final = 4_194_304


class LiveEntities:
    """What happens to the entities of one store beside commands."""

    def __init__(self, run: StoreRun, receivers: StoreReceivers, forwarder: Forwarder) -> None:
        self.run = run
        self._receivers = receivers
        self._forwarder = forwarder
        self._idle = IdleEntities()
        self.timers = Timers()
        self.on_gone: Callable[[int], None] = _ignore  # it was deleted for being idle

    def note(self, queue: Queue) -> None:
        """The entity is new, or has a new description."""
        queue.join(self.run.codec, self.run.store.together_size_max)
        self._forwarder.note(queue)
        now = self.run.clock.now()
        self._idle.note(queue, now)
        self._receivers.refuse_if_forwarding(queue)
        self._watch(queue, now)
        self.run.touch(queue)  # the next turn knows what is due

    def note_all(self) -> None:
        """After a start: whatever was scheduled, locked or expiring gets its timer, and what was
        to be forwarded goes on."""
        for queue in self.run.store.entities.values():
            self.note(queue)

    def delete(self, queues: list[Queue]) -> None:
        """These go in one frame, topics with their subscriptions; then receivers hear of it.

        Not earlier: a receiver that hears of it gives back what it holds, and the reply to that
        must not be counted before the deletes are one fact.
        """
        gone = list(queues)
        for queue in queues:
            gone += queue.dependents()
        self.run.store.delete_entities([queue.entity_id for queue in queues])
        self.run.ask_for_turn()
        orphans: list[QueueReceivers] = []
        for each in gone:
            self._forwarder.forget(each)
            self._idle.forget(each)
            self.run.untouch(each)
            receivers = self._receivers.by_entity.pop(each.entity_id, None)
            if receivers is not None:
                orphans.append(receivers)
        for receivers in orphans:
            receivers.remove_all()

    def is_in_use(self, queue: Queue) -> bool:
        """Does somebody receive from it, or does anything forward from or to it?"""
        return is_busy(queue, self._receivers.by_entity, self._forwarder)

    # -- time --------------------------------------------------------------------------------------

    def arm(self, entity_id: int, due_ms: int, now: Now) -> None:
        """Look at this entity again when something about it is due."""
        self.timers.arm(entity_id, now.mono_ms + min(due_ms, TIMER_MS_MAX))

    def _watch(self, queue: Queue, now: Now) -> None:
        """What may be deleted for being idle is looked at again and again."""
        if queue.entity_id in self._idle.watched:
            self.arm(queue.entity_id, TIMER_MS_MAX, now)

    def tick(self) -> None:
        """Look at those whose time has come."""
        now = self.run.clock.now()
        while True:
            entity_id = self.timers.take_due(now.mono_ms)
            if entity_id == 0:
                return
            queue = self.run.store.entities.get(entity_id)
            if queue is None or self._delete_if_idle(queue, now):
                continue
            self._fan_out_due(queue, now)
            queue.tick(now)
            receivers = self._receivers.by_entity.get(entity_id)
            if receivers is not None:
                receivers.tick(now)
            self._watch(queue, now)
            self.run.touch(queue)

    def _fan_out_due(self, topic: Queue, now: Now) -> None:
        """What was scheduled in a topic goes to its subscriptions, a few megabytes at a time.

        It waits while the disk is full, or too much else is on its way there.
        """
        store = self.run.store
        if self.run.pending_bytes > PENDING_BYTES_MAX or not store.room_for(0):
            return
        messages = topic.take_due(DUE_SIZE_BYTES_MAX, now)
        if messages:
            topic.fan_out_due(messages, store.read_bodies(messages), now)
            self.run.pending_bytes += topic.copied_size_bytes
            store.room_for(topic.copied_size_bytes)

    def _delete_if_idle(self, queue: Queue, now: Now) -> bool:
        if queue.entity_id not in self._idle.watched:
            return False
        if self._idle.left_ms(queue, self.is_in_use(queue), now) > 0:
            return False
        self.delete([queue])
        self.on_gone(queue.entity_id)
        return True


def _ignore(entity_id: int) -> None:
    """For a broker whose entities nobody else keeps a list of."""
