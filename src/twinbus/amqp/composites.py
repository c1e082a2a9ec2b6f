"""Composites that travel inside performatives: errors, termini and delivery states.

They are read from a Described value and write themselves in the form every client reads: a small
numeric descriptor, and `error` always with its three fields (azure-servicebus indexes all three).
Delivery states never change once made, so equal ones may be shared.
"""

from typing import Final

from twinbus.amqp.decoding import decode_error
from twinbus.amqp.fields import (
    NULL,
    ULONG_MAX,
    Fields,
    composite,
    put_binary,
    put_boolean,
    put_string,
    put_symbol,
    put_symbol_map,
    put_symbols,
    put_uint,
    put_ulong,
)
from twinbus.amqp.types import Described


class Composite:
    """Base: something that can be written as a described list."""

    __slots__ = ()

    def encode(self) -> bytes:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.encode().hex(' ')[:120]})"


class Performative(Composite):
    """Base of everything a frame can carry."""

    __slots__ = ()


def put_composite(value: Composite | None) -> bytes:
    """A composite as a field."""
    return NULL if value is None else value.encode()


class AmqpError(Composite):
    """Why something was refused or ended."""

    __slots__ = ("condition", "description", "info")

    def __init__(
        self,
        condition: str,
        description: str | None = None,
        info: dict[object, object] | None = None,
    ) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def encode(self) -> bytes:
        return composite(
            0x1D,
            [put_symbol(self.condition), put_string(self.description), put_symbol_map(self.info)],
        )


# --- termini -------------------------------------------------------------------------------------
class NodeTerminus(Composite):
    """What source and target say alike."""

    __slots__ = (
        "address",
        "capabilities",
        "durable",
        "dynamic",
        "dynamic_node_properties",
        "expiry_policy",
        "timeout",
    )

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.durable = 0
        self.expiry_policy = "session-end"
        self.timeout = 0
        self.dynamic = False
        self.dynamic_node_properties: dict[object, object] | None = None
        self.capabilities: list[str] = []

    def _encode(self, code: int, own: list[bytes]) -> bytes:
        """With what only one of the two has between them and the capabilities."""
        fields = [
            put_string(self.address),
            put_uint(self.durable),
            put_symbol(self.expiry_policy),
            put_uint(self.timeout),
            put_boolean(self.dynamic),
            put_symbol_map(self.dynamic_node_properties),
        ]
        return composite(code, [*fields, *own, put_symbols(self.capabilities)])


class Source(NodeTerminus):
    """Where messages of a link come from."""

    __slots__ = ("default_outcome", "distribution_mode", "filter", "outcomes")

    def __init__(
        self,
        address: str | None = None,
        filter: dict[object, object] | None = None,  # noqa: A002  # the specification's name
    ) -> None:
        super().__init__(address)
        self.distribution_mode: str | None = None
        self.filter = filter
        self.default_outcome: DeliveryState | None = None
        self.outcomes: list[str] = []

    def encode(self) -> bytes:
        mode, wanted = put_symbol(self.distribution_mode), put_symbol_map(self.filter)
        outcome = put_composite(self.default_outcome)
        return self._encode(0x28, [mode, wanted, outcome, put_symbols(self.outcomes)])


class Target(NodeTerminus):
    """Where messages of a link go."""

    __slots__ = ()

    def encode(self) -> bytes:
        return self._encode(0x29, [])


class Coordinator(Composite):
    """The target of a link that controls transactions."""

    __slots__ = ("capabilities",)

    def __init__(self, capabilities: list[str] | None = None) -> None:
        self.capabilities: list[str] = [] if capabilities is None else capabilities

    def encode(self) -> bytes:
        return composite(0x30, [put_symbols(self.capabilities)])


# --- delivery states -----------------------------------------------------------------------------
class DeliveryState(Composite):
    """Base of outcomes and of what a delivery may be in before."""

    __slots__ = ()


class Received(DeliveryState):
    """A part has arrived; where to resume."""

    __slots__ = ("section_number", "section_offset")

    def __init__(self, section_number: int, section_offset: int) -> None:
        self.section_number = section_number
        self.section_offset = section_offset

    def encode(self) -> bytes:
        return composite(0x23, [put_uint(self.section_number), put_ulong(self.section_offset)])


class Accepted(DeliveryState):
    """Outcome: taken; complete, in the words of Service Bus."""

    __slots__ = ()

    def encode(self) -> bytes:
        return ACCEPTED


class Rejected(DeliveryState):
    """Outcome: invalid; dead-letter, in the words of Service Bus."""

    __slots__ = ("error",)

    def __init__(self, error: AmqpError | None = None) -> None:
        self.error = error

    def encode(self) -> bytes:
        return rejected(self.error)


class Released(DeliveryState):
    """Outcome: given back unseen."""

    __slots__ = ()

    def encode(self) -> bytes:
        return RELEASED


class Modified(DeliveryState):
    """Outcome: given back; abandon or (undeliverable here) defer, in the words of Service Bus."""

    __slots__ = ("annotations", "delivery_failed", "undeliverable_here")

    def __init__(
        self,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        annotations: dict[object, object] | None = None,
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.annotations = annotations

    def encode(self) -> bytes:
        return modified(self.delivery_failed, self.undeliverable_here, self.annotations)


class Declare(Composite):
    """Body of a message to the coordinator: begin a transaction."""

    __slots__ = ("global_id",)

    def __init__(self, global_id: bytes | None = None) -> None:
        self.global_id = global_id

    def encode(self) -> bytes:
        return composite(0x31, [put_binary(self.global_id)])


class Discharge(Composite):
    """Body of a message to the coordinator: end a transaction."""

    __slots__ = ("fail", "txn_id")

    def __init__(self, txn_id: bytes, fail: bool = False) -> None:
        self.txn_id = txn_id
        self.fail = fail

    def encode(self) -> bytes:
        return composite(0x32, [put_binary(self.txn_id), put_boolean(self.fail)])


class Declared(DeliveryState):
    """Outcome of declare: the transaction's id."""

    __slots__ = ("txn_id",)

    def __init__(self, txn_id: bytes) -> None:
        self.txn_id = txn_id

    def encode(self) -> bytes:
        return composite(0x33, [put_binary(self.txn_id)])


class TransactionalState(DeliveryState):
    """What belongs to a transaction, with the outcome it will have."""

    __slots__ = ("outcome", "txn_id")

    def __init__(self, txn_id: bytes, outcome: DeliveryState | None = None) -> None:
        self.txn_id = txn_id
        self.outcome = outcome

    def encode(self) -> bytes:
        return composite(0x34, [put_binary(self.txn_id), put_composite(self.outcome)])


ACCEPTED: Final = b"\x00\x53\x24\x45"
RELEASED: Final = b"\x00\x53\x26\x45"
REJECTED: Final = b"\x00\x53\x25\x45"  # without error: the echo of a dead-letter request


def rejected(error: AmqpError | None) -> bytes:
    """The encoded outcome `rejected`."""
    return REJECTED if error is None else composite(0x25, [error.encode()])


def transactional(txn_id: bytes, outcome: bytes) -> bytes:
    """The encoded transactional state around an encoded outcome."""
    return composite(0x34, [put_binary(txn_id), outcome])


def modified(
    delivery_failed: bool, undeliverable_here: bool, annotations: dict[object, object] | None = None
) -> bytes:
    """The encoded outcome `modified`."""
    return composite(
        0x27,
        [
            put_boolean(delivery_failed),
            put_boolean(undeliverable_here),
            put_symbol_map(annotations),
        ],
    )


# --- reading -------------------------------------------------------------------------------------
_SYMBOLS: Final[dict[str, int]] = {
    "amqp:open:list": 0x10,
    "amqp:begin:list": 0x11,
    "amqp:attach:list": 0x12,
    "amqp:flow:list": 0x13,
    "amqp:transfer:list": 0x14,
    "amqp:disposition:list": 0x15,
    "amqp:detach:list": 0x16,
    "amqp:end:list": 0x17,
    "amqp:close:list": 0x18,
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
    "amqp:sasl-mechanisms:list": 0x40,
    "amqp:sasl-init:list": 0x41,
    "amqp:sasl-challenge:list": 0x42,
    "amqp:sasl-response:list": 0x43,
    "amqp:sasl-outcome:list": 0x44,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}


def descriptor_code(descriptor: object) -> int:
    """The numeric code of a descriptor given as number or symbol; -1 when it is neither."""
    if isinstance(descriptor, str):
        return _SYMBOLS.get(str(descriptor), -1)
    if isinstance(descriptor, int) and not isinstance(descriptor, bool):
        return int(descriptor)
    return -1


def read_error(value: object) -> AmqpError | None:
    """The error in a field."""
    if value is None:
        return None
    if not isinstance(value, Described) or descriptor_code(value.descriptor) != 0x1D:
        raise decode_error("not an error")
    fields = Fields("error", value.value, 3)
    return AmqpError(fields.text(0), fields.optional_text(1), fields.optional_map(2))


def _read_node(node: NodeTerminus, fields: Fields) -> None:
    """What source and target begin with; the capabilities come last in both."""
    node.address = fields.optional_text(0)
    node.durable = fields.number(1, 0)
    node.expiry_policy = fields.optional_text(2) or "session-end"
    node.timeout = fields.number(3, 0)
    node.dynamic = fields.boolean(4)
    node.dynamic_node_properties = fields.optional_map(5)


def read_source(value: object) -> Source | None:
    """The source in a field."""
    if value is None:
        return None
    if not isinstance(value, Described) or descriptor_code(value.descriptor) != 0x28:
        raise decode_error("not a source")
    fields = Fields("source", value.value, 11)
    source = Source()
    _read_node(source, fields)
    source.distribution_mode = fields.optional_text(6)
    source.filter = fields.optional_map(7)
    source.default_outcome = read_state(fields.value(8))
    source.outcomes = fields.texts(9)
    source.capabilities = fields.texts(10)
    return source


def read_target(value: object) -> Target | Coordinator | None:
    """The target in a field, which may be the coordinator of transactions."""
    if value is None:
        return None
    code = descriptor_code(value.descriptor) if isinstance(value, Described) else -1
    if not isinstance(value, Described) or code not in (0x29, 0x30):
        raise decode_error("not a target")
    if code == 0x30:
        return Coordinator(Fields("coordinator", value.value, 1).texts(0))
    fields = Fields("target", value.value, 7)
    target = Target()
    _read_node(target, fields)
    target.capabilities = fields.texts(6)
    return target


def read_state(value: object, inside: bool = False) -> DeliveryState | None:
    """The delivery state in a field."""
    if value is None:
        return None
    if not isinstance(value, Described):
        raise decode_error("not a delivery state")
    code = descriptor_code(value.descriptor)
    if code == 0x24:
        Fields("accepted", value.value, 0)
        return Accepted()
    if code == 0x25:
        return Rejected(read_error(Fields("rejected", value.value, 1).value(0)))
    if code == 0x26:
        Fields("released", value.value, 0)
        return Released()
    if code == 0x27:
        fields = Fields("modified", value.value, 3)
        return Modified(fields.boolean(0), fields.boolean(1), fields.optional_map(2))
    if code == 0x23:
        fields = Fields("received", value.value, 2)
        return Received(fields.number(0), fields.number(1, -1, ULONG_MAX))
    if code == 0x33:
        return Declared(Fields("declared", value.value, 1).binary(0))
    if code == 0x34 and not inside:
        fields = Fields("transactional-state", value.value, 2)
        return TransactionalState(fields.binary(0), read_state(fields.value(1), True))
    raise decode_error("unknown delivery state")


def read_transaction_request(value: object) -> Declare | Discharge:
    """The body of a message to the coordinator."""
    code = descriptor_code(value.descriptor) if isinstance(value, Described) else -1
    if isinstance(value, Described) and code == 0x31:
        return Declare(Fields("declare", value.value, 1).optional_binary(0))
    if isinstance(value, Described) and code == 0x32:
        fields = Fields("discharge", value.value, 2)
        return Discharge(fields.binary(0), fields.boolean(1))
    raise decode_error("neither declare nor discharge")
