"""What a disposition asks for, and how it is confirmed."""

import pytest

from twinbus.amqp.composites import (
    Accepted,
    AmqpError,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
    read_state,
)
from twinbus.amqp.decoding import decode_whole
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from twinbus.errors import MessageLockLost
from twinbus.limits import DEAD_LETTER_TEXT_CHARS_MAX
from twinbus.server.amqp.settlement import CONFIRMED, UNDECIDED, read_outcome, refused


def encoded_state(data: bytes) -> DeliveryState | None:
    return read_state(decode_whole(data))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Accepted(), COMPLETE),
        (Released(), RELEASE),
        (Modified(True, False), ABANDON),
        (Modified(False, False), ABANDON),  # .NET abandons like this
        (Modified(True, True), DEFER),
        (Rejected(), DEAD_LETTER),
        (Received(0, 0), UNDECIDED),
        (None, UNDECIDED),
    ],
)
def test_each_outcome_is_one_way_to_settle(state: DeliveryState | None, outcome: int) -> None:
    assert read_outcome(state, settled=False)[0] == outcome


def test_settling_without_an_outcome_releases() -> None:
    assert read_outcome(None, settled=True)[0] == RELEASE


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (COMPLETE, Accepted),
        (ABANDON, Modified),
        (DEFER, Modified),
        (DEAD_LETTER, Rejected),
        (RELEASE, Released),
    ],
)
def test_a_settlement_is_confirmed_with_the_same_kind(outcome: int, kind: type) -> None:
    state = encoded_state(CONFIRMED[outcome])
    assert isinstance(state, kind)
    if isinstance(state, Rejected):
        assert state.error is None  # an error would mean that the settlement failed


def test_a_dead_letter_request_carries_reason_and_description() -> None:
    info: dict[object, object] = {
        "DeadLetterReason": "poison",
        "DeadLetterErrorDescription": "x" * 5_000,
        "attempt": 3,
    }
    state = Rejected(AmqpError("com.microsoft:dead-letter", "ignored", info))
    _, overlay = read_outcome(state, settled=False)
    assert overlay is not None
    assert overlay.reason == "poison"
    assert overlay.description == "x" * DEAD_LETTER_TEXT_CHARS_MAX
    assert overlay.properties is not None
    assert decode_whole(overlay.properties) == {"attempt": 3}


def test_a_plain_amqp_rejection_keeps_its_condition_as_the_reason() -> None:
    state = Rejected(AmqpError("amqp:decode-error", "not my format"))
    _, overlay = read_outcome(state, settled=False)
    assert overlay is not None
    assert overlay.reason == "amqp:decode-error"
    assert overlay.description == "not my format"


def test_changed_properties_of_an_abandoned_message_are_kept() -> None:
    _, overlay = read_outcome(Modified(True, False, {"color": "red"}), settled=False)
    assert overlay is not None
    assert overlay.properties is not None
    assert decode_whole(overlay.properties) == {"color": "red"}


def test_a_refusal_names_the_condition_with_all_fields() -> None:
    state = encoded_state(refused(MessageLockLost("too late")))
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "com.microsoft:message-lock-lost"
    assert state.error.description == "too late"
