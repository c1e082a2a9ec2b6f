"""Hundreds of links on one connection, each in an AMQP session of its own, as .NET does it.

Apache Qpid Proton does what .NET does when it is told to: one connection a client, one session a
link, links and sessions closed together, channels used again at once.
"""

from pathlib import Path
from typing import Any, Final

import pytest
from proton import Message, symbol, uint
from proton.handlers import MessagingHandler
from proton.reactor import Container, ReceiverOption

from twinbus.client.connection_string import ConnectionString
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-17")

COUNT: Final = 400
WAIT_S: Final = 40
NEXT_SESSION: Final[dict[Any, Any]] = {symbol("com.microsoft:session-filter"): None}


class NextSession(ReceiverOption):
    """Attach to whichever session is free."""

    def apply(self, receiver: Any) -> None:
        receiver.source.filter.put_dict(NEXT_SESSION)
        receiver.properties = {symbol("com.microsoft:timeout"): uint(WAIT_S * 1_000)}


class Many(MessagingHandler):
    """One connection with one link in each of its AMQP sessions."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self._server = server
        self.count = count
        self.container: Any = None
        self.connection: Any = None
        self.errors: list[str] = []
        self.done = 0

    def on_start(self, event: Any) -> None:
        target = ConnectionString.parse(self._server.connection_string)
        self.container = event.container
        self.connection = event.container.connect(
            f"amqp://localhost:{self._server.port}",
            allowed_mechs="PLAIN",
            user=target.key_name,
            password=target.key,
            reconnect=False,
        )
        self._timer = event.container.schedule(WAIT_S, self)

    def on_connection_opened(self, event: Any) -> None:
        channels = event.transport.remote_channel_max + 1
        if channels < self.count:  # Proton ends the process when it runs out of them
            self._fail(f"the server has only {channels} channels")
            return
        for number in range(self.count):
            self.open_link(number)

    def open_link(self, number: int) -> None:
        session = self.connection.session()
        session.open()
        self.attach(session, number)

    def attach(self, session: Any, number: int) -> None:
        raise NotImplementedError

    def finish_one(self) -> None:
        self.done += 1
        if self.done == self.count:
            self._stop()

    def _stop(self) -> None:
        self._timer.cancel()
        self.connection.close()

    def on_timer_task(self, event: Any) -> None:
        self._fail(f"{self.done} of {self.count} were done in time")

    def _fail(self, reason: object) -> None:
        self.errors.append(str(reason))
        self._stop()

    def on_link_error(self, event: Any) -> None:
        self._fail(event.link.remote_condition)

    def on_session_error(self, event: Any) -> None:
        self._fail(event.session.remote_condition)

    def on_connection_error(self, event: Any) -> None:
        self._fail(event.connection.remote_condition)

    def on_transport_error(self, event: Any) -> None:
        self._fail(event.transport.condition)

    def run(self) -> None:
        Container(self).run()
        assert self.errors == []
        assert self.done == self.count


class Senders(Many):
    """Each sends one message, to a session of its own if the queue has sessions."""

    def __init__(self, server: ServerProcess, count: int, queue: str) -> None:
        super().__init__(server, count)
        self._queue = queue
        self._sent: set[str] = set()

    def attach(self, session: Any, number: int) -> None:
        self.container.create_sender(session, self._queue, name=f"sender-{number}")

    def on_sendable(self, event: Any) -> None:
        name = event.link.name
        if name not in self._sent:
            self._sent.add(name)
            event.sender.send(Message(id=name, body=name, group_id=name))

    def on_accepted(self, event: Any) -> None:
        event.delivery.settle()
        self.finish_one()


class SessionReceivers(Many):
    """Each accepts the next session and holds it until all have one and have completed in it."""

    def __init__(self, server: ServerProcess, count: int, queue: str) -> None:
        super().__init__(server, count)
        self._queue = queue
        self.accepted: list[str] = []
        self.bodies: list[str] = []

    def attach(self, session: Any, number: int) -> None:
        name = f"receiver-{number}"
        self.container.create_receiver(session, self._queue, name=name, options=NextSession())

    def on_link_opened(self, event: Any) -> None:
        filters = event.link.remote_source.filter
        filters.rewind()
        if not filters.next():
            return  # a refusal: what follows says why
        self.accepted += filters.get_dict().values()
        event.receiver.flow(1)

    def on_message(self, event: Any) -> None:
        self.bodies.append(event.message.body)
        event.delivery.update(event.delivery.ACCEPTED)

    def on_settled(self, event: Any) -> None:
        event.delivery.settle()
        self.finish_one()


class Reopened(Senders):
    """Closes a link and its session in one breath and begins the next on the same channel."""

    def on_connection_opened(self, event: Any) -> None:
        self.open_link(0)

    def on_accepted(self, event: Any) -> None:
        super().on_accepted(event)
        if self.done < self.count:
            event.link.close()
            event.session.close()
            self.open_link(self.done)


@pytest.mark.feature("transport.channels")
@pytest.mark.queue(requires_session=True)
def test_hundreds_of_senders_and_sessions_share_a_connection(
    server: ServerProcess, queue: str
) -> None:
    Senders(server, COUNT, queue).run()
    receivers = SessionReceivers(server, COUNT, queue)
    receivers.run()
    names = sorted(f"sender-{number}" for number in range(COUNT))
    assert sorted(receivers.accepted) == names
    assert sorted(receivers.bodies) == names


@pytest.mark.feature("transport.channels")
def test_channels_are_used_again_at_once(server: ServerProcess, queue: str) -> None:
    Reopened(server, 100, queue).run()


@pytest.mark.feature("transport.channels")
def test_hundreds_of_sessions_through_broker_processes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", arguments=["--brokers", "2"]) as server:
        server.create_queue("with-sessions", requires_session=True)
        Senders(server, COUNT, "with-sessions").run()
        receivers = SessionReceivers(server, COUNT, "with-sessions")
        receivers.run()
        assert len(set(receivers.accepted)) == COUNT
        assert "Traceback" not in server.log
