"""Connection strings: their parts, and what is wrong with a bad one.

People copy connection strings from place to place, so every error names the part at fault.  No
error ever shows the key.
"""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from twinbus.errors import ConfigError

SHAPE: Final = (
    "Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY;"
    "UseDevelopmentEmulator=true;"
)
# What the official SDKs know; anything else is more likely a typing error than a wish.
_KNOWN: Final = {
    "endpoint",
    "sharedaccesskeyname",
    "sharedaccesskey",
    "entitypath",
    "usedevelopmentemulator",
}


@dataclass(frozen=True)
class ConnectionString:
    """One parsed connection string with a shared access key."""

    host: str
    port: int | None
    key_name: str
    key: str = field(repr=False)
    entity_path: str | None
    development_emulator: bool  # plain connections; without it everything goes over TLS

    @property
    def authority(self) -> str:
        """`host[:port]` as in URIs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "ConnectionString":
        parts = _split(text)
        for name in ("endpoint", "sharedaccesskeyname", "sharedaccesskey"):
            if not parts.get(name):
                raise ConfigError(f"connection string has no {name}; it looks like {SHAPE}")
        host, port = _host_and_port(parts["endpoint"])
        return cls(
            host=host,
            port=port,
            key_name=parts["sharedaccesskeyname"],
            key=parts["sharedaccesskey"],
            entity_path=parts.get("entitypath"),
            # The official SDKs compare with exactly "true"; being laxer here would only hide it.
            development_emulator=parts.get("usedevelopmentemulator") == "true",
        )


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().strip(";").split(";"), start=1):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals or name not in _KNOWN:
            # The part itself may be (half of) a key, so only its place is told.
            raise ConfigError(f"connection string: part {number} is unknown; it looks like {SHAPE}")
        if name in parts:
            raise ConfigError(f"connection string: {name} is given twice; keep one")
        parts[name] = value.strip()
    return parts


def _host_and_port(endpoint: str) -> tuple[str, int | None]:
    try:
        url = urlsplit(endpoint)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, urlsplit("")
    if url.scheme not in {"sb", "amqp", "amqps", "http", "https"} or not host:
        raise ConfigError(
            f"connection string: endpoint is not sb://HOST:PORT; it looks like {SHAPE}"
        )
    return host, port
