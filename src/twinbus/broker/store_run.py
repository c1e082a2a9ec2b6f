"""One store that is being run: what is to be looked at next, and who waits until it is durable.

What a reply waits for is counted in facts: a reply is released when as many facts are durable as
had been stated when the queue decided.  Whoever decides on commands stands on this; the broker
(broker.py) takes the turns.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from twinbus.broker.delivery import Taken
from twinbus.clock import Clock, Now
from twinbus.entities.commands import Reply
from twinbus.entities.fields import MessageCodec
from twinbus.entities.queue import Queue
from twinbus.errors import EntityNotFound
from twinbus.storage.log import Commit
from twinbus.storage.store import Store


class LongRequest(Protocol):
    """A request about many messages, a slice at a time (bulk.py)."""

    @property
    def queue(self) -> Queue: ...

    def step(self, now: Now) -> Reply | None:
        """Do one slice; gives the reply when that was the last."""


class Durable:
    """Something to call when everything stated so far is durable."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call


def finish_commit(store: Store, commit: Commit) -> list[Queue]:
    """A commit is durable: everybody may see what it stored.  Returns the queues it touched."""
    touched = store.finish_commit(commit)
    for entity_id, number in commit.published.items():
        queue = store.entities.get(entity_id)
        if queue is not None:
            queue.publish(number)
    return touched


class StoreRun:
    """The state of a store that several rooms of a broker share."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[], None],
        on_replies: Callable[[list[Reply]], None],
        codec: MessageCodec | None,
    ) -> None:
        self.store = store
        self.codec = codec
        self.clock = clock
        self.pending_bytes = 0  # of sends decided and in no commit yet
        self.transaction_bytes = 0  # of what waits in open transactions
        self.work_count = 0  # messages sent, settled and handed out since the last commit began
        self.walks: deque[LongRequest] = deque()  # they take turns
        self._wake = wake  # asks the shell for a turn; called once until the turn comes
        self._on_replies = on_replies
        self._awake = False
        self._touched: dict[int, Queue] = {}  # queues to pump in the next turn
        self._stated = 0  # facts handed to commits so far; `_stated + len(facts)` = all stated
        self._durable = 0  # facts known to be durable
        self._waiting: deque[tuple[int, Reply | Taken | Durable]] = deque()
        self._broken = ""  # what must never be, and is: no turn succeeds any more

    def entity(self, entity_id: int) -> Queue:
        """The entity with this number; it must be there."""
        queue = self.store.entities.get(entity_id)
        if queue is None:
            raise EntityNotFound("The messaging entity could not be found.")
        return queue

    # -- what is to be looked at -------------------------------------------------------------------

    def touch(self, queue: Queue) -> None:
        """Something about this queue changed: look at it in the next turn."""
        self._touched[queue.entity_id] = queue
        self.ask_for_turn()

    def untouch(self, queue: Queue) -> None:
        """It is gone."""
        self._touched.pop(queue.entity_id, None)

    def ask_for_turn(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake()

    # -- who waits ---------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Replies that wait until they are true."""
        return len(self._waiting)

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything stated until now is durable."""
        self.wait(self.position(), Durable(call))
        self.ask_for_turn()

    def position(self) -> int:
        """How many facts have been stated."""
        return self._stated + len(self.store.facts)

    def wait(self, position: int, waiter: Reply | Taken | Durable) -> None:
        """Release it when so many facts are durable, and everybody before it has been released."""
        waiting = self._waiting
        if waiting and waiting[-1][0] > position:
            # Somebody gathered facts after a reply had been counted.  That reply, and everybody
            # behind it, would wait for facts that nobody is going to state.
            self._broken = "a reply waits for a fact of the future"
            self.ask_for_turn()
        waiting.append((position, waiter))

    def unwritten(self) -> object:
        """The first who waits for something that no commit is writing; None if there is none."""
        waiting = self._waiting
        return waiting[0][1] if waiting and waiting[0][0] > self._stated else None

    def _release(self) -> None:
        waiting = self._waiting
        replies: list[Reply] = []
        while waiting and waiting[0][0] <= self._durable:
            waiter = waiting.popleft()[1]
            if isinstance(waiter, Reply):
                replies.append(waiter)
            elif isinstance(waiter, Taken):
                waiter.release()
            else:
                if replies:  # whoever waits for everything before also waits for these
                    self._on_replies(replies)
                    replies = []
                waiter.call()
        if replies:
            self._on_replies(replies)
