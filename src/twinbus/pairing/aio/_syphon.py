"""The syphon of a pair: one task for each backlog queue, each runs the flow that empties it.

What happens to a message is decided in syphon.py.  Here is only the SDK: a receiver for each
queue, replaced when it breaks, and a sender for each path, shared by the tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.pairing.aio._refusals import raise_refusals
from twinbus.pairing.aio._running import run
from twinbus.pairing.aio._steady import LATE_S_MAX, Closing, SteadySender, close_in_time
from twinbus.pairing.classification import is_broken_by
from twinbus.pairing.client import OPEN_S_MAX, bare_sender
from twinbus.pairing.fitness import none_left
from twinbus.pairing.log_lines import LOGGER
from twinbus.pairing.parcels import as_outgoing
from twinbus.pairing.steps import (
    Abandon,
    AskNamespace,
    Complete,
    DeadLetter,
    Pause,
    Peek,
    Receive,
    SendRestored,
    Step,
)
from twinbus.pairing.syphon import PATH_COUNT_MAX, RESTART_S, Syphon

# As long as the lock of a backlog queue's message: what takes longer is in vain.
SETTLE_S_MAX: Final = 60.0


class BacklogReceiver:
    """The SDK's receiver of one backlog queue, replaced before the next poll when it has broken.

    Not before: messages must be settled by the link they came on.
    """

    def __init__(self, client: ServiceBusClient, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._sdk: ServiceBusReceiver | None = None
        self._is_broken = False

    async def receive(self, count_max: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
        sdk = await self.open()
        try:
            async with asyncio.timeout(wait_s + LATE_S_MAX):
                received = await sdk.receive_messages(count_max, max_wait_time=wait_s)
                if len(received) < count_max:
                    await _ask_for_no_more(sdk)
        except BaseException:
            self._is_broken = True
            raise
        return received

    async def show(self) -> None:
        """That the queue can be received from."""
        with suppress(ServiceBusServerBusyError):  # it is there; the flow rests and asks again
            await self.open()

    async def peek(
        self, first: int, count_max: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        sdk = await self.open()
        try:
            async with asyncio.timeout(timeout_s + LATE_S_MAX):
                return await sdk.peek_messages(count_max, sequence_number=first, timeout=timeout_s)
        except BaseException:
            self._is_broken = True
            raise

    async def open(self) -> ServiceBusReceiver:
        if self._is_broken:
            await self.close()
        if self._sdk is None:
            self._sdk = self._client.get_queue_receiver(self._queue)
            raise_refusals(self._sdk)
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                return await self._sdk.__aenter__()
        except BaseException:
            self._is_broken = True
            raise

    async def complete(self, messages: list[ServiceBusReceivedMessage]) -> list[Exception] | None:
        """The error of each message that could not be completed; None: there is none."""
        errors: list[Exception] = []
        for message in messages:
            if self._is_broken:
                errors.append(errors[-1])  # the rest fares no better
                continue
            try:
                await self._settle(self._receiving().complete_message(message))
            except Exception as error:  # noqa: BLE001 - the flow decides what it means
                errors.append(error)
        return errors or None

    async def abandon(self, messages: list[ServiceBusReceivedMessage]) -> None:
        for message in messages:
            await self._settle(self._receiving().abandon_message(message))

    async def dead_letter(
        self, message: ServiceBusReceivedMessage, reason: str, description: str
    ) -> None:
        await self._settle(
            self._receiving().dead_letter_message(
                message, reason=reason, error_description=description
            )
        )

    async def close(self) -> None:
        sdk, self._sdk, self._is_broken = self._sdk, None, False
        if sdk is not None:
            await close_in_time(sdk.close)

    def _receiving(self) -> ServiceBusReceiver:
        assert self._sdk is not None, "messages are settled by the receiver they came from"
        return self._sdk

    async def _settle(self, settling: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await settling
        except BaseException as error:
            self._is_broken = self._is_broken or is_broken_by(error)
            raise


async def _ask_for_no_more(receiver: ServiceBusReceiver) -> None:
    """See the blocking syphon's."""
    client: Any = receiver
    # SLF001: there is no other way in.
    await client._amqp_transport.reset_link_credit_async(client._handler, 0)  # noqa: SLF001


class RunningSyphon:
    """The tasks of a syphon, from `start` to `stop`."""

    def __init__(
        self,
        syphon: Syphon,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        closing: Closing,
        dispatch: Callable[[], None],
    ) -> None:
        self._syphon = syphon
        self._primary = primary
        self._closing = closing
        self._secondary = secondary
        self._dispatch = dispatch
        self._receivers: dict[str, BacklogReceiver] = {}
        self._senders: dict[str, SteadySender] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_running(self) -> bool:
        return any(not task.done() for task in self._tasks)

    async def open(self, queues: list[str]) -> None:
        """Receive from the queues, before `start`.

        One that cannot be opened is tried again later, as any that fails later; if it is all of
        them, why is raised.
        """
        self._receivers = {queue: BacklogReceiver(self._secondary, queue) for queue in queues}
        opening = (receiver.show() for receiver in self._receivers.values())
        opened = await asyncio.gather(*opening, return_exceptions=True)
        found = zip(queues, opened, strict=True)
        errors = {queue: each for queue, each in found if isinstance(each, BaseException)}
        if errors and len(errors) == len(queues):
            raise none_left(errors)

    def start(self, queues: list[str], until_empty: bool = False) -> None:
        """For ever, or until a receive brings nothing."""
        self._tasks = [
            asyncio.create_task(self._empty(queue, until_empty), name=f"syphon of {queue}")
            for queue in queues
        ]

    async def stop(self) -> None:
        """At once, not after the poll.  What was in hand comes again when its lock ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        receivers, self._receivers = self._receivers, {}
        senders, self._senders = self._senders, {}
        await asyncio.gather(
            *(receiver.close() for receiver in receivers.values()),
            *(sender.close() for sender in senders.values()),
        )

    async def _empty(self, queue: str, until_empty: bool) -> None:
        receiver = self._receivers.get(queue) or BacklogReceiver(self._secondary, queue)
        self._receivers[queue] = receiver

        async def perform(step: Step) -> Any:
            self._dispatch()
            return await self._perform(receiver, step)

        try:
            is_over = False
            while not is_over:
                is_over = await self._run(queue, until_empty, perform)
        finally:
            await receiver.close()

    async def _run(
        self, queue: str, until_empty: bool, perform: Callable[[Step], Awaitable[Any]]
    ) -> bool:
        """Whether the flow has come to its end; it lives with every error of its steps."""
        try:
            await run(self._syphon.empty(queue, until_empty), perform)
        except Exception:  # noqa: BLE001 - it is logged
            LOGGER.exception("the syphon has met an error: queue=%s", queue)
            await asyncio.sleep(RESTART_S)
            return False
        return True

    async def _perform(self, receiver: BacklogReceiver, step: Step) -> Any:
        match step:
            case Receive():
                return await receiver.receive(step.count_max, step.wait_s)
            case Peek():
                return await receiver.peek(step.first, step.count_max, step.timeout_s)
            case SendRestored():
                outgoing = as_outgoing(step.messages)
                sender = self._sender(step.path)
                return await sender.send_home(outgoing, step.timeout_s, step.namespaces)
            case AskNamespace():
                return await self._sender(step.path).namespace(step.timeout_s)
            case Complete():
                return await receiver.complete(step.messages)
            case Abandon():
                return await receiver.abandon(step.messages)
            case DeadLetter():
                return await receiver.dead_letter(step.message, step.reason, step.description)
            case Pause():
                return await asyncio.sleep(step.seconds)
            case _:
                raise AssertionError(step)

    def _sender(self, path: str) -> SteadySender:
        sender = self._senders.pop(path, None)
        if sender is None:
            make = partial(bare_sender, self._primary, path)
            sender = SteadySender(make, self._closing, is_guarded=True)
        self._senders[path] = sender  # the one used last stands last
        if len(self._senders) > PATH_COUNT_MAX:
            self._closing.begin(self._senders.pop(next(iter(self._senders))).rest())
        return sender
