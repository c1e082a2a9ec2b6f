"""An endpoint and a client of our own, wired together in memory, on simulated disk and time."""

import asyncio
from typing import cast

from tests.unit.broker.harness import BrokerHarness
from twinbus.amqp.composites import Coordinator, Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import IncomingSettled, LinkAttached, LinkDetached
from twinbus.amqp.frames import Event
from twinbus.amqp.ingress import IngressLink
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import CLIENT
from twinbus.gateway.access.shared_access import RIGHTS, AuthorizationRule, Authorizer
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces
from twinbus.server.amqp.endpoint import AmqpEndpoint
from twinbus.server.amqp.idle import Deadlines
from twinbus.server.port.client_certificates import ClientCertificates

KEY = "secret"


class Wire:
    """The part of an asyncio transport that an endpoint uses."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = False
        self.aborted = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, frames: list[bytes]) -> None:
        self.frames += frames

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> None:
        assert name

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Scene:
    """A broker, and the namespace that clients see."""

    def __init__(self) -> None:
        self.harness = BrokerHarness()
        self.clock = self.harness.clock
        rule = AuthorizationRule("Root", RIGHTS, KEY, KEY)
        self.namespaces = Namespaces(
            [
                Namespace(
                    "local",
                    self.harness.gateway,
                    self.harness.changes,
                    Authorizer([rule]),
                    self.clock,
                    0,
                )
            ]
        )

    def connect(self, deadlines: Deadlines | None = None) -> "Client":
        return Client(self, deadlines or Deadlines(10, 20))

    def run(self) -> None:
        """Let the broker do what there is to do."""
        self.harness.run()


class Client:
    """One connection with one AMQP session."""

    def __init__(self, scene: Scene, deadlines: Deadlines) -> None:
        self.scene = scene
        settings = ConnectionSettings("local", sasl_mechanisms=("PLAIN",), require_sasl=True)
        self.wire = Wire()
        self.endpoint = AmqpEndpoint(
            scene.namespaces, ClientCertificates({}), settings, deadlines, lambda endpoint: None
        )
        self.endpoint.connection_made(cast(asyncio.BaseTransport, self.wire))
        own = ConnectionSettings(
            "client",
            sasl_mechanisms=("PLAIN",),
            sasl_response=f"\0Root\0{KEY}".encode(),
            idle_timeout_ms=0,
        )
        self.connection = Connection(CLIENT, own)
        self.events: list[Event] = []
        self.connection.open()
        self.session: AmqpSession = self.connection.begin()
        self.pump()

    def pump(self) -> list[Event]:
        """Carry bytes both ways until nobody has any; gives the client's new events."""
        before = len(self.events)
        moved = True
        while moved:
            data = b"".join(self.connection.data_to_send())
            if data:
                self.endpoint.data_received(data)
            self.scene.run()
            self.endpoint.conversation.traffic.flush()
            frames, self.wire.frames = self.wire.frames, []
            self.events += self.connection.receive_data(b"".join(frames))
            moved = bool(data or frames)
        return self.events[before:]

    def tick(self) -> list[Event]:
        """Both sides look at the clock."""
        self.events += self.connection.tick(self.scene.clock.now().mono_ms)
        self.pump()
        self.endpoint._tick()
        return self.pump()

    def leave(self) -> None:
        self.endpoint.connection_lost(None)

    # -- links -------------------------------------------------------------------------------------

    def attach_sender(
        self, address: str, name: str = "", properties: dict[object, object] | None = None
    ) -> EgressLink:
        link = self.session.attach_sender(
            name or f"to {address}", Source("me"), Target(address), properties=properties
        )
        self.pump()
        return link

    def attach_receiver(
        self,
        address: str,
        credit: int = 10,
        name: str = "",
        filters: dict[object, object] | None = None,
    ) -> IngressLink:
        source = Source(address, filter=filters)
        link = self.session.attach_receiver(
            name or f"from {address}", source, Target("me"), rcv_settle_mode=1
        )
        self.pump()
        link.grant(credit)
        self.pump()
        return link

    def attach_coordinator(self) -> EgressLink:
        link = self.session.attach_sender("control", Source("me"), Coordinator())
        self.pump()
        return link

    def refusal(self) -> str:
        """The condition with which the last link was refused or detached."""
        detached = [event for event in self.events if isinstance(event, LinkDetached)]
        error = detached[-1].error
        assert error is not None
        return error.condition

    def attached(self) -> int:
        return sum(isinstance(event, LinkAttached) for event in self.events)

    def settled(self) -> list[IncomingSettled]:
        """What the server said about our deliveries or its own, since the last question."""
        found = [event for event in self.events if isinstance(event, IncomingSettled)]
        self.events = [event for event in self.events if not isinstance(event, IncomingSettled)]
        return found
