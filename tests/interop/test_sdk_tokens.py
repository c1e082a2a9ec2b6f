"""JSON web tokens through the official SDK, which gets them from a credential."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import jwt
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.interop.sdk import body
from twinbus.certificates import ca_bundle
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-12", "M-13"), pytest.mark.feature("access.jwt")]

ISSUER = "https://login.example/tenant"
AUDIENCE = "https://servicebus.azure.net"
KEY = ec.generate_private_key(ec.SECP256R1())
OWNER = "Azure Service Bus Data Owner"
SENDER = "Azure Service Bus Data Sender"
RECEIVER = "Azure Service Bus Data Receiver"


class Credential:
    """What an identity library gives out: tokens for an audience, here with certain roles."""

    def __init__(self, *roles: str, **claims: Any) -> None:
        self.roles = list(roles)
        self.claims = claims
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.scopes += scopes
        expires_s = int(time.time()) + 600
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": expires_s, "roles": self.roles}
        return AccessToken(jwt.encode({**claims, **self.claims}, KEY, "ES256"), expires_s)


class AsyncCredential(Credential):
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:  # type: ignore[override]
        return super().get_token(*scopes, **options)

    async def close(self) -> None:
        """The SDK closes what it is given."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tokens")
    keys = folder / "keys.pem"
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys.write_bytes(public)
    arguments = ["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-keys", str(keys)]
    with ServerProcess(folder / "data", arguments=arguments) as process:
        process.create_queue("inbox")
        yield process
    assert "Traceback" not in process.log, process.log
    assert "eyJ" not in process.log, "a token was written to the log"


def options(server: ServerProcess) -> dict[str, Any]:
    return {
        "fully_qualified_namespace": "localhost",
        "custom_endpoint_address": f"sb://localhost:{server.port}",
        "transport_type": TransportType.Amqp,
        "connection_verify": str(ca_bundle(server.data_dir)),
        "retry_total": 0,
    }


def open_sync(server: ServerProcess, credential: Any) -> ServiceBusClient:
    return ServiceBusClient(credential=credential, **options(server))


@pytest.mark.proves("M-12", "M-13")
def test_send_and_receive(server: ServerProcess) -> None:
    credential = Credential(SENDER, RECEIVER)
    with open_sync(server, credential) as client:
        with client.get_queue_sender("inbox") as sender:
            sender.send_messages(ServiceBusMessage(b"with a token"))
        with client.get_queue_receiver("inbox", max_wait_time=5) as receiver:
            [message] = receiver.receive_messages()
            receiver.complete_message(message)
            assert body(message) == b"with a token"
    assert set(credential.scopes) == {"https://servicebus.azure.net//.default"}


@pytest.mark.proves("M-12", "M-13")
def test_send_and_receive_async(server: ServerProcess) -> None:
    async def there_and_back() -> bytes:
        credential: Any = AsyncCredential(OWNER)
        async with AsyncServiceBusClient(credential=credential, **options(server)) as client:
            async with client.get_queue_sender("inbox") as sender:
                await sender.send_messages(ServiceBusMessage(b"with a token"))
            async with client.get_queue_receiver("inbox", max_wait_time=5) as receiver:
                [message] = await receiver.receive_messages()
                await receiver.complete_message(message)
                return body(message)

    assert asyncio.run(there_and_back()) == b"with a token"


def try_to_send(client: ServiceBusClient) -> None:
    client.get_queue_sender("inbox").send_messages(ServiceBusMessage(b""))


def try_to_receive(client: ServiceBusClient) -> None:
    client.get_queue_receiver("inbox", max_wait_time=5).receive_messages()


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "role, attempt", [(SENDER, try_to_receive), (RECEIVER, try_to_send)], ids=["send", "listen"]
)
def test_a_role_gives_its_right_only(
    server: ServerProcess, role: str, attempt: Callable[[ServiceBusClient], None]
) -> None:
    client = open_sync(server, Credential(role))
    with client, pytest.raises(ServiceBusAuthorizationError):
        attempt(client)


@pytest.mark.proves("M-12")
@pytest.mark.parametrize(
    "claims",
    [{"iss": "https://other.example"}, {"aud": "https://other.example"}, {"exp": 1}, {"roles": []}],
    ids=["issuer", "audience", "expired", "no role"],
)
def test_a_token_that_opens_nothing(server: ServerProcess, claims: dict[str, Any]) -> None:
    client = open_sync(server, Credential(OWNER, **claims))
    with client, pytest.raises(ServiceBusError):
        try_to_send(client)


def open_admin(server: ServerProcess, *credential: Any) -> ServiceBusAdministrationClient:
    host, trusted = f"localhost:{server.port}", str(ca_bundle(server.data_dir))
    return ServiceBusAdministrationClient(
        host, *credential, retry_total=0, connection_verify=trusted
    )


@pytest.mark.proves("M-11")
def test_administration(server: ServerProcess) -> None:
    with open_admin(server, Credential(OWNER)) as admin:
        admin.create_queue("by-token")
        assert admin.get_queue("by-token").name == "by-token"
        admin.delete_queue("by-token")
    for credential in (Credential(SENDER, RECEIVER), Credential(OWNER, exp=1)):
        with open_admin(server, credential) as admin, pytest.raises(ClientAuthenticationError):
            admin.get_queue("inbox")


@pytest.mark.proves("M-11")
def test_administration_async(server: ServerProcess) -> None:
    async def ask() -> str:
        credential: Any = AsyncCredential(OWNER)
        host, trusted = f"localhost:{server.port}", str(ca_bundle(server.data_dir))
        async with AsyncAdministrationClient(host, credential, connection_verify=trusted) as admin:
            return (await admin.get_queue("inbox")).name

    assert asyncio.run(ask()) == "inbox"
