"""`twinbus serve`: run a bus in the foreground until SIGTERM or SIGINT."""

import argparse
import asyncio
import errno
import logging
from pathlib import Path
from typing import Final

from twinbus.cli.arguments import Commands, add_data
from twinbus.cli.running import forget_running, remember_running
from twinbus.config import (
    HOST_DEFAULT,
    PORT_DEFAULT,
    Identity,
    ServerConfig,
    load_identity,
    store_identity,
)
from twinbus.emulator_config import EmulatorConfig, read_emulator_config
from twinbus.errors import ConfigError, DirectoryInUse, LogDamaged
from twinbus.limits import HANDSHAKE_DURATION_S_MAX
from twinbus.server.app import run_server

# What a socket never says; these come without a file name when they are about an open file.
_DISK_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def add_arguments(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="run a bus in the foreground")
    add_data(serve, "where everything is kept; made if it is missing")
    option = serve.add_argument
    option("--host", default=HOST_DEFAULT, metavar="H", help="listen here (default: %(default)s)")
    option(
        "--port",
        type=int,
        default=PORT_DEFAULT,
        metavar="N",
        help="for AMQP, TLS and HTTP alike; 0 takes a free one (default: %(default)s)",
    )
    option(
        "--extra-port",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="listen here too; may be repeated",
    )
    option("--config", type=Path, metavar="FILE", help="Config.json of Microsoft's emulator")
    option("--namespace", metavar="NAME", help="default: the one used before, or twinbus")
    option("--key", metavar="KEY", help="default: the one used before, or a random one")
    option(
        "--handshake",
        type=float,
        default=HANDSHAKE_DURATION_S_MAX,
        metavar="SECONDS",
        help="how long a client may take to say what it speaks (default: %(default)s)",
    )
    option(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="what to write to standard error (default: %(default)s)",
    )
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    data_dir: Path = options.data
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    declared = read_emulator_config(options.config) if options.config else EmulatorConfig()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        identity = load_identity(data_dir, options.namespace or declared.namespace, options.key)
        config = ServerConfig(
            data_dir=data_dir,
            namespace=identity.namespace,
            rules=identity.rules,
            host=options.host,
            port=options.port,
            extra_ports=tuple(options.extra_port),
            queues=declared.queues,
            handshake_s=options.handshake,
        )
        return asyncio.run(_serve(config, identity))
    except OSError as error:
        raise ConfigError(_reason(error, options)) from error
    except DirectoryInUse as error:
        raise ConfigError(f"{error}; stop it, or give --data another directory") from error
    except LogDamaged as error:
        raise ConfigError(
            f"{error}; nothing was changed, see `twinbus verify --data {data_dir}`"
        ) from error


async def _serve(config: ServerConfig, identity: Identity) -> int:
    was_ready = False

    def ready(connection_string: str) -> None:
        # Only now is the directory surely ours.
        nonlocal was_ready
        was_ready = True
        store_identity(config.data_dir, identity)
        remember_running(config.data_dir, connection_string)
        print(connection_string, flush=True)

    try:
        return await run_server(config, ready)
    finally:
        if was_ready:
            forget_running(config.data_dir)


def _reason(error: OSError, options: argparse.Namespace) -> str:
    """An operating system's refusal, in terms of what the person typed."""
    if error.filename is not None or error.errno in _DISK_ERRORS:
        return (
            f"cannot use data directory {options.data} ({error.strerror}); "
            "give --data a directory with room that this user may write"
        )
    ports = " or ".join(str(port) for port in (options.port, *options.extra_port))
    if error.errno == errno.EADDRINUSE:
        return f"port {ports} on {options.host} is in use; choose another with --port (0: any)"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {ports} on {options.host} is not allowed; choose one above 1023 with --port"
    return f"cannot listen on {options.host} ({error.strerror}); choose an own address with --host"
