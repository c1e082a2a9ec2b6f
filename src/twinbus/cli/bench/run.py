"""The measurement behind `twinbus bench`: how many, and how long each takes, on one queue.

Three parts, one after the other.  Sending: connections that keep so many messages under way for a
while.  Receiving: the same messages, received and completed.  Round trip: one message at a time,
from the call to send it until it is in the receiver's hands.

A client in Python on the same machine takes its share of the processor: what is measured is the bus
as this client sees it.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.client.connection import BusConnection
from twinbus.client.links import Receiver, Sender
from twinbus.errors import ConfigError

QUIET_S: Final = 5.0  # without a message, while some must still be there
LOOK_S: Final = 0.2
ROUND_TRIPS_MAX: Final = 1_000

Show = Callable[[str, int, float], None]  # which part, how many so far, seconds so far


@dataclass(frozen=True)
class BenchSettings:
    """What is asked of the bus."""

    queue: str
    size_bytes: int
    duration_s: float
    connections: int
    in_flight: int  # messages under way on each connection


@dataclass(frozen=True)
class Measured:
    """One part: a rate, and latencies of single messages."""

    messages: int
    seconds: float
    latencies_ms: Sequence[float]  # ordered

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """The latency that this share of the messages did not exceed; 0 if there were none."""
        ordered = self.latencies_ms
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class Bench:
    """One measurement on connections that are opened for it."""

    def __init__(
        self, settings: BenchSettings, connections: Sequence[BusConnection], show: Show
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._show = show
        self._body = bytes(settings.size_bytes)
        self._count = 0
        self._latencies_s: list[float] = []
        self._last_s = 0.0  # when the last one was done

    async def send(self) -> Measured:
        queue = self._settings.queue
        senders = [await each.open_sender(queue) for each in self._connections]
        end_s = asyncio.get_running_loop().time() + self._settings.duration_s
        lanes = [
            self._keep_sending(sender, end_s)
            for sender in senders
            for _ in range(self._settings.in_flight)
        ]
        measured = await self._measure("send", lanes)
        for sender in senders:
            sender.close()
        return measured

    async def receive(self, total: int) -> Measured:
        """All that was sent."""
        in_flight, queue = self._settings.in_flight, self._settings.queue
        receivers = [
            await each.open_receiver(queue, credit=in_flight) for each in self._connections
        ]
        lanes = [
            self._keep_receiving(receiver, total)
            for receiver in receivers
            for _ in range(in_flight)
        ]
        measured = await self._measure("receive", lanes)
        for receiver in receivers:
            receiver.close()
        if self._count != total:
            raise ConfigError(
                f"{self._count:,} of {total:,} messages came back; make sure that nobody else uses "
                f"the queue {queue}, then measure again"
            )
        return measured

    async def round_trip(self) -> Measured:
        first, last = self._connections[0], self._connections[-1]
        sender = await first.open_sender(self._settings.queue)
        receiver = await last.open_receiver(self._settings.queue, credit=1)
        measured = await self._measure("round trip", [self._keep_asking(sender, receiver)])
        sender.close()
        receiver.close()
        return measured

    async def _measure(self, part: str, lanes: Sequence[Coroutine[None, None, None]]) -> Measured:
        loop = asyncio.get_running_loop()
        self._count, self._latencies_s = 0, []
        began_s = self._last_s = loop.time()
        tasks = [loop.create_task(lane) for lane in lanes]
        try:
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
                self._show(part, self._count, loop.time() - began_s)
        finally:
            for task in tasks:
                task.cancel()
        seconds = self._last_s - began_s
        return Measured(self._count, seconds, sorted(each * 1_000 for each in self._latencies_s))

    async def _keep_sending(self, sender: Sender, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        while (began_s := loop.time()) < end_s:
            await sender.send(self._body)
            self._done(began_s)

    async def _keep_receiving(self, receiver: Receiver, total: int) -> None:
        loop = asyncio.get_running_loop()
        while self._count < total:
            received = await receiver.receive(LOOK_S)
            if received is not None:
                began_s = loop.time()
                await receiver.complete(received)
                self._done(began_s)
            elif loop.time() - self._last_s > QUIET_S:
                return  # they will not come any more

    async def _keep_asking(self, sender: Sender, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.duration_s
        while self._count < ROUND_TRIPS_MAX and loop.time() < end_s:
            began_s = loop.time()
            sending = sender.send(self._body)
            received = await receiver.receive(QUIET_S)
            if received is None:
                raise ConfigError(
                    f"a message to {self._settings.queue} did not come back; make sure that nobody "
                    "else uses the queue, then measure again"
                )
            self._done(began_s)
            await asyncio.gather(sending, receiver.complete(received))

    def _done(self, began_s: float) -> None:
        self._last_s = asyncio.get_running_loop().time()
        self._latencies_s.append(self._last_s - began_s)
        self._count += 1
