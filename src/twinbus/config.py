"""What a server is told: one frozen object, validated once, units in the names.

Built by the command line and by tests, read by the server, changed by nobody.  The identity of a
data directory (its namespaces, their names and authorization rules) lives in `DIR/server.json`,
readable by its owner only, so that a connection string stays valid over restarts.  Which stores
belong to it stands in `DIR/stores.json`, where they are several or elsewhere.
"""

import json
import math
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.errors import ConfigError
from twinbus.limits import (
    BROKER_SILENT_MS_MAX,
    BROKER_WELL_MS,
    BROKERS_MAX,
    CBS_DURATION_S_MAX,
    HANDSHAKE_DURATION_S_MAX,
    LINK_IDLE_S_MAX,
    PROFILE_DEFAULT,
    SEGMENT_SIZE_MEGABYTES,
    SEGMENT_SIZE_MEGABYTES_MAX,
    SEGMENT_SIZE_MEGABYTES_MIN,
    SHARED_ACCESS_CHARS_MAX,
    SHARED_ACCESS_RULES_MAX,
    STORES_MAX,
    THRESHOLDS_DEFAULT,
    Limits,
    Thresholds,
)

HOST_DEFAULT: Final = "127.0.0.1"  # a development server is nobody else's business
PORT_DEFAULT: Final = 5672  # AMQP's own, and the one Microsoft's emulator uses
NAMESPACE_DEFAULT: Final = "twinbus"
ROOT_RULE_NAME: Final = "RootManageSharedAccessKey"  # what every Azure namespace is born with
RIGHTS: Final = ("Listen", "Manage", "Send")

PORT_MAX: Final = 65_535
NAMESPACES_MAX: Final = 100  # each is tried for the key of a client that names none
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
# Nobody can connect to "every address of this machine", so clients are told the nearest one.
_REACHABLE_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


@dataclass(frozen=True)
class RuleConfig:
    """An authorization rule: who knows one of the keys has the rights.  Manage means all."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    rights: tuple[str, ...] = RIGHTS

    def __post_init__(self) -> None:
        for text in (self.name, self.primary_key, self.secondary_key):
            # A connection string could not carry anything else.
            if (
                not 1 <= len(text) <= SHARED_ACCESS_CHARS_MAX
                or not text.isprintable()
                or ";" in text
            ):
                raise ConfigError(
                    "names and keys of authorization rules must have 1 to "
                    f"{SHARED_ACCESS_CHARS_MAX} printable characters and no `;`; choose others"
                )
        if not self.rights or not set(self.rights) <= set(RIGHTS):
            raise ConfigError(
                f"authorization rule {self.name}: rights must be some of {', '.join(RIGHTS)}"
            )


@dataclass(frozen=True)
class SubscriptionConfig:
    """A subscription to be made sure of.  Without rules it gets `$Default`, or keeps its own."""

    name: str
    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...] = ()


@dataclass(frozen=True)
class TopicConfig:
    """A topic to be made sure of, with subscriptions."""

    name: str
    description: TopicDescription
    subscriptions: tuple[SubscriptionConfig, ...] = ()


@dataclass(frozen=True)
class Declared:
    """Entities made sure of at start: created, or their settings brought up to date."""

    queues: tuple[tuple[str, QueueDescription], ...] = ()
    topics: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What makes a namespace itself: its name, its authorization rules, when it was born.

    `id` is made by chance, once: no other namespace has it, whatever its name and address.
    """

    namespace: str
    rules: tuple[RuleConfig, ...]  # the first is the one in the printed connection string
    created_utc_ms: int = 0
    id: str = ""

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if not 1 <= len(self.rules) <= SHARED_ACCESS_RULES_MAX:
            raise ConfigError(
                f"a namespace needs 1 to {SHARED_ACCESS_RULES_MAX} authorization rules"
            )
        if len({rule.name for rule in self.rules}) < len(self.rules):
            raise ConfigError("two authorization rules have the same name; rename one")


@dataclass(frozen=True)
class NamespaceConfig:
    """One namespace of a server."""

    identity: Identity
    declared: Declared = Declared()

    @property
    def name(self) -> str:
        return self.identity.namespace


@dataclass(frozen=True)
class TlsConfig:
    """How TLS is spoken.  Without a certificate of its own, a server makes one."""

    certificate: Path | None = None  # PEM, with the chain behind it
    key: Path | None = None
    client_ca: Path | None = None  # whose client certificates are asked for and believed
    # A client certificate's common name → its rights.
    client_rights: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_required: bool = False  # nothing is served without

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--certificate and --certificate-key belong together; pass both")
        if self.client_rights and self.client_ca is None:
            raise ConfigError("--client-rights needs --client-ca, which signs the certificates")
        for name, rights in self.client_rights:
            if not name or not rights or not set(rights) <= set(RIGHTS):
                raise ConfigError(f"client rights must be NAME={','.join(RIGHTS)} or some of these")


@dataclass(frozen=True)
class JwtConfig:
    """Whose JSON web tokens are believed."""

    issuer: str
    audiences: tuple[str, ...]
    keys: str = field(repr=False)  # what is in the file
    keys_file: str = ""

    def __post_init__(self) -> None:
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise ConfigError("--jwt-issuer, --jwt-audience and --jwt-keys belong together")


@dataclass(frozen=True)
class ServerConfig:
    """Everything `run_server` needs to know."""

    data_dir: Path
    namespaces: tuple[NamespaceConfig, ...]  # the first is the default
    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT  # 0: any free port
    extra_ports: tuple[int, ...] = ()  # the same service again, e.g. 5300 for emulator users
    handshake_s: float = HANDSHAKE_DURATION_S_MAX  # header, SASL and open; then we hang up
    cbs_s: float = CBS_DURATION_S_MAX  # until the first token is put
    link_idle_s: float = LINK_IDLE_S_MAX  # then a link on which nothing moves is detached
    tls: TlsConfig = TlsConfig()
    jwt: JwtConfig | None = None
    limits: Limits = PROFILE_DEFAULT
    thresholds: Thresholds = THRESHOLDS_DEFAULT  # past which requests are throttled
    open_metrics: bool = False  # anybody may read /metrics and the details of /health
    meter_days: int = 0  # how long what was metered is kept; 0: for good
    brokers: int = 1  # processes that run stores
    stores: tuple[Path, ...] = ()  # in their order (load_stores); empty: one for each broker
    segment_size_megabytes: int = SEGMENT_SIZE_MEGABYTES  # of a store that is made anew
    broker_timeout_s: float = BROKER_SILENT_MS_MAX / 1_000  # without a word: it is taken for hung
    broker_well_s: float = BROKER_WELL_MS / 1_000  # until one that came back gets its stores

    def __post_init__(self) -> None:
        check_names([namespace.name for namespace in self.namespaces])
        _check_brokers(self.brokers)
        _check_stores(self.data_dir, self.store_paths)
        if self.broker_timeout_s <= 0 or self.broker_well_s < 0:
            raise ConfigError("broker_timeout_s must be above 0, broker_well_s 0 or more")
        for port in (self.port, *self.extra_ports):
            if not 0 <= port <= PORT_MAX:
                raise ConfigError(f"port {port} is not between 0 and {PORT_MAX}; choose another")
        least, most = SEGMENT_SIZE_MEGABYTES_MIN, SEGMENT_SIZE_MEGABYTES_MAX
        if not least <= self.segment_size_megabytes <= most:
            raise ConfigError(
                f"--segment-size {self.segment_size_megabytes} is not between {least} and {most}; "
                f"omit it for {SEGMENT_SIZE_MEGABYTES} megabytes"
            )
        if self.meter_days < 0:
            raise ConfigError("--meter-days must be a number of days, or 0 to keep everything")
        for deadline_s in (self.handshake_s, self.cbs_s, self.link_idle_s):
            if not 0 < deadline_s < math.inf:
                raise ConfigError(
                    f"a deadline of {deadline_s:g} s makes no sense; choose a number of seconds "
                    "above 0 for --handshake and --link-idle, or omit them"
                )

    @property
    def store_paths(self) -> tuple[Path, ...]:
        return self.stores or _own_stores(self.data_dir, self.brokers)

    @property
    def segment_size_bytes(self) -> int:
        return self.segment_size_megabytes * 1_048_576

    @property
    def is_in_process(self) -> bool:
        """One broker and one store need no process of their own."""
        return self.brokers == 1 and len(self.store_paths) == 1

    def connection_strings(self, port: int) -> dict[str, str]:
        """What a client needs, all of it, for each namespace; `port` is the real one."""
        host = _REACHABLE_HOSTS.get(self.host, self.host)
        endpoint = f"Endpoint=sb://{f'[{host}]' if ':' in host else host}:{port};"
        plain = "" if self.tls.is_required else "UseDevelopmentEmulator=true;"
        strings: dict[str, str] = {}
        for namespace in self.namespaces:
            rule = namespace.identity.rules[0]
            strings[namespace.name] = (
                f"{endpoint}SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key};"
                + plain
            )
        return strings


def check_namespace(name: str) -> None:
    """Refuse what could not be a host name's first label: backlog queues are named after it."""
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(
            f"namespace name {name[:64]!r} is not valid; use 1 to 50 letters, digits and hyphens"
        )


def check_names(names: Sequence[str]) -> None:
    """The namespaces of one server."""
    for name in names:
        check_namespace(name)
    if not 1 <= len(names) <= NAMESPACES_MAX:
        raise ConfigError(f"{len(names)} namespaces; a server can have 1 to {NAMESPACES_MAX}")
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError("two namespaces have the same name; rename one")


# --- stores ---------------------------------------------------------------------------------------


def load_stores(data_dir: Path, given: Sequence[Path], brokers: int) -> tuple[Path, ...]:
    """The stores of this data directory, in their order, with what was asked for put in place.

    A store is known by its place in this order: entities are found by it.  So those that are there
    stay where they are, and new ones are added behind.  Without any given, every broker gets one.
    Writes nothing, as `load_identities`.
    """
    _check_brokers(brokers)
    recorded = known_stores(data_dir)
    for store in recorded:
        if not store.is_dir():
            # A store that is made anew in its place would be taken for one that lost everything.
            raise ConfigError(
                f"store {store} belongs to {data_dir} and is missing; mount it, or create an empty "
                "directory in its place to go on without its messages"
            )
    if not given:
        own = _own_stores(data_dir, brokers)
        return recorded + tuple(store for store in own[len(recorded) :] if store not in recorded)
    stores = tuple(store.resolve() for store in given)
    if stores[: len(recorded)] != tuple(store.resolve() for store in recorded):
        listed = " ".join(f"--store {store}" for store in recorded)
        raise ConfigError(
            f"{data_dir} already has stores, in this order; begin with {listed} and add new ones "
            "after them, or omit --store"
        )
    for store in stores[len(recorded) :]:
        # Where a disk should be mounted and is not, nothing may be made.
        if not store.parent.is_dir() or (store.exists() and not store.is_dir()):
            raise ConfigError(
                f"--store {store} cannot be created; choose one in an existing directory"
            )
    return stores


def known_stores(data_dir: Path) -> tuple[Path, ...]:
    """The stores that a data directory has already."""
    path = data_dir / "stores.json"
    if not path.exists():
        first = data_dir / "store-0"
        return (first,) if first.is_dir() else ()
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["stores"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("`stores` is not a list of paths")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be used ({type(error).__name__}: {error}); repair it: it lists "
            "the stores of this directory in their original order"
        ) from error
    return tuple(data_dir / name for name in names)  # an absolute path stays what it is


def record_stores(data_dir: Path, stores: Sequence[Path]) -> None:
    """Keep the order of the stores for the next start."""
    base = data_dir.resolve()
    places = [store.resolve() for store in stores]
    if places in ([base / "store-0"], [store.resolve() for store in known_stores(data_dir)]):
        return
    # What is inside is written without the way there, so that the whole directory may be moved.
    names = [
        str(place.relative_to(base) if place.is_relative_to(base) else place) for place in places
    ]
    write_private(data_dir / "stores.json", json.dumps({"stores": names}, indent=2) + "\n")


def _own_stores(data_dir: Path, count: int) -> tuple[Path, ...]:
    return tuple(data_dir / f"store-{number}" for number in range(count))


def _check_brokers(brokers: int) -> None:
    if not 1 <= brokers <= BROKERS_MAX:
        raise ConfigError(f"{brokers} brokers; use 1 to {BROKERS_MAX}")


def _check_stores(data_dir: Path, stores: Sequence[Path]) -> None:
    if len(stores) > STORES_MAX:
        raise ConfigError(f"{len(stores)} stores; use 1 to {STORES_MAX}")
    places = [store.resolve() for store in stores]
    for number, place in enumerate(places):
        if place == data_dir.resolve():
            raise ConfigError(f"--store {stores[number]} is the data directory; use one inside it")
        for other in places[:number]:
            if place == other or place.is_relative_to(other) or other.is_relative_to(place):
                raise ConfigError(
                    f"--store {stores[number]} is, contains or is inside another store; "
                    "each needs a directory of its own"
                )


# --- identity -------------------------------------------------------------------------------------


def load_identities(
    data_dir: Path, now_utc_ms: int, names: Sequence[str] = (), keys: Sequence[str] = ()
) -> tuple[Identity, ...]:
    """The directory's namespaces, with what was asked for put in place: the first is the default.

    Those that are there stay, in their order, because the store knows them by it; new names are
    added behind.  A namespace that is alone takes a new name.  `keys` are for the names in their
    order, or for the namespaces in theirs.  Writes nothing: a second server on the same directory
    must not get to change it before it is turned away.
    """
    path = data_dir / "server.json"
    stored = list(_read_identities(path)) if path.exists() else []
    known = {identity.namespace.lower() for identity in stored}
    wanted = list(names) or [identity.namespace for identity in stored] or [NAMESPACE_DEFAULT]
    check_names(wanted)
    if len(stored) == 1 and not known & {name.lower() for name in wanted}:
        stored[0] = replace(stored[0], namespace=wanted[0])
        known = {wanted[0].lower()}
    stored += [_new_identity(name) for name in wanted if name.lower() not in known]
    key_by_name = {name.lower(): key for name, key in zip(wanted, keys, strict=False)}
    if len(keys) > len(wanted):
        raise ConfigError(f"{len(keys)} keys for {len(wanted)} namespaces; pass one for each")
    return tuple(
        _completed(identity, key_by_name.get(identity.namespace.lower()), now_utc_ms)
        for identity in stored
    )


def new_identity(name: str, now_utc_ms: int) -> Identity:
    """A namespace that is born now, with keys of its own."""
    return _completed(_new_identity(name), None, now_utc_ms)


def store_identity(data_dir: Path, *identities: Identity) -> None:
    """Keep the identity for the next start; a file that says the same is left as it was typed."""
    path = data_dir / "server.json"
    if path.exists() and _read_identities(path) == identities:
        return
    namespaces = [
        {
            "name": identity.namespace,
            "id": identity.id,
            "created_utc_ms": identity.created_utc_ms,
            "rules": [
                {
                    "name": rule.name,
                    "rights": list(rule.rights),
                    "primary_key": rule.primary_key,
                    "secondary_key": rule.secondary_key,
                }
                for rule in identity.rules
            ],
        }
        for identity in identities
    ]
    write_private(path, json.dumps({"namespaces": namespaces}, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a small file whole; nobody but the owner can read it, not even for a moment."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _new_identity(name: str) -> Identity:
    keys = (secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    return Identity(name, (RuleConfig(ROOT_RULE_NAME, *keys),))


def _completed(identity: Identity, key: str | None, now_utc_ms: int) -> Identity:
    """With the key that was given, and with a time of birth and an id, which older files lack."""
    rules = identity.rules
    if key is not None:
        rules = (replace(rules[0], primary_key=key), *rules[1:])
    return replace(
        identity,
        rules=rules,
        created_utc_ms=identity.created_utc_ms or now_utc_ms,
        id=identity.id or secrets.token_hex(16),
    )


def _read_identities(path: Path) -> tuple[Identity, ...]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if "namespaces" in document:
            found = tuple(_read_identity(entry["name"], entry) for entry in document["namespaces"])
        else:  # one namespace, as it was written before there could be several
            found = (_read_identity(document["namespace"], document),)
        check_names([identity.namespace for identity in found])
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"{path}: cannot be used ({type(error).__name__}: {error}); "
            "repair it, or move it away to get a new key"
        ) from error
    return found


def _read_identity(name: str, entry: dict[str, Any]) -> Identity:
    rules = tuple(
        RuleConfig(rule["name"], rule["primary_key"], rule["secondary_key"], tuple(rule["rights"]))
        for rule in entry["rules"]
    )
    return Identity(name, rules, int(entry.get("created_utc_ms", 0)), str(entry.get("id", "")))
