"""Both flavours of the official administration client behind one interface, over TLS or without.

Tests speak the async one's language, and lists come as lists.  Without TLS takes a transport of our
own: the SDK always asks for https (its port may be any).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.management import ServiceBusAdministrationClient

from twinbus.certificates import ca_certificate
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.testing.server import ServerProcess

FLAVOURS = ("sync", "async", "sync, no TLS", "async, no TLS")


class PlainTransport(RequestsTransport):  # type: ignore[misc]  # found at run time only
    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class AsyncPlainTransport(AioHttpTransport):  # type: ignore[misc]  # as above
    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


class Admin:
    """One administration client of either flavour."""

    def __init__(self, flavour: str, sdk: Any) -> None:
        self._is_sync = flavour.startswith("sync")
        self._sdk = sdk

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sdk, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            if self._is_sync:
                return await asyncio.to_thread(self._call, method, arguments, keywords)
            answer = method(*arguments, **keywords)
            if name.startswith("list_"):
                return [entity async for entity in answer]
            return await answer

        return call

    def _call(self, method: Any, arguments: Any, keywords: Any) -> Any:
        answer = method(*arguments, **keywords)
        return list(answer) if method.__name__.startswith("list_") else answer


@asynccontextmanager
async def open_admin(
    flavour: str, server: ServerProcess, connection_string: str = "", **options: Any
) -> AsyncIterator[Admin]:
    text = connection_string or server.connection_string
    options = {"retry_total": 0, **options}
    if flavour.endswith("no TLS"):
        is_sync = flavour.startswith("sync")
        options["transport"] = PlainTransport() if is_sync else AsyncPlainTransport()
    else:
        options["connection_verify"] = str(ca_certificate(server.data_dir))
    if flavour.startswith("sync"):
        with ServiceBusAdministrationClient.from_connection_string(text, **options) as sdk:
            yield Admin(flavour, sdk)
    else:
        module = azure.servicebus.aio.management
        async with module.ServiceBusAdministrationClient.from_connection_string(
            text, **options
        ) as sdk:
            yield Admin(flavour, sdk)


def connect(
    server: ServerProcess, connection_string: str = "", **options: Any
) -> ServiceBusAdministrationClient:
    """The sync client as it is, over TLS."""
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or server.connection_string,
        connection_verify=str(ca_certificate(server.data_dir)),
        **{"retry_total": 0, **options},
    )


def connection_string_of(server: ServerProcess, rule: str, key: str) -> str:
    """The same server by another key."""
    endpoint = ConnectionString.parse(server.connection_string).authority
    return f"Endpoint=sb://{endpoint}/;SharedAccessKeyName={rule};SharedAccessKey={key}"


def scoped_to(server: ServerProcess, path: str) -> str:
    """A connection string with a ready-made signature for one entity."""
    root = ConnectionString.parse(server.connection_string)
    expires_s = SystemClock().now().utc_ms // 1_000 + 300
    token = make_sas_token(f"https://{root.authority}/{path}", root.key_name, root.key, expires_s)
    return f"Endpoint=sb://{root.authority}/;SharedAccessSignature={token}"


def everything(properties: Any) -> dict[str, object]:
    """All settings of an entity, for comparing."""
    return dict(properties.items())


def answer_of(error: HttpResponseError) -> str:
    """What the server has written."""
    assert error.response is not None
    return str(error.response.text())
