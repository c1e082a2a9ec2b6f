"""`twinbus demo`: five messages there and back with the official SDK, and a kill -9 between.

Starts a real server on a free port with its data in a temporary directory, and takes both away at
the end.  Everything between is what a user's own program would do.
"""

import argparse
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.errors import ConfigError
from twinbus.testing.server import ServerProcess

QUEUE: Final = "orders"
COUNT: Final = 5
WAIT_S: Final = 5


def add_arguments(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="see it work: send and receive with the official SDK")
    demo.set_defaults(run=run)


def run(_options: argparse.Namespace) -> int:
    sdk = _official_sdk()
    with tempfile.TemporaryDirectory(prefix="twinbus-demo-") as folder:
        with ServerProcess(Path(folder) / "data") as server:
            _say("bus started", server.connection_string)
            server.create_queue(QUEUE)
            _say("queue created", QUEUE)
            _send(sdk, server.connection_string)
            server.kill()
            _say("kill -9", "the server is gone without a word")
            server.restart()
            _say("started again", "same directory, same port")
            received = _receive(sdk, server.connection_string)
            left = server.admin.get_queue(QUEUE).properties["ActiveMessageCount"]
            _say("left in queue", left)
        _say("bus stopped", "by SIGTERM, exit code 0; the temporary data is removed")
    return 0 if received == COUNT and left == "0" else 1


def _official_sdk() -> ModuleType:
    try:
        from azure import servicebus  # noqa: PLC0415 - the base install does without
    except ImportError as error:
        raise ConfigError(
            "the demo uses the official SDK, which is not installed; pip install azure-servicebus"
        ) from error
    return servicebus


def _send(sdk: ModuleType, connection_string: str) -> None:
    messages = [sdk.ServiceBusMessage(f"order {number}") for number in range(1, COUNT + 1)]
    with (
        sdk.ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        sender.send_messages(messages)
    _say("sent", f"{COUNT} messages, acknowledged: they are on disk")


def _receive(sdk: ModuleType, connection_string: str) -> int:
    received = 0
    with (
        sdk.ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE, max_wait_time=WAIT_S) as receiver,
    ):
        for message in receiver:
            receiver.complete_message(message)
            received += 1
            _say("received", f"{message}, sequence number {message.sequence_number}, completed")
            if received == COUNT:
                break
    return received


def _say(what: str, details: str) -> None:
    print(f"  {what:<15}{details}", flush=True)
