"""`twinbus emulator`: `serve` in the place of Microsoft's emulator, on its ports and with its key.

Takes what that one is told (its Config.json, its environment variables) and keeps what that one
forgets: entities and messages are in the data directory.  Takes every option of `serve` as well,
and must never do anything that `serve` with the right options could not.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twinbus.cli import serve
from twinbus.cli.arguments import Commands
from twinbus.config import HOST_DEFAULT, PORT_MAX
from twinbus.errors import ConfigError

# Microsoft's own; those who move here have them in their files already.
HTTP_PORT: Final = 5300
KEY: Final = "SAS_KEY_VALUE"
CONFIG_IN_CONTAINER: Final = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
CONFIG_VARIABLE: Final = "CONFIG_PATH"
HTTP_PORT_VARIABLE: Final = "EMULATOR_HTTP_PORT"
NOT_NEEDED: Final = ("ACCEPT_EULA", "MSSQL_SA_PASSWORD", "SQL_SERVER", "SQL_WAIT_INTERVAL")

DATA: Final = Path("twinbus-data")


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser(
        "emulator",
        help="run a drop-in for Microsoft's emulator",
        description=f"`serve` on the ports of Microsoft's emulator, with its key ({KEY}), its "
        "Config.json and its environment variables, and without its limits.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        metavar="DIR",
        help="directory for all data; created if missing (default: %(default)s)",
    )
    parser.add_argument(
        "--http-port",
        type=int,
        metavar="N",
        help=f"a second port, for administration and /health; 0 for none "
        f"(default: ${HTTP_PORT_VARIABLE}, or {HTTP_PORT})",
    )
    serve.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    adapt(options, os.environ)
    unused = [name for name in NOT_NEEDED if name in os.environ]
    if unused:
        print(f"note: not needed, and ignored: {', '.join(unused)}", file=sys.stderr)
    if KEY in options.key and options.host not in {HOST_DEFAULT, "localhost", "::1"}:
        print(
            f"note: the key {KEY} is public, and others may be able to reach {options.host}; "
            "set your own with --key if that matters",
            file=sys.stderr,
        )
    return serve.run(options)


def adapt(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Fill in what the command line leaves open, as Microsoft's emulator would."""
    options.config = options.config or find_config(environment, CONFIG_IN_CONTAINER)
    options.key = options.key or [KEY]
    http_port = options.http_port
    if http_port is None:
        http_port = read_http_port(environment.get(HTTP_PORT_VARIABLE, ""))
    if http_port not in {0, options.port, *options.extra_port}:
        options.extra_port = [*options.extra_port, http_port]


def find_config(environment: Mapping[str, str], in_container: Path) -> Path | None:
    """The Config.json that is meant, if any.

    The variable is for the host's side of a mount, so that inside a container it may name a file
    that is not there; then the one that is mounted counts.
    """
    text = environment.get(CONFIG_VARIABLE, "")
    if text and (Path(text).exists() or not in_container.exists()):
        return Path(text)
    return in_container if in_container.exists() else None


def read_http_port(text: str) -> int:
    if not text:
        return HTTP_PORT
    if not text.isascii() or not text.isdigit() or int(text[:6]) > PORT_MAX:
        raise ConfigError(
            f"{HTTP_PORT_VARIABLE} is {text[:64]!r}, which is not a port; set it to a number up to "
            f"{PORT_MAX}"
        )
    return int(text)
