"""Senders that go on, and what notices that one hangs: without a server, over an SDK that acts."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self, cast

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from twinbus.pairing.aio import _steady as aio_steady
from twinbus.pairing.aio._watch import Watch
from twinbus.pairing.blocking import _steady

HOUR_S = 3600.0
SHUT_DOWN = ValueError("The handler has already been shutdown. Please use another one.")


class Acting:
    """A blocking sender of the SDK that does with a message what its list says, in order."""

    def __init__(self, acts: list[Exception | None]) -> None:
        self.sent: list[object] = []
        self.timeouts: list[float] = []
        self.is_closed = False
        self._acts = acts
        self._running = True

    def _open(self, timeout: float | None = None) -> None:
        """It is."""

    def _handle_exception(self, exception: BaseException) -> BaseException:
        return exception

    def send_messages(self, message: object, *, timeout: float) -> None:
        self.timeouts.append(timeout)
        error = self._acts.pop(0)
        if error is not None:
            raise error
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True


def blocking(*acts: Exception | None) -> tuple[_steady.SteadySender, list[Acting]]:
    """A steady sender, and the SDK's senders that it has made."""
    made: list[Acting] = []
    left = list(acts)

    def make() -> Any:
        made.append(Acting(left))
        return made[-1]

    return _steady.SteadySender(make, _steady.Closing()), made


def test_sends_go_by_one_sender_of_the_sdk() -> None:
    steady, made = blocking(None, None)
    steady.send("one", HOUR_S)
    steady.send("two", HOUR_S)
    (sdk,) = made
    assert sdk.sent == ["one", "two"]
    assert sdk.timeouts[1] == HOUR_S, "nothing was waited for"


@pytest.mark.parametrize("first", [[], [None]], ids=["on its first send", "on a later one"])
def test_a_sender_that_somebody_has_closed_is_replaced(first: list[None]) -> None:
    steady, made = blocking(*first, SHUT_DOWN, None)
    for number in range(len(first) + 1):
        steady.send(number, HOUR_S)
    assert [each.sent for each in made] == [[0][: len(first)], [len(first)]]


def test_a_broken_connection_is_raised_and_the_next_send_has_a_new_one() -> None:
    steady, made = blocking(None, ServiceBusConnectionError(message="gone"), None)
    steady.send("one", HOUR_S)
    with pytest.raises(ServiceBusConnectionError):
        steady.send("two", HOUR_S)
    steady.send("two", HOUR_S)
    assert [each.sent for each in made] == [["one"], ["two"]]


def test_a_message_at_fault_leaves_the_sender_as_it_is() -> None:
    steady, made = blocking(None, TypeError("no message"), None)
    steady.send("one", HOUR_S)
    with pytest.raises(TypeError):
        steady.send("two", HOUR_S)
    steady.send("three", HOUR_S)
    (sdk,) = made
    assert sdk.sent == ["one", "three"]


# --- async ----------------------------------------------------------------------------------------

Act = Callable[[], Any]  # what a send waits for


class ActingAsync:
    """An async sender of the SDK, likewise."""

    def __init__(self, acts: list[Act]) -> None:
        self.sent: list[object] = []
        self.is_closed = asyncio.Event()
        self.busy = 0
        self._acts = acts

    async def __aenter__(self) -> Self:
        return self

    async def _handle_exception(self, exception: BaseException) -> BaseException:
        return exception

    async def create_message_batch(self) -> Any:
        class Batch:
            max_size_in_bytes = 1_000

        return Batch()

    async def send_messages(self, message: object, *, timeout: float) -> None:  # noqa: ASYNC109
        assert timeout > 0
        assert not self.busy, "one at a time"
        self.busy += 1
        try:
            await self._acts.pop(0)()
        finally:
            self.busy -= 1
        self.sent.append(message)

    async def close(self) -> None:
        self.is_closed.set()


async def at_once() -> None:
    """Taken."""


async def hang() -> None:
    await asyncio.Event().wait()


async def fail_in_the_end() -> None:
    """As code that cleans up when it is cancelled, and finds its connection gone."""
    try:
        await hang()
    finally:
        raise ServiceBusConnectionError(message="gone")


def over(*acts: Act) -> tuple[aio_steady.SteadySender, list[ActingAsync]]:
    made: list[ActingAsync] = []
    left = list(acts)

    def make() -> Any:
        made.append(ActingAsync(left))
        return made[-1]

    return aio_steady.SteadySender(make, aio_steady.Closing()), made


@pytest.mark.parametrize("before", [0, 1], ids=["on the first send", "on a later one"])
@pytest.mark.asyncio
async def test_a_send_that_hangs_is_ended_and_its_sender_replaced(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio_steady, "LATE_S_MAX", 0.0)
    steady, made = over(*[at_once] * before, hang, at_once)
    for number in range(before):
        await steady.send(number, HOUR_S)
    with pytest.raises(OperationTimeoutError):
        await steady.send("late", 0.01)
    await steady.send("next", HOUR_S)
    assert [each.sent for each in made] == [list(range(before)), ["next"]]
    await asyncio.wait_for(made[0].is_closed.wait(), HOUR_S)
    await steady.close()


@pytest.mark.asyncio
async def test_an_error_of_a_send_that_was_ended_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio_steady, "LATE_S_MAX", 0.0)
    steady, _ = over(at_once, fail_in_the_end)
    await steady.send("one", HOUR_S)
    with pytest.raises(ServiceBusConnectionError):
        await steady.send("two", 0.01)
    assert cast(asyncio.Task[None], asyncio.current_task()).cancelling() == 0
    await steady.close()


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_is_not_late() -> None:
    steady, made = over(at_once, hang, at_once)
    await steady.send("one", HOUR_S)
    sending = asyncio.create_task(steady.send("two", HOUR_S))
    await turns()
    assert made[0].busy
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await steady.send("three", HOUR_S)
    assert [each.sent for each in made] == [["one"], ["three"]], "a frame may be half written"
    await steady.close()


@pytest.mark.asyncio
async def test_many_tasks_take_turns() -> None:
    async def slowly() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    steady, made = over(*[slowly] * 20)
    await asyncio.gather(*(steady.send(number, HOUR_S) for number in range(20)))
    assert sorted(cast(list[int], made[0].sent)) == list(range(20))
    assert len(made) == 1
    await steady.close()


# --- the watch ------------------------------------------------------------------------------------


async def turns() -> None:
    """Let everything run that is due."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_late_call_is_cancelled() -> None:
    watch = Watch()
    watch.begin(0.0)
    with pytest.raises(asyncio.CancelledError):
        await hang()
    assert watch.end()
    assert cast(asyncio.Task[None], asyncio.current_task()).cancelling() == 0


@pytest.mark.asyncio
async def test_the_timer_of_an_earlier_call_does_not_end_a_later_one() -> None:
    watch = Watch()
    watch.begin(0.0)
    assert not watch.end()
    watch.begin(HOUR_S)
    await turns()
    assert not watch.end()
    watch.close()


@pytest.mark.asyncio
async def test_a_timer_that_fires_between_calls_is_set_again() -> None:
    watch = Watch()
    watch.begin(0.0)
    assert not watch.end()
    await turns()
    watch.begin(0.0)
    with pytest.raises(asyncio.CancelledError):
        await hang()
    assert watch.end()


@pytest.mark.asyncio
async def test_a_shorter_call_after_a_long_one_has_its_own_time() -> None:
    watch = Watch()
    watch.begin(HOUR_S)
    assert not watch.end()
    watch.begin(0.0)
    with pytest.raises(asyncio.CancelledError):
        await hang()
    assert watch.end()
    watch.close()


@pytest.mark.asyncio
async def test_who_is_cancelled_by_others_as_well_is_not_only_late() -> None:
    watch = Watch()
    task = cast(asyncio.Task[None], asyncio.current_task())
    watch.begin(0.0)
    task.cancel()
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await hang()
    assert not watch.end()
    task.uncancel()


@pytest.mark.asyncio
async def test_a_call_that_is_under_way_is_watched_also_when_no_more_come() -> None:
    watch = Watch()
    watch.begin(0.0)
    watch.close()
    with pytest.raises(asyncio.CancelledError):
        await hang()
    assert watch.end()


@pytest.mark.proves("P-17")
def test_who_waits_meets_no_thread_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """One closes the pair in the moment in which another begins to close a sender."""
    closing = _steady.Closing()
    begin = threading.Thread.start
    errors: list[BaseException] = []
    closed = threading.Event()

    def wait() -> None:
        try:
            closing.wait()
        except RuntimeError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)

    def start(thread: threading.Thread) -> None:
        if thread is not waiter:
            begin(waiter)
            waiter.join(0.1)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    closing.begin(closed.set)
    waiter.join()
    assert errors == []
    assert closed.is_set()
