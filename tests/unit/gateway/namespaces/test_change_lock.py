"""The lock for changes: many at a time, or somebody alone."""

import asyncio

import pytest

from twinbus.gateway.namespaces.change_lock import ChangeLock


class Scene:
    """Some who want the lock, and who has it."""

    def __init__(self) -> None:
        self.lock = ChangeLock()
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    def come(self, name: str, alone: bool = False) -> "asyncio.Task[None]":
        self._leave[name] = asyncio.Event()
        return asyncio.ensure_future(self._pass(name, alone))

    async def _pass(self, name: str, alone: bool) -> None:
        async with self.lock.alone() if alone else self.lock.with_others():
            self.inside.append(name)
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_changes_go_together() -> None:
    scene = Scene()
    tasks = [scene.come("one"), scene.come("two")]
    await scene.settle()
    assert scene.inside == ["one", "two"]
    await scene.leave("one")
    await scene.leave("two")
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_one_alone_waits_and_keeps_others_out() -> None:
    scene = Scene()
    tasks = [scene.come("one"), scene.come("two"), scene.come("alone", alone=True)]
    await scene.settle()
    tasks += [scene.come("late"), scene.come("alone too", alone=True)]
    await scene.settle()
    assert scene.inside == ["one", "two"]
    await scene.leave("two")
    assert scene.inside == ["one"]
    await scene.leave("one")
    assert scene.inside == ["alone"]
    await scene.leave("alone")
    assert scene.inside == ["alone too"]
    await scene.leave("alone too")
    assert scene.inside == ["late"]
    await scene.leave("late")
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_whoever_gives_up_stops_nobody() -> None:
    scene = Scene()
    first, alone = scene.come("one"), scene.come("alone", alone=True)
    late = scene.come("late")
    await scene.settle()
    alone.cancel()
    await scene.settle()
    assert scene.inside == ["one", "late"]
    first.cancel()
    await scene.settle()
    again = scene.come("again", alone=True)
    late.cancel()
    await scene.settle()
    assert scene.inside == ["again"]
    again.cancel()
    await scene.settle()
    last = scene.come("last")
    await scene.settle()
    assert scene.inside == ["last"]
    await scene.leave("last")
    await last
