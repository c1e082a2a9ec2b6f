"""The wire under the official SDK: TLS on the same port, idle connections, names."""

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.interop.sdk import (
    Client,
    async_only,
    bodies,
    body,
    peek_all,
    receive_exactly,
    receive_one,
    sync_only,
)
from twinbus.limits import ENTITY_NAME_CHARS_MAX
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def environment(server: ServerProcess) -> dict[str, str]:
    """What `twinbus env` tells a shell."""
    command = [sys.executable, "-m", "twinbus", "env", "--data", str(server.data_dir)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    exports = [shlex.split(line)[1] for line in lines if line.startswith("export ")]
    return dict(export.split("=", 1) for export in exports)


def tls_connection_string(server: ServerProcess) -> str:
    """The server's own without emulator mode: now the SDK insists on TLS."""
    return server.connection_string.replace("UseDevelopmentEmulator=true;", "")


def tls_options(server: ServerProcess) -> dict[str, Any]:
    # Without emulator mode the SDK takes port 5671, unless it is sent elsewhere like this.
    return {
        "custom_endpoint_address": f"sb://localhost:{server.port}",
        "transport_type": TransportType.Amqp,
    }


@pytest.mark.proves("M-12", "M-13")
@pytest.mark.feature("access.tls")
async def test_tls_on_the_same_port(
    new_client: Callable[..., Client],
    server: ServerProcess,
    environment: dict[str, str],
    queue: str,
) -> None:
    client = new_client(
        tls_connection_string(server),
        connection_verify=environment["SSL_CERT_FILE"],
        **tls_options(server),
    )
    sender, receiver = client.sender(queue), client.receiver(queue)
    large = b"\x5a" * 900_000
    await sender.send_messages([ServiceBusMessage(b"0"), ServiceBusMessage(b"1")])
    await sender.send_messages(ServiceBusMessage(large))
    messages = await receive_exactly(receiver, 3)
    assert bodies(messages) == [b"0", b"1", large]
    await receiver.complete_message(messages[0])
    await receiver.abandon_message(messages[1])
    await receiver.dead_letter_message(messages[2], reason="large")
    assert bodies(await peek_all(receiver)) == [b"1"]
    assert body(await receive_one(client.dead_letter_receiver(queue))) == large


@pytest.mark.proves("M-12")
async def test_unknown_authority_is_refused_by_the_client(
    new_client: Callable[..., Client], server: ServerProcess, queue: str
) -> None:
    client = new_client(tls_connection_string(server), retry_total=0, **tls_options(server))
    with pytest.raises(ServiceBusConnectionError):
        await client.sender(queue).send_messages(ServiceBusMessage(b""))


@pytest.mark.proves("M-13")
@pytest.mark.feature("access.connection-string")
async def test_connection_string_of_the_environment(
    new_client: Callable[..., Client], environment: dict[str, str], queue: str
) -> None:
    client = new_client(environment["TWINBUS_CONNECTION_STRING"])
    await client.sender(queue).send_messages(ServiceBusMessage(b"by env"))
    assert body(await receive_one(client.receiver(queue))) == b"by env"


@pytest.mark.proves("M-13")
@pytest.mark.feature("transport.heartbeat")
@async_only
async def test_idle_connections_are_used_again(sender: Any, receiver: Any) -> None:
    async with sender, receiver:
        for number in range(2):
            await sender.send_messages(ServiceBusMessage(b"%d" % number))
            message = await receive_one(receiver)
            assert body(message) == b"%d" % number
            await receiver.complete_message(message)
            assert await peek_all(receiver) == []
            # Past the SDK's keep-alive, which looks after idle receivers every five seconds.
            await asyncio.sleep(5.5 * (number == 0))


@pytest.mark.proves("M-13")
@pytest.mark.feature("entity.names")
@sync_only
@pytest.mark.parametrize(
    "queue",
    ["orders/eu-west/v1.2_x", "Orders.EU", "7", "n" * ENTITY_NAME_CHARS_MAX],
    ids=["path", "case", "shortest", "longest"],
)
async def test_queue_names(server: ServerProcess, client: Client, queue: str) -> None:
    server.create_queue(queue)
    await client.sender(queue).send_messages(ServiceBusMessage(b"by name"))
    # Names are the same in upper and lower case.
    receiver = client.receiver(queue.swapcase())
    await receiver.dead_letter_message(await receive_one(receiver))
    dead_letters = client.dead_letter_receiver(queue)
    await dead_letters.complete_message(await receive_one(dead_letters))
    assert await peek_all(receiver) == []
