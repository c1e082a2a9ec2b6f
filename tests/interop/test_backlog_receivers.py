"""Between two receives a syphon asks for nothing.

What comes then the SDK gives back unseen; what is behind it on the way would be seen before it, and
a session would come home in the wrong order.  So what is left of a credit is taken back.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from tests.interop.sdk import body
from twinbus.pairing.aio._syphon import BacklogReceiver
from twinbus.pairing.blocking._syphon import _Worker
from twinbus.pairing.steps import Complete, Receive
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("P-14"), pytest.mark.asyncio(loop_scope="module")]

COUNT_MAX = 100
WAIT_S = 5.0


@asynccontextmanager
async def receiving(flavour: str, server: ServerProcess, queue: str) -> AsyncIterator[Any]:
    """A function that takes the steps of a syphon, and one that gives the SDK's receiver."""
    text = server.connection_string
    if flavour == "async":
        async with AsyncClient.from_connection_string(text) as client:
            receiver = BacklogReceiver(client, queue)

            async def perform(step: Any) -> Any:
                if isinstance(step, Receive):
                    return await receiver.receive(step.count_max, step.wait_s)
                return await receiver.complete(step.messages)

            yield perform, lambda: receiver._sdk
            await receiver.close()
        return
    with ServiceBusClient.from_connection_string(text) as blocking:
        syphon: Any = SimpleNamespace(
            check=lambda: None,
            new_receiver=lambda queue: blocking.get_queue_receiver(queue, prefetch_count=0),
            discard=lambda receiver, opening: threading.Thread(target=receiver.close),
        )
        worker = _Worker(queue, syphon)
        yield lambda step: asyncio.to_thread(worker.perform, step), lambda: worker._receiver
        closing = worker._drop_receiver()
        assert closing is not None
        closing.start()
        await asyncio.to_thread(closing.join)


def credit_of(receiver: Any) -> int:
    """What the SDK has asked for and not got."""
    return int(receiver._handler._link.current_link_credit)


async def test_between_two_receives_nothing_is_asked_for(
    server: ServerProcess, flavour: str, queue: str, sender: Any
) -> None:
    async with receiving(flavour, server, queue) as (perform, sdk):
        for texts in (["one"], ["two", "three"]):
            await sender.send_messages([ServiceBusMessage(text) for text in texts])
            received: list[Any] = []
            while len(received) < len(texts):
                received += await perform(Receive(queue, COUNT_MAX, WAIT_S))
                assert credit_of(sdk()) == 0
            assert [body(message) for message in received] == [text.encode() for text in texts]
            assert await perform(Complete(queue, received)) is None
