"""What must hold of a pair at every moment, told in its own words: it trusts none of the code.

It sees what senders were told, what arrived where under which key, every step to the primary and
every event; it knows by itself which errors count.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.pairing.core import Pairing
from twinbus.pairing.errors import BacklogUnavailableError, PingRefusedError
from twinbus.pairing.events import (
    BacklogQueueLost,
    EntityFailedOver,
    EntityFailing,
    EntityRecovered,
    Event,
    PingFailed,
    State,
)

REST_S: Final = 60.0
EPSILON: Final = 1e-6
LATE_S: Final = 0.1
COUNTED: Final[dict[str, set[type[ServiceBusError]]]] = {
    "documented": {
        OperationTimeoutError,
        ServiceBusConnectionError,
        ServiceBusError,
        ServiceBusQuotaExceededError,
    },
    "legacy": {
        OperationTimeoutError,
        ServiceBusConnectionError,
        ServiceBusError,
        ServiceBusServerBusyError,
    },
}


@dataclass
class Watch:
    """One entity as it must be, by what its senders were told."""

    failing_since: float | None = None  # the first failure that counts since the last success
    is_over: bool = False
    is_forced: bool = False
    over_since: float = 0.0
    last_ping: float | None = None
    is_pinging: bool = False
    is_refused: bool = False
    errors: list[ServiceBusError] = field(default_factory=list)  # of sends, that flows were told


@dataclass
class Call:
    """A send that is under way."""

    entity: str
    ids: list[str]
    arrivals: list[int]  # of each message, before


class Judge:
    """Raises AssertionError at the first thing that must not be."""

    def __init__(self, pairing: Pairing, entities: list[str]) -> None:
        self.recoveries = 0
        self.pings = 0
        self.in_backlog = 0
        self._pairing = pairing
        self._policy = pairing.settings.policy
        self._watches = {name: Watch() for name in entities}
        self._queue_errors: dict[str, float] = {}
        self._calls: dict[str, Call] = {}
        self._keys: dict[str, list[str]] = defaultdict(list)  # message → one key a success
        self._open: dict[str, str] = {}  # message → the key under which it has arrived since
        self._places: dict[str, list[str]] = defaultdict(list)  # key → where it has arrived
        self._arrivals: dict[str, int] = defaultdict(int)  # of a message
        self._uncertain: set[str] = set()  # messages of which an answer was lost

    # --- messages -----------------------------------------------------------------------------

    def arrived(self, place: str, message_id: str, key: str, is_answer_lost: bool) -> None:
        """One key a message until a send of it succeeds, however often it has to be sent."""
        self._arrivals[message_id] += 1
        places = self._places[key]
        assert not places or message_id in self._uncertain, f"{key}: at {places} and {place}"
        places.append(place)
        if is_answer_lost:
            self._uncertain.add(message_id)
        if key not in self._keys[message_id]:  # otherwise a late copy
            known = self._open.setdefault(message_id, key)
            assert known == key, f"{message_id} arrives under {known} and under {key}"

    def send_begins(self, sender: str, entity: str, ids: list[str]) -> None:
        assert sender not in self._calls
        self._calls[sender] = Call(entity, ids, [self._arrivals[each] for each in ids])

    def send_cancelled(self, sender: str) -> None:
        self._uncertain.update(self._calls.pop(sender).ids)

    def send_ended(self, sender: str, error: Exception | None, now: float) -> None:
        call = self._calls.pop(sender)
        if error is not None:
            self._check_failure(call, error, now)
            return
        for each, before in zip(call.ids, call.arrivals, strict=True):
            assert self._arrivals[each] > before, f"{each} is said to be taken, and was not"
            key = self._open.pop(each, None)
            assert key is not None, f"{each} was sent under a key that has succeeded before"
            self._keys[each].append(key)
            self.in_backlog += all(place not in self._watches for place in self._places[key])

    def _check_failure(self, call: Call, error: Exception, now: float) -> None:
        """A send may fail only if the way that was open did, or the caller has to mend it."""
        watch = self._watches[call.entity]
        if isinstance(error, PingRefusedError):
            assert self._policy == "legacy" and watch.is_refused
        elif isinstance(error, BacklogUnavailableError):
            if "time is used up" not in str(error):
                for queue in self._pairing.rotation.queues:
                    rested_s = now - self._queue_errors.get(queue, -1000.0)
                    assert rested_s <= REST_S + EPSILON, f"{queue} has not been tried"
        else:
            assert any(error is each for each in watch.errors), "an error that nobody has made"
            counts = type(error) in COUNTED[self._policy]
            assert not (counts and watch.is_over), "the backlog was open, and was not used"

    # --- sends --------------------------------------------------------------------------------

    def primary_begins(self, entity: str, now: float) -> None:
        watch = self._watches[entity]
        assert not watch.is_over, "a send goes to the primary of a failed-over entity"
        if watch.failing_since is not None:
            interval_s = self._pairing.settings.failover_interval_s
            assert now < watch.failing_since + interval_s, "the interval has passed unseen"

    def primary_answered(self, entity: str, error: ServiceBusError | None, now: float) -> None:
        """Just before the flow is told."""
        watch = self._watches[entity]
        if error is None:
            watch.failing_since = None
            return
        watch.errors.append(error)
        if type(error) in COUNTED[self._policy] and not watch.is_over:
            watch.failing_since = now if watch.failing_since is None else watch.failing_since

    def backlog_answered(self, queue: str, error: ServiceBusError | None, now: float) -> None:
        if error is not None:
            self._queue_errors[queue] = now

    def paused(self, seconds: float) -> None:
        assert seconds == 10.0  # P-8
        assert self._policy == "documented", "the old client knew no pause"

    # --- pings --------------------------------------------------------------------------------

    def ping_begins(self, entity: str, now: float) -> None:
        watch = self._watches[entity]
        interval_s = self._pairing.settings.ping_interval_s
        assert not watch.is_pinging, "two pings at a time"
        assert watch.is_over and not watch.is_forced, "nobody asked for a ping"
        assert now >= watch.over_since + interval_s - EPSILON, "the first ping is too early"
        # From tick to tick; between a tick and the ping itself the shell may lose a moment.
        soonest = -1.0 if watch.last_ping is None else watch.last_ping + interval_s - LATE_S
        assert now >= soonest - EPSILON, "pings come too often"
        watch.is_pinging = True
        watch.last_ping = now
        self.pings += 1

    def ping_answered(self, entity: str, error: ServiceBusError | None, now: float) -> None:
        del now
        if error is not None and type(error) not in COUNTED[self._policy]:
            self._watches[entity].is_refused = True

    def ping_ended(self, entity: str) -> None:
        self._watches[entity].is_pinging = False

    # --- events and force ---------------------------------------------------------------------

    def forced_back(self, entity: str) -> None:
        self._watches[entity].failing_since = None

    def event(self, event: Event, now: float) -> None:
        match event:
            case EntityFailing(entity, error):
                watch = self._watches[entity]
                assert not watch.is_over and type(error) in COUNTED[self._policy]
                assert watch.failing_since == now
            case EntityFailedOver(entity, error, forced):
                self._failed_over(self._watches[entity], error, forced, now)
            case EntityRecovered(entity, _, after_s):
                watch = self._watches[entity]
                assert watch.is_over and abs(now - watch.over_since - after_s) < EPSILON
                watch.is_over = watch.is_forced = watch.is_refused = False
                self.recoveries += 1
            case PingFailed(entity, _):
                assert self._watches[entity].is_over
            case BacklogQueueLost(queue, _, left):
                assert self._queue_errors[queue] == now
                assert left == len(self._pairing.rotation.in_use(now))
            case _:
                raise AssertionError(event)

    def _failed_over(
        self, watch: Watch, error: BaseException | None, forced: bool, now: float
    ) -> None:
        interval_s = self._pairing.settings.failover_interval_s
        if forced:
            assert error is None and not watch.is_forced
        else:
            assert not watch.is_over and type(error) in COUNTED[self._policy]
            assert watch.failing_since is not None, "failed over for no reason"
            assert now >= watch.failing_since + interval_s - EPSILON, "failed over too early"
        if not watch.is_over:
            watch.over_since = now
        watch.failing_since = None
        watch.is_over, watch.is_forced = True, forced

    def check_recovered(self) -> None:
        """Everything works again, and has for long enough."""
        for name, watch in self._watches.items():
            assert not watch.is_over, f"{name} is not back on the primary"
            assert self._pairing.entity(name).state in {State.HEALTHY, State.RECOVERING}
