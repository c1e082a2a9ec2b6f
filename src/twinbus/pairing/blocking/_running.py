"""Runs a flow with the blocking SDK: performs its steps, one after the other, and tells what came.

Many threads run flows over one pairing.  It is looked at and changed only while its lock is held,
and nothing that can wait, a step or a callback, happens while it is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from twinbus.pairing.steps import Flow, Step

T = TypeVar("T")


def run(
    flow: Flow[T],
    perform: Callable[[Step], Any],
    lock: AbstractContextManager[Any],
    dispatch: Callable[[], None],
) -> T:
    """What the flow returns; what it raises is raised.

    An interrupted caller (KeyboardInterrupt) is no outcome of a step: the flow is not told, it just
    ends where it is, so nothing is counted and a message keeps its producer key, since nobody knows
    what came of it.
    """
    try:
        with lock:
            step = next(flow)
        while True:
            dispatch()
            try:
                outcome = perform(step)
            except Exception as error:  # noqa: BLE001 - the flow decides what it means
                with lock:
                    step = flow.throw(error)
            else:
                with lock:
                    step = flow.send(outcome)
    except StopIteration as end:
        return cast(T, end.value)
    except BaseException:
        with lock:
            flow.close()
        raise
    finally:
        dispatch()
