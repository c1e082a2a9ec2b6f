"""A process that runs a syphon and nothing else, until its standard input ends or it is killed.

    python -m tests.crash.pairing_syphon_process FLAVOUR PRIMARY SECONDARY CA NAME COUNT OPTIONS

`die-after-send` among the OPTIONS makes it kill itself between the send to the primary and the
completion in the backlog, the one moment that makes a copy.
"""

import ast
import asyncio
import os
import signal
import sys
from typing import Any

from twinbus.pairing import pair_namespace
from twinbus.pairing.aio import pair_namespace as pair_namespace_async
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """From now on nothing is ever completed: who tries is gone."""
    import azure.servicebus
    import azure.servicebus.aio

    for module in (azure.servicebus, azure.servicebus.aio):
        module.ServiceBusReceiver.complete_message = die


def tell_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def run(primary: str, options: SendAvailabilityPairedNamespaceOptions) -> None:
    with pair_namespace(primary, options):
        tell_ready()
        sys.stdin.read()


async def run_async(primary: str, options: SendAvailabilityPairedNamespaceOptions) -> None:
    async with await pair_namespace_async(primary, options):
        tell_ready()
        await asyncio.to_thread(sys.stdin.read)


def main(flavour: str, primary: str, secondary: str, ca: str, name: str, *rest: str) -> None:
    count, given = int(rest[0]), ast.literal_eval(rest[1])
    if given.pop("die-after-send", False):
        arm()
    options = SendAvailabilityPairedNamespaceOptions.from_connection_string(
        secondary,
        count,
        manager_options={"connection_verify": ca},
        enable_syphon=True,
        primary_name=name,
        **given,
    )
    if flavour == "sync":
        run(primary, options)
    else:
        asyncio.run(run_async(primary, options))


if __name__ == "__main__":
    main(*sys.argv[1:])
