"""What the shells do without a server: running flows, telling events, being imported."""

import sys
import threading
from functools import partial
from typing import Any

import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusClient

from twinbus.pairing.aio._client import CloseHook as AsyncCloseHook
from twinbus.pairing.blocking._audience import Audience
from twinbus.pairing.blocking._background import WokenThread
from twinbus.pairing.blocking._client import CloseHook
from twinbus.pairing.blocking._running import run
from twinbus.pairing.events import Event, PairFaulted
from twinbus.pairing.steps import Flow, Pause, Step


def nothing() -> None:
    """Nobody listens."""


def count_to_two() -> Flow[list[Any]]:
    """A flow that keeps what it is told."""
    told: list[Any] = []
    for seconds in (1.0, 2.0):
        try:
            told.append((yield Pause(seconds)))
        except ValueError as error:
            told.append(str(error))
    return told


def test_a_flow_is_told_outcomes_and_errors() -> None:
    def perform(step: Step) -> str:
        if step == Pause(2.0):
            raise ValueError("no")
        return "yes"

    assert run(count_to_two(), perform, threading.Lock(), nothing) == ["yes", "no"]


def test_steps_and_events_do_not_hold_the_lock() -> None:
    lock = threading.Lock()
    held: list[bool] = []

    def look(_step: Step | None = None) -> None:
        held.append(lock.locked())

    def flow() -> Flow[None]:
        assert lock.locked()
        yield Pause(1.0)
        assert lock.locked()

    run(flow(), look, lock, look)
    assert held == [False] * 3  # before the step, the step, at the end
    assert not lock.locked()


def test_an_interrupted_caller_is_no_outcome() -> None:
    """Nothing is counted, the flow ends where it is."""
    ends: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield Pause(1.0)
        except Exception:  # noqa: BLE001 - that is the point
            ends.append("told")
        finally:
            ends.append("closed")

    def interrupted(_step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(flow(), interrupted, threading.Lock(), nothing)
    assert ends == ["closed"]


# --- clients that somebody closes --------------------------------------------------------------

NOWHERE = "Endpoint=sb://nowhere.example/;SharedAccessKeyName=root;SharedAccessKey=a2V5"


@pytest.mark.proves("P-17")
@pytest.mark.parametrize("removed", [0, 1])
def test_a_client_in_two_pairs_tells_the_one_that_is_left(removed: int) -> None:
    """Whichever of them has let go of it; nobody is told twice."""
    client = ServiceBusClient.from_connection_string(NOWHERE)
    told: list[int] = []
    hooks = [CloseHook(client, partial(told.append, number)) for number in range(2)]
    hooks[removed].remove()
    client.close()
    assert told == [1 - removed]
    hooks[1 - removed].remove()
    client.close()
    assert told == [1 - removed]


@pytest.mark.proves("P-17")
@pytest.mark.asyncio
@pytest.mark.parametrize("removed", [0, 1])
async def test_an_async_client_in_two_pairs(removed: int) -> None:
    """As above."""
    client = azure.servicebus.aio.ServiceBusClient.from_connection_string(NOWHERE)
    told: list[int] = []

    async def tell_of(number: int) -> None:
        told.append(number)

    hooks = [AsyncCloseHook(client, partial(tell_of, number)) for number in range(2)]
    hooks[removed].remove()
    await client.close()
    assert told == [1 - removed]
    hooks[1 - removed].remove()
    await client.close()
    assert told == [1 - removed]


def test_the_last_pair_leaves_the_client_as_it_was() -> None:
    client = ServiceBusClient.from_connection_string(NOWHERE)
    older, newer = CloseHook(client, nothing), CloseHook(client, nothing)
    newer.remove()
    older.remove()
    assert "close" not in vars(client)
    client.close()


# --- events ------------------------------------------------------------------------------------


def tell(audience: Audience, *reasons: str) -> None:
    audience.gather(PairFaulted(reason) for reason in reasons)
    audience.tell()


def test_events_are_told_in_order_also_from_within_a_callback() -> None:
    audience = Audience()
    heard: list[Event] = []

    def first(event: Event) -> None:
        if event == PairFaulted("one"):
            tell(audience, "three")

    audience.add(first)
    audience.add(heard.append)
    tell(audience, "one", "two")
    assert heard == [PairFaulted("one"), PairFaulted("two"), PairFaulted("three")]


def test_a_callback_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    audience = Audience()
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("a mistake")

    audience.add(fail)
    audience.add(heard.append)
    tell(audience, "one")
    assert heard == [PairFaulted("one")]
    assert "a callback failed: event=PairFaulted" in caplog.text
    assert "pair-faulted reason=one" in caplog.text


def test_a_reader_gets_what_came_since_it_was_made_and_ends_with_the_pair() -> None:
    audience = Audience()
    tell(audience, "before")
    reader = audience.read()
    tell(audience, "one", "two")
    audience.close()
    assert list(reader) == [PairFaulted("one"), PairFaulted("two")]
    assert list(audience.read()) == []


def test_a_reader_that_waits_is_woken() -> None:
    audience = Audience()
    reader = audience.read()
    heard: list[Event] = []
    thread = threading.Thread(target=lambda: heard.extend(reader))
    thread.start()
    tell(audience, "one")
    audience.close()
    thread.join()
    assert heard == [PairFaulted("one")]


def test_whoever_comes_later_hears_first_what_setting_up_has_found() -> None:
    audience = Audience()
    audience.remember([PairFaulted("found")])
    heard: list[Event] = []
    audience.add(heard.append)
    reader = audience.read()
    tell(audience, "one")
    audience.close()
    assert heard == list(reader) == [PairFaulted("found"), PairFaulted("one")]


class Stopped(WokenThread):
    """Is told to stop in its turn, and its wake-up has been lost."""

    def _turn(self) -> float:
        self._stopping.set()
        return 3_600.0

    def _interrupt(self) -> None: ...


def test_a_thread_that_is_to_stop_does_not_sleep_first() -> None:
    stopped = Stopped("stopped")
    stopped.start()
    stopped._thread.join(60.0)
    assert not stopped._thread.is_alive()


@pytest.fixture
def without_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("twinbus.pairing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "azure.servicebus", None)


@pytest.mark.usefixtures("without_sdk")
@pytest.mark.parametrize("name", ["twinbus.pairing", "twinbus.pairing.aio"])
def test_without_the_sdk_the_error_names_the_extra(name: str) -> None:
    with pytest.raises(ImportError, match=r'pip install "twinbus\[pairing\]"'):
        __import__(name)
