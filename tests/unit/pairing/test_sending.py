"""The flow of a send, step by step:"""

import datetime as dt
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tests.unit.pairing.sending_world import (
    BUSY,
    DOWN,
    TIME,
    Answer,
    World,
    key_on_primary,
    message,
    property_in_backlog,
)
from tests.unit.pairing.stamps import stamp_of
from twinbus.pairing.errors import (
    BacklogMessageSizeExceededError,
    BacklogUnavailableError,
    PairFaultedError,
    PingRefusedError,
)
from twinbus.pairing.events import BacklogQueueLost, State
from twinbus.pairing.parcels import collect
from twinbus.pairing.rewriting import encoded_size
from twinbus.pairing.rules import PATH, PRODUCER_KEY, SCHEDULED_TIME
from twinbus.pairing.sending import (
    SenderState,
    after,
    batch_bytes,
    batch_limit,
    schedule,
    send,
    shortcut,
)
from twinbus.pairing.steps import Pause, ScheduleOnPrimary, SendToBacklog, SendToPrimary, Step
from twinbus.pairing.value_types import time_of

pytestmark = pytest.mark.proves("P-6", "P-12")

# --- how large a batch may be -----------------------------------------------------------------


def limit_in(world: World, *answers: Answer) -> Any:
    world.sender.backlog_limit_bytes = 256
    return world.run(batch_limit(world.pairing, world.sender), *answers)


def test_the_primary_says_how_large_a_batch_may_be() -> None:
    world = World()
    assert limit_in(world, 1024) == 1024
    assert world.kinds() == ["OpenPrimary"]
    assert world.sender.primary_batch_bytes == 1024


def test_in_an_outage_a_batch_is_as_large_as_a_backlog_queue_takes() -> None:
    world = World()
    assert limit_in(world, DOWN) == 256
    assert not world.sender.primary_batch_bytes, "the primary is asked again"
    world.fail_over()
    assert limit_in(world) == 256
    assert world.kinds() == [], "nobody is asked"


def test_a_batch_for_an_entity_that_may_not_be_used() -> None:
    world = World()
    with pytest.raises(ServiceBusAuthorizationError):
        limit_in(world, ServiceBusAuthorizationError())
    world.pairing.fault("over")
    with pytest.raises(PairFaultedError):
        limit_in(world)


# --- the primary ------------------------------------------------------------------------------


@pytest.mark.proves("P-6")
def test_a_healthy_send_is_one_step() -> None:
    world = World()
    world.send([message(), message()])
    assert world.kinds() == ["SendToPrimary"]
    assert world.entity.sent_to_primary == 2
    assert world.entity.sent_to_backlog == 0


def test_nothing_to_send_is_no_step() -> None:
    world = World()
    world.send([])
    assert world.steps == []
    assert world.run(schedule(world.pairing, world.sender, collect([]), TIME)) == []


@pytest.mark.proves("P-7")
def test_until_the_interval_has_passed_callers_see_the_error() -> None:
    world = World()
    with pytest.raises(ServiceBusConnectionError) as caught:
        world.send(message(), DOWN)
    assert caught.value is DOWN
    assert world.kinds() == ["SendToPrimary"]
    assert world.entity.state is State.FAILING
    world.now += 60.0
    world.send(message())
    assert world.kinds() == ["SendToBacklog"]


@pytest.mark.proves("P-7")
def test_without_an_interval_that_same_send_goes_on() -> None:
    """With the key that the primary may have seen."""
    world = World(interval_s=0.0)
    world.send(message(), DOWN)
    assert world.kinds() == ["SendToPrimary", "SendToBacklog"]
    (backlog,) = world.to_backlog()
    assert property_in_backlog(backlog.messages[0], PRODUCER_KEY) == key_on_primary(world.steps[0])
    assert property_in_backlog(backlog.messages[0], PATH) == "Orders"
    assert not backlog.messages[0].delivery_annotations
    assert (world.entity.sent_to_primary, world.entity.sent_to_backlog) == (0, 1)


def test_a_send_that_was_under_way_when_its_entity_failed_over_goes_on() -> None:
    world = World()

    def fail_over_meanwhile() -> Exception:
        world.fail_over()
        return OperationTimeoutError()

    world.send(message(), fail_over_meanwhile)
    assert world.kinds() == ["SendToPrimary", "SendToBacklog"]


@pytest.mark.proves("P-8")
def test_unauthorized_is_raised_and_never_fails_over() -> None:
    world = World(interval_s=0.0)
    with pytest.raises(ServiceBusAuthorizationError):
        world.send(message(), ServiceBusAuthorizationError())
    assert world.entity.state is State.HEALTHY


@pytest.mark.proves("P-8")
def test_server_busy_waits_and_sends_again() -> None:
    """The same message, with the same key."""
    world = World(interval_s=0.0)
    world.send(message(), BUSY, BUSY)
    assert world.kinds() == ["SendToPrimary", "Pause", "SendToPrimary", "Pause", "SendToPrimary"]
    assert world.steps[1] == Pause(10.0)
    assert key_on_primary(world.steps[0]) == key_on_primary(world.steps[4])
    assert world.entity.state is State.HEALTHY


def test_server_busy_is_raised_in_the_end() -> None:
    world = World(interval_s=0.0)
    with pytest.raises(ServiceBusServerBusyError):
        world.send(message(), BUSY, BUSY, BUSY)
    assert world.kinds().count("SendToPrimary") == 3
    assert world.entity.state is State.HEALTHY


@pytest.mark.parametrize(("timeout_s", "sends"), [(10.0, 1), (15.0, 2), (25.0, 3)])
def test_server_busy_within_the_calls_own_time(timeout_s: float, sends: int) -> None:
    world = World()
    with pytest.raises(ServiceBusServerBusyError):
        world.send(message(), *[BUSY] * sends, timeout_s=timeout_s)
    assert world.kinds().count("SendToPrimary") == sends
    assert world.kinds().count("Pause") == sends - 1, "nobody waits for what cannot come"


def test_a_pause_that_took_too_long() -> None:
    world = World()
    flow = send(world.pairing, world.sender, collect(message()), 15.0)
    next(flow)
    assert flow.throw(BUSY) == Pause(10.0)
    world.now += 15.0
    with pytest.raises(ServiceBusServerBusyError):
        flow.send(None)


def test_an_entity_that_fails_over_in_the_pause() -> None:
    world = World()
    flow = send(world.pairing, world.sender, collect(message()))
    next(flow)
    assert flow.throw(BUSY) == Pause(10.0)
    world.fail_over()
    assert isinstance(flow.send(None), SendToBacklog)


def test_legacy_counts_busy() -> None:
    world = World(interval_s=0.0, policy="legacy")
    world.send(message(), BUSY)
    assert world.kinds() == ["SendToPrimary", "SendToBacklog"]


def test_legacy_raises_what_refuses_pings() -> None:
    world = World(interval_s=0.0, policy="legacy")
    world.send(message(), DOWN)
    refusal = ServiceBusAuthorizationError()
    assert world.entity.tick(world.now + 10.0) and world.entity.ping_started()
    world.entity.ping_failed(refusal, is_refused=True)
    with pytest.raises(PingRefusedError) as caught:
        world.send(message())
    assert world.steps == []
    assert caught.value.__cause__ is refusal


@pytest.mark.proves("P-6")
def test_stamps_never_make_a_message_too_large() -> None:
    """It goes without."""
    world = World()
    one = message()
    world.send(one, MessageSizeExceededError())
    assert world.kinds() == ["SendToPrimary"] * 2
    assert isinstance(world.steps[1], SendToPrimary) and world.steps[1].outgoing is one
    with pytest.raises(MessageSizeExceededError):
        world.send(one, MessageSizeExceededError(), MessageSizeExceededError())
    assert world.entity.state is State.HEALTHY


@pytest.mark.proves("P-12", "P-19")
def test_the_mark_counts_for_the_size() -> None:
    """A message that would fit without it is refused before anything is sent."""
    world = World()
    world.fail_over()
    world.send(message())
    [step] = world.to_backlog()
    [waiting] = step.messages
    properties = dict(waiting.application_properties or {})
    assert properties.pop("x-twinbus-primary") == world.pairing.settings.identity.mark
    size = encoded_size(waiting)
    waiting.application_properties = properties
    world.sender.backlog_limit_bytes = encoded_size(waiting)
    with pytest.raises(BacklogMessageSizeExceededError) as caught:
        world.send(message())
    assert caught.value.rewritten_bytes == size
    assert world.to_backlog() == []


def test_a_message_that_cannot_be_encoded_is_its_own_fault() -> None:
    """The SDK finds out in the middle of sending, and wraps what it found."""
    world = World(interval_s=0.0)
    wrapped = ServiceBusError("Handler failed", error=TypeError("cannot encode"))
    bad = ServiceBusMessage(b"", application_properties={"a": object()})  # type: ignore[dict-item]
    with pytest.raises(ServiceBusError) as caught:
        world.send(bad, wrapped)
    assert caught.value is wrapped
    assert world.entity.sent_to_backlog == 0
    world.send(message(), wrapped)
    assert world.entity.sent_to_backlog == 1, "with a good message it is the connection"


@pytest.mark.parametrize("is_over", [False, True])
def test_a_faulted_pair_sends_nothing(is_over: bool) -> None:
    world = World()
    if is_over:
        world.fail_over()
    world.pairing.fault("closed")
    with pytest.raises(PairFaultedError):
        world.send(message())
    assert world.steps == []


# --- time -------------------------------------------------------------------------------------


def timeouts(world: World) -> list[float]:
    return [
        step.timeout_s for step in world.steps if isinstance(step, SendToPrimary | SendToBacklog)
    ]


def test_without_a_timeout_each_try_has_the_setting() -> None:
    world = World(interval_s=0.0, queues=2)
    world.took_s = [20.0, 20.0]
    world.send(message(), DOWN, DOWN)
    assert timeouts(world) == [20.0, 20.0, 20.0]


def test_a_timeout_is_the_primarys_alone_if_nothing_can_come_after() -> None:
    world = World()
    world.send(message(), timeout_s=8.0)
    assert timeouts(world) == [8.0]


def test_a_timeout_is_shared_with_the_backlog_if_it_may_be_needed() -> None:
    world = World(interval_s=0.0, queues=2)
    world.took_s = [16.0, 8.0]
    world.send(message(), OperationTimeoutError(), OperationTimeoutError(), timeout_s=32.0)
    assert timeouts(world) == [16.0, 8.0, 8.0]


def test_a_short_timeout_is_not_divided_among_backlog_queues() -> None:
    """A queue that is given half a second to open a link would be lost for nothing."""
    world = World(queues=2)
    world.fail_over()
    world.send(message(), timeout_s=2.0)
    assert timeouts(world) == [2.0]


def test_a_timeout_that_is_used_up() -> None:
    world = World(queues=2)
    world.fail_over()
    world.took_s = [8.0]
    with pytest.raises(BacklogUnavailableError, match="time is used up"):
        world.send(message(), DOWN, timeout_s=8.0)
    assert len(world.steps) == 1


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_timeout_that_is_none(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        World().send(message(), timeout_s=timeout_s)


# --- the backlog ------------------------------------------------------------------------------


@pytest.mark.proves("P-9")
def test_a_sender_stays_with_its_queue() -> None:
    """Picked at random, once."""
    world = World()
    world.fail_over()
    for _ in range(10):
        world.send(message())
        assert {step.queue for step in world.to_backlog()} == {world.sender.queue}
    others = set()
    for _ in range(30):
        world.sender = SenderState("orders")
        world.send(message())
        others.add(world.sender.queue)
    assert others == {"p/0", "p/1", "p/2"}


@pytest.mark.proves("P-10")
def test_a_queue_that_fails_leaves_the_rotation_and_another_is_picked() -> None:
    """And every sender of the pairing learns it."""
    world = World()
    world.fail_over()
    world.send(message(), DOWN)
    bad, good = (step.queue for step in world.to_backlog())
    assert bad != good == world.sender.queue
    assert world.pairing.take_events() == [BacklogQueueLost(bad, DOWN, left=2)]
    other = SenderState("orders")
    other.queue = bad
    world.sender = other
    world.send(message())
    assert world.kinds() == ["SendToBacklog"]
    assert other.queue != bad


def test_a_send_tries_a_queue_once_whatever_others_found_meanwhile() -> None:
    world = World(queues=2)
    world.fail_over()

    def somebody_else_gets_through() -> Exception:
        first = world.to_backlog()[0].queue
        world.pairing.rotation.found(first)
        world.sender.queue = first  # by another thread that shares the sender
        return DOWN

    with pytest.raises(BacklogUnavailableError):
        world.send(message(), DOWN, somebody_else_gets_through)
    assert len(world.steps) == 2


@pytest.mark.proves("P-10")
def test_none_is_left() -> None:
    """The error says so, and the caller still has the message."""
    world = World()
    world.fail_over()
    with pytest.raises(BacklogUnavailableError, match="none is left") as caught:
        world.send([message(), message()], DOWN, DOWN, DOWN)
    assert {step.queue for step in world.to_backlog()} == {"p/0", "p/1", "p/2"}
    assert caught.value.accepted == 0
    assert caught.value.__cause__ is DOWN
    assert world.entity.sent_to_backlog == 0
    with pytest.raises(BacklogUnavailableError):
        world.send(message(), DOWN)
    assert len(world.steps) == 1, "the one that has rested longest is tried"
    world.send(message())
    assert world.entity.sent_to_backlog == 1
    assert world.pairing.rotation.in_use(world.now) == [world.sender.queue]


@pytest.mark.parametrize("error", [MessageSizeExceededError(), ValueError("bad"), TypeError("bad")])
def test_a_messages_own_fault_does_not_cost_a_queue(error: Exception) -> None:
    world = World()
    world.fail_over()
    with pytest.raises(type(error)):
        world.send(message(), error)
    assert len(world.pairing.rotation.in_use(world.now)) == 3
    assert world.pairing.take_events() == []


def test_a_list_is_sent_in_as_many_batches_as_it_needs() -> None:
    world = World()
    world.fail_over()
    world.sender.backlog_limit_bytes = 4096
    world.send([message(bytes([65 + each]) * 900) for each in range(7)])
    bodies = [[str(each)[0] for each in step.messages] for step in world.to_backlog()]
    assert bodies == [["A", "B", "C"], ["D", "E", "F"], ["G"]]
    for step in world.to_backlog():
        assert sum(encoded_size(each) + 8 for each in step.messages) + 512 <= 4096
    assert world.entity.sent_to_backlog == 7


def test_a_batch_needs_some_room_for_itself() -> None:
    world = World()
    world.fail_over()
    world.send(message(b"x" * 900))
    size = encoded_size(world.to_backlog()[0].messages[0])
    world.sender.backlog_limit_bytes = 3 * (size + 8) + 400
    world.send([message(b"x" * 900) for _ in range(3)])
    assert [len(step.messages) for step in world.to_backlog()] == [2, 1]


def test_how_many_were_taken_before_the_backlog_closed() -> None:
    world = World(queues=1)
    world.fail_over()
    world.sender.backlog_limit_bytes = 4096
    messages = [message(b"x" * 900) for _ in range(7)]
    with pytest.raises(BacklogUnavailableError) as caught:
        world.send(messages, None, DOWN)
    assert caught.value.accepted == 3
    assert world.entity.sent_to_backlog == 3
    first = [property_in_backlog(each, PRODUCER_KEY) for each in world.to_backlog()[0].messages]
    world.now += 60.0
    world.send(messages)
    again = [property_in_backlog(each, PRODUCER_KEY) for each in world.to_backlog()[0].messages]
    assert again == first, "what is sent again is known by its key"


@pytest.mark.proves("P-12")
def test_a_message_that_rewriting_makes_too_large_is_refused_before_sending() -> None:
    """Naming both sizes; and nothing of its list is sent."""
    world = World()
    world.fail_over()
    large = message(b"x" * 2000)
    size = encoded_size(large.raw_amqp_message)
    world.sender.backlog_limit_bytes = size + 10
    with pytest.raises(BacklogMessageSizeExceededError) as caught:
        world.send([message(), large])
    error = caught.value
    assert world.steps == []
    assert (error.size_bytes, error.limit_bytes) == (size, size + 10)
    assert error.rewritten_bytes > size + 10
    assert str(size) in str(error) and str(error.rewritten_bytes) in str(error)
    world.sender.backlog_limit_bytes = error.rewritten_bytes
    world.send(large)
    assert [len(step.messages) for step in world.to_backlog()] == [1]


# --- keys -------------------------------------------------------------------------------------


def test_a_message_keeps_its_key_until_a_send_of_it_succeeds() -> None:
    world = World()
    one = message()
    keys = []
    for answer in (DOWN, OperationTimeoutError(), None, None):
        try:
            world.send(one, answer)
        except ServiceBusError:
            pass
        keys.append(key_on_primary(world.steps[0]))
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert one.raw_amqp_message.delivery_annotations is None


def test_a_cancelled_send_keeps_its_key() -> None:
    world = World()
    one = message()
    flow = send(world.pairing, world.sender, collect(one))
    key = key_on_primary(next(flow))
    flow.close()
    world.send(one)
    assert key_on_primary(world.steps[0]) == key
    assert world.entity.state is State.HEALTHY


def test_lists_are_batches_as_soon_as_the_link_is_known() -> None:
    world = World()
    assert batch_bytes(world.pairing, world.sender) == 0
    world.sender.primary_batch_bytes = 1000
    assert batch_bytes(world.pairing, world.sender) == 1000
    world.fail_over()
    assert batch_bytes(world.pairing, world.sender) == 0, "it is not going there"


# --- schedule ---------------------------------------------------------------------------------


def test_schedule_on_the_primary() -> None:
    world = World()
    parcel = collect([message(), message()])
    numbers = world.run(schedule(world.pairing, world.sender, parcel, TIME, 7.0), [5, 6])
    assert numbers == [5, 6]
    (step,) = world.steps
    assert isinstance(step, ScheduleOnPrimary)
    assert (step.time_utc, step.timeout_s) == (TIME, 7.0)
    assert key_on_primary(step)
    assert world.entity.sent_to_primary == 2


def test_schedule_in_the_backlog() -> None:
    """Its time is kept; there is no sequence number yet."""
    world = World(interval_s=0.0)
    one = message()
    one.scheduled_enqueue_time_utc = dt.datetime(2029, 1, 1, tzinfo=dt.UTC)
    before = repr(one.raw_amqp_message)
    flow = schedule(world.pairing, world.sender, collect([one, message()]), TIME)
    assert world.run(flow, DOWN) == [0, 0]
    assert world.kinds() == ["ScheduleOnPrimary", "SendToBacklog"]
    (step,) = world.to_backlog()
    times = [time_of(property_in_backlog(each, SCHEDULED_TIME)) for each in step.messages]
    assert times == [TIME.timestamp() * 1000] * 2
    assert repr(one.raw_amqp_message) == before


# --- the shortcut ---------------------------------------------------------------------------------


@pytest.mark.proves("P-6")
def test_a_single_message_of_a_healthy_entity_needs_no_flow() -> None:
    world = World()
    sent = message()
    way = shortcut(world.pairing, world.entity, sent)
    assert way is not None
    assert stamp_of(cast(ServiceBusMessage, way.outgoing)) is not None
    assert stamp_of(sent) is None, "the caller's object is as it was"
    way.succeeded()
    assert world.entity.sent_to_primary == 1
    second = shortcut(world.pairing, world.entity, sent)
    assert second is not None
    assert stamp_of(cast(ServiceBusMessage, second.outgoing)) != stamp_of(
        cast(ServiceBusMessage, way.outgoing)
    )


@pytest.mark.parametrize("handed", [[message()], {"body": b""}, "no message"])
def test_what_is_no_single_message_takes_the_flow(handed: object) -> None:
    world = World()
    assert shortcut(world.pairing, world.entity, handed) is None


def test_there_is_no_shortcut_to_an_entity_that_is_not_healthy() -> None:
    world = World()
    with pytest.raises(ServiceBusConnectionError):
        world.send(message(), DOWN)
    assert shortcut(world.pairing, world.entity, message()) is None
    world.fail_over()
    assert shortcut(world.pairing, world.entity, message()) is None
    world.pairing.force_failback("Orders")
    assert shortcut(world.pairing, world.entity, message()) is None, "recovering"
    world.send(message())
    assert shortcut(world.pairing, world.entity, message()) is not None


@pytest.mark.proves("P-7")
def test_after_a_shortcut_that_failed_the_flow_goes_on_with_the_same_key() -> None:
    """An interval of zero fails over, and that same send goes on to the backlog."""
    world = World(interval_s=0.0)
    sent = message()
    way = shortcut(world.pairing, world.entity, sent)
    assert way is not None
    assert way.failed(DOWN)
    performed: list[Step] = []
    perform = after(DOWN, performed.append)
    flow = send(world.pairing, world.sender, collect(sent), None)
    first = next(flow)
    assert isinstance(first, SendToPrimary)
    assert stamp_of(first.outgoing) == stamp_of(cast(ServiceBusMessage, way.outgoing))
    with pytest.raises(ServiceBusConnectionError) as failed:
        perform(first)
    step = flow.throw(failed.value)
    assert isinstance(step, SendToBacklog)
    perform(step)
    assert performed == [step], "only the first send to the primary had been tried"
    perform(first)
    assert performed == [step, first]
