"""The options of a pair, and their checks (P-2).

Creating options with a wrong value raises an error that names the allowed range.  Nothing here
talks to a namespace.
"""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

Seconds: TypeAlias = float | dt.timedelta
Policy: TypeAlias = Literal["documented", "legacy"]
RestoredTimeToLive: TypeAlias = Literal["original", "remaining"]

Manager = TypeVar("Manager")
Client = TypeVar("Client")

BACKLOG_QUEUE_COUNT_DEFAULT: Final = 10
FAILOVER_INTERVAL_S_MAX: Final = 60 * 60.0
PING_PRIMARY_INTERVAL_S_MIN: Final = 1.0
PING_PRIMARY_INTERVAL_S_MAX: Final = 30 * 60.0
SEND_TIMEOUT_S_MAX: Final = 60 * 60.0
AMQPS_PORT: Final = 5671  # where nobody has named a port


class PairedNamespaceOptions:
    """Base of pairing kinds.  There is one kind: `SendAvailabilityPairedNamespaceOptions`."""


class OptionSettings(TypedDict, total=False):
    """Keyword arguments of the options; the constructor shows their defaults."""

    failover_interval: Seconds
    enable_syphon: bool
    ping_primary_interval: Seconds
    policy: Policy
    restored_time_to_live: RestoredTimeToLive
    send_timeout: Seconds
    producer_keys: bool
    primary_name: str | None
    adopt_unmarked: bool
    report: bool


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Keep sending while the primary is down: messages wait in backlog queues of the secondary.

    `secondary_manager` is a `ServiceBusAdministrationClient` of the secondary whose credential has
    the Manage claim; `secondary_client` is a `ServiceBusClient` of that namespace.  Use blocking
    clients for `twinbus.pairing`, async ones for `twinbus.pairing.aio`.  Closing the pair closes
    the primary's client and `secondary_client`; the caller closes `secondary_manager`.

    The five arguments that can be given by position are those of the original .NET class, in its
    order.
    """

    def __init__(
        self,
        secondary_manager: Any,
        secondary_client: Any,
        backlog_queue_count: int = BACKLOG_QUEUE_COUNT_DEFAULT,
        failover_interval: Seconds = 60,
        enable_syphon: bool = False,
        *,
        ping_primary_interval: Seconds = 60,
        policy: Policy = "documented",
        restored_time_to_live: RestoredTimeToLive = "original",
        send_timeout: Seconds = 60,
        producer_keys: bool = True,
        primary_name: str | None = None,
        adopt_unmarked: bool = False,
        report: bool = True,
    ) -> None:
        if secondary_manager is None or secondary_client is None:
            raise TypeError(
                "secondary_manager and secondary_client must both be given; "
                "from_connection_string() makes them."
            )
        self.backlog_queue_count = backlog_queue_count
        self.failover_interval_s = _seconds(
            "failover_interval", failover_interval, 0.0, FAILOVER_INTERVAL_S_MAX
        )
        self._watchers: set[Callable[[], None]] = set()
        self.ping_primary_interval = ping_primary_interval
        self.send_timeout_s = _seconds("send_timeout", send_timeout, 0.0, SEND_TIMEOUT_S_MAX)
        if self.send_timeout_s == 0.0:
            raise ValueError(f"send_timeout must be above 0 s, at most {SEND_TIMEOUT_S_MAX:g} s.")
        self.enable_syphon = _switch("enable_syphon", enable_syphon)
        self.producer_keys = _switch("producer_keys", producer_keys)
        self.adopt_unmarked = _switch("adopt_unmarked", adopt_unmarked)
        self.report = _switch("report", report)
        if policy not in {"documented", "legacy"}:
            raise ValueError(f"policy must be 'documented' or 'legacy', not {policy!r}.")
        self.policy: Policy = policy
        if restored_time_to_live not in {"original", "remaining"}:
            raise ValueError(
                "restored_time_to_live must be 'original' or 'remaining', "
                f"not {restored_time_to_live!r}."
            )
        self.restored_time_to_live: RestoredTimeToLive = restored_time_to_live
        self.primary_name = None if primary_name is None else _name(primary_name)
        self.secondary_manager = secondary_manager
        self.secondary_client = secondary_client
        self.connection_string: str | None = None
        self.manager_options: dict[str, Any] = {}
        self.client_options: dict[str, Any] = {}

    @classmethod
    def from_connection_string(
        cls,
        secondary: str,
        backlog_queue_count: int = BACKLOG_QUEUE_COUNT_DEFAULT,
        *,
        manager_options: dict[str, Any] | None = None,
        client_options: dict[str, Any] | None = None,
        **settings: Unpack[OptionSettings],
    ) -> "SendAvailabilityPairedNamespaceOptions":
        """Options for a connection string: `pair_namespace` creates the clients and closes them.

        `manager_options` and `client_options` are passed to the clients' `from_connection_string`
        (retries, certificates, a proxy), `settings` to the constructor.
        """
        if "=" not in secondary:
            raise ValueError(
                "secondary must be a connection string: Endpoint=sb://…;SharedAccessKeyName=…;…"
            )
        options = cls(secondary, secondary, backlog_queue_count, **settings)
        options.secondary_manager = options.secondary_client = None
        options.connection_string = secondary
        options.manager_options = dict(manager_options or {})
        options.client_options = dict(client_options or {})
        return options

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues to find or create; after pairing, how many are in use."""
        return self._backlog_queues_wanted if self._in_use is None else self._in_use

    @backlog_queue_count.setter
    def backlog_queue_count(self, count: int) -> None:
        self._backlog_queues_wanted = _count("backlog_queue_count", count)
        self._in_use: int | None = None

    @property
    def backlog_queues_wanted(self) -> int:
        """As given, also after pairing: options may be used for another pair."""
        return self._backlog_queues_wanted

    def note_backlog_queues(self, in_use: int) -> None:
        """For `pair_namespace`: this many are in use."""
        self._in_use = in_use

    @property
    def failover_interval(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.failover_interval_s)

    @property
    def ping_primary_interval(self) -> dt.timedelta:
        """May be set at any time; while paired, the next ping already keeps to it."""
        return dt.timedelta(seconds=self._ping_primary_interval_s)

    @ping_primary_interval.setter
    def ping_primary_interval(self, interval: Seconds) -> None:
        self._ping_primary_interval_s = _seconds(
            "ping_primary_interval",
            interval,
            PING_PRIMARY_INTERVAL_S_MIN,
            PING_PRIMARY_INTERVAL_S_MAX,
        )
        for watcher in list(self._watchers):
            watcher()

    @property
    def ping_primary_interval_s(self) -> float:
        return self._ping_primary_interval_s

    def watch(self, watcher: Callable[[], None]) -> None:
        """For a pair: call this when `ping_primary_interval` has been set."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)


def is_same_namespace(a: str, b: str) -> bool:
    """Whether two fully qualified namespaces or endpoints are the same."""
    return _endpoint(a) == _endpoint(b)


def host_and_port(namespace: str) -> tuple[str, int | None]:
    """Of `contoso.servicebus.windows.net`, `sb://localhost:5672/`, `[::1]:5672` and the like."""
    text = namespace.strip()
    try:
        parts = urlsplit(text if "//" in text else "//" + text)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise ValueError(f"{namespace!r} is not a namespace: {error}.") from error
    if not host:
        raise ValueError(f"{namespace!r} is not a namespace: it has no host.")
    return host, port


def _endpoint(namespace: str) -> tuple[str, int]:
    """Host and port, the same for names that mean the same whoever reads them."""
    host, port = host_and_port(namespace)
    return "localhost" if host in {"127.0.0.1", "::1"} else host, port or AMQPS_PORT


def _name(name: str) -> str:
    """A first segment of a queue's path."""
    if not name or "/" in name:
        raise ValueError(f"primary_name must be text without '/', not {name!r}.")
    return name


def _count(what: str, value: object) -> int:
    # True is an int to Python, and a mistake here.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}.")
    return value


def _seconds(what: str, value: object, low_s: float, high_s: float) -> float:
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        seconds = math.nan
    if not low_s <= seconds <= high_s:  # never true of a NaN
        raise ValueError(
            f"{what} must be from {low_s:g} s to {high_s:g} s (seconds or a timedelta), "
            f"not {value!r}."
        )
    return seconds


def _switch(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}.")
    return value


def clients_of(
    options: SendAvailabilityPairedNamespaceOptions,
    kinds: tuple[type[Manager], type[Client]],
    hint: str,
    plain_transport: Callable[[], Any],
    when_over: Callable[[Callable[[], Any]], Any],
) -> tuple[Manager, Client]:
    """The secondary's: the options' own, or new ones, whose closing is given to `when_over`."""
    text = options.connection_string
    if text is None:
        manager, client = options.secondary_manager, options.secondary_client
        if not isinstance(manager, kinds[0]) or not isinstance(client, kinds[1]):
            raise TypeError(f"secondary_manager and secondary_client must be {hint}.")
        return manager, client
    settings = dict(options.manager_options)
    if "usedevelopmentemulator=true" in text.lower() and "transport" not in settings:
        settings["transport"] = plain_transport()
    made: list[Any] = []
    makers: tuple[Any, Any] = kinds
    for maker, keywords in zip(makers, (settings, options.client_options), strict=True):
        made.append(maker.from_connection_string(text, **keywords))
        when_over(made[-1].close)
    return made[0], made[1]


def without_tls(request: Any) -> Any:
    """A request of the administration client, for a server without a certificate.

    Where a connection string says `UseDevelopmentEmulator=true`, the SDK's messaging client does
    without TLS, its administration client does not.
    """
    request.url = request.url.replace("https://", "http://", 1)
    return request


def check_kinds(primary: object, options: object, client: type) -> None:
    """`TypeError` unless these are what `pair_namespace` takes, with SDK clients of this class."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise TypeError(
            f"options must be SendAvailabilityPairedNamespaceOptions, not {type(options).__name__}."
        )
    if not isinstance(primary, str | client):
        module = client.__module__.partition("._")[0]
        raise TypeError(
            f"primary must be a connection string or an {module}.{client.__name__}, not "
            f"{type(primary).__module__}.{type(primary).__name__}."
        )
