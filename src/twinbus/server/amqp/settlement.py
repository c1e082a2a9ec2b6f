"""Outcomes: what a disposition asks for, and how a settlement is confirmed or refused."""

from typing import Final

from twinbus.amqp.composites import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    Accepted,
    AmqpError,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    TransactionalState,
    modified,
    rejected,
)
from twinbus.amqp.encoding import encode_value
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from twinbus.entities.message import Overlay
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, ServiceError
from twinbus.limits import ABANDON_DELAY_MS_MAX, DEAD_LETTER_TEXT_CHARS_MAX
from twinbus.message import wire_names

UNDECIDED: Final = -1

# Ours: among the properties to modify of an abandoned message; it is never stored as one.
DELAY: Final = "twinbus:delay-ms"

# A settlement is confirmed with the same kind of outcome; `rejected` without an error, because an
# error there would mean that the settlement failed.
CONFIRMED: Final = {
    COMPLETE: ACCEPTED,
    ABANDON: modified(True, False),
    DEFER: modified(True, True),
    DEAD_LETTER: REJECTED,
    RELEASE: RELEASED,
}


def amqp_error(error: ServiceError) -> AmqpError:
    """An error as it goes over the wire."""
    return AmqpError(error.amqp_condition, str(error))


def refused(error: ServiceError) -> bytes:
    """The outcome that says no."""
    return rejected(amqp_error(error))


def read_outcome(state: DeliveryState | None, settled: bool) -> tuple[int, Overlay | None]:
    """What a disposition asks for; UNDECIDED while it decides nothing."""
    if isinstance(state, Accepted):
        return COMPLETE, None
    if isinstance(state, Modified):
        outcome = DEFER if state.undeliverable_here else ABANDON
        properties = encode_changes(state.annotations) if state.annotations else None
        return outcome, None if properties is None else Overlay(properties=properties)
    if isinstance(state, Rejected):
        return DEAD_LETTER, _dead_letter_overlay(state.error)
    if isinstance(state, TransactionalState):
        return UNDECIDED, None  # the transaction decides (coordinator.py)
    if isinstance(state, Released) or settled:
        return RELEASE, None  # settled without an outcome counts as released
    return UNDECIDED, None


def encode_changes(changes: dict[object, object]) -> bytes | None:
    """Application properties to set, as the map that an overlay keeps; None when there are none."""
    properties = {str(key): value for key, value in changes.items() if key != DELAY}
    return encode_value(properties) if properties else None


def read_delay(changes: dict[object, object], outcome: int) -> int:
    """Ours: after how long an abandoned message is to come back, in milliseconds; 0 = at once."""
    delay_ms = changes.get(DELAY)
    if delay_ms is None:
        return 0
    if outcome != ABANDON:
        raise ArgumentInvalid(f"'{DELAY}' is for messages that are abandoned.")
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool):
        raise ArgumentInvalid(f"'{DELAY}' must be a whole number of milliseconds.")
    if not 1 <= delay_ms <= ABANDON_DELAY_MS_MAX:
        raise ArgumentOutOfRange(f"'{DELAY}' is 1 to {ABANDON_DELAY_MS_MAX}, not {delay_ms}.")
    return int(delay_ms)


def read_delay_of(state: DeliveryState | None, outcome: int) -> int:
    """The same, where a disposition asks for it."""
    if not isinstance(state, Modified) or not state.annotations:
        return 0
    return read_delay(state.annotations, outcome)


def _dead_letter_overlay(error: AmqpError | None) -> Overlay:
    if error is None:
        return Overlay()
    info = {str(key): value for key, value in (error.info or {}).items() if key != DELAY}
    reason = info.pop(wire_names.DEAD_LETTER_REASON, None)
    description = info.pop(wire_names.DEAD_LETTER_DESCRIPTION, None) or error.description
    if reason is None and error.condition != "com.microsoft:dead-letter":
        reason = error.condition  # a plain AMQP client rejects with a condition of its own
    return Overlay(
        reason=_text(reason),
        description=_text(description),
        properties=encode_value(info) if info else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:DEAD_LETTER_TEXT_CHARS_MAX]
