"""Which errors the SDK's links raise at once: the SDK's own, without a server."""

from collections.abc import Iterator
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus._pyamqp.error import AMQPException, AMQPLinkError
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from twinbus.pairing.aio import _refusals as aio_refusals
from twinbus.pairing.blocking import _refusals
from twinbus.pairing.errors import PartitionRefusedError

pytestmark = pytest.mark.proves("A-2", "P-8")

CONNECTION_STRING: Final = "Endpoint=sb://nowhere;SharedAccessKeyName=n;SharedAccessKey=k"
BUSY: Final = AMQPException(b"com.microsoft:server-busy", description="wait")
BUSY_PARTITION: Final = AMQPException(b"twinbus:partition-refused", description="it is full")
DETACHED: Final = AMQPLinkError(b"amqp:link:detach-forced", description="gone")


@pytest.fixture(params=["sender", "receiver"])
def link(request: pytest.FixtureRequest) -> Iterator[Any]:
    with azure.servicebus.ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
        yield getattr(client, f"get_queue_{request.param}")("q")


@pytest.fixture(params=["sender", "receiver"])
def aio_link(request: pytest.FixtureRequest) -> Any:
    client = azure.servicebus.aio.ServiceBusClient.from_connection_string(CONNECTION_STRING)
    return getattr(client, f"get_queue_{request.param}")("q")


def test_the_installed_sdk_can_be_told() -> None:
    """Else `raise_refusals` does nothing: the SDK has changed, and _refusals.py has to follow."""
    assert (_refusals.CAN_RAISE, aio_refusals.CAN_RAISE) == (True, True)


def test_busy_is_raised_and_all_else_tried_again(link: Any) -> None:
    assert isinstance(link._handle_exception(BUSY), ServiceBusServerBusyError)
    _refusals.raise_refusals(link)
    with pytest.raises(ServiceBusServerBusyError, match="wait"):
        link._handle_exception(BUSY)
    assert isinstance(link._handle_exception(DETACHED), ServiceBusConnectionError)


@pytest.mark.asyncio
async def test_the_same_with_asyncio(aio_link: Any) -> None:
    assert isinstance(await aio_link._handle_exception(BUSY), ServiceBusServerBusyError)
    aio_refusals.raise_refusals(aio_link)
    with pytest.raises(ServiceBusServerBusyError, match="wait"):
        await aio_link._handle_exception(BUSY)
    assert isinstance(await aio_link._handle_exception(DETACHED), ServiceBusConnectionError)


@pytest.mark.proves("P-20")
@pytest.mark.parametrize("before", [[], [DETACHED]])
def test_a_refusing_partition_is_for_the_pair(link: Any, before: list[AMQPException]) -> None:
    """It can choose another only if no try before can have arrived."""
    tries = _refusals.raise_refusals(link)
    for each in (*before, BUSY_PARTITION):
        tries.begin()
        for earlier in before:
            link._handle_exception(earlier)
        with pytest.raises(PartitionRefusedError, match="full") as caught:
            link._handle_exception(BUSY_PARTITION)
        assert caught.value.is_certain is not bool(before), each


@pytest.mark.proves("P-20")
@pytest.mark.asyncio
async def test_a_refusing_partition_with_asyncio(aio_link: Any) -> None:
    tries = aio_refusals.raise_refusals(aio_link)
    with pytest.raises(PartitionRefusedError, match="full") as caught:
        await aio_link._handle_exception(BUSY_PARTITION)
    assert caught.value.is_certain
    await aio_link._handle_exception(DETACHED)
    with pytest.raises(PartitionRefusedError) as caught:
        await aio_link._handle_exception(BUSY_PARTITION)
    assert not caught.value.is_certain
    tries.begin()
    with pytest.raises(PartitionRefusedError) as caught:
        await aio_link._handle_exception(BUSY_PARTITION)
    assert caught.value.is_certain


def test_an_sdk_that_has_changed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_refusals, aio_refusals):
        monkeypatch.setattr(module, "CAN_RAISE", False)
        module.raise_refusals(link := object())
        assert not hasattr(link, "_handle_exception")
