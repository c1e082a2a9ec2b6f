"""The server: puts the parts together, runs until told to stop.

    data directory ─▶ store ─▶ broker ─▶ namespace ─▶ listener (AMQP, TLS, HTTP on one port)

Exit codes: 0 after a clean stop, 3 when the store failed and the server stopped to save what is
acknowledged.  Everything that goes wrong before "ready" is raised to the command line.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import ssl
import sys
from collections.abc import Callable
from typing import Final

from twinbus.amqp.connection import ConnectionSettings
from twinbus.broker.auth import AuthorizationRule, Authorizer
from twinbus.broker.namespace import Namespace
from twinbus.broker.shell import BrokerShell
from twinbus.certificates import server_context
from twinbus.clock import Clock, SystemClock
from twinbus.config import ServerConfig
from twinbus.errors import EntityNotFound
from twinbus.server.atom import AtomRouter
from twinbus.server.collector import Collector
from twinbus.server.endpoint import AmqpEndpoint, Deadlines, dispatch_replies
from twinbus.server.http import HttpProtocol
from twinbus.server.listener import Listener
from twinbus.storage.disk import OsDisk
from twinbus.storage.store import Store

log = logging.getLogger("twinbus.server")

EXIT_STORE_FAILED: Final = 3
# The commit thread waits for Python's lock after every write and sync, with the default for up to
# 5 ms, while a sync takes less than one.  Comparisons of rates did not settle how much it gives.
SWITCH_INTERVAL_S: Final = 0.0005
HANG_UP_TRIES: Final = 50
SASL_MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


class Server:
    """One running server."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._stopping = asyncio.get_running_loop().create_future()
        self._endpoints: set[AmqpEndpoint] = set()
        self._http: set[HttpProtocol] = set()
        self._collector: Collector | None = None

    async def run(self, ready: Callable[[str], None]) -> int:
        """Serve until `stop`; returns the exit code."""
        config = self._config
        disk = OsDisk(config.data_dir / "store-0")
        store = Store.open(disk, self._clock.now(), secrets.randbits(63))
        shell = BrokerShell(store, self._clock, dispatch_replies, self._failed)
        rules = [
            AuthorizationRule(r.name, frozenset(r.rights), r.primary_key, r.secondary_key)
            for r in config.rules
        ]
        namespace = Namespace(
            config.namespace, shell.broker, Authorizer(rules), self._clock, self._clock.now().utc_ms
        )
        listener = self._listener(namespace, server_context(config.data_dir, config.host))
        collector = self._collector = Collector(shell.broker.message_count)
        try:
            port = listener.bind(config.host, config.port)
            for extra in config.extra_ports:
                listener.bind(config.host, extra)
            shell.start()
            collector.start()
            await _declare(namespace, config)
            listener.start()
            ready(config.connection_string(port))
            code: int = await self._stopping
        finally:
            collector.stop()
            await listener.close()
            await shell.close()
            await self._hang_up()
            disk.close()
        return code

    async def _hang_up(self) -> None:
        """Say good-bye to every client and give the words a moment to go out."""
        for endpoint in list(self._endpoints):
            endpoint.shut_down()
        for protocol in list(self._http):
            protocol.shutdown()
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

    def _listener(self, namespace: Namespace, tls: ssl.SSLContext) -> Listener:
        config = self._config
        deadlines = Deadlines(config.handshake_s, config.cbs_s)
        router = AtomRouter(namespace)

        def amqp(left: Callable[[], None]) -> AmqpEndpoint:
            def lost(endpoint: AmqpEndpoint) -> None:
                self._endpoints.discard(endpoint)
                if self._collector is not None:
                    self._collector.connections_lost += 1
                left()

            settings = ConnectionSettings(
                container_id=namespace.name, sasl_mechanisms=SASL_MECHANISMS, require_sasl=True
            )
            endpoint = AmqpEndpoint(namespace, settings, deadlines, lost)
            self._endpoints.add(endpoint)
            return endpoint

        def http(left: Callable[[], None]) -> HttpProtocol:
            def lost() -> None:
                self._http.discard(protocol)
                left()

            protocol = HttpProtocol(router, self._clock, lost)
            self._http.add(protocol)
            return protocol

        return Listener(amqp, http, tls, config.handshake_s)


async def _declare(namespace: Namespace, config: ServerConfig) -> None:
    """Queues of the configuration: made if they are missing, brought up to date if not."""
    for name, description in config.queues:
        try:
            namespace.find_queue(name)
        except EntityNotFound:
            await namespace.create_queue(name, description)
        else:
            await namespace.update_queue(name, description)


async def run_server(config: ServerConfig, ready: Callable[[str], None]) -> int:
    """Run a server until SIGTERM or SIGINT; `ready` gets the connection string."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = Server(config, SystemClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # not every platform's loop has signals
            loop.add_signal_handler(number, server.stop)
    return await server.run(ready)
