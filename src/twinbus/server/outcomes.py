"""Outcomes: what a disposition asks for, and how a settlement is confirmed or refused."""

from typing import Final

from twinbus.amqp.codec import encode_value
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
    modified,
    rejected,
)
from twinbus.entities.commands import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE
from twinbus.entities.message import Overlay
from twinbus.errors import ServiceError
from twinbus.limits import DEAD_LETTER_TEXT_CHARS_MAX

UNDECIDED: Final = -1

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
        changes = state.annotations
        return outcome, Overlay(properties=encode_changes(changes)) if changes else None
    if isinstance(state, Rejected):
        return DEAD_LETTER, _dead_letter_overlay(state.error)
    if isinstance(state, Released) or settled:
        return RELEASE, None  # settled without an outcome counts as released
    return UNDECIDED, None


def encode_changes(changes: dict[object, object]) -> bytes:
    """Application properties to set, as the map that an overlay keeps."""
    return encode_value({str(key): value for key, value in changes.items()})


def _dead_letter_overlay(error: AmqpError | None) -> Overlay:
    if error is None:
        return Overlay()
    info = {str(key): value for key, value in (error.info or {}).items()}
    reason = info.pop("DeadLetterReason", None)
    description = info.pop("DeadLetterErrorDescription", None) or error.description
    if reason is None and error.condition != "com.microsoft:dead-letter":
        reason = error.condition  # a plain AMQP client rejects with a condition of its own
    return Overlay(
        reason=_text(reason),
        description=_text(description),
        properties=encode_value(info) if info else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:DEAD_LETTER_TEXT_CHARS_MAX]
