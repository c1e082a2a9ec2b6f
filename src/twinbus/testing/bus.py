"""A bus for tests: a server as a context manager, and fresh namespaces in milliseconds.

    with Bus() as bus:
        bus.create_queue("orders")
        with bus.client() as client: ...

`Bus` uses the names that Testcontainers users know (`start`, `stop`, `get_connection_string`,
`with_…`).  Unless you give it a directory, a bus leaves nothing behind.
"""

import atexit
import importlib
import json
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from twinbus.certificates import ca_certificate
from twinbus.client.admin import QUEUE, SUBSCRIPTION, TOPIC, AdminClient, Entry
from twinbus.client.connection_string import ConnectionString
from twinbus.client.faults import FaultClient
from twinbus.client.namespaces import NamespaceClient
from twinbus.client.rules import RuleSettings
from twinbus.errors import ConfigError
from twinbus.testing.server import ServerProcess, Setting, entity_properties

DEFAULT_RULE: Final = "$Default"


class ServiceBus(ABC):
    """One namespace: what a test can do with it, besides using it as the application does."""

    def __init__(self) -> None:
        self._clients: list[Any] = []

    @property
    @abstractmethod
    def server(self) -> ServerProcess:
        """The process that serves it."""

    @property
    @abstractmethod
    def connection_string(self) -> str:
        """The connection string for clients."""

    @property
    def admin(self) -> AdminClient:
        """Administration without any SDK."""
        return AdminClient(self.connection_string)

    # -- entities --------------------------------------------------------------------------------

    def create_queue(self, name: str, **settings: Setting) -> Entry:
        """Settings as the SDK names them: `lock_duration=timedelta(seconds=5)` or `"PT5S"`."""
        return self.admin.create(QUEUE, (name,), entity_properties(settings))

    def create_topic(self, name: str, **settings: Setting) -> Entry:
        return self.admin.create(TOPIC, (name,), entity_properties(settings))

    def create_subscription(
        self, topic: str, name: str, sql: str = "", **settings: Setting
    ) -> Entry:
        """With `sql` it gets only the messages that this filter matches."""
        made = self.admin.create(SUBSCRIPTION, (topic, name), entity_properties(settings))
        if sql:
            self.admin.create_rule((topic, name, "sql"), RuleSettings(sql=sql))
            self.admin.delete((topic, name, DEFAULT_RULE))
        return made

    def message_count(self, entity: str, subscription: str = "") -> int:
        """The number of active messages in a queue, or in a subscription of a topic."""
        if subscription:
            found = self.admin.get(SUBSCRIPTION, (entity, subscription))
        else:
            found = self.admin.get(QUEUE, (entity,))
        return int(found.properties["ActiveMessageCount"])

    # -- clients of the official SDK ---------------------------------------------------------------

    def client(self, **options: Any) -> Any:
        """A `ServiceBusClient`, closed with the bus unless the test closes it."""
        made = _sdk("azure.servicebus").ServiceBusClient.from_connection_string(
            self.connection_string, **options
        )
        self._clients.append(made)
        return made

    def async_client(self, **options: Any) -> Any:
        """A `ServiceBusClient` of `azure.servicebus.aio`; the test must close it."""
        return _sdk("azure.servicebus.aio").ServiceBusClient.from_connection_string(
            self.connection_string, **options
        )

    def administration_client(self, **options: Any) -> Any:
        """A `ServiceBusAdministrationClient`, which trusts this server's certificate."""
        management = _sdk("azure.servicebus.management")
        made = management.ServiceBusAdministrationClient.from_connection_string(
            self.connection_string,
            connection_verify=str(ca_certificate(self.server.data_dir)),
            **options,
        )
        self._clients.append(made)
        return made

    # -- trouble -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """`kill -9` the server.  Accepted messages are there after `restart`."""
        self.server.kill()

    def restart(self) -> None:
        """Start the server again, also after `kill`: same port, same data."""
        if self.server.running:
            self.server.stop()
        self.server.restart()

    def fault(self, kind: str, **scope: object) -> "Fault":
        """Inject a fault, until it is cleared or the test ends.

        Kinds and options are those of `twinbus fault add`: `fault("throttle",
        entity="orders")`, `fault("slow-store", delay_ms=200)`.
        """
        return Fault(FaultClient(self.connection_string), kind, scope)

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()


class Fault:
    """A fault in force.  As a context manager, it ends with the block."""

    def __init__(self, client: FaultClient, kind: str, scope: Mapping[str, object]) -> None:
        self._client = client
        self.id = str(client.add({"kind": kind, **scope})["id"])

    def clear(self) -> None:
        self._client.clear(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class Bus(ServiceBus):
    """A server on a free port."""

    def __init__(
        self,
        config: Path | str | Mapping[str, object] | None = None,
        *,
        data: Path | str | None = None,
        port: int = 0,
        arguments: Sequence[str] = (),
    ) -> None:
        """`config` is a Config.json: the file, or its text.  `arguments` are those of
        `twinbus serve`.  Without `data`, `stop` deletes everything.
        """
        super().__init__()
        self._config = config
        self._data = None if data is None else Path(data)
        self._port = port
        self._arguments = list(arguments)
        self._server: ServerProcess | None = None
        self._temporary: Path | None = None

    # -- before the start --------------------------------------------------------------------------

    def with_config(self, config: Path | str | Mapping[str, object]) -> Self:
        self._config = config
        return self

    def with_data(self, directory: Path | str) -> Self:
        self._data = Path(directory)
        return self

    def with_arguments(self, *arguments: str) -> Self:
        self._arguments += arguments
        return self

    # -- running -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, and wait until it is ready."""
        if self._server is not None:
            raise ConfigError("this bus runs already; stop it first")
        self._temporary = Path(tempfile.mkdtemp(prefix="twinbus-"))
        data_dir = self._data or self._temporary / "data"
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        arguments = self._arguments
        if self._config is not None:
            arguments = ["--config", str(self._config_file(self._temporary)), *arguments]
        self._server = ServerProcess(data_dir, port=self._port, arguments=arguments)
        # Whoever forgets to stop it must not leave a server behind.
        atexit.register(self._end)
        try:
            self._server.start()
        except BaseException:
            self._end()
            raise
        return self

    def stop(self) -> None:
        """Stop it; you can start it again."""
        self.close_clients()
        server = self._server
        try:
            if server is not None and server.running:
                server.stop()
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:  # a test that has failed must not have its reason covered by ours
            self._end()

    @property
    def server(self) -> ServerProcess:
        if self._server is None:
            raise ConfigError("the bus is not running; start it, or use it in a `with`")
        return self._server

    @property
    def connection_string(self) -> str:
        return self.server.connection_string

    @property
    def host(self) -> str:
        return ConnectionString.parse(self.connection_string).host

    @property
    def port(self) -> int:
        return self.server.port

    def fresh_namespace(self, config: str = "") -> "FreshNamespace":
        """Another namespace, with the entities that the text of a Config.json declares."""
        return FreshNamespace(self, config)

    # -- as Testcontainers has it ------------------------------------------------------------------

    def get_connection_string(self) -> str:
        return self.connection_string

    def get_container_host_ip(self) -> str:
        return self.host

    def get_exposed_port(self, _port: int) -> int:
        """The same for any port: AMQP, administration and `/health` share one."""
        return self.port

    def _config_file(self, folder: Path) -> Path:
        if isinstance(self._config, Mapping):
            path = folder / "Config.json"
            path.write_text(json.dumps(self._config), encoding="utf-8")
            return path
        return Path(str(self._config))

    def _end(self) -> None:
        """Leave no process and no temporary files, whatever happened before."""
        atexit.unregister(self._end)
        if self._server is not None and self._server.running:
            self._server.kill()
        self._server = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


class FreshNamespace(ServiceBus):
    """A namespace of a running bus that nobody else uses; closing it deletes it."""

    def __init__(self, bus: Bus, config: str = "") -> None:
        super().__init__()
        self._bus = bus
        self._had_faults = False
        self.name = f"test-{secrets.token_hex(4)}"
        self._connection_string = self._namespaces.create(self.name, config)

    @property
    def server(self) -> ServerProcess:
        return self._bus.server

    @property
    def connection_string(self) -> str:
        return self._connection_string

    @property
    def _namespaces(self) -> NamespaceClient:
        return NamespaceClient(self._bus.connection_string)

    def fault(self, kind: str, **scope: object) -> Fault:
        """Like `Bus.fault`; faults on stores and brokers affect all namespaces."""
        # Imported late: it is the server's table, and few tests need it.
        from twinbus.gateway.faults.kinds import KINDS  # noqa: PLC0415

        known = KINDS.get(kind)
        if known is not None and not known.reaches_further:
            scope = {"namespace": self.name, **scope}
        self._had_faults = True
        return Fault(FaultClient(self._bus.connection_string), kind, scope)

    def close(self) -> None:
        """Delete the namespace and everything in it; the server keeps running."""
        try:
            self.close_clients()
        finally:
            if not self.server.running:
                self.server.restart()
            if self._had_faults:  # also those that are not of this namespace alone
                FaultClient(self._bus.connection_string).clear_all()
            self._namespaces.delete(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sdk(module: str) -> Any:
    """Azure's SDK, which the base install does not include."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "the official SDK is not installed; pip install 'twinbus[pairing]'"
        ) from error
