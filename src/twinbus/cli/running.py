"""Which server runs on a data directory: a note that `serve` leaves for `env` and people.

`DIR/running.json` is there while a server is ready, and for its owner only, because it holds the
key.  After a crash the note is stale, so a reader also knocks at the port.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from twinbus.client.connection_string import ConnectionString
from twinbus.config import write_private
from twinbus.errors import ConfigError

KNOCK_DURATION_S_MAX: Final = 2.0


@dataclass(frozen=True)
class Running:
    """One running server."""

    host: str
    port: int
    pid: int
    connection_strings: dict[str, str] = field(repr=False)  # by namespace; the default first
    has_own_authority: bool = True  # clients must be told to trust the development CA


def remember_running(
    data_dir: Path, connection_strings: dict[str, str], has_own_authority: bool
) -> None:
    target = ConnectionString.parse(next(iter(connection_strings.values())))
    assert target.port is not None
    note = Running(target.host, target.port, os.getpid(), connection_strings, has_own_authority)
    write_private(_path(data_dir), json.dumps(asdict(note)) + "\n")


def forget_running(data_dir: Path) -> None:
    _path(data_dir).unlink(missing_ok=True)


def find_running(data_dir: Path) -> Running:
    """The server that runs on this directory, or why there is none."""
    path = _path(data_dir)
    try:
        note = Running(**json.loads(path.read_text(encoding="utf-8")))
        socket.create_connection((note.host, note.port), KNOCK_DURATION_S_MAX).close()
    except PermissionError as error:
        raise ConfigError(
            f"only the user who runs the server may read {path}; run this as that user"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"no server is running on {data_dir}; start one with `twinbus serve --data {data_dir}`"
        ) from error
    return note


def _path(data_dir: Path) -> Path:
    return data_dir / "running.json"
