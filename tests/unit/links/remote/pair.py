"""Both ends of broker processes in one: gateways' stores and hosts with real brokers, by hand.

Everything goes through real frames.  Disks and time are simulated; a host can be killed between any
two steps.
"""

from collections.abc import Callable
from typing import Any

from tests.unit.broker.harness import SimSink
from twinbus.broker.broker import Broker
from twinbus.broker.remote.stores import Opened, Stores
from twinbus.entities.commands import PEEK_LOCK, Command, CreateEntities, NewEntity, Reply, Send
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.entities.session_locks import SessionLock
from twinbus.errors import DirectoryInUse, ServiceError, StorageError
from twinbus.links.remote.channel import Channel
from twinbus.links.remote.operations import Operation
from twinbus.links.remote.receivers import RemoteReceiver
from twinbus.links.remote.remote_store import RemoteStore, dispatch
from twinbus.links.store_link import ReceiverDescription
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SEGMENT_SIZE = 1 << 22
SESSIONS = QueueDescription(requires_session=True)


class SimShell:
    """Runs one broker, a turn when told."""

    def __init__(
        self,
        store: Store,
        clock: SimClock,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self.wanted = True
        self._clock = clock
        self._on_failure = on_failure
        self._failed = False
        self.broker = Broker(store, clock, self._wake, on_replies, StoredMessageCodec())
        self.broker.entities.note_all()

    def _wake(self) -> None:
        self.wanted = True

    def step(self) -> bool:
        """A turn with its commit; False when there is nothing to do."""
        if self._failed or not (self.wanted or self.store.facts):
            return False
        self.wanted = False
        try:
            commit = self.broker.turn(may_commit=True)
            if commit is not None:
                commit.write()
                self.broker.committed(commit)
            elif not self.wanted:
                task = self.store.next_task(self._clock.now())
                if task is not None:
                    task.run()
                    self.store.finish_task(task)
        except (StorageError, OSError) as error:
            self._failed = True
            self._on_failure(error)
        return True

    def close(self, then: Callable[[], None]) -> None:
        while self.step():
            pass
        self._failed = True
        self.store.close()
        then()


class SimHost:
    """A broker process: what it was sent and what it sends are frames on their way."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.is_alive = True
        self.is_full = False
        self.faults: list[tuple[int, Any]] = []
        self._channel = Channel()
        self._gateway_channel = Channel()
        self._asked: list[Operation] = []
        self._said: list[Operation] = []
        self.shells: dict[int, SimShell] = {}
        self.host = Stores(self, self._said.append, lambda: self.is_full, world.clock)

    # The gateway's Sender.

    def send(self, operation: Operation) -> None:
        if self.is_alive:
            self._asked.append(operation)

    def flush(self) -> None:
        """Frames go when the world lets them."""

    # The host's Runner.

    def open_store(self, number: int, path: str, then: Opened) -> None:
        disk = self._world.disk(path)
        try:
            if path in self._world.in_use:
                raise DirectoryInUse("another server is using this directory")
            then(Store.open(disk, self._world.clock.now(), 7, SEGMENT_SIZE))
        except StorageError as error:
            then(error)

    def run_store(
        self,
        number: int,
        store: Store,
        on_replies: Callable[[list[Reply]], None],
        on_failure: Callable[[BaseException], None],
    ) -> SimShell:
        shell = SimShell(store, self._world.clock, on_replies, on_failure)
        self.shells[number] = shell
        return shell

    def set_fault(self, number: int, plan: Any) -> None:
        self.faults.append((number, plan))

    def recent_log(self) -> list[str]:
        return ["the last line"]

    # Steps.

    def step(self) -> bool:
        """One thing happens; False when there is nothing left."""
        if not self.is_alive:
            return False
        return self.read() or any(shell.step() for shell in self.shells.values()) or self.write()

    def read(self) -> bool:
        """The host gets what the gateway has sent."""
        if not self._asked:
            return False
        data = self._channel.encode(self._asked)
        self._asked.clear()
        self.host.received(self._channel.receive_data(data))
        return True

    def write(self) -> bool:
        """The gateway gets what the host has said."""
        if not self._said:
            return False
        data = self._gateway_channel.encode(self._said)
        self._said.clear()
        self._world.told += dispatch(
            self._gateway_channel.receive_data(data), self, self._world.stores
        )
        return True

    def kill(self) -> None:
        """The process is gone, and its locks with it."""
        self.is_alive = False
        self.shells.clear()
        for disk in self._world.disks.values():
            disk.revive()
        for store in self._world.stores:
            if store._sender is self:
                store.lost("killed")


class World:
    """Stores 0 and 1, and as many hosts as are started."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.disks: dict[str, SimDisk] = {}
        self.in_use: set[str] = set()  # paths that a process outside has
        self.replies: list[Reply] = []
        self.told: list[Operation] = []
        self.stores = [
            RemoteStore(number, f"store-{number}", self.clock, self.replies.extend)
            for number in range(2)
        ]
        self.hosts: list[SimHost] = []

    def disk(self, path: str) -> SimDisk:
        return self.disks.setdefault(path, SimDisk())

    def start(self) -> SimHost:
        host = SimHost(self)
        self.hosts.append(host)
        return host

    def run(self) -> None:
        while any(host.step() for host in self.hosts):
            pass

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        for host in self.hosts:
            for shell in host.shells.values():
                shell.broker.entities.tick()
            host.host.tick()
        for store in self.stores:
            store.receivers.tick()
        self.run()

    def submit(self, *commands: Command, store: int = 0) -> None:
        self.stores[store].submit(list(commands))

    def answer(self, command: Command, store: int = 0) -> Any:
        """Submit, let everything happen, and give the result or raise the error."""
        self.stores[store].submit([command])
        self.run()
        reply = self.reply_to(command)
        assert reply is not None
        if reply.error is not None:
            raise reply.error
        return reply.result

    def result_of(self, command: Command) -> object:
        reply = self.reply_to(command)
        assert reply is not None
        assert reply.error is None
        return reply.result

    def reply_to(self, command: Command) -> Reply | None:
        found = [reply for reply in self.replies if reply.command is command]
        assert len(found) <= 1, "a command is answered once"
        return found[0] if found else None

    def create_queue(
        self, name: str = "orders", description: QueueDescription | None = None, store: int = 0
    ) -> int:
        new = NewEntity("queue", name, description or QueueDescription())
        (number,) = self.answer(CreateEntities([new]), store)
        assert isinstance(number, int)
        return number

    def send(self, entity_id: int, *bodies: bytes, session_id: str | None = None) -> object:
        messages = [NewMessage(body, session_id=session_id) for body in bodies]
        return self.answer(Send(entity_id, messages))

    def receiver(
        self,
        entity_id: int,
        credit: int = 0,
        receive_mode: int = PEEK_LOCK,
        session: SessionLock | None = None,
        is_exclusive: bool = True,
    ) -> tuple[RemoteReceiver, SimSink]:
        sink = SimSink()
        receiver = self.stores[0].open_receiver(
            ReceiverDescription(entity_id, MAIN, receive_mode, session, is_exclusive), sink
        )
        if credit:
            receiver.set_credit(credit, drain=False)
        self.run()
        return receiver, sink

    def accept(self, entity_id: int, session_id: str | None, timeout_ms: int = 60_000) -> "Wait":
        wait = Wait()
        wait.waiter = self.stores[0].accept_session(
            entity_id, session_id, timeout_ms, 0, wait.results.append
        )
        self.run()
        return wait


class Wait:
    """Somebody who asked for a session."""

    def __init__(self) -> None:
        self.results: list[SessionLock | ServiceError] = []
        self.waiter: Any = None

    @property
    def lock(self) -> SessionLock:
        (result,) = self.results
        assert isinstance(result, SessionLock)
        return result


def up() -> tuple[World, SimHost]:
    """A world with store 0 open at a first host."""
    world = World()
    host = world.start()
    world.stores[0].attach(host)
    world.run()
    assert world.stores[0].is_open
    return world, host


def restarted(world: World) -> SimHost:
    """A new host that opens store 0."""
    host = world.start()
    world.stores[0].attach(host)
    world.run()
    assert world.stores[0].is_open
    return host
