"""The live page: who gets documents, how often, and who gets none any more."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.unit.server.shown import Shown
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import ServerBusy, Unauthorized
from twinbus.gateway.faults.faults import Wanted
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.limits import VIEWERS_MAX
from twinbus.server.http.page import live as page_live
from twinbus.server.http.page.live import LivePage, Viewer
from twinbus.server.http.page.state import NamespaceLook

pytestmark = pytest.mark.asyncio

Events = AsyncGenerator[bytes, None]


@pytest.fixture(autouse=True)
def turn_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round after round, without a pause."""
    monkeypatch.setattr(page_live, "INTERVAL_S", 0.0)
    monkeypatch.setattr(page_live, "_SHARE", 0.0)


class Door:
    """Says who may look."""

    is_open = True

    def check(self) -> None:
        if not self.is_open:
            raise Unauthorized("no more")


class Scene:
    def __init__(self) -> None:
        self.shown = Shown()
        self.live = LivePage(self.shown.state)
        self.door = Door()

    def viewer(self, **wanted: Any) -> Viewer:
        return Viewer(self.shown.view(self.shown.first, **wanted), self.door.check)

    async def next(self, events: Events) -> dict[str, Any]:
        event = await self.shown.run(anext(events))
        head, data, *rest = event.decode().split("\n")
        assert (head, rest) == ("event: state", ["", ""])
        document: dict[str, Any] = json.loads(data.removeprefix("data: "))
        return document

    async def has_ended(self, events: Events) -> bool:
        return await self.shown.run(_is_over(events))


async def _is_over(events: Events) -> bool:
    async for _ in events:
        return False
    return True


async def test_a_viewer_gets_the_first_document_and_every_change() -> None:
    scene = Scene()
    events = scene.live.join(scene.viewer())
    assert (await scene.next(events))["faults"] == []
    scene.shown.faults.add(Wanted("throttle", "first"))
    assert len((await scene.next(events))["faults"]) == 1
    scene.live.close()
    assert await scene.has_ended(events)
    assert scene.live.viewer_count == 0


async def test_silence_is_broken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    events = scene.live.join(scene.viewer())
    first = await scene.next(events)
    monkeypatch.setattr(page_live, "SILENCE_S_MAX", 0.0)
    again = await scene.next(events)
    assert again["entities"] == first["entities"]
    scene.live.close()


async def test_who_may_look_no_more_gets_nothing_more() -> None:
    scene = Scene()
    events = scene.live.join(scene.viewer())
    await scene.next(events)
    scene.door.is_open = False
    assert await scene.has_ended(events)
    assert scene.live.viewer_count == 0


async def test_who_is_gone_before_the_first_document_leaves_nothing_behind() -> None:
    scene = Scene()
    viewer = scene.viewer()
    events = scene.live.join(viewer)
    scene.live.leave(viewer)
    assert scene.live.viewer_count == 0
    await events.aclose()


async def test_a_namespace_is_looked_at_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    await scene.shown.run(scene.shown.first.create_queue("orders", QueueDescription()))
    viewers = [scene.viewer(), scene.viewer(), scene.viewer(prefix="x")]
    all_events = [scene.live.join(each) for each in viewers]
    for events in all_events:
        await scene.next(events)
    rounds: list[str] = []
    look, show = scene.shown.state.look, scene.live._show

    async def looked(namespace: Namespace) -> NamespaceLook:
        rounds.append("look")
        return await look(namespace)

    async def showed() -> None:
        rounds.append("round")
        await show()

    monkeypatch.setattr(scene.shown.state, "look", looked)
    monkeypatch.setattr(scene.live, "_show", showed)
    while rounds.count("round") < 3:
        await scene.shown.run(asyncio.sleep(0))
    looks = "".join(each[0] for each in rounds[rounds.index("round") :])
    assert "ll" not in looks
    scene.live.close()


async def test_there_is_room_for_so_many() -> None:
    scene = Scene()
    for _ in range(VIEWERS_MAX):
        scene.live.join(scene.viewer())
    with pytest.raises(ServerBusy):
        scene.live.join(scene.viewer())
    scene.live.close()


async def test_a_round_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    events = scene.live.join(scene.viewer())
    await scene.next(events)
    look = scene.shown.state.look
    failures = iter([KeyError("a bug")])

    async def looked(namespace: Namespace) -> NamespaceLook:
        for error in failures:
            raise error
        return await look(namespace)

    monkeypatch.setattr(scene.shown.state, "look", looked)
    while "the live page could not be made" not in caplog.text:
        await scene.shown.run(asyncio.sleep(0))
    scene.shown.faults.add(Wanted("throttle", "first"))
    assert len((await scene.next(events))["faults"]) == 1
    scene.live.close()
