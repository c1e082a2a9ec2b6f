"""The server: puts the parts together, runs until told to stop.

    broker(s) with their stores ─▶ gateway ─▶ namespaces ─▶ listener (AMQP, TLS, HTTP on one port)

Exit codes: 0 after a clean stop, 3 when the store failed and the server stopped to save what is
acknowledged.  Everything that goes wrong before "ready" is raised to the command line.
"""

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from asyncio import sslproto
from collections.abc import Callable, Coroutine
from typing import Final

from twinbus import PRODUCT_NAME, __version__
from twinbus.amqp.composites import AmqpError
from twinbus.amqp.places import ServerPlaces
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.types import Symbol
from twinbus.certificates import server_context
from twinbus.clock import Clock, SystemClock
from twinbus.config import Identity, NamespaceConfig, ServerConfig
from twinbus.entities.descriptions import PREFIX_END
from twinbus.gateway.access.shared_access import AuthorizationRule, Authorizer
from twinbus.gateway.faults.faults import Fault
from twinbus.gateway.namespaces.declared import declare
from twinbus.gateway.namespaces.lifetime import NamespaceLifetimes
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.registry import Namespaces, WebTokens
from twinbus.host.bus import ServerBus
from twinbus.host.garbage_collection import GarbageCollection
from twinbus.host.observability import Observability
from twinbus.host.routes import Router
from twinbus.limits import TLS_BUFFER_BYTES
from twinbus.server.amqp.endpoint import AmqpEndpoint
from twinbus.server.amqp.idle import Deadlines
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.atom.entities import AtomRouter
from twinbus.server.http.connection import HttpProtocol
from twinbus.server.http.operations.meter import MeterRequests
from twinbus.server.http.operations.namespaces import NamespaceRequests
from twinbus.server.http.rest.requests import RestRouter
from twinbus.server.http.websocket import WebSocket
from twinbus.server.port.client_certificates import ClientCertificates
from twinbus.server.port.connections import ClientConnections
from twinbus.server.port.listener import Listener
from twinbus.server.port.strangers import Strangers
from twinbus.telemetry.telemetry import Telemetry

log = logging.getLogger("twinbus.server")

EXIT_STORE_FAILED: Final = 3
# The commit thread waits for Python's lock after every write and sync, with the default for up to
# 5 ms, while a sync takes less than one.  Comparisons of rates did not settle how much it gives.
SWITCH_INTERVAL_S: Final = 0.0005
HANG_UP_TRIES: Final = 50
NAMESPACE_DELETED: Final = AmqpError("amqp:connection:forced", "The namespace was deleted.")
# MSSBCBS is .NET's: anonymous, the claim follows over $cbs.
SASL_MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS")
# Said in every `open`: by this a client knows that it may ask what only a twinbus answers.
PRODUCT: Final[dict[object, object]] = {
    Symbol("product"): PRODUCT_NAME,
    Symbol("version"): __version__,
}


class Server:
    """One running server."""

    def __init__(self, config: ServerConfig, clock: Clock, telemetry: Telemetry) -> None:
        self._config = config
        self._telemetry = telemetry
        self._clock = clock
        self._stopping = asyncio.get_running_loop().create_future()
        self._endpoints: set[AmqpEndpoint] = set()
        self._http: set[HttpProtocol] = set()
        self._garbage_collection: GarbageCollection | None = None
        self._places = ServerPlaces()

    async def run(self, ready: Callable[[int], None]) -> int:
        """Serve until `stop`; `ready` gets the port.  Returns the exit code."""
        config = self._config
        web_tokens = _web_tokens(config)
        bus = ServerBus(config, self._clock, self._failed, self._detach, self._telemetry)
        observability = Observability(
            config, bus.gateway, bus.health, self._clock, bus.usage, self._telemetry
        )
        namespaces = Namespaces(
            [self._namespace(each, bus) for each in config.namespaces], web_tokens
        )
        namespaces.on_shown = self._telemetry.secrets.show
        bus.faults.watch(namespaces, bus.gateway.directory)
        names = [namespace.name for namespace in namespaces.all()]
        tls = server_context(config.data_dir, config.host, self._clock, config.tls, names)
        access = HttpAccess(namespaces, self._clock)
        front = observability.front(bus.changes, namespaces, bus.faults.faults.all, access)
        page = observability.page(
            bus.changes, namespaces, bus.faults.acting, bus.metering.read, access
        )
        router = Router(
            access,
            RestRouter(access, self._clock),
            AtomRouter(access, self._clock, bus.faults.faults),
            front,
            bus.faults.router(access),
            MeterRequests(access, bus.metering),
            NamespaceRequests(access, self._namespace_lifetimes(namespaces, bus)),
            page.requests,
            page.pairs,
        )
        listener = self._listener(namespaces, router, bus.faults.connections, tls)
        garbage_collection = self._garbage_collection = GarbageCollection(bus.runner.message_count)
        try:
            port = listener.bind(config.host, config.port)
            for extra in config.extra_ports:
                listener.bind(config.host, extra)
            if await self._goes_on(bus.start()):
                garbage_collection.start()
                observability.start()
                bus.metering.start()
                for namespace, each in zip(namespaces.all(), config.namespaces, strict=True):
                    await declare(namespace, each.declared)
                listener.start()
                ready(port)
            code: int = await self._stopping
        finally:
            garbage_collection.stop()
            observability.stop()
            await listener.close()
            for protocol in list(self._http):
                protocol.shutdown()  # who waits for a message ends that while there is a broker
            await bus.close()
            await self._hang_up()
            await bus.metering.close()  # the end of a link may be the end of a receive
        return code

    async def _goes_on(self, work: Coroutine[object, object, None]) -> bool:
        """Do this, unless somebody wants the server to stop before it is done."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, self._stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            return False
        task.result()
        return not self._stopping.done()

    async def _hang_up(self) -> None:
        """Say good-bye to every client and give the words a moment to go out."""
        for endpoint in list(self._endpoints):
            endpoint.shut_down()
        for _ in range(HANG_UP_TRIES):
            if not self._endpoints and not self._http:
                return
            await asyncio.sleep(0.02)

    def stop(self, code: int = 0) -> None:
        if not self._stopping.done():
            self._stopping.set_result(code)

    def _failed(self, error: BaseException) -> None:
        log.critical("stopping: %s", error)
        self.stop(EXIT_STORE_FAILED)

    def _namespace(self, config: NamespaceConfig, bus: ServerBus) -> Namespace:
        identity = config.identity
        for rule in identity.rules:
            self._telemetry.secrets.add((rule.primary_key, rule.secondary_key))
        rules = [
            AuthorizationRule(rule.name, rule.rights, rule.primary_key, rule.secondary_key)
            for rule in identity.rules
        ]
        # The first one's names stand in the store as they are, as they did when it was alone.
        is_first = config is self._config.namespaces[0]
        return Namespace(
            config.name,
            bus.gateway,
            bus.changes,
            Authorizer(rules),
            self._clock,
            identity.created_utc_ms,
            prefix="" if is_first else config.name.lower() + PREFIX_END,
            limits=self._config.limits,
            namespace_id=identity.id,
        )

    def _namespace_lifetimes(self, namespaces: Namespaces, bus: ServerBus) -> NamespaceLifetimes:
        def make(identity: Identity) -> Namespace:
            return self._namespace(NamespaceConfig(identity), bus)

        def leave(namespace: Namespace) -> None:
            """Who has its connection into a namespace keeps nothing when that is deleted."""
            for fault in bus.faults.faults.all():
                if fault.namespace == namespace.name.lower():
                    bus.faults.acting.clear(fault)
            for endpoint in list(self._endpoints):
                if endpoint.namespace is namespace:
                    endpoint.close(NAMESPACE_DELETED)

        identities = [each.identity for each in self._config.namespaces]
        data_dir = self._config.data_dir
        return NamespaceLifetimes(data_dir, identities, namespaces, make, leave, self._clock)

    def _detach(self, fault: Fault) -> None:
        """Whoever receives from what a fault is about does so no more."""
        for endpoint in list(self._endpoints):
            endpoint.detach_receivers(fault.covers_name, fault.error())

    def _listener(
        self,
        namespaces: Namespaces,
        router: Router,
        connections: ClientConnections,
        tls: ssl.SSLContext,
    ) -> Listener:
        config = self._config
        deadlines = Deadlines(config.handshake_s, config.cbs_s, link_idle_s=config.link_idle_s)
        certificates = ClientCertificates(
            {name: frozenset(rights) for name, rights in config.tls.client_rights}
        )
        mechanisms = SASL_MECHANISMS + (("EXTERNAL",) if config.tls.client_ca else ())
        metrics = namespaces.default.gateway.metrics
        strangers = Strangers()

        def amqp(left: Callable[[], None]) -> AmqpEndpoint:
            def lost(endpoint: AmqpEndpoint) -> None:
                self._endpoints.discard(endpoint)
                metrics.connections_closed += 1
                if self._garbage_collection is not None:
                    self._garbage_collection.connections_lost += 1
                left()

            settings = ConnectionSettings(
                container_id=namespaces.default.name,
                properties=PRODUCT,
                sasl_mechanisms=mechanisms,
                require_sasl=True,
                places=self._places,
            )
            endpoint = AmqpEndpoint(namespaces, certificates, settings, deadlines, lost, strangers)
            self._endpoints.add(endpoint)
            metrics.connections_opened += 1
            return endpoint

        def http(left: Callable[[], None]) -> HttpProtocol:
            def lost() -> None:
                self._http.discard(protocol)
                left()

            def upgrade() -> WebSocket:
                self._http.discard(protocol)
                return WebSocket(amqp(left))

            protocol = HttpProtocol(router, self._clock, lost, upgrade, strangers)
            self._http.add(protocol)
            return protocol

        return Listener(amqp, http, tls, config.handshake_s, config.tls.is_required, connections)


def _web_tokens(config: ServerConfig) -> WebTokens | None:
    if config.jwt is None:
        return None
    # Few need it, and loading it takes as long as a good part of starting.
    from twinbus.gateway.access import web_tokens  # noqa: PLC0415

    keys = web_tokens.read_keys(config.jwt.keys, config.jwt.keys_file)
    return web_tokens.WebTokens(config.jwt.issuer, config.jwt.audiences, keys)


async def run_server(
    config: ServerConfig, ready: Callable[[int], None], telemetry: Telemetry
) -> int:
    """Run a server until SIGTERM or SIGINT; `ready` gets the port it listens on."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    server = Server(config, SystemClock(), telemetry)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # not every platform's loop has signals
            loop.add_signal_handler(number, server.stop)
    try:
        return await server.run(ready)
    finally:
        telemetry.close()
