"""Whether the backlog queues can serve: by their description, and by a link that opens (P-1, P-10).

One bad queue is no reason to have no pair: it is left out and told.  Only where none is left does
setting up fail, and says why for each.  Pure; the steps are the shells'.

    description                   senders       syphon
    disabled                      left out      tries again and again: it may be enabled
    send-disabled                 left out      empties it
    receive-disabled              left out: a message would not come home; syphon as above
    requires sessions, forwards   left out      left out: it could never receive from it
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from twinbus.pairing.core import Pairing
from twinbus.pairing.errors import PairingError
from twinbus.pairing.steps import Flow, OpenBacklog

# Of the namespace or its credential: no queue is to blame, and no other one fares better.
_NOT_OF_A_QUEUE: Final = (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
# By the SDK's words for the status.
_DISABLED: Final = {
    "disabled": "is disabled",
    "senddisabled": "is disabled for sending",
    "receivedisabled": "is disabled for receiving, so no message would come home from it",
}


@dataclass(frozen=True, slots=True)
class FoundQueues:
    """The backlog queues of a pair, in the order of their index."""

    names: list[str]
    unfit: dict[str, PairingError]  # those that are left out, and why
    syphoned: list[str]


def judge(names: list[str], there: Mapping[str, Any]) -> FoundQueues:
    """`there` has the descriptions of queues that were there before, by name in lower case."""
    unfit: dict[str, PairingError] = {}
    syphoned: list[str] = []
    for name in names:
        queue = there.get(name.lower())
        reason = None if queue is None else _reason(queue)
        if reason is not None:
            unfit[name] = PairingError(f"The backlog queue {name} {reason}")
        if queue is None or not (queue.requires_session or queue.forward_to):
            syphoned.append(name)
    if len(unfit) == len(names):
        raise none_left(unfit)
    return FoundQueues(names, unfit, syphoned)


def _reason(queue: Any) -> str | None:
    if queue.requires_session:
        return "requires sessions, and messages of the backlog have none: delete it, then pair anew"
    if queue.forward_to:
        return (
            f"forwards to {queue.forward_to}, where no syphon looks for messages: "
            "take its forwarding away, then pair anew"
        )
    status = _DISABLED.get(str(getattr(queue.status, "value", queue.status)).lower())
    return None if status is None else f"{status}: set its status to Active, then pair anew"


def open_one(pairing: Pairing, s_max: float) -> Flow[int]:
    """Open a link to a backlog queue, whichever opens first: the largest batch that it takes.

    A queue whose link does not open leaves the rotation, and may come back as any other (P-10).
    """
    end = pairing.now() + s_max
    errors: dict[str, BaseException] = {}
    queues = pairing.rotation.in_use(pairing.now())
    for index, queue in enumerate(queues, 1):
        left_s = max(0.0, end - pairing.now())
        try:
            size: int = yield OpenBacklog(queue, left_s if index == len(queues) else left_s / 2)
        except _NOT_OF_A_QUEUE:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, another one may open
            errors[queue] = error
            pairing.rotation.lost(queue, error, pairing.now())
        else:
            return size
    raise none_left(errors | _left_out(pairing))


def _left_out(pairing: Pairing) -> dict[str, BaseException]:
    found = {queue: pairing.rotation.last_error(queue) for queue in pairing.rotation.queues}
    return {queue: error for queue, error in found.items() if error is not None}


def none_left(errors: Mapping[str, BaseException]) -> BaseException:
    """What to raise where no backlog queue can be used: why, for each of them."""
    for error in errors.values():
        if isinstance(error, _NOT_OF_A_QUEUE):
            return error
    reasons = "; ".join(
        str(error) if isinstance(error, PairingError) else f"{queue}: {error}"
        for queue, error in errors.items()
    )
    raised = PairingError(f"No backlog queue can be used. {reasons}")
    raised.__cause__ = next(iter(errors.values()), None)
    return raised
