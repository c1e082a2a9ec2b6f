"""The receivers of a store: opened, given credit, closed; and who waits for a session."""

from functools import partial

from twinbus.broker.delivery import QueueReceivers, Receiver, check_receiver_count
from twinbus.broker.session_delivery import SessionReceivers, receivers_of
from twinbus.broker.session_waiters import Waiter
from twinbus.broker.store_run import StoreRun
from twinbus.entities.facts import MAIN
from twinbus.entities.queue import Queue
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import InvalidOperation
from twinbus.links.sink import Sink
from twinbus.links.store_link import Answer, ReceiverDescription


class StoreReceivers:
    """Those of all entities of one store."""

    def __init__(self, run: StoreRun) -> None:
        self._run = run
        self.by_entity: dict[int, QueueReceivers] = {}

    def open(self, description: ReceiverDescription, sink: Sink) -> Receiver:
        """Receive from a part of an entity."""
        subqueue, session, relays = description.subqueue, description.session, description.relays
        queue = self._receivable(description.entity_id, subqueue, relays)
        now = self._run.clock.now()
        queue.check_session(subqueue, session, now)
        queue.accessed_utc_ms = now.utc_ms
        receivers = self._of(queue)
        if session is None:  # who has a session was counted when it asked for one
            check_receiver_count(receivers)
        receiver = Receiver(self, queue, description, sink)
        if relays:  # a former one may have left locks: what it held must come first again
            queue.release_locks(subqueue, now)
            self._run.touch(queue)
        receivers.add(receiver)
        return receiver

    def set_credit(self, receiver: Receiver, credit: int, drain: bool) -> None:
        receiver.credit = max(0, credit - receiver.undelivered)  # those are on their way
        receiver.drain = drain
        self.resume(receiver)

    def resume(self, receiver: Receiver) -> None:
        """The receiver may have room or credit again."""
        receivers = self.by_entity.get(receiver.queue.entity_id)
        if receivers is not None:
            receivers.stir(receiver)
        self._run.touch(receiver.queue)

    def close(self, receiver: Receiver) -> None:
        receivers = self.by_entity.get(receiver.queue.entity_id)
        if receivers is not None:
            receivers.remove(receiver, self._run.clock.now())
            self.drop_if_empty(receivers)
            if receiver.session is not None:
                self._run.touch(receiver.queue)  # somebody may be waiting for the session

    def refuse_if_forwarding(self, queue: Queue) -> None:
        """An entity has a new description: it may be enabled again, or forward from now on."""
        receivers = self.by_entity.get(queue.entity_id)
        if receivers is None:
            return
        receivers.stir_all()
        for receiver in list(receivers.receivers):
            refusal = queue.receive_refusal(receiver.subqueue)
            if refusal and not receiver.relays:
                receiver.sink.lost(InvalidOperation(refusal))

    def drop_if_empty(self, receivers: QueueReceivers) -> None:
        # Whoever was told of something may have closed and opened receivers meanwhile.
        entity_id = receivers.queue.entity_id
        if receivers.count() == 0 and self.by_entity.get(entity_id) is receivers:
            del self.by_entity[entity_id]

    # -- sessions ----------------------------------------------------------------------------------

    def accept_session(
        self, entity_id: int, session_id: str | None, timeout_ms: int, grant: int, then: Answer
    ) -> Waiter:
        """Lock a session for a receiver, the next available one if none is named.

        `then` is called with the lock or an error, at once or later.  `grant` is that of a lock to
        be taken over, or 0.  The caller opens a receiver with the lock, or releases it.
        """
        queue = self._receivable(entity_id, MAIN, False)
        queue.check_has_sessions()
        receivers = self._of(queue)
        assert isinstance(receivers, SessionReceivers)
        check_receiver_count(receivers)
        self._run.touch(queue)  # a wait has to have its timer
        waiter = receivers.accept(session_id, timeout_ms, grant, then, self._run.clock.now())
        if waiter.is_waiting:
            waiter.when_cancelled(partial(self._cancel_accept, entity_id))
        self.drop_if_empty(receivers)
        return waiter

    def release_session(self, entity_id: int, lock: SessionLock) -> None:
        """A lock that was given for a receiver which could not be opened."""
        queue = self._run.store.entities.get(entity_id)
        if queue is not None:
            queue.release_session(lock.session_id, lock.grant, self._run.clock.now())
            self._run.touch(queue)

    def _cancel_accept(self, entity_id: int, waiter: Waiter) -> None:
        """The wait for a session is given up: `then` will not be called."""
        receivers = self.by_entity.get(entity_id)
        if isinstance(receivers, SessionReceivers):
            receivers.cancel(waiter)
            self.drop_if_empty(receivers)

    # -- finding -----------------------------------------------------------------------------------

    def _receivable(self, entity_id: int, subqueue: int, relays: bool) -> Queue:
        queue = self._run.entity(entity_id)
        refusal = "" if relays else queue.receive_refusal(subqueue)
        if refusal:
            raise InvalidOperation(refusal)
        queue.check_receivable()
        return queue

    def _of(self, queue: Queue) -> QueueReceivers:
        receivers = self.by_entity.get(queue.entity_id)
        if receivers is None:
            receivers = self.by_entity[queue.entity_id] = receivers_of(queue)
        return receivers
