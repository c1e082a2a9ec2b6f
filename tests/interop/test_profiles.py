"""Limits by profile, met through the official SDK as in the tier of that name."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.interop.administration import connect
from tests.security.raw_amqp import RawConnection
from twinbus.amqp.composites import Rejected
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("M-9"), pytest.mark.feature("entity.limits")]

QUARTER_MEGABYTE = 262_144


def serve(tmp_path_factory: pytest.TempPathFactory, profile: str) -> ServerProcess:
    data_dir = tmp_path_factory.mktemp(profile) / "data"
    return ServerProcess(data_dir, arguments=["--limits", profile, "--namespace", "shop"])


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory, "basic") as server:
        yield server


@pytest.fixture
def admin(basic: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with connect(basic) as client:
        yield client


@pytest.mark.proves("M-9")
@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"requires_session": True}, "The property 'RequiresSession' can't be set"),
        ({"requires_duplicate_detection": True}, "The property 'RequiresDuplicateDetection'"),
        ({"auto_delete_on_idle": "PT1H"}, "The property 'AutoDeleteOnIdle'"),
        ({"forward_to": "other"}, "The property 'ForwardTo'"),
        ({"default_message_time_to_live": "P15D"}, "default_time_to_live_ms is"),
        ({"max_size_in_megabytes": 10_240}, "max_size_megabytes is 10240"),
    ],
    ids=str,
)
def test_what_the_basic_tier_has_not(
    admin: ServiceBusAdministrationClient, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(HttpResponseError, match=reason) as caught:
        admin.create_queue("refused", **settings)
    assert caught.value.status_code == 400
    assert "refused" not in [queue.name for queue in admin.list_queues()]


@pytest.mark.proves("M-9")
def test_topics_in_the_basic_tier(admin: ServiceBusAdministrationClient) -> None:
    reason = "Cannot operate on type Topic because the namespace 'shop' is using 'Basic' tier"
    with pytest.raises(HttpResponseError, match=reason) as caught:
        admin.create_topic("refused")
    assert caught.value.status_code == 400


@pytest.mark.proves("M-9")
def test_settings_of_the_basic_tier(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("plain")
    assert queue.default_message_time_to_live == timedelta(days=14)
    queue.auto_delete_on_idle = "PT1H"
    with pytest.raises(HttpResponseError, match="AutoDeleteOnIdle"):
        admin.update_queue(queue)
    assert admin.get_namespace_properties().messaging_sku == "Basic"


@pytest.mark.proves("M-9")
@pytest.mark.parametrize("profile", ["standard", "premium"])
def test_message_size(tmp_path_factory: pytest.TempPathFactory, profile: str) -> None:
    with serve(tmp_path_factory, profile) as server:
        server.create_queue("inbox")
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("inbox") as sender,
        ):
            sender.send_messages(ServiceBusMessage(b"x" * (QUARTER_MEGABYTE - 1_000)))
            large = ServiceBusMessage(b"x" * (QUARTER_MEGABYTE + 1))
            if profile == "premium":
                sender.send_messages(large)
            else:
                with pytest.raises(MessageSizeExceededError):
                    sender.send_messages(large)
        with connect(server) as admin:
            admin.create_topic("news")
            assert admin.get_namespace_properties().messaging_sku == profile.title()


@pytest.mark.proves("M-9", "E-1")
def test_partitioned_entities_by_the_rule_of_2017(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No new ones; those that are there go on, through a restart with this profile."""
    with serve(tmp_path_factory, "premium") as server, connect(server) as admin:
        admin.create_queue("old", enable_partitioning=True)
        admin.create_topic("news", enable_partitioning=True)
    arguments = ["--limits", "premium-2017", "--namespace", "shop"]
    with ServerProcess(server.data_dir, arguments=arguments) as server, connect(server) as admin:
        reason = "'EnablePartitioning' can't be set when creating a {} because the namespace 'shop'"
        with pytest.raises(HttpResponseError, match=reason.format("Queue")) as caught:
            admin.create_queue("new", enable_partitioning=True)
        assert caught.value.status_code == 400
        with pytest.raises(HttpResponseError, match=reason.format("Topic")):
            admin.create_topic("new", enable_partitioning=True)
        admin.create_queue("new")
        old = admin.get_queue("old")
        old.lock_duration = timedelta(seconds=30)
        admin.update_queue(old)
        assert admin.get_queue("old").enable_partitioning
        admin.create_subscription("news", "all")
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_topic_sender("news") as topic, client.get_queue_sender("old") as sender:
                for link in (topic, sender):
                    link.send_messages(ServiceBusMessage("goes on", partition_key="k"))
            for receiver in (
                client.get_queue_receiver("old"),
                client.get_subscription_receiver("news", "all"),
            ):
                with receiver:
                    [message] = receiver.receive_messages(max_wait_time=30)
                    receiver.complete_message(message)
        assert admin.get_namespace_properties().messaging_sku == "Premium"


@pytest.mark.proves("M-7", "M-9")
@pytest.mark.asyncio
async def test_transactions_in_the_basic_tier(basic: ServerProcess) -> None:
    async with await RawConnection.tcp(basic.port) as connection:
        link, condition = await connection.attach("sender", "coordinator")
        assert condition == ""
        outcome = await connection.send(link, b"\x00\x53\x77\x00\x53\x31\x45")
        assert isinstance(outcome, Rejected)
        assert outcome.error is not None
        assert outcome.error.condition == "amqp:not-allowed"
