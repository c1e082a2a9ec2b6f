"""The same clients as in `outage_load.py`, but the official SDK's, with its default retries.

The SDK tries again by itself, so a message may have been stored twice: then the second is noted as
a message of its own, whose fate is unknown.  What a `send` raises has reached the application.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tests.crash.outage_load import PAUSE_S, RECONNECT_S, Failure, Lane, OutageLoad, now_ms
from tests.interop.sdk import body as body_of
from twinbus.testing.checkers import Operation, Phase

RECEIVED_AT_ONCE = 20
WAIT_S = 0.5


class SdkLoad(OutageLoad):
    """A client of its own for every lane and every receiver, as separate applications have."""

    def __init__(self, connection_string: str, *arguments: Any, **options: Any) -> None:
        super().__init__(connection_string, *arguments, **options)
        self._sdk_connection_string = connection_string
        self._numbers: dict[str, int] = {}  # under which a message was seen first

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._sdk_connection_string)

    # -- senders -----------------------------------------------------------------------------------

    async def keep_sending(self, lane: Lane) -> None:
        async with self._client() as client, client.get_queue_sender(lane.queue) as sender:
            for number in itertools.count():
                if not self.is_sending:
                    break
                await self._send_by_sdk(lane, sender, f"{lane.name}/{number}")
                await asyncio.sleep(PAUSE_S)

    async def _send_by_sdk(self, lane: Lane, sender: Any, name: str) -> None:
        for attempt in itertools.count():
            began_ms = now_ms()
            key = f"{name}.{attempt}"
            body = self.body(key)
            message = ServiceBusMessage(body)
            if lane.is_session:
                message.session_id = lane.key
            elif lane.key is not None:
                message.partition_key = lane.key
            self.history.note(lane.name, lane.queue, key, Operation.SEND, Phase.INVOKE, body=body)
            phase = Phase.INFO
            try:
                await sender.send_messages(message)
                phase = Phase.OK
            except ServiceBusError as error:
                text = f"{type(error).__name__}: {error}"
                self.failures.append(Failure(lane, key, began_ms, now_ms(), text, is_final=True))
            finally:
                self.history.note(lane.name, lane.queue, key, Operation.SEND, phase)
            if phase is Phase.OK:
                self.acknowledged_count += 1
                return

    # -- receivers ---------------------------------------------------------------------------------

    async def keep_receiving(
        self, process: str, queues: Sequence[str], is_session: bool = False
    ) -> None:
        options: dict[str, Any] = {"max_wait_time": WAIT_S}
        if is_session:
            options["session_id"] = NEXT_AVAILABLE_SESSION
            # Without a prefetch the SDK gives back, unseen, what comes while the application is
            # busy.  The next message may be under way by then, and is seen before it: no order
            # could be judged.  With one it is kept, and seen in the order of its coming.
            options["prefetch_count"] = RECEIVED_AT_ONCE
        async with self._client() as client:
            for visit, queue in enumerate(itertools.cycle(queues)):
                try:
                    async with client.get_queue_receiver(queue, **options) as receiver:
                        await self._receive_by_sdk(f"{process}.{visit}", queue, receiver)
                except ServiceBusError:
                    await asyncio.sleep(RECONNECT_S)

    async def _receive_by_sdk(self, process: str, queue: str, receiver: Any) -> None:
        while messages := await receiver.receive_messages(RECEIVED_AT_ONCE, WAIT_S):
            keys = [self._note(process, queue, message) for message in messages]
            for key, message in zip(keys, messages, strict=True):
                self.history.note(process, queue, key, Operation.COMPLETE, Phase.INVOKE)
                phase = Phase.INFO
                try:
                    await receiver.complete_message(message)
                    phase = Phase.OK
                finally:
                    self.history.note(process, queue, key, Operation.COMPLETE, phase)

    def _note(self, process: str, queue: str, message: Any) -> str:
        body = body_of(message)
        key = body.partition(b"\n")[0].decode()
        number = message.sequence_number
        if self._numbers.setdefault(key, number) != number:
            lane, body = key.partition("/")[0], f"{key}@{number}".encode() + body[len(key) :]
            key = f"{key}@{number}"
            self.history.note(lane, queue, key, Operation.SEND, Phase.INVOKE, body=body)
            self.history.note(lane, queue, key, Operation.SEND, Phase.INFO)
        until = message.locked_until_utc
        until_ms = 0 if until is None else int(until.timestamp() * 1_000)
        count = message.delivery_count or 0
        return self.note_delivery(process, queue, body, number, count, until_ms)
