"""Which errors the SDK's links raise at once: the SDK's own, without a server."""

from collections.abc import Iterator
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus._pyamqp.error import AMQPException, AMQPLinkError
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from twinbus.pairing.aio import _busy as aio_busy
from twinbus.pairing.blocking import _busy

pytestmark = pytest.mark.proves("A-2", "P-8")

CONNECTION_STRING: Final = "Endpoint=sb://nowhere;SharedAccessKeyName=n;SharedAccessKey=k"
BUSY: Final = AMQPException(b"com.microsoft:server-busy", description="wait")
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
    """Else `raise_busy` does nothing: the SDK has changed, and _busy.py has to follow."""
    assert (_busy.CAN_RAISE, aio_busy.CAN_RAISE) == (True, True)


def test_busy_is_raised_and_all_else_tried_again(link: Any) -> None:
    assert isinstance(link._handle_exception(BUSY), ServiceBusServerBusyError)
    _busy.raise_busy(link)
    with pytest.raises(ServiceBusServerBusyError, match="wait"):
        link._handle_exception(BUSY)
    assert isinstance(link._handle_exception(DETACHED), ServiceBusConnectionError)


@pytest.mark.asyncio
async def test_the_same_with_asyncio(aio_link: Any) -> None:
    assert isinstance(await aio_link._handle_exception(BUSY), ServiceBusServerBusyError)
    aio_busy.raise_busy(aio_link)
    with pytest.raises(ServiceBusServerBusyError, match="wait"):
        await aio_link._handle_exception(BUSY)
    assert isinstance(await aio_link._handle_exception(DETACHED), ServiceBusConnectionError)


def test_an_sdk_that_has_changed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_busy, aio_busy):
        monkeypatch.setattr(module, "CAN_RAISE", False)
        module.raise_busy(link := object())
        assert not hasattr(link, "_handle_exception")
