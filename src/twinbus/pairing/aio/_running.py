"""Runs a flow with the async SDK: performs its steps, one after the other, and tells it what came.

There is one loop and no thread, so no lock is needed: between two steps nothing else runs.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from twinbus.pairing.steps import Flow, Step

T = TypeVar("T")


async def run(flow: Flow[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """What the flow returns; what it raises is raised.

    A cancelled caller is no outcome of a step: the flow is not told, it just ends where it is, so
    nothing is counted and a message keeps its producer key, since nobody knows what came of it.
    """
    try:
        step = next(flow)
        while True:
            try:
                outcome = await perform(step)
            except Exception as error:  # noqa: BLE001 - the flow decides what it means
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        return cast(T, end.value)
    finally:
        flow.close()
