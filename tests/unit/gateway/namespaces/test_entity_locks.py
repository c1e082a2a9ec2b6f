"""Locks: one at a time for an entity, many for what is in it, in order, and never for ever."""

import asyncio

import pytest

from twinbus.errors import OperationTimeout
from twinbus.gateway.namespaces.entity_locks import (
    EntityLocks,
    EntityPlace,
    place_of,
    place_of_entity,
)

pytestmark = pytest.mark.asyncio

NEWS = place_of("", "news")
ALL = place_of("", "news/Subscriptions/all")
RED = place_of("", "news/Subscriptions/red")


class Scene:
    """People who change something until they are told to leave."""

    def __init__(self, patience_s: float = 60.0) -> None:
        self.locks = EntityLocks(patience_s)
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, who: str, place: EntityPlace) -> "asyncio.Task[None]":
        self._leave[who] = asyncio.Event()
        task = asyncio.ensure_future(self._change(who, place))
        await self.settle()
        return task

    async def _change(self, who: str, place: EntityPlace) -> None:
        async with self.locks.change(place):
            self.inside.append(who)
            try:
                await self._leave[who].wait()
            finally:
                self.inside.remove(who)

    async def leave(self, *people: str) -> None:
        for who in people:
            self._leave[who].set()
            await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def assert_empty(self) -> None:
        assert self.inside == []
        assert not self.locks._locks, "what nobody changes is not remembered"


async def test_places() -> None:
    assert place_of("shop:", "News") == ("shop:", "news")
    assert place_of("", "A/b/SUBSCRIPTIONS/S", "Rule") == ("", "a/b", "s", "rule")
    assert place_of_entity("shop:News/Subscriptions/All") == ("shop:", "news", "all")
    assert place_of_entity("News") == ("", "news")
    # Nobody reaches another namespace's by writing its prefix himself.
    assert place_of("", "shop:news") != place_of("shop:", "news")


async def test_one_after_the_other_in_the_order_they_came() -> None:
    scene = Scene()
    for who in ("one", "two", "three"):
        await scene.come(who, NEWS)
    assert scene.inside == ["one"]
    await scene.leave("one")
    assert scene.inside == ["two"]
    await scene.leave("two", "three")
    scene.assert_empty()


async def test_other_names_do_not_wait() -> None:
    scene = Scene()
    await scene.come("news", NEWS)
    await scene.come("sport", place_of("", "sport"))
    await scene.come("other", place_of("other:", "news"))
    assert scene.inside == ["news", "sport", "other"]
    await scene.leave("news", "sport", "other")
    scene.assert_empty()


async def test_a_topic_and_what_is_in_it() -> None:
    scene = Scene()
    await scene.come("all", ALL)
    await scene.come("red", RED)
    assert scene.inside == ["all", "red"], "one does not wait for the other"
    await scene.come("topic", NEWS)
    await scene.come("rule", (*ALL, "rule"))
    await scene.leave("all")
    assert scene.inside == ["red"], "nobody overtakes who waits for the topic"
    await scene.leave("red")
    assert scene.inside == ["topic"]
    await scene.leave("topic")
    assert scene.inside == ["rule"]
    await scene.come("namespace", ("",))
    await scene.come("late", NEWS)
    assert scene.inside == ["rule"]
    await scene.leave("rule")
    assert scene.inside == ["namespace"]
    await scene.leave("namespace", "late")
    scene.assert_empty()


async def test_settled() -> None:
    scene = Scene()
    await scene.locks.settled(ALL)
    await scene.come("topic", NEWS)
    waiting = asyncio.ensure_future(scene.locks.settled(ALL))
    await scene.settle()
    assert not waiting.done()
    assert scene.locks.are_taken(NEWS)
    await scene.leave("topic")
    assert waiting.done()
    assert not scene.locks.are_taken(NEWS)
    scene.assert_empty()


async def test_nobody_waits_for_ever() -> None:
    scene = Scene(patience_s=0.01)
    await scene.come("topic", NEWS)
    waiting = await scene.come("all", ALL)
    with pytest.raises(OperationTimeout, match=r"'all', .* within 0\.01 s\. Nothing was changed"):
        await waiting
    with pytest.raises(OperationTimeout, match="'news'"):
        await scene.locks.settled(NEWS)
    await scene.leave("topic")
    scene.assert_empty()


async def test_who_gives_up_holds_nobody_up() -> None:
    scene = Scene()
    await scene.come("all", ALL)
    topic = await scene.come("topic", NEWS)
    await scene.come("red", RED)
    assert scene.inside == ["all"]
    topic.cancel()
    await scene.settle()
    assert scene.inside == ["all", "red"]
    first = await scene.come("first", RED)
    await scene.come("second", RED)
    first.cancel()
    await scene.leave("red")
    assert scene.inside == ["all", "second"]
    await scene.leave("all", "second")
    scene.assert_empty()


async def test_who_is_let_in_and_gone_in_the_same_moment() -> None:
    scene = Scene()
    await scene.come("one", NEWS)
    two = await scene.come("two", NEWS)
    await scene.come("three", NEWS)
    scene._leave["one"].set()
    await asyncio.sleep(0)  # the lock is two's now, who has not been told yet
    two.cancel()
    await scene.settle()
    assert two.cancelled()
    assert scene.inside == ["three"]
    await scene.leave("three")
    scene.assert_empty()
