"""`twinbus serve`: run a bus in the foreground until SIGTERM or SIGINT."""

import argparse
import asyncio
import errno
import logging
from pathlib import Path
from typing import Final

from twinbus.cli.arguments import Commands, add_data, add_option, add_repeated
from twinbus.cli.running import forget_running, remember_running
from twinbus.cli.thresholds import read_thresholds
from twinbus.clock import SystemClock
from twinbus.config import (
    HOST_DEFAULT,
    PORT_DEFAULT,
    Declared,
    Identity,
    JwtConfig,
    NamespaceConfig,
    ServerConfig,
    TlsConfig,
    load_identities,
    load_stores,
    record_stores,
    store_identity,
)
from twinbus.emulator_config import EmulatorConfig, read_emulator_config
from twinbus.errors import ConfigError, DirectoryInUse, LogDamaged
from twinbus.host.app import run_server
from twinbus.limits import (
    HANDSHAKE_DURATION_S_MAX,
    LINK_IDLE_S_MAX,
    PROFILE_DEFAULT,
    PROFILES,
    SEGMENT_SIZE_MEGABYTES,
)
from twinbus.telemetry.logs import FORMATS, TEXT, show_log
from twinbus.telemetry.secrets import KnownSecrets
from twinbus.telemetry.telemetry import Telemetry, open_telemetry

# What a socket never says; these come without a file name when they are about an open file.
_DISK_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def add_arguments(commands: Commands) -> None:
    serve = commands.add_parser("serve")
    add_data(serve, "directory for all data; created if missing")
    add_options(serve)
    serve.set_defaults(run=run)


def add_options(serve: argparse.ArgumentParser) -> None:
    """Everything but where the data is: `twinbus emulator` takes it too."""
    option = serve.add_argument
    add_option(serve, "--host H", "bind address (default: %(default)s)", default=HOST_DEFAULT)
    add_option(
        serve,
        "--port N",
        "port for AMQP, TLS and HTTP alike; 0 picks a free one (default: %(default)s)",
        int,
        PORT_DEFAULT,
    )
    add_repeated(serve, "--extra-port N", "another port to listen on; may be repeated", int)
    add_option(serve, "--config FILE", "a Config.json of Microsoft's emulator", Path)
    add_repeated(
        serve, "--namespace NAME", "namespace; may be repeated (default: as before, or twinbus)"
    )
    add_repeated(
        serve,
        "--key KEY",
        "key of the namespace, or of each in turn (default: the one used before, or a random one)",
    )
    option(
        "--limits",
        choices=tuple(PROFILES),
        default=PROFILE_DEFAULT.name,
        help="tier whose limits apply (default: %(default)s)",
    )
    _add_brokers(serve)
    _add_watching(serve)
    _add_access(serve)
    add_option(
        serve,
        "--handshake SECONDS",
        "how long to wait for a client to start its protocol (default: %(default)s)",
        float,
        HANDSHAKE_DURATION_S_MAX,
    )
    add_option(
        serve,
        "--link-idle SECONDS",
        "how long nothing may move on a link before it is detached (default: %(default)s, as on "
        "Azure)",
        float,
        LINK_IDLE_S_MAX,
    )
    _add_telemetry(serve)


def _add_brokers(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("broker processes")
    add_option(
        group,
        "--brokers N",
        "broker processes; a single broker with one store runs in the server itself (default: 1)",
        int,
        1,
    )
    add_repeated(
        group,
        "--store DIR",
        "directory for messages, ideally on its own disk; may be repeated; stores can be added "
        "later, not removed (default: those used before, or one per broker in the data directory)",
        Path,
    )

    add_option(
        group,
        "--segment-size MB",
        "size of a new store's log files.  A store starts with two.  Whatever is written together "
        "must fit into one: a transaction, or a message with all the copies that a topic's rules "
        "make of it (default: %(default)s)",
        int,
        SEGMENT_SIZE_MEGABYTES,
    )


def _add_watching(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("throttling and metrics")
    option = group.add_argument
    add_repeated(
        group,
        "--throttle NAME=VALUE",
        "threshold: cpu (of one core), lag (ms), memory or disk (MB), operations; 0 turns it off",
    )
    option(
        "--open-metrics",
        action="store_true",
        help="let anyone read /metrics and the details of /health without a token",
    )
    add_option(
        group,
        "--meter-days N",
        "delete metered usage after this many days (default: keep everything)",
        int,
        0,
    )


def _add_telemetry(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("log and traces")
    option = group.add_argument
    option(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="lowest level to write to standard error (default: %(default)s)",
    )
    option(
        "--log-format",
        choices=FORMATS,
        default=TEXT,
        help="plain text, or one JSON object per line (default: %(default)s)",
    )
    add_option(
        group,
        "--traces WHERE",
        "export spans of messages that carry a trace: otlp (set up by OpenTelemetry's environment "
        "variables), console (standard error), or a file; needs twinbus[telemetry]",
    )


def _add_access(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("TLS and JSON web tokens")
    option = group.add_argument
    add_option(group, "--certificate FILE", "PEM file (default: one signed by our own CA)", Path)
    add_option(group, "--certificate-key FILE", "its private key, a PEM file", Path)
    option("--require-tls", action="store_true", help="refuse plain connections")
    add_option(group, "--client-ca FILE", "accept client certificates signed by this CA", Path)
    add_repeated(
        group,
        "--client-rights NAME=RIGHTS",
        "rights of client certificates with this common name: Listen,Send or Manage",
    )
    add_option(group, "--jwt-issuer URL", "accept tokens from this issuer", default="")
    add_repeated(group, "--jwt-audience URL", "audience the tokens must have; may be repeated")
    add_option(group, "--jwt-keys FILE", "keys the tokens must be signed with: JWKS or PEM", Path)


def run(options: argparse.Namespace) -> int:
    data_dir: Path = options.data
    declared = read_emulator_config(options.config) if options.config else EmulatorConfig()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        now_utc_ms = SystemClock().now().utc_ms
        names = _names(options.namespace, declared)
        identities = load_identities(data_dir, now_utc_ms, names, options.key)
        config = ServerConfig(
            data_dir=data_dir,
            namespaces=_namespaces(identities, names, declared),
            host=options.host,
            port=options.port,
            extra_ports=tuple(options.extra_port),
            handshake_s=options.handshake,
            link_idle_s=options.link_idle,
            tls=_tls(options),
            jwt=_jwt(options),
            limits=PROFILES[options.limits],
            thresholds=read_thresholds(options.throttle),
            open_metrics=options.open_metrics,
            meter_days=options.meter_days,
            brokers=options.brokers,
            segment_size_megabytes=options.segment_size,
            stores=load_stores(data_dir, options.store, options.brokers),
        )
        return asyncio.run(_serve(config, _telemetry(options)))
    except OSError as error:
        raise ConfigError(_reason(error, options)) from error
    except DirectoryInUse as error:
        raise ConfigError(f"{error}; stop it, or set --data to another directory") from error
    except LogDamaged as error:
        raise ConfigError(
            f"{error}; nothing was changed, run `twinbus verify --data {data_dir}`"
        ) from error


def _names(given: list[str], declared: EmulatorConfig) -> list[str]:
    """Which namespaces are wanted.  A single one in a file is called as the command line says."""
    in_file = [name for name, _ in declared.namespaces if name is not None]
    if given and len(declared.namespaces) <= 1:
        return given
    taken = {name.lower() for name in in_file}
    return in_file + [name for name in given if name.lower() not in taken]


def _namespaces(
    identities: tuple[Identity, ...], names: list[str], declared: EmulatorConfig
) -> tuple[NamespaceConfig, ...]:
    """Each namespace with what the file declares for it."""
    entities = {(name or "").lower(): each for name, each in declared.namespaces}
    if len(entities) == 1:
        first = (names or [identities[0].namespace])[0]
        entities = {first.lower(): next(iter(entities.values()))}
    return tuple(
        NamespaceConfig(identity, entities.get(identity.namespace.lower(), Declared()))
        for identity in identities
    )


def _tls(options: argparse.Namespace) -> TlsConfig:
    rights: list[tuple[str, tuple[str, ...]]] = []
    for text in options.client_rights:
        name, _, given = text.rpartition("=")
        rights.append((name, tuple(right.strip().title() for right in given.split(","))))
    return TlsConfig(
        certificate=options.certificate,
        key=options.certificate_key,
        client_ca=options.client_ca,
        client_rights=tuple(rights),
        is_required=options.require_tls,
    )


def _jwt(options: argparse.Namespace) -> JwtConfig | None:
    path: Path | None = options.jwt_keys
    if path is None:
        if options.jwt_issuer or options.jwt_audience:
            raise ConfigError("--jwt-issuer and --jwt-audience need --jwt-keys; add it")
        return None
    try:
        keys = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check --jwt-keys") from error
    return JwtConfig(options.jwt_issuer, tuple(options.jwt_audience), keys, str(path))


def _telemetry(options: argparse.Namespace) -> Telemetry:
    """From now on this process writes a log."""
    secrets = KnownSecrets()
    level = logging.getLevelNamesMapping()[options.log_level.upper()]
    show_log(options.log_format, level, secrets)
    return open_telemetry(options.log_format, secrets, options.traces)


async def _serve(config: ServerConfig, telemetry: Telemetry) -> int:
    was_ready = False

    def ready(port: int) -> None:
        # Only now is the directory surely ours.
        nonlocal was_ready
        was_ready = True
        store_identity(config.data_dir, *(each.identity for each in config.namespaces))
        record_stores(config.data_dir, config.store_paths)
        connection_strings = config.connection_strings(port)
        remember_running(config.data_dir, connection_strings, config.tls.certificate is None)
        for text in connection_strings.values():
            print(text, flush=True)

    try:
        return await run_server(config, ready, telemetry)
    finally:
        if was_ready:
            forget_running(config.data_dir)


def _reason(error: OSError, options: argparse.Namespace) -> str:
    """An operating system's refusal, in terms of what the person typed."""
    for store in options.store:
        if error.filename is not None and Path(str(error.filename)).is_relative_to(store.resolve()):
            return f"cannot use store {store} ({error.strerror}); choose another --store"
    if error.filename is not None or error.errno in _DISK_ERRORS:
        return (
            f"cannot use data directory {options.data} ({error.strerror}); "
            "set --data to a writable directory with free space"
        )
    ports = " or ".join(str(port) for port in (options.port, *options.extra_port))
    if error.errno == errno.EADDRINUSE:
        return f"port {ports} on {options.host} is in use; choose another with --port (0: any)"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {ports} on {options.host} is not allowed; choose one above 1023 with --port"
    return f"cannot listen on {options.host} ({error.strerror}); set --host to a local address"
