"""Queues managed by the official administration client, over TLS, on a real server."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ApiVersion, EntityStatus, ServiceBusAdministrationClient

from tests.interop.administration import connect, everything
from twinbus.certificates import ca_certificate
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.proves("M-11", "M-13")


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests here; each uses queues of its own."""
    with ServerProcess(tmp_path_factory.mktemp("administration") / "data") as server:
        yield server


@pytest.fixture
def admin(shared_server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with connect(shared_server) as client:
        yield client


@pytest.mark.proves("M-11", "M-13")
@pytest.mark.feature("entity.queues")
def test_create_get_update_delete(admin: ServiceBusAdministrationClient) -> None:
    created = admin.create_queue(
        "walk",
        lock_duration=dt.timedelta(seconds=45),
        max_delivery_count=7,
        default_message_time_to_live="P14D",
        dead_lettering_on_message_expiration=True,
        max_size_in_megabytes=2048,
        user_metadata="<é & ü>",
    )
    got = admin.get_queue("walk")
    assert everything(got) == everything(created)
    assert got.name == "walk"
    assert got.lock_duration == dt.timedelta(seconds=45)
    assert got.max_delivery_count == 7
    assert got.default_message_time_to_live == dt.timedelta(days=14)
    assert got.dead_lettering_on_message_expiration is True
    assert got.max_size_in_megabytes == 2048
    assert got.user_metadata == "<é & ü>"
    assert got.status == EntityStatus.ACTIVE
    assert got.availability_status == "Available"
    got.lock_duration = dt.timedelta(minutes=2)
    got.status = EntityStatus.SEND_DISABLED
    admin.update_queue(got)
    updated = admin.get_queue("walk")
    assert everything(updated) == everything(got)
    admin.update_queue(updated, max_delivery_count=8, status="Active")
    assert admin.get_queue("walk").max_delivery_count == 8
    admin.delete_queue("walk")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("walk")


@pytest.mark.proves("M-13")
@pytest.mark.feature("entity.queues")
def test_defaults_are_those_of_service_bus(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("defaults")
    assert queue.lock_duration == dt.timedelta(minutes=1)
    assert queue.max_delivery_count == 10
    assert queue.max_size_in_megabytes == 1024
    assert queue.enable_batched_operations is True
    assert queue.requires_session is False
    assert queue.requires_duplicate_detection is False
    assert queue.enable_partitioning is False
    assert queue.duplicate_detection_history_time_window == dt.timedelta(minutes=10)
    assert isinstance(queue.default_message_time_to_live, dt.timedelta)
    assert queue.default_message_time_to_live > dt.timedelta(days=10_000_000)
    # What the client got, it can send back unchanged.
    admin.update_queue(queue)
    assert everything(admin.get_queue("defaults")) == everything(queue)


@pytest.mark.feature("entity.names")
def test_names(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("Names/East-1")
    assert admin.get_queue("names/east-1").name == "names/east-1"
    assert "Names/East-1" in [queue.name for queue in admin.list_queues()]
    for bad in ("a?b", "a#b", "$x", "a b", "x" * 261, "a//b", "a\\b", ".", "..", "a/./b", "a/../b"):
        with pytest.raises((HttpResponseError, ValueError)):
            admin.create_queue(bad)
    admin.delete_queue("NAMES/EAST-1")


@pytest.mark.proves("M-11")
@pytest.mark.feature("entity.queues")
def test_missing_and_existing(admin: ServiceBusAdministrationClient) -> None:
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("missing")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue_runtime_properties("missing")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("missing")
    queue = admin.create_queue("existing")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("EXISTING")
    queue.name = "missing"
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)


@pytest.mark.feature("entity.queues")
def test_bad_settings_are_refused_with_a_reason(admin: ServiceBusAdministrationClient) -> None:
    for settings in (
        {"lock_duration": dt.timedelta(minutes=6)},
        {"max_delivery_count": 0},
        {"user_metadata": "x" * 1025},
    ):
        with pytest.raises(HttpResponseError) as caught:
            admin.create_queue("bad", **settings)
        assert caught.value.status_code == 400
        assert "SubCode=40000." in caught.value.message
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("bad")


@pytest.mark.proves("E-1", "E-2")
@pytest.mark.feature("entity.partitions")
def test_partitioned_entities(admin: ServiceBusAdministrationClient) -> None:
    """The size is asked for by partition and shown for all; an update sends it back."""
    queue = admin.create_queue("parts", enable_partitioning=True, max_size_in_megabytes=2048)
    topic = admin.create_topic("more", enable_partitioning=True)
    assert (queue.enable_partitioning, topic.enable_partitioning) == (True, True)
    assert (queue.max_size_in_megabytes, topic.max_size_in_megabytes) == (32_768, 16_384)
    assert (queue.availability_status, topic.availability_status) == ("Available", "Available")
    queue.max_delivery_count = 3
    topic.user_metadata = "news"
    admin.update_queue(queue)
    admin.update_topic(topic)
    queue, topic = admin.get_queue("parts"), admin.get_topic("more")
    assert (queue.max_delivery_count, queue.max_size_in_megabytes) == (3, 32_768)
    assert (topic.user_metadata, topic.max_size_in_megabytes) == ("news", 16_384)
    listed = [each.name for each in admin.list_queues()]
    assert [name for name in listed if "parts" in name] == ["parts"]
    queue.enable_partitioning = False
    with pytest.raises(HttpResponseError, match="cannot be changed") as caught:
        admin.update_queue(queue)
    assert caught.value.status_code == 400
    admin.delete_queue("parts")
    admin.delete_topic("more")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("parts")


@pytest.mark.feature("entity.queues")
def test_what_is_fixed_when_created(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("fixed", requires_session=True)
    for change in ({"requires_session": False}, {"requires_duplicate_detection": True}):
        with pytest.raises(HttpResponseError) as caught:
            admin.update_queue(queue, **change)
        assert caught.value.status_code == 400
        assert "SubCode=40000." in caught.value.message
    assert admin.get_queue("fixed").requires_session is True


@pytest.mark.proves("M-9")
@pytest.mark.feature("entity.queues")
def test_auto_delete_and_status_are_kept(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("idle", auto_delete_on_idle=dt.timedelta(minutes=5))
    assert queue.auto_delete_on_idle == dt.timedelta(minutes=5)
    for status in ("Disabled", "SendDisabled", "ReceiveDisabled", "Active"):
        admin.update_queue(queue, status=status)
        assert admin.get_queue("idle").status == status
    with pytest.raises(HttpResponseError) as caught:
        admin.update_queue(queue, auto_delete_on_idle="PT4M")
    assert caught.value.status_code == 400
    with pytest.raises(HttpResponseError):
        admin.update_queue(queue, status="Asleep")


@pytest.mark.proves("M-11")
@pytest.mark.feature("entity.queues")
def test_list_in_pages(admin: ServiceBusAdministrationClient) -> None:  # two links
    names = [f"page-{number:03d}" for number in range(105)]
    for name in names:
        admin.create_queue(name)
    assert [q.name for q in admin.list_queues() if q.name.startswith("page-")] == names
    listed = [q.name for q in admin.list_queues_runtime_properties() if q.name in set(names)]
    assert listed == names
    small = [q.name for q in admin.list_queues(max_page_size=7) if q.name in set(names)]
    assert small == names


@pytest.mark.proves("M-11")
@pytest.mark.feature("entity.queues")
def test_runtime_properties(
    admin: ServiceBusAdministrationClient, shared_server: ServerProcess
) -> None:
    started = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=2)
    admin.create_queue("counted")
    empty = admin.get_queue_runtime_properties("counted")
    assert empty.total_message_count == 0
    assert empty.size_in_bytes == 0
    with (
        ServiceBusClient.from_connection_string(shared_server.connection_string) as client,
        client.get_queue_sender("counted") as sender,
        client.get_queue_receiver("counted") as receiver,
    ):
        sender.send_messages([ServiceBusMessage(b"x" * 100) for _ in range(5)])
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        sender.schedule_messages([ServiceBusMessage(b"y") for _ in range(2)], tomorrow)
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=5):
            receiver.dead_letter_message(message, reason="a test")
    counted = admin.get_queue_runtime_properties("counted")
    assert counted.name == "counted"
    assert counted.active_message_count == 4
    assert counted.dead_letter_message_count == 1
    assert counted.scheduled_message_count == 2
    assert counted.transfer_message_count == 0
    assert counted.transfer_dead_letter_message_count == 0
    assert counted.total_message_count == 7
    assert counted.size_in_bytes is not None
    assert counted.size_in_bytes >= 502
    for moment in (counted.created_at_utc, counted.updated_at_utc, counted.accessed_at_utc):
        assert moment is not None
        assert started <= moment <= dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2)


def test_namespace_properties(admin: ServiceBusAdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert properties.name
    assert properties.namespace_type == "Messaging"
    assert properties.created_at_utc is not None


def test_namespace_keeps_its_birthday(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with connect(server) as admin:
            born = admin.get_namespace_properties().created_at_utc
        assert born is not None
        server.stop()
        server.restart()
        with connect(server) as admin:
            assert admin.get_namespace_properties().created_at_utc == born


@pytest.mark.proves("M-13")
@pytest.mark.feature("entity.queues")
@pytest.mark.parametrize("api_version", list(ApiVersion))
def test_every_api_version(shared_server: ServerProcess, api_version: ApiVersion) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        shared_server.connection_string,
        api_version=api_version,
        connection_verify=str(ca_certificate(shared_server.data_dir)),
    ) as admin:
        name = f"version-{api_version.value}"
        admin.create_queue(name)
        admin.update_queue(admin.get_queue(name), max_delivery_count=3)
        assert admin.get_queue(name).max_delivery_count == 3


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
def test_wrong_key_and_no_manage_claim(shared_server: ServerProcess) -> None:
    right = ConnectionString.parse(shared_server.connection_string)
    wrong = shared_server.connection_string.replace(right.key, "d3Jvbmc=")
    with connect(shared_server, wrong) as admin, pytest.raises(ClientAuthenticationError) as caught:
        admin.create_queue("forbidden")
    assert caught.value.response is not None
    assert "SubCode=40100." in caught.value.response.text()
    assert right.key not in str(caught.value)
    with connect(shared_server) as admin, pytest.raises(ResourceNotFoundError):
        admin.get_queue("forbidden")


@pytest.mark.proves("M-12")
@pytest.mark.feature("access.sas")
def test_ready_made_signature(shared_server: ServerProcess) -> None:
    """A connection string with SharedAccessSignature in place of a key."""
    right = ConnectionString.parse(shared_server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1000 + 300
    for uri, allowed in ((f"https://{right.authority}", True), ("https://h/elsewhere", False)):
        token = make_sas_token(uri, right.key_name, right.key, expires_s)
        text = f"Endpoint=sb://{right.authority}/;SharedAccessSignature={token}"
        with connect(shared_server, text) as admin:
            if allowed:
                assert admin.get_namespace_properties().name
            else:
                with pytest.raises(ClientAuthenticationError):
                    admin.get_namespace_properties()


def test_untrusted_certificate_is_the_clients_to_refuse(shared_server: ServerProcess) -> None:
    from azure.core.exceptions import ServiceRequestError

    with (
        ServiceBusAdministrationClient.from_connection_string(
            shared_server.connection_string, retry_total=0
        ) as admin,
        pytest.raises(ServiceRequestError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        admin.get_namespace_properties()


@pytest.mark.proves("M-1")
@pytest.mark.feature("entity.queues")
def test_what_is_answered_is_durable(tmp_path: Path) -> None:  # for entities: kill -9
    server = ServerProcess(tmp_path / "data")
    server.start()
    try:
        with connect(server) as admin:
            kept = admin.create_queue("kept", max_delivery_count=4)
            admin.create_queue("gone")
            admin.delete_queue("gone")
            kept.lock_duration = dt.timedelta(seconds=33)
            admin.update_queue(kept)
            before = everything(admin.get_queue("kept"))
        server.kill()
        server.restart()
        with connect(server) as admin:
            assert [queue.name for queue in admin.list_queues()] == ["kept"]
            assert everything(admin.get_queue("kept")) == before
        server.stop()
    finally:
        if server.running:
            server.kill()


@pytest.mark.feature("entity.queues")
def test_deleted_queue_comes_back_empty(
    admin: ServiceBusAdministrationClient, shared_server: ServerProcess
) -> None:
    admin.create_queue("phoenix")
    with (
        ServiceBusClient.from_connection_string(shared_server.connection_string) as client,
        client.get_queue_sender("phoenix") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"old"))
    admin.delete_queue("phoenix")
    admin.create_queue("phoenix")
    assert admin.get_queue_runtime_properties("phoenix").total_message_count == 0


@pytest.mark.proves("M-11", "M-13")
@pytest.mark.feature("entity.queues")
@pytest.mark.asyncio
async def test_async_client(shared_server: ServerProcess) -> None:
    async with AsyncAdministrationClient.from_connection_string(
        shared_server.connection_string,
        connection_verify=str(ca_certificate(shared_server.data_dir)),
        retry_total=0,
    ) as admin:
        created = await admin.create_queue("aio", lock_duration="PT10S")
        got = await admin.get_queue("aio")
        assert everything(got) == everything(created)
        await admin.update_queue(got, max_delivery_count=2)
        assert (await admin.get_queue("aio")).max_delivery_count == 2
        with pytest.raises(ResourceExistsError):
            await admin.create_queue("aio")
        assert "aio" in [queue.name async for queue in admin.list_queues()]
        runtime = await admin.get_queue_runtime_properties("aio")
        assert runtime.total_message_count == 0
        assert (await admin.get_namespace_properties()).namespace_type == "Messaging"
        await admin.delete_queue("aio")
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue("aio")
        with pytest.raises(ResourceNotFoundError):
            await admin.delete_queue("aio")
