"""What is tried again, what is not, and how messages become batches."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.client.blocking import CannotConnect, result_of
from twinbus.client.links import ConnectionLost
from twinbus.errors import (
    ArgumentInvalid,
    ConfigError,
    EntityNotFound,
    OperationTimeout,
    QuotaExceeded,
    RemoteProtocolError,
    ServerBusy,
    ServiceError,
    TwinbusError,
    Unauthorized,
)
from twinbus.limits import SECTIONS_MAX
from twinbus.message.plain import Properties, build_batch, cut, data_section, encode_message
from twinbus.pipeline.bus import SendRefused, open_bus
from twinbus.pipeline.bus.line import Patience, may_pass, named
from twinbus.pipeline.bus.peeked import read_peeked


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionLost("gone"), True),
        (CannotConnect("refused", is_final=False), True),
        (CannotConnect("no such name", is_final=True), False),
        (ServerBusy("later"), True),
        (OperationTimeout("slow"), True),
        (ServiceError("internal error: a part of the bus is down"), True),
        (EntityNotFound("none"), False),
        (Unauthorized("no"), False),
        (QuotaExceeded("full"), False),
        (ArgumentInvalid("bad"), False),
        (ConfigError("bad"), False),
        (RemoteProtocolError("nonsense"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_what_may_pass_is_waited_for(error: TwinbusError, passes: bool) -> None:
    assert may_pass(error) is passes
    with pytest.raises(type(error)):
        Patience(0.0).pause(error)  # there is no time left
    if not passes:
        with pytest.raises(type(error)):
            Patience(3_600.0).pause(error)


def test_an_error_gets_the_name_of_its_entity_once() -> None:
    assert str(named(ServerBusy("later"), "orders")) == "'orders': later"
    assert isinstance(named(ServerBusy("later"), "orders"), ServerBusy)
    known = EntityNotFound("The messaging entity 'Orders' could not be found.")
    assert named(known, "orders") is known
    refused = SendRefused("orders", 7, QuotaExceeded("full"))
    assert str(refused) == "'orders' refused message 7: full"


def test_work_ends_in_its_result_its_error_or_a_time_out() -> None:
    done: Future[int] = Future()
    done.set_result(3)
    assert result_of(done, 0) == 3
    failed: Future[int] = Future()
    failed.set_exception(EntityNotFound("none"))
    with pytest.raises(EntityNotFound):
        result_of(failed, 0)
    given_up: Future[int] = Future()
    given_up.cancel()
    with pytest.raises(ConnectionLost, match="outcome unknown"):
        result_of(given_up, 0)
    slow: Future[int] = Future()
    with pytest.raises(OperationTimeout, match="within 0 s"):
        result_of(slow, 0)
    assert slow.cancelled()
    timed_out: Future[int] = Future()
    timed_out.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(timed_out, 0)


def test_a_bad_connection_string_needs_no_network() -> None:
    with pytest.raises(ConfigError, match="part 1 is unknown") as caught:
        open_bus("secret words")
    assert "secret" not in str(caught.value)


# --- batches --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(50, 1_000))
def test_batches_hold_everything_in_order_and_are_not_too_large(
    sizes: list[int], size_max: int
) -> None:
    messages = [b"x" * size for size in sizes]
    at = 0
    for first, count in cut(messages, size_max):
        assert first == at
        assert count > 0
        batch = messages[first : first + count]
        assert count == 1 or len(build_batch(batch)) <= size_max
        at += count
        # As much as goes in: with the next one it would be larger than the most it may need.
        if at < len(messages):
            assert sum(len(each) + 8 for each in messages[first : at + 1]) > size_max
    assert at == len(messages)


def test_batches_are_not_longer_than_the_bus_reads() -> None:
    assert cut([b""] * (SECTIONS_MAX + 1), 1 << 20) == [(0, SECTIONS_MAX), (SECTIONS_MAX, 1)]


# --- peeked messages ------------------------------------------------------------------------------


def peeked(number: object, state: object = None, session_id: str | None = None) -> bytes:
    annotations = {"x-opt-sequence-number": number, "x-opt-message-state": state}
    given_ones = {name: value for name, value in annotations.items() if value is not None}
    properties = Properties(message_id="m", group_id=session_id)
    return encode_message(data_section(b"body"), properties, annotations=given_ones)


def test_a_peeked_message_tells_where_it_is() -> None:
    active, deferred, scheduled = (read_peeked(peeked(5, state, "s")) for state in (0, 1, 2))
    assert (active.number, active.session_id) == (5, "s")
    assert (active.is_deferred, active.is_scheduled) == (False, False)
    assert (deferred.is_deferred, scheduled.is_scheduled) == (True, True)
    assert not read_peeked(peeked(5)).is_deferred
    assert read_peeked(peeked(5)).session_id is None


@pytest.mark.parametrize("number", [None, "five"])
def test_a_peeked_message_without_a_number_is_an_error(number: object) -> None:
    with pytest.raises(RemoteProtocolError):
        read_peeked(peeked(number))
