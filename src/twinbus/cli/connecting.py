"""A command's connection to a bus by AMQP, and why there is none, in words.

The base install's own client: no command that only sends, receives or looks needs the SDK.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from twinbus.cli.arguments import connection_string
from twinbus.client.blocking import CannotConnect
from twinbus.client.connection import BusConnection
from twinbus.client.connection_string import ConnectionString
from twinbus.client.http import NOBODY_FIX, TLS_FIX
from twinbus.client.links import ConnectionLost
from twinbus.errors import Unauthorized

Work = Callable[[BusConnection], Coroutine[Any, Any, int]]


def run_connected(options: argparse.Namespace, work: Work) -> int:
    """Do the work on a connection of its own.  SIGTERM ends it in order, as Ctrl-C does."""
    text = connection_string(options)
    try:
        return asyncio.run(_run(text, work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run(text: str, work: Work) -> int:
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(ValueError, RuntimeError):  # only a main thread gets signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with await open_connection(text) as connection:
        return await work(connection)


async def open_connection(text: str) -> BusConnection:
    """Connect, or say why not."""
    target = ConnectionString.parse(text)
    place = target.authority
    try:
        return await BusConnection.open(text)
    except ConnectionLost as error:
        if error.condition == Unauthorized.amqp_condition:
            raise Unauthorized(f"{place} refused the key of the connection string") from None
        raise CannotConnect(f"{error}; {NOBODY_FIX}", False) from None
    except TimeoutError:
        raise CannotConnect(f"no bus answers at {place} in time; {NOBODY_FIX}", False) from None
    except ssl.SSLError as error:
        said = error.reason or str(error)
        raise CannotConnect(f"TLS with {place} failed ({said}); {TLS_FIX}", True) from None
    except OSError as error:
        is_known = error.errno is not None and error.errno > 0
        said = os.strerror(error.errno or 0) if is_known else error.strerror or str(error)
        raise CannotConnect(f"no bus answers at {place} ({said}); {NOBODY_FIX}", False) from None
