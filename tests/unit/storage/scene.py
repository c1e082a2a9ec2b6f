"""A small store on a simulated disk, and the few moves that all tests of it make."""

from twinbus.broker.store_run import finish_commit
from twinbus.clock import Now
from twinbus.entities.commands import COMPLETE
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.queue import Queue
from twinbus.storage.disk import Disk
from twinbus.storage.log import segment_name
from twinbus.storage.maintenance import Task
from twinbus.storage.store import Store

SALT = 0x5A17
SEGMENT_SIZE = 16_384


class Scene:
    """One store with one queue called "orders"."""

    def __init__(
        self, disk: Disk, segment_size: int = SEGMENT_SIZE, cache_bytes: int = 1 << 20
    ) -> None:
        self.disk = disk
        self.done: list[Task] = []  # all background work so far
        self.now = Now(1_700_000_000_000, 1_000_000)
        self.store = Store.open(disk, self.now, SALT, segment_size, cache_bytes)
        self.queue = self._queue()

    def _queue(self) -> Queue:
        store = self.store
        if "orders" not in store.names:
            store.create_entity("queue", "Orders", QueueDescription())
            self.commit()
        return store.entities[store.names["orders"]]

    def send(self, *bodies: bytes) -> list[int]:
        """Send each by itself and make all durable."""
        found = []
        for body in bodies:
            found += self.queue.send([NewMessage(body)], self.now)
        self.commit()
        return found

    def commit(self) -> int:
        """Commit everything there is; returns in how many commits."""
        count = 0
        while self.store.facts:
            commit = self.store.begin_commit()
            if commit is None:
                assert self.work(), "facts wait for a segment that never comes"
                continue
            commit.write()
            finish_commit(self.store, commit)
            count += 1
        return count

    def work(self) -> list[Task]:
        """Do all background work that is due."""
        done: list[Task] = []
        while (task := self.store.next_task(self.now)) is not None:
            task.run()
            self.store.finish_task(task)
            done.append(task)
            assert len(done) < 10_000, "background work that never ends"
        self.done += done
        return done

    def messages(self, subqueue: int = MAIN) -> list[Message]:
        return self.queue.messages_from(subqueue, 0, 100_000)

    def bodies(self) -> list[bytes]:
        return self.store.read_bodies(self.messages())

    def complete(self, count: int) -> None:
        """Receive and complete so many, durably."""
        while count > 0:
            locked = self.queue.lock_next(MAIN, min(count, 100), self.now)
            assert locked
            count -= len(locked)
            locks = [(message.sequence_number, message.grant) for message in locked]
            assert self.queue.settle(MAIN, locks, COMPLETE, None, self.now) is None
            self.commit()

    def reopened(self, disk: Disk | None = None) -> "Scene":
        """The store again, after an orderly end unless another disk is given."""
        if disk is None:
            self.store.close()
            disk = self.disk
        return Scene(disk)

    def keep(self, body: bytes) -> None:
        """Send to another queue, where nobody receives."""
        kept = self.store.create_entity("queue", "kept", QueueDescription())
        kept.send([NewMessage(body)], self.now)
        self.commit()

    def kept(self) -> list[bytes]:
        queue = self.store.entities[self.store.names["kept"]]
        return self.store.read_bodies(queue.messages_from(MAIN, 0, 100))

    def turn_over(self, segments: int) -> None:
        """Let so many segments fill with messages that come and go."""
        start = self.store._log.head_segment
        while self.store._log.head_segment < start + segments:
            self.send(bytes(1_500))
            self.complete(1)
            self.work()

    def segments(self) -> list[str]:
        return [name for name in self.disk.names() if name.endswith(".log")]

    @property
    def head(self) -> str:
        return segment_name(self.store._log.head_segment)
