"""The official SDKs over WebSockets, plain and TLS, on the port that everything shares."""

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, TransportType

from tests.interop.sdk import Client, bodies, body, peek_all, receive_exactly, receive_one
from tests.interop.test_node_sdk import NODE, find_program, node_modules
from twinbus.testing.server import ServerProcess

__all__ = ["node_modules"]  # a fixture

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.feature("transport.websocket")]


@pytest.fixture(scope="module")
def ca_file(server: ServerProcess) -> str:
    """Where `twinbus env` says that the authority lies."""
    command = [sys.executable, "-m", "twinbus", "env", "--data", str(server.data_dir)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    exports = dict(shlex.split(line)[1].split("=", 1) for line in lines if "=" in line)
    return exports["SSL_CERT_FILE"]


# The async SDK calls aiohttp in a way that is deprecated.
@pytest.mark.proves("M-10", "M-13")
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_azure_servicebus(
    new_client: Callable[..., Client], server: ServerProcess, ca_file: str, queue: str, tls: bool
) -> None:
    # Over WebSockets the SDK forgets the port of its connection string.
    endpoint = f"sb://localhost:{server.port}"
    connection_string = server.connection_string
    if tls:
        connection_string = connection_string.replace("UseDevelopmentEmulator=true;", "")
    client = new_client(
        connection_string,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=endpoint,
        connection_verify=ca_file,
    )
    sender, receiver = client.sender(queue), client.receiver(queue)
    large = b"\x5a" * 900_000
    await sender.send_messages([ServiceBusMessage(b"0"), ServiceBusMessage(b"1")])
    await sender.send_messages(ServiceBusMessage(large))
    messages = await receive_exactly(receiver, 3)
    assert bodies(messages) == [b"0", b"1", large]
    await receiver.renew_message_lock(messages[0])
    await receiver.complete_message(messages[0])
    await receiver.abandon_message(messages[1])
    await receiver.dead_letter_message(messages[2], reason="large")
    assert bodies(await peek_all(receiver)) == [b"1"]
    assert body(await receive_one(client.dead_letter_receiver(queue))) == large


@pytest.mark.proves("M-10", "M-13")
@pytest.mark.parametrize(
    "scenario", ["properties", "batches", "receiveAndDelete", "subscribe", "large"]
)
async def test_node(
    server: ServerProcess, ca_file: str, queue: str, node_modules: Path, scenario: str
) -> None:
    environment = {
        **os.environ,
        "NODE_PATH": str(node_modules),
        "NODE_EXTRA_CA_CERTS": ca_file,
        "TWINBUS_CONNECTION_STRING": server.connection_string,
        "TWINBUS_WEBSOCKETS": "1",
    }
    command = [find_program("node"), str(NODE / "scenarios.cjs"), scenario, queue]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
