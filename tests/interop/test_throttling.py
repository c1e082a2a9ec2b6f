"""Throttling, met through the official SDK: server-busy, and the advice to wait 10 s."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.interop.administration import connect
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("A-2"), pytest.mark.feature("available.throttling")]

ADVICE = "wait 10 seconds and try again"
CREDITS = 1_000


@contextmanager
def open_client(server: ServerProcess, **settings: Any) -> Iterator[ServiceBusClient]:
    options = {"retry_total": 0, **settings}
    string = server.connection_string
    with ServiceBusClient.from_connection_string(string, **options) as client:
        yield client


def read(server: ServerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
        return str(answer.read().decode())


def refused_count(server: ServerProcess, reason: str) -> int:
    pattern = rf'^twinbus_throttled_total{{reason="{reason}"}} (\d+)$'
    found = re.search(pattern, read(server, "/metrics"), re.MULTILINE)
    assert found is not None
    return int(found[1])


# --- credits ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("standard") / "data"
    with ServerProcess(data_dir, arguments=["--limits", "standard"]) as server:
        server.create_queue("inbox")
        yield server


def spend(sender: Any) -> None:
    """Use up what a namespace has for this second, and for the next two."""
    wait_for_credits(sender)
    batch = sender.create_message_batch()
    for _ in range(3 * CREDITS):
        batch.add_message(ServiceBusMessage(b"x"))
    sender.send_messages(batch)


def wait_for_credits(sender: Any) -> None:
    """Until the namespace is let in again."""
    for _ in range(100):
        try:
            sender.send_messages(ServiceBusMessage(b"x"))
        except ServiceBusServerBusyError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("no credits came")


def refusal(sender: Any, operation: Callable[[], object]) -> Exception:
    """What an operation is told without credits; on a slow machine new ones may come before it."""
    for _ in range(5):
        spend(sender)
        try:
            operation()
        except (ServiceBusServerBusyError, HttpResponseError) as error:
            return error
    pytest.fail("there were credits all the time")


@pytest.mark.proves("A-2")
def test_credits(standard: ServerProcess) -> None:
    with open_client(standard) as client, client.get_queue_sender("inbox") as sender:
        error = refusal(sender, lambda: sender.send_messages(ServiceBusMessage(b"too much")))
        assert isinstance(error, ServiceBusServerBusyError)
        assert ADVICE in str(error)
        assert "namespace" in str(error)
        receiver = client.get_queue_receiver("inbox")
        error = refusal(sender, lambda: receiver.receive_messages(max_wait_time=1))
        assert isinstance(error, ServiceBusServerBusyError)
        assert ADVICE in str(error)
    assert refused_count(standard, "namespace") >= 2


@pytest.mark.proves("A-2")
def test_settling_costs_nothing(standard: ServerProcess) -> None:
    with open_client(standard) as client, client.get_queue_sender("inbox") as sender:
        wait_for_credits(sender)
        with client.get_queue_receiver("inbox") as receiver:
            for _ in range(5):  # as above
                wait_for_credits(sender)
                (message,) = receiver.receive_messages(max_wait_time=5)
                spend(sender)
                receiver.renew_message_lock(message)
                receiver.complete_message(message)
                try:
                    sender.send_messages(ServiceBusMessage(b"too much"))
                except ServiceBusServerBusyError:
                    return  # and there were none a moment ago
    pytest.fail("there were credits all the time")


@pytest.mark.proves("A-2")
def test_management_costs_credits_too(standard: ServerProcess) -> None:
    with (
        open_client(standard) as client,
        client.get_queue_sender("inbox") as sender,
        connect(standard) as admin,
    ):
        error = refusal(sender, lambda: admin.get_queue("inbox"))
        assert isinstance(error, HttpResponseError)
        assert ADVICE in str(error)
        assert error.status_code == 503
        response: Any = error.response
        assert response.headers["Retry-After"] == "10"


@pytest.mark.proves("A-2")
def test_clients_can_be_told_to_follow_the_advice(
    standard: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK has its own backoff; with these settings each pause is ten seconds."""
    pauses: list[float] = []
    settings = {"retry_total": 2, "retry_mode": "fixed", "retry_backoff_factor": 10}
    with (
        open_client(standard) as spender,
        open_client(standard, **settings) as client,
        client.get_queue_sender("inbox") as sender,
    ):

        def send() -> None:
            pauses.clear()
            with monkeypatch.context() as patched:
                patched.setattr("azure.servicebus._base_handler.time.sleep", pauses.append)
                sender.send_messages(ServiceBusMessage(b"too much"))

        with spender.get_queue_sender("inbox") as other:
            assert ADVICE in str(refusal(other, send))
    assert pauses == [10, 10]


# --- pressure ---------------------------------------------------------------------------------


@pytest.mark.proves("A-1", "A-2")
def test_a_server_without_memory_takes_no_messages_and_gives_what_it_has(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data_dir = tmp_path_factory.mktemp("short") / "data"
    with ServerProcess(data_dir) as server:
        server.create_queue("inbox")
        with open_client(server) as client, client.get_queue_sender("inbox") as sender:
            sender.send_messages(ServiceBusMessage(b"before"))
    with ServerProcess(data_dir, arguments=["--throttle", "memory=1"]) as server:
        with open_client(server) as client:
            with client.get_queue_sender("inbox") as sender:
                refusal = send_until_refused(sender)
            assert ADVICE in refusal
            assert "memory" in refusal
            with client.get_queue_receiver("inbox") as receiver:
                (message, *_) = receiver.receive_messages(max_wait_time=5)
                assert bytes(next(iter(message.body))) == b"before"
                receiver.complete_message(message)
        health = read(server, "/health?detail")
        assert '"cannot": {"send": ["throttled (memory)"]}' in health
        assert "this process: memory is full" in health
        assert '"status": "healthy"' in read(server, "/health")
        with connect(server) as admin:
            assert admin.get_queue("inbox").name == "inbox"
        assert refused_count(server, "memory") > 0


def send_until_refused(sender: Any) -> str:
    """The server looks at itself once a second."""
    for _ in range(10_000):
        try:
            sender.send_messages(ServiceBusMessage(b"x"))
        except ServiceBusServerBusyError as error:
            return str(error)
    pytest.fail("a server without memory took everything")


def test_rest(standard: ServerProcess) -> None:
    """What anybody may see of a busy server, and what nobody may without a token."""
    assert '{"status": "healthy"' in read(standard, "/health")
    with pytest.raises(urllib.error.HTTPError) as caught:
        read(standard, "/inbox")
    assert caught.value.code == 401
    caught.value.close()
