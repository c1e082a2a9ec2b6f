"""What a server is told: one frozen object, validated once, units in the names.

Built by the command line and by tests, read by the server, changed by nobody.  The identity of a
data directory (namespace name and authorization rules) lives in `DIR/server.json`, readable by its
owner only, so that a connection string stays valid over restarts.
"""

import json
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import ConfigError
from twinbus.limits import CBS_DURATION_S_MAX, HANDSHAKE_DURATION_S_MAX

HOST_DEFAULT: Final = "127.0.0.1"  # a development server is nobody else's business
PORT_DEFAULT: Final = 5672  # AMQP's own, and the one Microsoft's emulator uses
NAMESPACE_DEFAULT: Final = "twinbus"
ROOT_RULE_NAME: Final = "RootManageSharedAccessKey"  # what every Azure namespace is born with
RIGHTS: Final = ("Listen", "Manage", "Send")

KEY_CHARS_MAX: Final = 256  # Service Bus: names and keys of rules
RULES_MAX: Final = 12  # Service Bus: authorization rules a scope
PORT_MAX: Final = 65_535
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
            if not 1 <= len(text) <= KEY_CHARS_MAX or not text.isprintable() or ";" in text:
                raise ConfigError(
                    f"names and keys of authorization rules have 1 to {KEY_CHARS_MAX} printable "
                    "characters and no `;`; choose others"
                )
        if not self.rights or not set(self.rights) <= set(RIGHTS):
            raise ConfigError(
                f"authorization rule {self.name}: rights are some of {', '.join(RIGHTS)}"
            )


@dataclass(frozen=True)
class ServerConfig:
    """Everything `run_server` needs to know."""

    data_dir: Path
    namespace: str
    rules: tuple[RuleConfig, ...]  # the first is the one in the printed connection string
    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT  # 0: any free port
    extra_ports: tuple[int, ...] = ()  # the same service again, e.g. 5300 for emulator users
    handshake_s: float = HANDSHAKE_DURATION_S_MAX  # header, SASL and open; then we hang up
    cbs_s: float = CBS_DURATION_S_MAX  # until the first token is put
    # Made sure of at start: created, or their settings brought up to date; messages stay.
    queues: tuple[tuple[str, QueueDescription], ...] = ()

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if not 1 <= len(self.rules) <= RULES_MAX:
            raise ConfigError(f"a namespace has 1 to {RULES_MAX} authorization rules")
        if len({rule.name for rule in self.rules}) < len(self.rules):
            raise ConfigError("two authorization rules have the same name; rename one")
        for port in (self.port, *self.extra_ports):
            if not 0 <= port <= PORT_MAX:
                raise ConfigError(f"port {port} is not between 0 and {PORT_MAX}; choose another")
        if self.handshake_s <= 0 or self.cbs_s <= 0:
            raise ConfigError("deadlines are longer than 0 seconds; give them some time")

    def connection_string(self, port: int) -> str:
        """What a client needs, all of it; `port` is the one really listened on."""
        host = _REACHABLE_HOSTS.get(self.host, self.host)
        rule = self.rules[0]
        return (
            f"Endpoint=sb://{f'[{host}]' if ':' in host else host}:{port};"
            f"SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key};"
            "UseDevelopmentEmulator=true;"
        )


def check_namespace(name: str) -> None:
    """Refuse what could not be a host name's first label: backlog queues are named after it."""
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(
            f"namespace name {name[:64]!r} is not usable; take 1 to 50 letters, digits and hyphens"
        )


@dataclass(frozen=True)
class Identity:
    """What makes a data directory one namespace: its name and its authorization rules."""

    namespace: str
    rules: tuple[RuleConfig, ...]


def load_identity(data_dir: Path, namespace: str | None = None, key: str | None = None) -> Identity:
    """The directory's identity with what was asked for put in place.  Writes nothing: a second
    server on the same directory must not get to change it before it is turned away.
    """
    path = data_dir / "server.json"
    stored = _read_identity(path) if path.exists() else _new_identity()
    rules = stored.rules
    if key is not None:
        first = rules[0]
        rules = (RuleConfig(first.name, key, first.secondary_key, first.rights), *rules[1:])
    return Identity(namespace or stored.namespace, rules)


def store_identity(data_dir: Path, identity: Identity) -> None:
    """Keep the identity for the next start; a file that says the same is left as it was typed."""
    path = data_dir / "server.json"
    if path.exists() and _read_identity(path) == identity:
        return
    rules = [
        {
            "name": rule.name,
            "rights": list(rule.rights),
            "primary_key": rule.primary_key,
            "secondary_key": rule.secondary_key,
        }
        for rule in identity.rules
    ]
    document = {"namespace": identity.namespace, "rules": rules}
    write_private(path, json.dumps(document, indent=2) + "\n")


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


def _new_identity() -> Identity:
    keys = (secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    return Identity(NAMESPACE_DEFAULT, (RuleConfig(ROOT_RULE_NAME, *keys),))


def _read_identity(path: Path) -> Identity:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rules = tuple(
            RuleConfig(
                rule["name"], rule["primary_key"], rule["secondary_key"], tuple(rule["rights"])
            )
            for rule in document["rules"]
        )
        return Identity(document["namespace"], rules)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"{path}: cannot be used ({type(error).__name__}: {error}); "
            "mend it, or move it away to get a new key"
        ) from error
