"""`transfer` and `disposition`: the two performatives on the way of every message.

Reading them takes a short way for the layouts that clients really send: the leading numbers are
read in place, and what follows, which repeats from message to message, is looked up by its raw
bytes.  Any other layout goes through the general codec.  Writing them is in frames.py.
"""

from typing import Final

from twinbus.amqp.composites import (
    DeliveryState,
    Performative,
    TransactionalState,
    put_composite,
    read_state,
)
from twinbus.amqp.decoding import decode_error, decode_within
from twinbus.amqp.fields import Fields, composite, put_binary, put_boolean, put_ubyte, put_uint
from twinbus.amqp.shapes import U32

DELIVERY_TAG_BYTES_MAX: Final = 32

# What follows the delivery tag (or the last delivery id), parsed, by its raw bytes.  Bounded: few
# shapes occur in practice, and a peer that invents many only empties the table.
_REMEMBERED_MAX: Final = 512
_REMEMBERED_BYTES_MAX: Final = 64


class Transfer(Performative):
    """A message, or a part of one.

    `delivery_id` is -1 when not given (only a delivery's first frame must have it); a `settled`
    that is not given is False, so code that joins frames must settle if any of them says so.
    """

    __slots__ = (
        "aborted",
        "batchable",
        "delivery_id",
        "delivery_tag",
        "handle",
        "message_format",
        "more",
        "rcv_settle_mode",
        "resume",
        "settled",
        "state",
    )

    def __init__(
        self,
        handle: int,
        delivery_id: int = -1,
        delivery_tag: bytes | None = None,
        message_format: int = 0,
        settled: bool = False,
        more: bool = False,
        rcv_settle_mode: int | None = None,
        state: DeliveryState | None = None,
        resume: bool = False,
        aborted: bool = False,
        batchable: bool = False,
    ) -> None:
        self.handle = handle
        self.delivery_id = delivery_id
        self.delivery_tag = delivery_tag
        self.message_format = message_format
        self.settled = settled
        self.more = more
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state
        self.resume = resume
        self.aborted = aborted
        self.batchable = batchable

    def encode(self) -> bytes:
        return composite(
            0x14,
            [
                put_uint(self.handle),
                put_uint(None if self.delivery_id < 0 else self.delivery_id),
                put_binary(self.delivery_tag),
                put_uint(self.message_format),
                put_boolean(self.settled),
                put_boolean(self.more),
                put_ubyte(self.rcv_settle_mode),
                put_composite(self.state),
                put_boolean(self.resume),
                put_boolean(self.aborted),
                put_boolean(self.batchable),
            ],
        )


class Disposition(Performative):
    """The state of deliveries `first` to `last`; `last` equals `first` when it was not given."""

    __slots__ = ("batchable", "first", "last", "role", "settled", "state")

    def __init__(
        self,
        role: bool,
        first: int,
        last: int,
        settled: bool = False,
        state: DeliveryState | None = None,
        batchable: bool = False,
    ) -> None:
        self.role = role
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state
        self.batchable = batchable

    def encode(self) -> bytes:
        return composite(
            0x15,
            [
                put_boolean(self.role),
                put_uint(self.first),
                put_uint(self.last),
                put_boolean(self.settled),
                put_composite(self.state),
                put_boolean(self.batchable),
            ],
        )


# --- reading -------------------------------------------------------------------------------------
# Transfers that are a whole delivery and nothing special, by what follows their delivery tag: count
# of fields, message format, settled.
PlainEnding = tuple[int, int, bool]
PLAIN_ENDINGS: Final[dict[bytes, PlainEnding]] = {}


def read_transfer(fields: Fields) -> Transfer:
    """A transfer from its decoded fields."""
    delivery_id = fields.optional_number(1)
    tag = fields.optional_binary(2)
    if tag is not None and len(tag) > DELIVERY_TAG_BYTES_MAX:
        raise decode_error("delivery tag of more than 32 bytes")
    return Transfer(
        fields.number(0),
        -1 if delivery_id is None else delivery_id,
        tag,
        fields.number(3, 0),
        fields.boolean(4),
        fields.boolean(5),
        fields.optional_number(6, 1),
        read_state(fields.value(7)),
        fields.boolean(8),
        fields.boolean(9),
        fields.boolean(10),
    )


def decode_transfer(data: bytes, at: int, end: int) -> tuple[Transfer, int]:
    """The transfer whose descriptor ends at `at`, and where its body begins."""
    value, at = decode_within(data, at, end)
    return read_transfer(Fields("transfer", value, 11)), at


def remember_ending(ending: bytes, count: int, transfer: Transfer) -> None:
    """Note how a plain transfer of `count` fields ends, to know the next one by it."""
    special = transfer.more or transfer.aborted or transfer.resume
    if special or transfer.state is not None or len(ending) > _REMEMBERED_BYTES_MAX:
        return
    if len(PLAIN_ENDINGS) >= _REMEMBERED_MAX:
        PLAIN_ENDINGS.clear()
    PLAIN_ENDINGS[ending] = (count, transfer.message_format, transfer.settled)


_DispositionTail = tuple[int, bool, DeliveryState | None, bool]
_disposition_tails: dict[bytes, _DispositionTail] = {}


def read_disposition(fields: Fields) -> Disposition:
    """A disposition from its decoded fields."""
    first = fields.number(1)
    last = fields.optional_number(2)
    return Disposition(
        fields.mandatory_boolean(0),
        first,
        first if last is None else last,
        fields.boolean(3),
        read_state(fields.value(4)),
        fields.boolean(5),
    )


def decode_disposition(data: bytes, at: int, end: int) -> tuple[Disposition, int]:
    """The disposition whose descriptor ends at `at`, and where it ends."""
    # 15 bytes hold the longest start of a list8: size, count, role, two numbers of 5.
    if end - at > 15 and data[at] == 0xC0:
        stop = at + 2 + data[at + 1]
        code = data[at + 3]
        p = at + 4
        if code == 0x41:
            role = True
        elif code == 0x42:
            role = False
        elif code == 0x56 and data[p] < 2:
            role = data[p] == 1
            p += 1
        else:
            return _decode_any_disposition(data, at, end)
        code = data[p]
        if code == 0x70:
            first: int = U32.unpack_from(data, p + 1)[0]
            p += 5
        elif code == 0x52:
            first = data[p + 1]
            p += 2
        elif code == 0x43:
            first = 0
            p += 1
        else:
            return _decode_any_disposition(data, at, end)
        code = data[p]
        if code == 0x40:
            last = first
            p += 1
        elif code == 0x70:
            last = U32.unpack_from(data, p + 1)[0]
            p += 5
        elif code == 0x52:
            last = data[p + 1]
            p += 2
        elif code == 0x43:
            last = 0
            p += 1
        else:
            return _decode_any_disposition(data, at, end)
        if p <= stop <= end:
            tail = data[p:stop]
            known = _disposition_tails.get(tail)
            if known is None:
                known = _learn_disposition_tail(data, at, end, tail)
            if known[0] == data[at + 2]:
                return Disposition(role, first, last, known[1], known[2], known[3]), stop
    return _decode_any_disposition(data, at, end)


def _decode_any_disposition(data: bytes, at: int, end: int) -> tuple[Disposition, int]:
    value, at = decode_within(data, at, end)
    return read_disposition(Fields("disposition", value, 6)), at


def _learn_disposition_tail(data: bytes, at: int, end: int, tail: bytes) -> _DispositionTail:
    disposition, _ = _decode_any_disposition(data, at, end)
    known = (data[at + 2], disposition.settled, disposition.state, disposition.batchable)
    passing = isinstance(disposition.state, TransactionalState)  # every transaction has its own id
    if len(tail) <= _REMEMBERED_BYTES_MAX and not passing:
        if len(_disposition_tails) >= _REMEMBERED_MAX:
            _disposition_tails.clear()
        _disposition_tails[tail] = known
    return known
