"""Backlog queues are found or made, and what cannot be made is raised."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
)

from twinbus.pairing.backlog_queues import find_or_create, names_of, settings
from twinbus.pairing.errors import PairingError
from twinbus.pairing.fitness import FoundQueues
from twinbus.pairing.steps import CreateQueue, ListQueues, Pause

pytestmark = pytest.mark.proves("P-1", "P-4", "P-5")


def answer(status: int) -> HttpResponseError:
    error = HttpResponseError(f"status {status}")
    error.status_code = status
    return error


@dataclass
class Queue:
    """As much of a description as a flow looks at."""

    name: str
    status: str = "Active"
    requires_session: bool = False
    forward_to: str | None = None


class Secondary:
    """A namespace that answers a flow, and fails where it is told to."""

    def __init__(self, *there: str | Queue) -> None:
        self.there = [each if isinstance(each, Queue) else Queue(each) for each in there]
        self.failures: list[Exception] = []
        self.failing: type[ListQueues | CreateQueue] = CreateQueue
        self.before_create: Callable[[str], None] = lambda _: None
        self.created: list[str] = []
        self.pauses_s: list[float] = []

    def perform(self, step: object) -> Any:
        if isinstance(step, Pause):
            self.pauses_s.append(step.seconds)
            return None
        if isinstance(step, CreateQueue):
            self.before_create(step.queue)
        if isinstance(step, self.failing) and self.failures:
            raise self.failures.pop(0)
        if isinstance(step, ListQueues):
            return self.there
        assert isinstance(step, CreateQueue)
        assert step.settings == settings()
        self.created.append(step.queue)
        return None

    def run(self, name: str = "ns", count: int = 2) -> list[str]:
        return self.find(name, count).names

    def find(self, name: str = "ns", count: int = 2) -> FoundQueues:
        flow = find_or_create(name, count)
        step = next(flow)
        try:
            while True:
                try:
                    outcome = self.perform(step)
                except Exception as error:  # noqa: BLE001 - the flow's to judge
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            found: FoundQueues = end.value
            return found


QUEUES = ["ns/x-servicebus-transfer/0", "ns/x-servicebus-transfer/1"]


@pytest.mark.proves("P-4")
def test_names() -> None:
    assert names_of("ns", 2) == QUEUES


@pytest.mark.proves("P-4")
def test_description() -> None:
    made = settings()
    assert made["max_size_in_megabytes"] == 5120
    assert made["max_delivery_count"] == 2_147_483_647
    assert made["lock_duration"].total_seconds() == 60
    assert made["dead_lettering_on_message_expiration"] is True
    assert made["enable_batched_operations"] is True
    assert made["default_message_time_to_live"] == made["auto_delete_on_idle"]
    assert made["auto_delete_on_idle"].startswith("P10675199D")


@pytest.mark.proves("P-4")
def test_all_are_made() -> None:
    secondary = Secondary("other")
    assert secondary.run() == QUEUES
    assert secondary.created == QUEUES


@pytest.mark.proves("P-5")
def test_what_is_there_is_used() -> None:
    """Also in other letters, and those with a higher index are left alone."""
    secondary = Secondary("ns/x-servicebus-transfer/1", "ns/x-servicebus-transfer/7")
    assert secondary.run() == QUEUES
    assert secondary.created == QUEUES[:1]
    secondary = Secondary("NS/X-ServiceBus-Transfer/0".lower(), QUEUES[1])
    secondary.run()
    assert secondary.created == []


def test_listing_waits_for_a_namespace_that_is_busy() -> None:
    secondary = Secondary()
    secondary.failing, secondary.failures = ListQueues, [answer(503), answer(500), answer(429)]
    assert secondary.run() == QUEUES
    assert secondary.pauses_s == [1.0, 2.0, 4.0]


def test_listing_gives_up_after_two_minutes() -> None:
    secondary = Secondary()
    secondary.failing, secondary.failures = ListQueues, [answer(503)] * 20
    with pytest.raises(HttpResponseError, match="503"):
        secondary.run()
    assert sum(secondary.pauses_s) == 120.0


@pytest.mark.proves("P-1")
def test_an_unreachable_secondary_is_told_soon() -> None:
    """By then the SDK has tried several times, each time."""
    secondary = Secondary()
    secondary.failing = ListQueues
    secondary.failures = [ServiceRequestError("no such host")] * 20
    with pytest.raises(ServiceRequestError, match="no such host"):
        secondary.run()
    assert sum(secondary.pauses_s) == 3.0


@pytest.mark.proves("P-1")
@pytest.mark.parametrize("failing", [ListQueues, CreateQueue])
@pytest.mark.parametrize("error", [ClientAuthenticationError("who?"), answer(401), answer(403)])
def test_no_manage_claim(failing: type[ListQueues], error: HttpResponseError) -> None:
    """Raised at once."""
    secondary = Secondary()
    secondary.failing, secondary.failures = failing, [error]
    with pytest.raises(type(error)):
        secondary.run()
    assert secondary.pauses_s == []


def test_three_tries_to_make_a_queue() -> None:
    secondary = Secondary()
    secondary.failures = [answer(500), OSError("cut")]
    assert secondary.run() == QUEUES
    assert secondary.pauses_s == [30.0, 30.0]
    secondary = Secondary()
    secondary.failures = [answer(500)] * 3
    with pytest.raises(HttpResponseError):
        secondary.run()
    assert secondary.pauses_s == [30.0, 30.0]


def test_a_wrong_request_is_not_repeated() -> None:
    secondary = Secondary()
    secondary.failures = [answer(400)]
    with pytest.raises(HttpResponseError, match="400"):
        secondary.run()
    assert secondary.pauses_s == []


def test_somebody_else_makes_it_at_the_same_time() -> None:
    secondary = Secondary()
    secondary.before_create = lambda name: secondary.there.append(Queue(name))
    secondary.failures = [ResourceExistsError("there"), ResourceExistsError("there")]
    assert secondary.run() == QUEUES
    assert secondary.created == []
    assert secondary.pauses_s == []


def test_a_conflict_that_is_no_queue() -> None:
    """Also "another operation is in progress" is a conflict: it is tried again."""
    secondary = Secondary()
    secondary.failures = [ResourceExistsError("busy with it")]
    assert secondary.run() == QUEUES
    assert secondary.created == QUEUES
    assert secondary.pauses_s == [30.0]
    secondary.there.clear()
    secondary.failures = [ResourceExistsError("busy with it")] * 3
    with pytest.raises(ResourceExistsError):
        secondary.run()


# --- queues that cannot serve -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason", "is_syphoned"),
    [
        (Queue(QUEUES[0], status="Disabled"), "is disabled:", True),
        (Queue(QUEUES[0], status="SendDisabled"), "is disabled for sending", True),
        (Queue(QUEUES[0], status="ReceiveDisabled"), "is disabled for receiving", True),
        (Queue(QUEUES[0], requires_session=True), "requires sessions", False),
        (Queue(QUEUES[0].upper(), forward_to="sb://ns/other"), "forwards to sb://ns/other", False),
    ],
)
def test_a_queue_that_cannot_serve_is_left_out(bad: Queue, reason: str, is_syphoned: bool) -> None:
    found = Secondary(bad).find()
    assert found.names == QUEUES
    assert list(found.unfit) == QUEUES[:1]
    assert f"{QUEUES[0]} {reason}" in str(found.unfit[QUEUES[0]])
    assert found.syphoned == QUEUES[0 if is_syphoned else 1 :]


def test_one_that_somebody_else_makes_badly_is_left_out() -> None:
    secondary = Secondary(QUEUES[0])
    secondary.before_create = lambda name: secondary.there.append(
        Queue(name, requires_session=True)
    )
    secondary.failures = [ResourceExistsError("there")]
    assert list(secondary.find().unfit) == QUEUES[1:]


def test_where_none_can_serve_each_reason_is_told() -> None:
    secondary = Secondary(
        Queue(QUEUES[0], status="Disabled"), Queue(QUEUES[1], requires_session=True)
    )
    with pytest.raises(PairingError, match=r"/0 is disabled: .*; .*/1 requires sessions"):
        secondary.find()
