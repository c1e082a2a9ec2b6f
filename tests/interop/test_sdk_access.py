"""Who gets in, and what the official SDK is told if not: keys, rights, missing queues.

Clients are made without retries where the SDK would try again: the answer is what is tested.
"""

import asyncio
import base64
import gc
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import AccessRights, AuthorizationRule

from tests.interop.administration import connect
from tests.interop.sdk import Client, async_only, body, nothing_comes, peek_all, receive_one
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.asyncio(loop_scope="module"), async_only]

ROOT = RuleConfig("RootManageSharedAccessKey", "root-key", "root-key-2")
SENDING = RuleConfig("sending", "sending-key", "sending-key-2", ("Send",))
LISTENING = RuleConfig("listening", "listening-key", "listening-key-2", ("Listen",))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a rule that may only send and one that may only listen."""
    data_dir = tmp_path_factory.mktemp("server") / "data"
    data_dir.mkdir()
    store_identity(data_dir, Identity("access", (ROOT, SENDING, LISTENING)))
    with ServerProcess(data_dir) as process:
        yield process
    assert "Traceback" not in process.log, process.log
    assert "-key" not in process.log, "a key was written to the log"
    gc.collect()


def connection_string(server: ServerProcess, rule: str, key: str) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName={rule};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )


def token_string(server: ServerProcess, path: str, lifetime_s: int) -> str:
    """A connection string with a shared access signature made elsewhere, for one path."""
    uri = quote_plus(f"sb://127.0.0.1:{server.port}/{path}")
    expiry = int(time.time()) + lifetime_s
    digest = hmac.digest(b"root-key", f"{uri}\n{expiry}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    return (
        f"Endpoint=sb://127.0.0.1:{server.port};UseDevelopmentEmulator=true;"
        f"SharedAccessSignature=SharedAccessSignature sr={uri}&sig={signature}"
        f"&se={expiry}&skn=RootManageSharedAccessKey;"
    )


async def assert_refused(error: type[Exception], *attempts: Awaitable[object]) -> None:
    """All attempts end in this error.  They are made at once, to wait for the SDK only once."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(result) for result in results] == [error] * len(attempts), results


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
@pytest.mark.parametrize(
    "rule, key",
    [("RootManageSharedAccessKey", "wrong"), ("unknown", "root-key"), ("sending", "listening-key")],
)
async def test_wrong_key_or_rule(
    new_client: Callable[..., Client], server: ServerProcess, queue: str, rule: str, key: str
) -> None:
    client = new_client(connection_string(server, rule, key), retry_total=0)
    with pytest.raises(ServiceBusAuthenticationError):
        await client.sender(queue).send_messages(ServiceBusMessage(b""))


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
async def test_secondary_key_is_as_good_as_the_primary(
    new_client: Callable[..., Client], server: ServerProcess, queue: str
) -> None:
    client = new_client(connection_string(server, ROOT.name, ROOT.secondary_key))
    await client.sender(queue).send_messages(ServiceBusMessage(b"in"))
    assert body(await receive_one(client.receiver(queue))) == b"in"


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
async def test_send_and_listen_are_separate_rights(
    new_client: Callable[..., Client], server: ServerProcess, queue: str
) -> None:
    sending = new_client(connection_string(server, "sending", "sending-key"), retry_total=0)
    listening = new_client(connection_string(server, "listening", "listening-key"), retry_total=0)
    await sending.sender(queue).send_messages(ServiceBusMessage(b"one way"))
    await assert_refused(
        ServiceBusAuthorizationError,
        sending.receiver(queue).receive_messages(),
        sending.dead_letter_receiver(queue).receive_messages(),
        listening.sender(queue).send_messages(ServiceBusMessage(b"the other way")),
    )
    receiver = listening.receiver(queue)
    message = await receive_one(receiver)
    assert body(message) == b"one way"
    await receiver.complete_message(message)
    assert await peek_all(receiver) == []


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
async def test_shared_access_signature_opens_its_queue(
    new_client: Callable[..., Client], server: ServerProcess, queue: str
) -> None:
    client = new_client(token_string(server, queue, 600))
    await client.sender(queue).send_messages(ServiceBusMessage(b"by token"))
    assert body(await receive_one(client.receiver(queue))) == b"by token"


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
@pytest.mark.parametrize("path, lifetime_s", [("another", 600), ("", -600)])
async def test_signature_for_elsewhere_or_of_the_past_opens_nothing(
    new_client: Callable[..., Client], server: ServerProcess, queue: str, path: str, lifetime_s: int
) -> None:
    client = new_client(token_string(server, path, lifetime_s), retry_total=0)
    with pytest.raises(ServiceBusAuthenticationError):
        await client.sender(queue).send_messages(ServiceBusMessage(b""))


async def test_missing_queue(client: Client) -> None:
    await assert_refused(
        MessagingEntityNotFoundError,
        client.sender("not-there").send_messages(ServiceBusMessage(b"")),
        client.receiver("not-there").receive_messages(),
        client.dead_letter_receiver("not-there").receive_messages(),
    )


def own_rule(name: str, *rights: AccessRights) -> Any:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=f"{name}-key",
        secondary_key=f"{name}-key-2",
    )


@pytest.mark.proves("M-12", "M-13")
@pytest.mark.feature("access.entity-rules")
async def test_keys_of_single_entities(
    new_client: Callable[..., Client], server: ServerProcess, queue: str
) -> None:
    """A connection string for one topic: it opens the topic and its subscriptions, no more."""
    with connect(server) as admin:
        rules = [own_rule("in", AccessRights.SEND), own_rule("out", AccessRights.LISTEN)]
        admin.create_topic("ruled", authorization_rules=rules)
        admin.create_subscription("ruled", "all")
    path = "EntityPath=ruled;"
    sending = new_client(connection_string(server, "in", "in-key-2") + path, retry_total=0).sdk
    listening = new_client(connection_string(server, "out", "out-key") + path, retry_total=0).sdk
    async with sending.get_topic_sender("ruled") as sender:
        await sender.send_messages(ServiceBusMessage(b"by the topic's own key"))
    async with listening.get_subscription_receiver("ruled", "all", max_wait_time=5) as receiver:
        message = await receive_one(receiver)
        assert body(message) == b"by the topic's own key"
        await receiver.complete_message(message)
    other = new_client(connection_string(server, "in", "in-key"), retry_total=0)
    await assert_refused(
        ServiceBusAuthorizationError,
        listening.get_topic_sender("ruled").send_messages(ServiceBusMessage(b"")),
        sending.get_subscription_receiver("ruled", "all").receive_messages(),
    )
    with pytest.raises(ServiceBusAuthenticationError):
        await other.sender(queue).send_messages(ServiceBusMessage(b""))


async def test_queue_deleted_under_its_clients(
    server: ServerProcess, queue: str, sender: Any, receiver: Any
) -> None:
    async with sender, receiver:
        server.admin.delete_queue(queue)
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.send_messages(ServiceBusMessage(b""))
        with pytest.raises(MessagingEntityNotFoundError):
            await receiver.receive_messages()


@pytest.mark.feature("entity.status")
@pytest.mark.queue(status="Disabled")
async def test_disabled_queue(new_client: Callable[..., Client], queue: str) -> None:
    client = new_client(retry_total=0)
    await assert_refused(
        MessagingEntityDisabledError,
        client.sender(queue).send_messages(ServiceBusMessage(b"")),
        client.receiver(queue).receive_messages(),
    )


@pytest.mark.feature("entity.status")
@pytest.mark.queue(status="SendDisabled")
async def test_send_disabled_queue(new_client: Callable[..., Client], queue: str) -> None:
    client = new_client(retry_total=0)
    with pytest.raises(MessagingEntityDisabledError):
        await client.sender(queue).send_messages(ServiceBusMessage(b""))
    assert await nothing_comes(client.receiver(queue))


@pytest.mark.feature("entity.status")
@pytest.mark.queue(status="ReceiveDisabled")
async def test_receive_disabled_queue(new_client: Callable[..., Client], queue: str) -> None:
    client = new_client(retry_total=0)
    await client.sender(queue).send_messages(ServiceBusMessage(b"waits"))
    with pytest.raises(MessagingEntityDisabledError):
        await client.receiver(queue).receive_messages()
