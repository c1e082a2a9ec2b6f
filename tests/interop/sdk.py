"""Both flavours of the official client behind one interface, so that a test is written once.

`azure-servicebus` comes as a sync and as an async client.  Tests speak the async one's language;
`Threaded` lends it to the sync one by running each call in a thread.  Nothing of the SDK is
patched or reached into.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusSubQueue

# For tests that wait for time to pass: the other flavour puts the same frames on the wire.
sync_only = pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async_only = pytest.mark.parametrize("flavour", ["async"], indirect=True)


class Threaded:
    """A sender or receiver of the sync SDK with the async SDK's interface."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        if not callable(attribute):
            return attribute

        async def call(*arguments: Any, **keywords: Any) -> Any:
            return await asyncio.to_thread(attribute, *arguments, **keywords)

        return call

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.target.__enter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.target.__exit__, kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[Any]:
        messages = iter(self.target)
        while (message := await asyncio.to_thread(next, messages, None)) is not None:
            yield message


@dataclass
class Client:
    """One SDK client of either flavour; its senders and receivers close with it."""

    flavour: str
    sdk: Any
    _links: list[Any] = field(default_factory=list)

    def sender(self, queue: str, **options: Any) -> Any:
        return self._linked(self.sdk.get_queue_sender(queue, **options))

    def receiver(self, queue: str, **options: Any) -> Any:
        options = {"max_wait_time": 5, **options}
        return self._linked(self.sdk.get_queue_receiver(queue, **options))

    def dead_letter_receiver(self, queue: str, **options: Any) -> Any:
        return self.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)

    def topic_sender(self, topic: str, **options: Any) -> Any:
        return self._linked(self.sdk.get_topic_sender(topic, **options))

    def subscription_receiver(self, topic: str, subscription: str, **options: Any) -> Any:
        options = {"max_wait_time": 5, **options}
        return self._linked(self.sdk.get_subscription_receiver(topic, subscription, **options))

    async def close(self) -> None:
        """Close what is left open.  All links at once: the SDK would take one after the other."""
        await asyncio.gather(*(link.close() for link in self._links))
        await (asyncio.to_thread(self.sdk.close) if self.flavour == "sync" else self.sdk.close())

    def _linked(self, link: Any) -> Any:
        self._links.append(Threaded(link) if self.flavour == "sync" else link)
        return self._links[-1]


def open_client(flavour: str, connection_string: str, **options: Any) -> Client:
    module = azure.servicebus if flavour == "sync" else azure.servicebus.aio
    sdk = module.ServiceBusClient.from_connection_string(connection_string, **options)
    return Client(flavour, sdk)


def session_of(receiver: Any) -> Any:
    """The receiver's session, with the async SDK's interface."""
    return Threaded(receiver.session) if isinstance(receiver, Threaded) else receiver.session


async def receive_exactly(receiver: Any, count: int) -> list[Any]:
    """Receive until `count` messages have come; the SDK may hand them out in several turns."""
    messages: list[Any] = []
    while len(messages) < count:
        more = await receiver.receive_messages(max_message_count=count - len(messages))
        assert more, f"only {len(messages)} of {count} messages came"
        messages += more
    return messages


async def receive_one(receiver: Any) -> Any:
    [message] = await receive_exactly(receiver, 1)
    return message


async def nothing_comes(receiver: Any) -> bool:
    """Is there nothing to receive for a moment?  Connecting is not part of the moment."""
    await receiver.peek_messages()
    return not await receiver.receive_messages(max_wait_time=0.3)


async def complete_all(receiver: Any, messages: Iterable[Any]) -> None:
    for message in messages:
        await receiver.complete_message(message)


async def peek_all(receiver: Any) -> list[Any]:
    """Everything in the queue from the first sequence number on, locked or not."""
    messages: list[Any] = []
    start = 1
    while page := await receiver.peek_messages(max_message_count=250, sequence_number=start):
        messages += page
        start = page[-1].sequence_number + 1
    return messages


def body(message: Any) -> bytes:
    """The whole data body of a message."""
    return b"".join(message.body)


def bodies(messages: Iterable[Any]) -> list[bytes]:
    return [body(message) for message in messages]
