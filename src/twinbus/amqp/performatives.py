"""Performatives: what a frame asks for (OASIS AMQP 1.0 part 2.7).

decode_performative() reads any of them.  `transfer` and `disposition`, of which there is one or
more per message, live in `transfers.py`, those of SASL in `sasl_performatives.py`.  open, begin and
attach are written with all their fields, nulls included, because azure-servicebus indexes them
without looking.
"""

from typing import Final

from twinbus.amqp.composites import (
    AmqpError,
    Coordinator,
    Performative,
    Source,
    Target,
    descriptor_code,
    put_composite,
    read_error,
    read_source,
    read_target,
)
from twinbus.amqp.decoding import decode_error, decode_within
from twinbus.amqp.fields import (
    UINT_MAX,
    ULONG_MAX,
    Fields,
    composite,
    put_boolean,
    put_map,
    put_string,
    put_symbol_map,
    put_symbols,
    put_ubyte,
    put_uint,
    put_ulong,
    put_ushort,
)
from twinbus.amqp.sasl_performatives import read_sasl
from twinbus.amqp.transfers import (
    decode_disposition,
    decode_transfer,
    read_disposition,
    read_transfer,
)
from twinbus.amqp.types import Described

SENDER: Final = False  # values of `role`
RECEIVER: Final = True

UNSETTLED: Final = 0  # values of `snd_settle_mode`
SETTLED: Final = 1
MIXED: Final = 2
FIRST: Final = 0  # values of `rcv_settle_mode`
SECOND: Final = 1


class Open(Performative):
    """Begins a connection; says what one is prepared to take."""

    __slots__ = (
        "channel_max",
        "container_id",
        "desired_capabilities",
        "hostname",
        "idle_time_out",
        "incoming_locales",
        "max_frame_size",
        "offered_capabilities",
        "outgoing_locales",
        "properties",
    )

    def __init__(
        self,
        container_id: str,
        hostname: str | None = None,
        max_frame_size: int = UINT_MAX,
        channel_max: int = 65_535,
        idle_time_out: int | None = None,
        outgoing_locales: list[str] | None = None,
        incoming_locales: list[str] | None = None,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: dict[object, object] | None = None,
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.channel_max = channel_max
        self.idle_time_out = idle_time_out  # milliseconds
        self.outgoing_locales: list[str] = outgoing_locales or []
        self.incoming_locales: list[str] = incoming_locales or []
        self.offered_capabilities: list[str] = offered_capabilities or []
        self.desired_capabilities: list[str] = desired_capabilities or []
        self.properties = properties

    def encode(self) -> bytes:
        return composite(
            0x10,
            [
                put_string(self.container_id),
                put_string(self.hostname),
                put_uint(self.max_frame_size),
                put_ushort(self.channel_max),
                put_uint(self.idle_time_out),
                put_symbols(self.outgoing_locales),
                put_symbols(self.incoming_locales),
                put_symbols(self.offered_capabilities),
                put_symbols(self.desired_capabilities),
                put_symbol_map(self.properties),
            ],
        )


class Begin(Performative):
    """Begins a session on a channel."""

    __slots__ = (
        "desired_capabilities",
        "handle_max",
        "incoming_window",
        "next_outgoing_id",
        "offered_capabilities",
        "outgoing_window",
        "properties",
        "remote_channel",
    )

    def __init__(
        self,
        remote_channel: int | None,
        next_outgoing_id: int,
        incoming_window: int,
        outgoing_window: int,
        handle_max: int = UINT_MAX,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: dict[object, object] | None = None,
    ) -> None:
        self.remote_channel = remote_channel
        self.next_outgoing_id = next_outgoing_id
        self.incoming_window = incoming_window
        self.outgoing_window = outgoing_window
        self.handle_max = handle_max
        self.offered_capabilities: list[str] = offered_capabilities or []
        self.desired_capabilities: list[str] = desired_capabilities or []
        self.properties = properties

    def encode(self) -> bytes:
        return composite(
            0x11,
            [
                put_ushort(self.remote_channel),
                put_uint(self.next_outgoing_id),
                put_uint(self.incoming_window),
                put_uint(self.outgoing_window),
                put_uint(self.handle_max),
                put_symbols(self.offered_capabilities),
                put_symbols(self.desired_capabilities),
                put_symbol_map(self.properties),
            ],
        )


class Attach(Performative):
    """Begins a link in a session."""

    __slots__ = (
        "desired_capabilities",
        "handle",
        "incomplete_unsettled",
        "initial_delivery_count",
        "max_message_size",
        "name",
        "offered_capabilities",
        "properties",
        "rcv_settle_mode",
        "role",
        "snd_settle_mode",
        "source",
        "target",
        "unsettled",
    )

    def __init__(
        self,
        name: str,
        handle: int,
        role: bool,
        snd_settle_mode: int = MIXED,
        rcv_settle_mode: int = FIRST,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        unsettled: dict[object, object] | None = None,
        incomplete_unsettled: bool = False,
        initial_delivery_count: int | None = None,
        max_message_size: int | None = None,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
        properties: dict[object, object] | None = None,
    ) -> None:
        self.name = name
        self.handle = handle
        self.role = role
        self.snd_settle_mode = snd_settle_mode
        self.rcv_settle_mode = rcv_settle_mode
        self.source = source
        self.target: Target | Coordinator | None = target
        self.unsettled = unsettled
        self.incomplete_unsettled = incomplete_unsettled
        self.initial_delivery_count = initial_delivery_count
        self.max_message_size = max_message_size
        self.offered_capabilities: list[str] = offered_capabilities or []
        self.desired_capabilities: list[str] = desired_capabilities or []
        self.properties = properties

    def encode(self) -> bytes:
        return composite(
            0x12,
            [
                put_string(self.name),
                put_uint(self.handle),
                put_boolean(self.role),
                put_ubyte(self.snd_settle_mode),
                put_ubyte(self.rcv_settle_mode),
                put_composite(self.source),
                put_composite(self.target),
                put_map(self.unsettled),
                put_boolean(self.incomplete_unsettled),
                put_uint(self.initial_delivery_count),
                put_ulong(self.max_message_size),
                put_symbols(self.offered_capabilities),
                put_symbols(self.desired_capabilities),
                put_symbol_map(self.properties),
            ],
        )


class Flow(Performative):
    """States session windows and, with a handle, a link's credit."""

    __slots__ = (
        "available",
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
        "properties",
    )

    def __init__(
        self,
        next_incoming_id: int | None,
        incoming_window: int,
        next_outgoing_id: int,
        outgoing_window: int,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        available: int | None = None,
        drain: bool = False,
        echo: bool = False,
        properties: dict[object, object] | None = None,
    ) -> None:
        self.next_incoming_id = next_incoming_id
        self.incoming_window = incoming_window
        self.next_outgoing_id = next_outgoing_id
        self.outgoing_window = outgoing_window
        self.handle = handle
        self.delivery_count = delivery_count
        self.link_credit = link_credit
        self.available = available
        self.drain = drain
        self.echo = echo
        self.properties = properties

    def encode(self) -> bytes:
        return composite(
            0x13,
            [
                put_uint(self.next_incoming_id),
                put_uint(self.incoming_window),
                put_uint(self.next_outgoing_id),
                put_uint(self.outgoing_window),
                put_uint(self.handle),
                put_uint(self.delivery_count),
                put_uint(self.link_credit),
                put_uint(self.available),
                put_boolean(self.drain),
                put_boolean(self.echo),
                put_symbol_map(self.properties),
            ],
        )


class Detach(Performative):
    """Ends a link, for good when `closed`."""

    __slots__ = ("closed", "error", "handle")

    def __init__(self, handle: int, closed: bool = False, error: AmqpError | None = None) -> None:
        self.handle = handle
        self.closed = closed
        self.error = error

    def encode(self) -> bytes:
        return composite(
            0x16, [put_uint(self.handle), put_boolean(self.closed), put_composite(self.error)]
        )


class End(Performative):
    """Ends a session."""

    __slots__ = ("error",)

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def encode(self) -> bytes:
        return composite(0x17, [put_composite(self.error)])


class Close(Performative):
    """Ends a connection."""

    __slots__ = ("error",)

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def encode(self) -> bytes:
        return composite(0x18, [put_composite(self.error)])


# --- reading -------------------------------------------------------------------------------------
def decode_performative(data: bytes, at: int, end: int) -> tuple[Performative, int]:
    """The performative at `at` of a frame that ends at `end`, and where the frame's body begins."""
    if end - at > 3 and data[at] == 0x00 and data[at + 1] == 0x53:
        code = data[at + 2]
        if code == 0x14:
            return decode_transfer(data, at + 3, end)
        if code == 0x15:
            return decode_disposition(data, at + 3, end)
    value, at = decode_within(data, at, end)
    if not isinstance(value, Described):
        raise decode_error("frame does not begin with a performative")
    return _read(descriptor_code(value.descriptor), value.value), at


def _read(code: int, values: object) -> Performative:
    if code == 0x10:
        return _read_open(Fields("open", values, 10))
    if code == 0x11:
        return _read_begin(Fields("begin", values, 8))
    if code == 0x12:
        return _read_attach(Fields("attach", values, 14))
    if code == 0x13:
        return _read_flow(Fields("flow", values, 11))
    if code == 0x14:
        return read_transfer(Fields("transfer", values, 11))
    if code == 0x15:
        return read_disposition(Fields("disposition", values, 6))
    if code == 0x16:
        fields = Fields("detach", values, 3)
        return Detach(fields.number(0), fields.boolean(1), read_error(fields.value(2)))
    if code == 0x17:
        return End(read_error(Fields("end", values, 1).value(0)))
    if code == 0x18:
        return Close(read_error(Fields("close", values, 1).value(0)))
    return read_sasl(code, values)


def _read_open(fields: Fields) -> Open:
    return Open(
        fields.text(0),
        fields.optional_text(1),
        fields.number(2, UINT_MAX),
        fields.number(3, 65_535, 65_535),
        fields.optional_number(4),
        fields.texts(5),
        fields.texts(6),
        fields.texts(7),
        fields.texts(8),
        fields.optional_map(9),
    )


def _read_begin(fields: Fields) -> Begin:
    return Begin(
        fields.optional_number(0, 65_535),
        fields.number(1),
        fields.number(2),
        fields.number(3),
        fields.number(4, UINT_MAX),
        fields.texts(5),
        fields.texts(6),
        fields.optional_map(7),
    )


def _read_attach(fields: Fields) -> Attach:
    return Attach(
        fields.text(0),
        fields.number(1),
        fields.mandatory_boolean(2),
        fields.number(3, MIXED, MIXED),
        fields.number(4, FIRST, SECOND),
        read_source(fields.value(5)),
        read_target(fields.value(6)),
        fields.optional_map(7),
        fields.boolean(8),
        fields.optional_number(9),
        fields.optional_number(10, ULONG_MAX),
        fields.texts(11),
        fields.texts(12),
        fields.optional_map(13),
    )


def _read_flow(fields: Fields) -> Flow:
    return Flow(
        fields.optional_number(0),
        fields.number(1),
        fields.number(2),
        fields.number(3),
        fields.optional_number(4),
        fields.optional_number(5),
        fields.optional_number(6),
        fields.optional_number(7),
        fields.boolean(8),
        fields.boolean(9),
        fields.optional_map(10),
    )
