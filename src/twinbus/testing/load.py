"""Load that outlives its server: senders and receivers that record all they see.

Every message carries its own name and random bytes, and is sent once.  When a connection dies,
operations in progress are recorded as unknown, and the client reconnects while the load runs.
Receivers complete most messages, abandon some and forget a few, so that locks expire as well.

The load never judges; `checkers` does.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from twinbus.client.connection import BusConnection
from twinbus.client.links import ConnectionLost, Received, Receiver, Sender
from twinbus.errors import ServiceError
from twinbus.testing.checkers import History, Operation, Phase

WINDOW: Final = 24  # operations under way per client
CREDIT: Final = 50
WAITING_MAX: Final = 4_000  # senders pause here, so that draining at the end stays short
BODY_SIZE_BYTES_MAX: Final = 2_048
# A few are large, so that even a short run fills segments and has them recycled.
LARGE_SHARE: Final = 0.14
LARGE_SIZE_BYTES_MAX: Final = 150_000
PAUSE_S: Final = 0.02  # before connecting again, and after a refusal
QUIET_S: Final = 0.2  # a receiver that hears nothing for so long visits another queue
ABANDON_SHARE: Final = 0.08
FORGET_SHARE: Final = 0.01


class Load:
    """Some senders and receivers on some queues, until told to stop."""

    def __init__(
        self,
        connection_string: str,
        queues: Sequence[str],
        history: History,
        *,
        lock_duration_ms: int,
        seed: int = 0,
    ) -> None:
        self.history = history
        self.queues = tuple(queues)
        self.acknowledged_count = 0
        self.gone_count = 0  # completed, as far as anybody knows
        self.refused: dict[str, int] = {}  # how often a send was refused, by error
        self._connection_string = connection_string
        self._lock_duration_ms = lock_duration_ms
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._senders: set[asyncio.Task[None]] = set()
        self._receivers: set[asyncio.Task[None]] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()
        self._draining = False

    # -- in the test's hands -----------------------------------------------------------------------

    def start(self, senders: int = 4, receivers: int = 4) -> None:
        """Start this many more of each."""
        for number in range(senders):
            name = f"sender-{len(self._senders) + number}"
            self._senders.add(asyncio.create_task(self._keep_sending(name)))
        for number in range(receivers):
            name = f"receiver-{len(self._receivers) + number}"
            self._receivers.add(asyncio.create_task(self._keep_receiving(name)))

    async def wait_for(self, count: int) -> None:
        """Wait until this many more sends have been acknowledged."""
        goal = self.acknowledged_count + count
        while self.acknowledged_count < goal:
            self._raise_failures()
            self._progress.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), timeout=1)

    async def stop_sending(self) -> None:
        """No new messages; the receivers go on."""
        self._raise_failures()
        await _cancel(self._senders)
        self._senders = set()

    async def drain(self, is_empty: Callable[[], bool], duration_s_max: float = 60) -> bool:
        """Stop sending, complete everything that comes; False if it did not finish in time."""
        await self.stop_sending()
        self._draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + duration_s_max
        while not (empty := await asyncio.to_thread(is_empty)) and loop.time() < deadline:
            self._raise_failures()
            await asyncio.sleep(PAUSE_S)
        await self.stop()
        return empty

    async def stop(self) -> None:
        """End everything; operations in progress are recorded as unknown."""
        self._raise_failures()
        await _cancel(self._senders | self._receivers)
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._senders = set()
        self._receivers = set()

    def _raise_failures(self) -> None:
        for task in self._senders | self._receivers:
            if task.done() and not task.cancelled():
                task.result()

    # -- senders -----------------------------------------------------------------------------------

    async def _keep_sending(self, process: str) -> None:
        while True:
            queue = self._random.choice(self.queues)
            with contextlib.suppress(OSError, ConnectionLost, ServiceError):
                async with await BusConnection.open(self._connection_string) as connection:
                    sender = await connection.open_sender(queue)
                    await self._send_until_lost(process, queue, sender)
            await asyncio.sleep(PAUSE_S)

    async def _send_until_lost(self, process: str, queue: str, sender: Sender) -> None:
        window = asyncio.Semaphore(WINDOW)
        while True:
            sender.raise_if_closed()
            if self.acknowledged_count - self.gone_count > WAITING_MAX:
                await asyncio.sleep(PAUSE_S)
                continue
            await window.acquire()
            key = f"{process}/{next(self._numbers)}"
            body = key.encode() + b"\n" + self._filling()
            self.history.note(process, queue, key, Operation.SEND, Phase.INVOKE, body=body)
            self._begin(self._send(process, queue, key, sender, body), window)

    def _filling(self) -> bytes:
        large = self._random.random() < LARGE_SHARE
        size_max = LARGE_SIZE_BYTES_MAX if large else BODY_SIZE_BYTES_MAX
        return self._random.randbytes(self._random.randrange(size_max))

    async def _send(self, process: str, queue: str, key: str, sender: Sender, body: bytes) -> None:
        phase = Phase.INFO
        try:
            await sender.send(body)
        except ServiceError as error:
            phase = Phase.FAIL
            name = type(error).__name__
            self.refused[name] = self.refused.get(name, 0) + 1
        except ConnectionLost:
            pass
        else:
            phase = Phase.OK
            self.acknowledged_count += 1
            self._progress.set()
        self.history.note(process, queue, key, Operation.SEND, phase)
        if phase is Phase.FAIL:
            await asyncio.sleep(PAUSE_S)

    # -- receivers ---------------------------------------------------------------------------------

    async def _keep_receiving(self, process: str) -> None:
        # Every receiver visits every queue, or a queue could be left without one for good.
        for queue in itertools.cycle(self._random.sample(self.queues, len(self.queues))):
            with contextlib.suppress(OSError, ConnectionLost, ServiceError):
                async with await BusConnection.open(self._connection_string) as connection:
                    receiver = await connection.open_receiver(queue, credit=CREDIT)
                    await self._receive_until_quiet(process, queue, receiver)
            await asyncio.sleep(PAUSE_S)

    async def _receive_until_quiet(self, process: str, queue: str, receiver: Receiver) -> None:
        window = asyncio.Semaphore(WINDOW)
        life = self.history.life
        while (received := await receiver.receive(QUIET_S)) is not None:
            key = received.body.partition(b"\n")[0].decode(errors="replace")
            self.history.delivered(
                process,
                queue,
                key,
                body=received.body,
                sequence_number=received.sequence_number,
                delivery_count=received.delivery_count,
                locked_from_ms=received.locked_until_ms - self._lock_duration_ms,
                locked_until_ms=received.locked_until_ms,
                life=life,
            )
            choice = 1.0 if self._draining else self._random.random()
            if choice < FORGET_SHARE:
                continue
            abandons = choice < FORGET_SHARE + ABANDON_SHARE
            operation = Operation.ABANDON if abandons else Operation.COMPLETE
            await window.acquire()
            self.history.note(process, queue, key, operation, Phase.INVOKE)
            self._begin(self._settle(process, queue, key, receiver, received, operation), window)

    async def _settle(
        self,
        process: str,
        queue: str,
        key: str,
        receiver: Receiver,
        received: Received,
        operation: Operation,
    ) -> None:
        phase = Phase.INFO
        try:
            if operation is Operation.ABANDON:
                await receiver.abandon(received)
            else:
                await receiver.complete(received)
        except ServiceError:
            phase = Phase.FAIL
        except ConnectionLost:
            pass
        else:
            phase = Phase.OK
        if operation is Operation.COMPLETE and phase is not Phase.FAIL:
            self.gone_count += 1
        self.history.note(process, queue, key, operation, phase)

    def _begin(self, operation: Coroutine[None, None, None], window: asyncio.Semaphore) -> None:
        """Let an operation run on its own: its end must be noted even if its client is stopped."""
        task = asyncio.create_task(operation)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda _: window.release())


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
