"""Clients of a bus that is being hurt: senders that try again, receivers that come back.

    lane      messages of one kind: of one partition key, of one session, to one plain queue, or
              without any key.  Each waits for the one before, so their order is known.
    attempt   every try is a message of its own (`keyed-2/17.0`, `keyed-2/17.1`), so that one which
              turns out to have happened after all is no duplicate

What was seen is written into a History and a list of failures; `outages.py` judges.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.client.connection import BusConnection
from twinbus.client.links import ConnectionLost, Received, Receiver, Sender
from twinbus.clock import SystemClock
from twinbus.errors import ServiceError
from twinbus.message.plain import Properties, data_section, encode_message
from twinbus.testing.checkers import History, Operation, Phase

LOCK_DURATION_MS: Final = 5_000  # the shortest there is: forgotten messages come back soon
# The official clients try four times, 1.6, 3.2 and 6.4 s apart.  This one is less patient.
ATTEMPTS_MAX: Final = 4
BACKOFF_S: Final = 0.2  # doubled each time
ATTEMPT_S_MAX: Final = 30.0  # nobody is kept waiting for longer, whatever happens
PAUSE_S: Final = 0.05  # between the sends of a lane, at most
RECONNECT_S: Final = 0.05
CREDIT: Final = 20
QUIET_S: Final = 0.3
SESSION_WAIT_S: Final = 0.5
ABANDON_SHARE: Final = 0.08
FORGET_SHARE: Final = 0.01
LEAVE_SHARE: Final = 0.02  # a receiver hangs up in the midst of things
CARELESS_S: Final = 3.0  # later nothing is forgotten: at the end nobody wants to wait for locks
# A refusal is certain, unless it says this.
UNCERTAIN: Final = "may have happened"
GONE: Final = (OSError, ConnectionLost, ServiceError, TimeoutError)


def now_ms() -> int:
    return SystemClock().now().utc_ms


@dataclass(frozen=True)
class Lane:
    """Messages that are sent one after the other."""

    name: str
    queue: str
    key: str | None = None
    is_session: bool = False
    store: int | None = None  # where they have to go; None: any store will do

    def encode(self, body: bytes) -> bytes:
        properties = Properties(group_id=self.key if self.is_session else None)
        annotations: dict[str, object] = {}
        if self.key is not None and not self.is_session:
            annotations["x-opt-partition-key"] = self.key
        return encode_message(data_section(body), properties, annotations=annotations, durable=True)


@dataclass(frozen=True)
class Failure:
    """An attempt that did not succeed."""

    lane: Lane
    key: str
    began_ms: int
    ended_ms: int
    text: str
    is_final: bool  # the client has run out of tries

    def __str__(self) -> str:
        end = "gave up" if self.is_final else "failed"
        return f"{self.key} {end} after {self.ended_ms - self.began_ms} ms: {self.text}"


class OutageLoad:
    """All clients of one storm."""

    def __init__(
        self,
        connection_string: str,
        lanes: Sequence[Lane],
        history: History,
        life_at: Callable[[int], int],
        *,
        seed: int = 0,
        is_clock_shared: bool = True,
        body_size_bytes_max: int = 3_000,
    ) -> None:
        """`life_at`: how many of its lives the bus had begun by then (locks do not outlive one).

        Without a shared clock the bus's own times say nothing here.
        """
        self.lanes = lanes
        self.history = history
        self.failures: list[Failure] = []
        self.acknowledged_count = 0
        self._connection_string = connection_string
        self._life_at = life_at
        self._is_clock_shared = is_clock_shared
        self._body_size_bytes_max = body_size_bytes_max
        self._random = random.Random(seed)
        self._careless_until_s = asyncio.get_running_loop().time() + CARELESS_S
        self.is_sending = True
        self._is_draining = False
        self._senders: set[asyncio.Task[None]] = set()
        self._receivers: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()

    # -- in the test's hands -----------------------------------------------------------------------

    def start(self) -> None:
        self._senders = {asyncio.create_task(self.keep_sending(lane)) for lane in self.lanes}
        queues = {lane.queue: lane.is_session for lane in self.lanes}
        plain = [queue for queue, is_session in queues.items() if not is_session]
        sessions = [queue for queue, is_session in queues.items() if is_session]
        for number in range(3):
            kept = self.keep_receiving(f"receiver-{number}", plain)
            self._receivers.add(asyncio.create_task(kept))
        for number in range(3):
            kept = self.keep_receiving(f"session-receiver-{number}", sessions, is_session=True)
            self._receivers.add(asyncio.create_task(kept))

    def raise_failures(self) -> None:
        for task in self._senders | self._receivers:
            if task.done() and not task.cancelled():
                task.result()

    async def finish_sending(self) -> None:
        """Every lane brings to an end what it has begun."""
        self.is_sending = False
        await asyncio.gather(*self._senders)

    def drain(self) -> None:
        """From now on everything that comes is completed."""
        self._is_draining = True

    async def stop(self) -> None:
        tasks = self._senders | self._receivers
        while tasks:
            for task in tasks:
                # Again and again: `wait_for`, in which the SDK reads, lost one now and then before
                # Python 3.12, when what it had waited for came at the same moment.
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1.0)
        if self._settling:
            await asyncio.wait(self._settling)

    # -- senders -----------------------------------------------------------------------------------

    async def keep_sending(self, lane: Lane) -> None:
        line = Line(self._connection_string, lane.queue)
        try:
            for number in itertools.count():
                if not self.is_sending:
                    break
                await self._send(lane, line, f"{lane.name}/{number}")
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))
        finally:
            line.hang_up()

    async def _send(self, lane: Lane, line: "Line", name: str) -> None:
        """Until it is acknowledged.  The client of an application would give up; that is noted."""
        for attempt in itertools.count():
            began_ms = now_ms()
            key = f"{name}.{attempt}"
            try:
                async with asyncio.timeout(ATTEMPT_S_MAX):
                    sender = await line.sender()
                    await self._attempt(lane, sender, key)
            except GONE as error:
                is_final = attempt % ATTEMPTS_MAX == ATTEMPTS_MAX - 1
                text = f"{type(error).__name__}: {error}"
                self.failures.append(Failure(lane, key, began_ms, now_ms(), text, is_final))
            else:
                self.acknowledged_count += 1
                return
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt % ATTEMPTS_MAX))

    async def _attempt(self, lane: Lane, sender: Sender, key: str) -> None:
        body = self.body(key)
        self.history.note(lane.name, lane.queue, key, Operation.SEND, Phase.INVOKE, body=body)
        phase = Phase.INFO
        try:
            await sender.send_encoded(lane.encode(body))
            phase = Phase.OK
        except ServiceError as error:
            if UNCERTAIN not in str(error):
                phase = Phase.FAIL
            raise
        finally:
            self.history.note(lane.name, lane.queue, key, Operation.SEND, phase)

    def body(self, key: str) -> bytes:
        size = self._random.randrange(self._body_size_bytes_max)
        return key.encode() + b"\n" + self._random.randbytes(size)

    # -- receivers ---------------------------------------------------------------------------------

    async def keep_receiving(
        self, process: str, queues: Sequence[str], is_session: bool = False
    ) -> None:
        # Every receiver visits every queue, or a queue could be left without one for good.
        for visit, queue in enumerate(itertools.cycle(queues)):
            with contextlib.suppress(*GONE):
                connection = await BusConnection.open(self._connection_string)
                try:
                    if is_session:
                        receiver = await connection.open_session_receiver(
                            queue, wait_s=SESSION_WAIT_S, credit=CREDIT
                        )
                    else:
                        receiver = await connection.open_receiver(queue, credit=CREDIT)
                    await self._receive(f"{process}.{visit}", queue, receiver, is_session)
                finally:
                    await connection.close()
            await asyncio.sleep(RECONNECT_S)

    async def _receive(
        self, process: str, queue: str, receiver: Receiver, is_session: bool
    ) -> None:
        """Until it is quiet.  Nothing here waits between a message's coming and its note."""
        while (received := await receiver.receive(QUIET_S)) is not None:
            key = self.note_delivery(
                process,
                queue,
                received.body,
                received.sequence_number,
                received.delivery_count,
                0 if is_session else received.locked_until_ms,
            )
            choice = 1.0 if self._is_draining else self._random.random()
            is_careless = asyncio.get_running_loop().time() < self._careless_until_s
            if choice < FORGET_SHARE and is_careless:
                continue
            if choice < FORGET_SHARE + LEAVE_SHARE and is_careless:
                return
            abandons = choice < FORGET_SHARE + LEAVE_SHARE + ABANDON_SHARE
            operation = Operation.ABANDON if abandons else Operation.COMPLETE
            self.history.note(process, queue, key, operation, Phase.INVOKE)
            task = asyncio.create_task(
                self._settle(process, queue, key, receiver, received, operation)
            )
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    def note_delivery(
        self,
        process: str,
        queue: str,
        body: bytes,
        sequence_number: int,
        delivery_count: int,
        locked_until_ms: int,
    ) -> str:
        """Which message it is.  0 as its lock's end: of a session, where that says nothing."""
        key = body.partition(b"\n")[0].decode(errors="replace")
        until_ms = locked_until_ms if self._is_clock_shared else 0
        # Without a lock of its own, and a clock to tell its beginning, the arrival has to do.
        locked_ms = until_ms - LOCK_DURATION_MS if until_ms else now_ms()
        self.history.delivered(
            process,
            queue,
            key,
            body=body,
            sequence_number=sequence_number,
            delivery_count=delivery_count,
            locked_from_ms=locked_ms,
            locked_until_ms=until_ms or locked_ms,
            life=self._life_at(locked_ms),
        )
        return key

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
            phase = Phase.OK
        except ServiceError as error:
            if UNCERTAIN not in str(error):
                phase = Phase.FAIL
        except ConnectionLost:
            pass
        self.history.note(process, queue, key, operation, phase)


class Line:
    """A connection with a sender on it, made again when it is gone."""

    def __init__(self, connection_string: str, queue: str) -> None:
        self._connection_string = connection_string
        self._queue = queue
        self._connection: BusConnection | None = None
        self._sender: Sender | None = None

    async def sender(self) -> Sender:
        if self._sender is None or self._sender.error is not None:
            self.hang_up()
            self._connection = await BusConnection.open(self._connection_string)
            self._sender = await self._connection.open_sender(self._queue)
        return self._sender

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = self._sender = None
