"""Listening before sleeping: only where it pays, and nothing is missed or kept waiting by it."""

import asyncio
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinbus.clock import SystemClock
from twinbus.gateway.throttling.throttle import Usage
from twinbus.host.brokers.in_process import LocalBroker
from twinbus.server.attention import (
    LISTEN_S,
    PAUSE_MAX,
    PAUSE_MIN,
    SILENCE_PRICE,
    TRUST_MAX,
    Attention,
    AttentiveLoop,
    AttentiveSelector,
)


def answers_until_wanted(attention: Attention) -> int:
    """How many answers go by before the loop is to listen; that it has is not said yet."""
    count = 0
    while True:
        attention.answered()
        if attention.is_wanted():
            return count
        count += 1


def listen(attention: Attention, has_heard: bool) -> None:
    attention.answered()
    assert attention.is_wanted()
    attention.listened(has_heard)


def test_nobody_listens_who_has_not_answered() -> None:
    assert not Attention(2).is_wanted()


def test_once_for_an_answer() -> None:
    attention = Attention(2)
    attention.answered()
    assert attention.is_wanted()
    assert not attention.is_wanted()


def test_the_only_processor_is_the_clients() -> None:
    attention = Attention(1)
    attention.answered()
    assert not attention.is_wanted()


def test_silence_makes_pauses_that_double() -> None:
    attention = Attention(2)
    pauses = []
    for _ in range(12):
        pauses.append(answers_until_wanted(attention))
        attention.listened(False)
    assert pauses[:4] == [0, PAUSE_MIN, 2 * PAUSE_MIN, 4 * PAUSE_MIN]
    assert pauses[-1] == pauses[-2] == PAUSE_MAX


def test_who_is_mostly_heard_may_be_late_at_times() -> None:
    """Two of three are as many as are paid for."""
    attention = Attention(2)
    for turn in range(300):
        listen(attention, has_heard=turn % (SILENCE_PRICE + 1) < SILENCE_PRICE)


def test_who_is_heard_less_often_is_given_up() -> None:
    attention = Attention(2)
    for _ in range(TRUST_MAX):
        listen(attention, has_heard=True)
    wanted = 0
    for turn in range(1_000):
        attention.answered()
        if attention.is_wanted():
            wanted += 1
            attention.listened(turn % 2 == 0)
    assert wanted < 100


def test_trust_that_is_won_back_makes_pauses_short_again() -> None:
    attention = Attention(2)
    for _ in range(5):
        answers_until_wanted(attention)
        attention.listened(False)
    answers_until_wanted(attention)
    attention.listened(True)
    for _ in range(TRUST_MAX):
        listen(attention, has_heard=True)
    for _ in range(TRUST_MAX // SILENCE_PRICE + 1):
        listen(attention, has_heard=False)
    assert answers_until_wanted(attention) == PAUSE_MIN


class Watched(Attention):
    """Writes down what came of listening."""

    __slots__ = ("outcomes",)

    def __init__(self) -> None:
        super().__init__(2)
        self.outcomes: list[bool] = []

    def listened(self, has_heard: bool) -> None:
        self.outcomes.append(has_heard)
        super().listened(has_heard)


class Line:
    """A selector that watches one end of a connection."""

    def __init__(self) -> None:
        self.attention = Watched()
        self.selector = AttentiveSelector(self.attention)
        self.near, self.far = socket.socketpair()
        self.selector.register(self.near, selectors.EVENT_READ)

    def heard(self, timeout: float | None) -> list[object]:
        return [key.fileobj for key, _ in self.selector.select(timeout)]

    def close(self) -> None:
        self.selector.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_what_is_said_while_listening_is_heard(line: Line) -> None:
    line.attention.answered()
    line.far.send(b"x")
    assert line.heard(None) == [line.near]
    assert line.attention.outcomes == [True]


def test_after_silence_it_sleeps_as_always(line: Line) -> None:
    line.attention.answered()
    assert line.heard(2 * LISTEN_S) == []
    assert line.attention.outcomes == [False]
    line.far.send(b"x")
    assert line.heard(None) == [line.near]


@pytest.mark.parametrize("timeout", [0, -1, LISTEN_S])
def test_who_must_not_sleep_does_not_listen_either(line: Line, timeout: float) -> None:
    """The loop has work, or a timer that is due: it listens when that is done."""
    line.attention.answered()
    assert line.heard(timeout) == []
    assert line.attention.outcomes == []
    line.far.send(b"x")
    assert line.heard(None) == [line.near]
    assert line.attention.outcomes == [True]


def test_a_loop_talks_and_listens() -> None:
    """Answers at once, late ones, timers and threads: all of it comes, with and without."""

    async def converse() -> list[bytes]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AttentiveLoop)
        near, far = socket.socketpair()
        near.setblocking(False)
        heard = []
        for count in range(200):
            loop.attention.answered()
            say = b"%d" % count
            if count % 3 == 0:
                far.send(say)
            elif count % 3 == 1:
                loop.call_later(LISTEN_S / 2, far.send, say)
            else:
                loop.run_in_executor(None, far.send, say)
            heard.append(await loop.sock_recv(near, 10))
        near.close()
        far.close()
        return heard

    with asyncio.Runner(loop_factory=lambda: AttentiveLoop(2)) as runner:
        assert runner.run(converse()) == [b"%d" % count for count in range(200)]


def test_a_broker_tells_its_loop_that_it_has_answered(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AttentiveLoop)
        broker = LocalBroker(tmp_path, 1 << 20, SystemClock(), lambda error: None, Usage())
        await broker.start()
        broker._shell.on_answer()
        assert loop.attention.is_wanted()
        await broker.close()

    with asyncio.Runner(loop_factory=lambda: AttentiveLoop(2)) as runner:
        runner.run(open_and_close())
