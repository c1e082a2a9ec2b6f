"""Backlog queues: their names, how they are made, and the flow that finds or makes them (P-4, P-5).

A queue that is there is used as its owner has made it, if it can serve at all (fitness.py).  Queues
beyond the count that is asked for are left alone.  What cannot be made is raised, with the SDK's
own error: a pair with fewer backlog queues than its owner believes would be found out in the
outage.
"""

import datetime as dt
from typing import Any, Final

from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
    ServiceResponseError,
)

from twinbus.pairing.fitness import FoundQueues, judge
from twinbus.pairing.primary import Primary, prefix_of
from twinbus.pairing.steps import CreateQueue, Flow, ListQueues, Pause

# The largest time span of Microsoft's clients; entities with it never expire anything.
TIME_SPAN_MAX: Final = "P10675199DT2H48M5.4775807S"
INT_MAX: Final = 2**31 - 1

# Of one request: the SDK's own patience with a server that does not answer is five minutes.
REQUEST_S_MAX: Final = 60.0
LIST_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)  # two minutes in all
# Where not even a connection comes about the SDK has tried four times already, and a name that is
# wrong stays wrong.
UNREACHABLE_PAUSES_S: Final = (1.0, 2.0)
CREATE_TRIES: Final = 3
CREATE_PAUSE_S: Final = 30.0

_LATER_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})


def names_of(primary_name: str, count: int) -> list[str]:
    """The paths of the backlog queues, in the order of their index."""
    return [f"{prefix_of(primary_name)}{index}" for index in range(count)]


def settings() -> dict[str, Any]:
    """Of a new backlog queue, as keywords of the administration client's `create_queue`.

    Nothing is lost for age, idleness or failed deliveries: a syphon may be off for as long as it
    takes.
    """
    return {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": INT_MAX,
        "default_message_time_to_live": TIME_SPAN_MAX,
        "auto_delete_on_idle": TIME_SPAN_MAX,
        "lock_duration": dt.timedelta(minutes=1),
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }


def find_or_create(primary_name: str, count: int) -> Flow[FoundQueues]:
    """Gives the `count` backlog queues, which are all there then; raises if none can serve."""
    there = yield from _list()
    names = names_of(primary_name, count)
    for name in names:
        if name.lower() not in there:
            made = yield from _create(name)
            if made is not None:
                there[name.lower()] = made
    return judge(names, there)


def find_old(primary: Primary) -> Flow[list[str]]:
    """Queues that older versions have made for this primary, or for others of a like name."""
    if primary.old_name is None:
        return []
    there = yield from _list()
    return primary.old_queues(set(there))


def _list() -> Flow[dict[str, Any]]:
    """The queues that are there, by name in lower case: the broker does not tell cases apart."""
    tries = 0
    while True:
        try:
            listed = yield ListQueues()
        except Exception as error:
            if not is_transient(error):
                raise
            unreachable = isinstance(error, ServiceRequestError)
            pauses_s = UNREACHABLE_PAUSES_S if unreachable else LIST_PAUSES_S
            if tries >= len(pauses_s):
                raise
            yield Pause(pauses_s[tries])
            tries += 1
        else:
            return {str(queue.name).lower(): queue for queue in listed}


def _create(name: str) -> Flow[Any]:
    """Gives the queue if somebody else has made it; None: it is ours, and as it should be."""
    for tries_left in reversed(range(CREATE_TRIES)):
        try:
            yield CreateQueue(name, settings())
        except ResourceExistsError:
            # Somebody else has made it just now, or the broker is busy with a queue of this name
            # (being deleted, perhaps), which it answers in the same way.
            there = yield from _list()
            if name.lower() in there:
                return there[name.lower()]
            if not tries_left:
                raise
        except Exception as error:
            if not tries_left or not is_transient(error):
                raise
        else:
            return None
        yield Pause(CREATE_PAUSE_S)
    return None


def is_transient(error: BaseException) -> bool:
    """Whether an error of the administration client may be gone the next time."""
    if isinstance(error, ServiceRequestError | ServiceResponseError | OSError):
        return True
    return isinstance(error, HttpResponseError) and error.status_code in _LATER_STATUSES
