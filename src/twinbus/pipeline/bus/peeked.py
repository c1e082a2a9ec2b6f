"""A peeked message: what the bus says about it, read from its encoded form; the body is left."""

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.decoding import decode_error
from twinbus.message import wire_names
from twinbus.message.plain import read_properties
from twinbus.message.sections import MESSAGE_ANNOTATIONS, PROPERTIES, Outline

_DEFERRED: Final = 1
_SCHEDULED: Final = 2


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message and where it is."""

    data: bytes
    number: int
    state: int

    @property
    def is_deferred(self) -> bool:
        return self.state == _DEFERRED

    @property
    def is_scheduled(self) -> bool:
        return self.state == _SCHEDULED

    @property
    def session_id(self) -> str | None:
        properties = Outline(self.data).decoded(PROPERTIES)
        return None if properties is None else read_properties(properties).group_id


def read_peeked(data: bytes) -> Peeked:
    """Raises RemoteProtocolError when the bus has not told the sequence number."""
    annotations = Outline(data).decoded(MESSAGE_ANNOTATIONS)
    if not isinstance(annotations, dict):
        raise decode_error("a peeked message without annotations")
    number = annotations.get(wire_names.SEQUENCE_NUMBER)
    state = annotations.get(wire_names.MESSAGE_STATE, 0)
    if not isinstance(number, int) or not isinstance(state, int):
        raise decode_error("a peeked message without a sequence number")
    return Peeked(data, int(number), int(state))
