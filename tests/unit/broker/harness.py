"""A broker on a simulated disk and clock, driven by hand."""

from collections.abc import Callable
from functools import partial

from twinbus.broker.broker import Broker
from twinbus.broker.delivery import Receiver
from twinbus.entities.commands import (
    PEEK_LOCK,
    Command,
    CreateEntities,
    DeleteEntities,
    Listed,
    Lock,
    NewEntity,
    Reply,
    Send,
    UpdateEntities,
    dispatch_replies,
)
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.entities.partitions import split_partition
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription, default_rule
from twinbus.entities.topic import Topic
from twinbus.errors import ServiceError
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.entity_changes import EntityChanges, NoCatalog
from twinbus.links.store_link import ReceiverDescription
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.log import Commit
from twinbus.storage.store import Store
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
        on_replies = on_replies or self._replied
        self.broker = Broker(self.store, self.clock, self._wake, on_replies, StoredMessageCodec())
        self.broker.entities.note_all()
        self.gateway = Gateway([self.broker], self.clock)
        self.changes = EntityChanges(self.gateway, NoCatalog())
        self.broker.entities.on_gone = partial(self.changes.forget, 0)
        self.list_entities()

    def list_entities(self) -> None:
        """Let the gateway know of what was made or changed behind its back."""
        directory = self.gateway.directory
        known = self.store.entities
        for entity in list(directory.by_id.values()):
            if any(part.entity_id not in known for part in entity.parts):
                directory.remove(entity)
            else:
                entity.describe(known[entity.parts[0].entity_id].description)
        listed = [
            Listed(each.entity_id, each.kind, each.name, each.description)
            for each in known.values()
            if split_partition(each.name)[0].lower() not in directory.names
        ]
        directory.load([(0, listed)])

    def _replied(self, replies: list[Reply]) -> None:
        """Keep replies for the test; those that somebody waits for are given to him."""
        for reply in replies:
            context = reply.command.context
            if isinstance(context, tuple) and hasattr(context[0], "replied"):
                dispatch_replies([reply])
            else:
                self.replies.append(reply)

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
        """Time passes: first a turn that is wanted, then the timers that are due."""
        if self.wanted:
            self.run()
        end = self.clock.now().mono_ms + duration_ms
        while True:
            due = self.broker.entities.timers.next_ms
            now = self.clock.now().mono_ms
            if due < 0 or due > end:
                self.clock.advance(end - now)
                return
            self.clock.advance(max(0, due - now))
            self.broker.entities.tick()
            self.run()

    def create_queue(
        self, name: str = "orders", description: QueueDescription | None = None
    ) -> Queue:
        return self.create("queue", name, description or QueueDescription())

    def create(
        self,
        kind: str,
        name: str,
        description: QueueDescription,
        rule: RuleDescription | None = None,
    ) -> Queue:
        self.ask(CreateEntities([NewEntity(kind, name, description, rule)]))
        return self.store.entities[self.store.names[name.lower()]]

    def ask(self, command: Command) -> None:
        """Have something done; whoever looks at the replies did not ask for it."""
        asked = _Asked()
        command.context = (asked, None)
        self.submit(command)
        self.run()
        self.list_entities()
        for reply in asked.replies:
            if reply.error is not None:
                raise reply.error

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
        path = subscription_path(topic.name, name)
        described = description or SubscriptionDescription()
        return self.create("subscription", path, described, rule or default_rule())

    def update(self, queue: Queue, description: QueueDescription) -> None:
        self.ask(UpdateEntities([queue.entity_id], description))

    def delete(self, queue: Queue) -> None:
        self.ask(DeleteEntities([queue.entity_id]))

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
        receiver = self.broker.open_receiver(
            ReceiverDescription(queue.entity_id, subqueue, receive_mode), sink
        )
        if credit:
            receiver.set_credit(credit, drain=False)
        return receiver, sink

    def reply_to(self, command: Command) -> Reply | None:
        return next((reply for reply in self.replies if reply.command is command), None)


class _Asked:
    """Takes replies where they are given to whoever asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def replied(self, reply: Reply, rest: object) -> None:
        self.replies.append(reply)
