"""A peeked message: what the bus says about it, read from its encoded form; the body is left."""

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.decoding import decode_error, decode_within
from twinbus.message import wire_names
from twinbus.message.plain import read_properties
from twinbus.message.sections import MESSAGE_ANNOTATIONS, PROPERTIES, read_section

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
        properties = _section(self.data, PROPERTIES)
        return None if properties is None else read_properties(properties).group_id


def read_peeked(data: bytes) -> Peeked:
    """Raises RemoteProtocolError when the bus has not told the sequence number."""
    annotations = _section(data, MESSAGE_ANNOTATIONS)
    if not isinstance(annotations, dict):
        raise decode_error("a peeked message without annotations")
    number = annotations.get(wire_names.SEQUENCE_NUMBER)
    state = annotations.get(wire_names.MESSAGE_STATE, 0)
    if not isinstance(number, int) or not isinstance(state, int):
        raise decode_error("a peeked message without a sequence number")
    return Peeked(data, int(number), int(state))


def _section(data: bytes, code: int) -> object:
    """The value of the first section of this kind; None when there is none."""
    at = 0
    while at < len(data):
        section = read_section(data, at)
        if section.code == code:
            return decode_within(data, section.start, section.end)[0]
        at = section.end
    return None
