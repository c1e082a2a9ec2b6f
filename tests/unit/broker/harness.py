"""A broker on a simulated disk and clock, driven by hand."""

from collections.abc import Callable

from twinbus.broker.broker import Broker
from twinbus.broker.catalog import Catalog
from twinbus.broker.delivery import Receiver
from twinbus.entities.commands import PEEK_LOCK, Command, Lock, Reply, Send
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.queue import Queue
from twinbus.entities.rules import RuleDescription, default_rule
from twinbus.entities.topic import Topic
from twinbus.errors import ServiceError
from twinbus.server.message_fields import StoredMessageCodec
from twinbus.storage.store import Commit, Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SEGMENT_SIZE = 1 << 18


class SimSink:
    """A receiving link that remembers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bodies: list[bytes] = []
        self.locks: list[Lock] = []
        self.drained_count = 0
        self.is_removed = False
        self.is_full = False
        self.errors: list[ServiceError] = []

    def deliver(
        self, messages: list[Message], bodies: list[bytes], locked_until_utc_ms: int
    ) -> None:
        self.messages += messages
        self.bodies += bodies
        if locked_until_utc_ms:
            self.locks += [(m.sequence_number, m.grant) for m in messages]

    def full(self) -> bool:
        return self.is_full

    def drained(self) -> None:
        self.drained_count += 1

    def removed(self) -> None:
        self.is_removed = True

    def lost(self, error: ServiceError) -> None:
        self.errors.append(error)


class BrokerHarness:
    """Steps a broker through turns and commits one at a time."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        clock: SimClock | None = None,
        segment_size: int = SEGMENT_SIZE,
        on_replies: Callable[[list[Reply]], None] | None = None,
    ) -> None:
        self.disk = disk or SimDisk()
        self.clock = clock or SimClock()
        self.store = Store.open(self.disk, self.clock.now(), 7, segment_size)
        self.replies: list[Reply] = []
        self.wanted = False
        on_replies = on_replies or self.replies.extend
        self.broker = Broker(self.store, self.clock, self._wake, on_replies, StoredMessageCodec())
        self.catalog = Catalog(self.broker)
        self.broker.arm_all()

    def _wake(self) -> None:
        self.wanted = True

    def turn(self) -> Commit | None:
        """One loop turn, without the commit it asks for."""
        self.wanted = False
        return self.broker.turn(may_commit=True)

    def write(self, commit: Commit) -> None:
        commit.write()
        self.broker.committed(commit)

    def maintain(self) -> bool:
        """One background task, if there is one."""
        task = self.store.next_task(self.clock.now())
        if task is None:
            return False
        task.run()
        self.store.finish_task(task)
        return True

    def run(self) -> None:
        """Until nothing is left to do."""
        while True:
            commit = self.turn()
            if commit is not None:
                self.write(commit)
            elif not self.wanted and not self.maintain():
                return

    def pass_time(self, duration_ms: int) -> None:
        """Time passes; the timers run when they are due."""
        end = self.clock.now().mono_ms + duration_ms
        while True:
            due = self.broker.next_timer_ms()
            now = self.clock.now().mono_ms
            if due < 0 or due > end:
                self.clock.advance(end - now)
                return
            self.clock.advance(max(0, due - now))
            self.broker.tick()
            self.run()

    def create_queue(
        self, name: str = "orders", description: QueueDescription | None = None
    ) -> Queue:
        return self.create("queue", name, description or QueueDescription())

    def create(self, kind: str, name: str, description: QueueDescription) -> Queue:
        queue = self.catalog.create_entity(kind, name, description, _nothing)
        self.run()
        return queue

    def create_topic(
        self, name: str = "news", description: TopicDescription | None = None
    ) -> Topic:
        topic = self.create("topic", name, description or TopicDescription())
        assert isinstance(topic, Topic)
        return topic

    def create_subscription(
        self,
        topic: Topic,
        name: str,
        description: SubscriptionDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> Queue:
        queue = self.catalog.create_subscription(
            subscription_path(topic.name, name),
            description or SubscriptionDescription(),
            rule or default_rule(),
            _nothing,
        )
        self.run()
        return queue

    def update(self, queue: Queue, description: QueueDescription) -> None:
        self.catalog.update_entity(queue, description, _nothing)
        self.run()

    def delete(self, queue: Queue) -> None:
        self.catalog.delete_entity(queue, _nothing)
        self.run()

    def submit(self, *commands: Command) -> None:
        self.broker.submit(list(commands))

    def send(self, queue: Queue, *bodies: bytes) -> Send:
        command = Send(queue.entity_id, [NewMessage(body) for body in bodies])
        self.submit(command)
        return command

    def receiver(
        self, queue: Queue, credit: int = 0, receive_mode: int = PEEK_LOCK, subqueue: int = MAIN
    ) -> tuple[Receiver, SimSink]:
        sink = SimSink()
        receiver = self.broker.open_receiver(queue.entity_id, subqueue, receive_mode, sink)
        if credit:
            self.broker.set_credit(receiver, credit, drain=False)
        return receiver, sink

    def reply_to(self, command: Command) -> Reply | None:
        return next((reply for reply in self.replies if reply.command is command), None)


def _nothing() -> None:
    """For tests that do not ask when it is durable."""
