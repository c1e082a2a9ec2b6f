"""What a person sees: lines, or a picture."""

import io
from typing import Any

import pytest
from rich.console import Console

from tests.unit.drill.stories import snapshot
from twinbus.drill.events import Told, words_of
from twinbus.drill.live import LiveScreen, render
from twinbus.drill.plan import Act
from twinbus.drill.screen import LineScreen, open_screen
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    Event,
    PairFaulted,
    PingFailed,
    SyphonProgress,
)

ERROR = OSError("gone")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def drawn(width: int = 100, **given: Any) -> str:
    console = Console(file=io.StringIO(), width=width, height=60)
    console.print(render(snapshot(), **given))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_lines() -> None:
    stream = io.StringIO()
    with open_screen(stream, is_plain=False) as screen:
        assert isinstance(screen, LineScreen)
        screen.tell(Told(1.25, "something"))
        screen.look(snapshot())
        screen.look(snapshot())
    assert stream.getvalue().splitlines() == [
        "   1.2 s  something",
        "  73.2 s  sent 120/s, arrived 0/s, backlog 1,234; Spark is starting",
    ]


def test_a_terminal_gets_a_picture_unless_it_is_for_a_program() -> None:
    with open_screen(Terminal(), is_plain=False) as screen:
        assert isinstance(screen, LiveScreen)
        screen.tell(Told(1.0, "something"))
        screen.look(snapshot(Act.BILL))
    with open_screen(Terminal(), is_plain=True) as screen:
        assert isinstance(screen, LineScreen)


def test_the_picture() -> None:
    text = drawn()
    for expected in (
        "3 The data centre fails", "01:13", "✖ down", "● up", "1,234", "Spark is starting",
        "orders", "queue with sessions", "failed over", "the primary is back",
    ):  # fmt: skip
        assert expected in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_log_takes_no_more_room_than_there_is() -> None:
    assert len(drawn().splitlines()) - len(drawn(told_max=3).splitlines()) == 6


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (EntityFailing("orders", ERROR), "orders: a send has failed; failover in 3 s"),
        (EntityFailedOver("orders", ERROR, False), "orders: failed over, sends go to the backlog"),
        (EntityRecovered("orders", False, 21.04), "orders: home again after 21.0 s"),
        (BacklogQueueLost("q", ERROR, 3), "backlog queue q is lost, 3 are left"),
        (PairFaulted("closed"), "the pair has ended: closed"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_events_in_words(event: Event, words: str) -> None:
    found = words_of(event, set())
    assert found is not None and found[0] == words


def test_of_failed_pings_the_first_of_an_outage_is_told() -> None:
    said: set[str] = set()
    assert words_of(PingFailed("orders", ERROR), said) is not None
    assert words_of(PingFailed("orders", ERROR), said) is None
    assert words_of(PingFailed("news", ERROR), said) is not None
    words_of(EntityFailedOver("orders", ERROR, False), said)
    assert words_of(PingFailed("orders", ERROR), said) is not None


def test_what_a_syphon_of_the_pair_does_is_not_told() -> None:
    assert words_of(SyphonProgress("q", 1, 0, 0, 1), set()) is None
