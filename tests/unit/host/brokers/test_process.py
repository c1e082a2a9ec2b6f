"""Real broker processes: started, asked, killed, hung, and replaced by others."""

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.harness import SimSink
from twinbus.clock import SystemClock
from twinbus.entities.commands import (
    COMPLETE,
    PEEK_LOCK,
    Command,
    CreateEntities,
    NewEntity,
    Reply,
    Send,
    Settle,
)
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN
from twinbus.entities.message import NewMessage
from twinbus.errors import Unavailable
from twinbus.host.brokers.process import BrokerProcess
from twinbus.links.remote.beats import Beat, decode_beat
from twinbus.links.remote.operations import (
    ANY,
    BEAT,
    BROKEN,
    FAULT,
    LOG,
    PING,
    PONG,
    TELL_LOG,
    Operation,
)
from twinbus.links.remote.remote_store import RemoteStore, dispatch
from twinbus.links.store_link import DOWN, SLOW, UP, ReceiverDescription

SETTINGS: dict[str, object] = {"log_level": logging.INFO}


class Gateway:
    """What the server does with processes and stores, with nothing around it."""

    def __init__(self, directory: Path) -> None:
        self.replies: list[Reply] = []
        self.told: list[Operation] = []
        self.ended: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.changed = asyncio.Event()
        self.stores = [
            RemoteStore(number, str(directory / f"store-{number}"), SystemClock(), self._replied)
            for number in range(2)
        ]
        for store in self.stores:
            store.on_failed = lambda text, log: self.failures.append(text)
        self.processes: list[BrokerProcess] = []

    async def start(self) -> BrokerProcess:
        index = len(self.processes)
        process = BrokerProcess(index, self._told, self._ended)
        await process.start(SETTINGS)
        self.processes.append(process)
        return process

    def _replied(self, replies: list[Reply]) -> None:
        self.replies += replies

    def _told(self, process: BrokerProcess, operations: list[Operation]) -> None:
        self.told += dispatch(operations, process, self.stores)
        self.changed.set()

    def _ended(self, process: BrokerProcess, returncode: int) -> None:
        self.ended.append((process.index, returncode))
        for store in self.stores:
            if store._sender is process:
                store.lost("its process has ended")
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def opened(self, number: int, process: BrokerProcess) -> None:
        self.stores[number].attach(process)
        await self.until(lambda: self.stores[number].is_open)

    async def answer(self, command: Command, store: int = 0) -> Any:
        self.stores[store].submit([command])
        await self.until(lambda: any(reply.command is command for reply in self.replies))
        (reply,) = [each for each in self.replies if each.command is command]
        if reply.error is not None:
            raise reply.error
        return reply.result

    async def create_queue(self, store: int = 0) -> int:
        new = NewEntity("queue", "orders", QueueDescription())
        (number,) = await self.answer(CreateEntities([new]), store)
        assert isinstance(number, int)
        return number

    def beats(self) -> list[Beat]:
        return [decode_beat(each) for each in self.told if each[0] == BEAT]


def run(tmp_path: Path, play: Callable[[Gateway], Awaitable[None]]) -> Gateway:
    async def whole() -> Gateway:
        gateway = Gateway(tmp_path)
        try:
            await play(gateway)
        finally:
            await asyncio.gather(*(process.stop() for process in gateway.processes))
        return gateway

    return asyncio.run(whole())


def send(queue: int, *bodies: bytes) -> Send:
    return Send(queue, [NewMessage(body) for body in bodies])


@pytest.mark.proves("E-15")
def test_send_receive_kill_and_go_on_with_another(tmp_path: Path) -> None:
    """A killed broker's store is opened by another, and nothing acknowledged is lost."""

    async def play(gateway: Gateway) -> None:
        first, second = await gateway.start(), await gateway.start()
        await gateway.opened(0, first)
        queue = await gateway.create_queue()
        assert await gateway.answer(send(queue, b"a", b"b")) == [1, 2]
        sink = SimSink()
        receiver = gateway.stores[0].open_receiver(
            ReceiverDescription(queue, MAIN, PEEK_LOCK), sink
        )
        receiver.set_credit(10, drain=False)
        await gateway.until(lambda: len(sink.bodies) == 2)
        assert await gateway.answer(Settle(queue, MAIN, sink.locks[:1], COMPLETE)) is None
        first.kill()
        await gateway.until(lambda: bool(gateway.ended))
        assert gateway.ended == [(0, -signal.SIGKILL)]
        assert gateway.stores[0].health == DOWN
        with pytest.raises(Unavailable):
            await gateway.answer(send(queue, b"x"))
        await gateway.opened(0, second)
        assert gateway.stores[0].health == UP
        assert await gateway.answer(send(queue, b"c")) == [3]
        await gateway.until(lambda: len(sink.bodies) == 3)
        assert sink.bodies == [b"a", b"b", b"c"]
        assert await gateway.answer(Settle(queue, MAIN, sink.locks[1:], COMPLETE)) is None

    gateway = run(tmp_path, play)
    assert gateway.ended == [(0, -signal.SIGKILL), (1, 0)]
    assert not [each for each in gateway.told if each[0] == BROKEN]


def test_a_planned_move_between_processes(tmp_path: Path) -> None:
    async def play(gateway: Gateway) -> None:
        first, second = await gateway.start(), await gateway.start()
        await gateway.opened(0, first)
        queue = await gateway.create_queue()
        store = gateway.stores[0]
        store.on_closed = lambda: store.attach(second)
        store.hold()
        store.close()
        assert await gateway.answer(send(queue, b"a")) == [1]
        first.kill()
        await gateway.until(lambda: bool(gateway.ended))
        assert await gateway.answer(send(queue, b"b")) == [2]

    run(tmp_path, play)


@pytest.mark.proves("A-4")
def test_signs_of_life(tmp_path: Path) -> None:
    """Beats, stacks and the log, also of a process that stands still."""

    async def play(gateway: Gateway) -> None:
        process = await gateway.start()
        await gateway.opened(1, process)
        await gateway.until(lambda: any(beat.stores for beat in gateway.beats()))
        beat = gateway.beats()[-1]
        assert (beat.stores[0].store, beat.stores[0].entity_count) == (1, 0)
        assert beat.memory_bytes > 1 << 20
        assert any("store 1 opened" in line for each in gateway.beats() for line in each.log)
        process.send((PING, ANY, 7))
        process.send((TELL_LOG, ANY))
        await gateway.until(lambda: any(each[0] == LOG for each in gateway.told))
        assert (PONG, ANY, 7) in gateway.told
        assert "in _beat" in await process.stacks() or "select" in await process.stacks()
        os.kill(process.pid, signal.SIGINT)  # meant for the gateway, and left to it
        process.signal(signal.SIGSTOP)
        assert await process.stacks() == ""
        process.kill()
        await gateway.until(lambda: bool(gateway.ended))
        assert await process.stacks() == ""

    gateway = run(tmp_path, play)
    assert gateway.ended == [(0, -signal.SIGKILL)]


def test_a_disk_that_fails_takes_only_its_store_along(tmp_path: Path) -> None:
    async def play(gateway: Gateway) -> None:
        process = await gateway.start()
        await gateway.opened(0, process)
        await gateway.opened(1, process)
        queue = await gateway.create_queue(0)
        other = await gateway.create_queue(1)
        process.send((FAULT, 0, (0, 0.0, 1.0, 0.0)))
        with pytest.raises(Unavailable, match="may have happened"):
            await gateway.answer(send(queue, b"a"), 0)
        assert len(gateway.failures) == 1
        assert await gateway.answer(send(other, b"b"), 1) == [1]
        process.send((FAULT, 0, (0, 0.0, 0.0, 0.0)))
        await gateway.opened(0, process)
        assert await gateway.answer(send(queue, b"c"), 0)

    run(tmp_path, play)


def test_a_disk_that_fails_at_the_end_is_no_fault_of_the_process(tmp_path: Path) -> None:
    async def play(gateway: Gateway) -> None:
        process = await gateway.start()
        await gateway.opened(0, process)
        queue = await gateway.create_queue(0)
        assert await gateway.answer(send(queue, b"a"), 0) == [1]
        closed: list[bool] = []
        gateway.stores[0].on_closed = lambda: closed.append(True)
        process.send((FAULT, 0, (0, 0.0, 1.0, 0.0)))
        gateway.stores[0].close()
        await gateway.until(lambda: bool(closed))
        process.send((FAULT, 0, (0, 0.0, 0.0, 0.0)))
        await gateway.opened(0, process)
        assert await gateway.answer(send(queue, b"b"), 0) == [2]
        assert not [each for each in gateway.told if each[0] == BROKEN]

    run(tmp_path, play)


def test_a_disk_that_is_slow_makes_its_store_slow(tmp_path: Path) -> None:
    async def play(gateway: Gateway) -> None:
        process = await gateway.start()
        await gateway.opened(0, process)
        store = gateway.stores[0]
        store.slow_after_ms = 200
        queue = await gateway.create_queue()
        process.send((FAULT, 0, (10_000, 1.0, 0.0, 0.0)))
        command = send(queue, b"a")
        store.submit([command])
        await gateway.until(lambda: store.health == SLOW)
        process.send((FAULT, 0, (0, 0.0, 0.0, 0.0)))
        await gateway.until(
            lambda: bool(gateway.replies) and gateway.replies[-1].command is command
        )
        await gateway.until(lambda: store.health == UP)
        assert gateway.beats()[-1].stores[0].slowed > 0

    run(tmp_path, play)


def test_a_broken_invariant_is_told_and_survived(tmp_path: Path) -> None:
    async def play(gateway: Gateway) -> None:
        process = await gateway.start()
        await gateway.opened(0, process)
        process.send((99, 0, 0))
        await gateway.until(lambda: any(each[0] == BROKEN for each in gateway.told))
        (broken,) = [each for each in gateway.told if each[0] == BROKEN]
        assert "operation 99" in broken[2]
        assert "Traceback" in broken[3]
        assert await gateway.create_queue()

    run(tmp_path, play)


GATEWAY_THAT_DIES = """
import asyncio, os, sys
from twinbus.host.brokers.process import BrokerProcess

async def main():
    def told(process, operations):
        print(process.pid, flush=True)
        os.kill(os.getpid(), 9)
    await BrokerProcess(0, told, print).start({"log_level": 20})
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nobody_is_left_behind(tmp_path: Path) -> None:
    """A gateway that is killed takes its broker processes along."""
    ended = subprocess.run(
        [sys.executable, "-c", GATEWAY_THAT_DIES], stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    pid = int(ended.stdout)

    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended_too, _, _ = select.select([watched], [], [], 30)
    os.close(watched)
    assert ended_too
