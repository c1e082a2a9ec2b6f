"""Performatives: every field there and back, defaults, refusals, and what the SDK makes of them."""

import itertools
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp import performatives as sdk
from azure.servicebus._pyamqp._decode import decode_frame as sdk_decode
from azure.servicebus._pyamqp._encode import encode_frame as sdk_encode
from azure.servicebus._pyamqp.endpoints import Source as SdkSource
from azure.servicebus._pyamqp.endpoints import Target as SdkTarget
from azure.servicebus._pyamqp.outcomes import Accepted as SdkAccepted
from azure.servicebus._pyamqp.outcomes import Modified as SdkModified

from twinbus.amqp.composites import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    Accepted,
    AmqpError,
    Composite,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Modified,
    Performative,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    modified,
    read_transaction_request,
    rejected,
)
from twinbus.amqp.decoding import decode_whole
from twinbus.amqp.encoding import encode_value
from twinbus.amqp.frames import (
    FrameBuffer,
    encode_continuation_frame,
    encode_disposition_frame,
    encode_transfer_start,
)
from twinbus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    decode_performative,
)
from twinbus.amqp.sasl_performatives import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.amqp.types import Array, Described, Int, Symbol, UInt, ULong
from twinbus.errors import RemoteProtocolError

ERROR = AmqpError("amqp:not-found", "no such queue", {Symbol("k"): "v"})
SOURCE = Source("queue", {Symbol("com.microsoft:session-filter"): "s"})
SOURCE.durable = 1
SOURCE.expiry_policy = "never"
SOURCE.timeout = 30
SOURCE.dynamic = True
SOURCE.dynamic_node_properties = {Symbol("lifetime-policy"): None}
SOURCE.distribution_mode = "move"
SOURCE.default_outcome = Modified(True, False, {Symbol("a"): Int(1)})
SOURCE.outcomes = ["amqp:accepted:list", "amqp:rejected:list"]
SOURCE.capabilities = ["queue"]
TARGET = Target("queue")
TARGET.durable = 2
TARGET.expiry_policy = "link-detach"
TARGET.timeout = 5
TARGET.dynamic_node_properties = {Symbol("x"): 1}
TARGET.capabilities = ["queue", "topic"]

SAMPLES: list[Performative] = [
    Open("container"),
    Open("c", "host", 4_096, 63, 30_000, ["en"], ["de"], ["a"], ["b", "c"], {Symbol("p"): "v"}),
    Begin(None, 0, 1, 2),
    Begin(1, 4_294_967_295, 65_536, 65_536, 255, ["a"], ["b"], {Symbol("p"): Int(1)}),
    Attach("link", 0, SENDER),
    Attach(
        "l", 9, RECEIVER, 1, 1, SOURCE, TARGET, {b"tag": None}, True, 7, 2**40, ["a"], ["b"], {}
    ),
    Attach("tx", 3, SENDER, 0, 0, Source(), Coordinator(["amqp:local-transactions"])),
    Flow(None, 1, 2, 3),
    Flow(5, 1, 2, 3, 4, 4_294_967_295, 100, 6, True, True, {Symbol("p"): 1}),
    Transfer(0),
    Transfer(1, 5, b"tag", 0x8001_3700, True, True, 1, Received(1, 2**40), True, True, True),
    Transfer(
        300, 2**32 - 1, b"t" * 32, 0, False, False, None, TransactionalState(b"x", Accepted())
    ),
    Disposition(RECEIVER, 0, 0),
    Disposition(SENDER, 5, 900, True, Rejected(ERROR), True),
    Disposition(RECEIVER, 5, 6, False, Released()),
    Disposition(RECEIVER, 5, 5, True, Declared(b"txn")),
    Detach(1),
    Detach(1, True, ERROR),
    End(),
    End(ERROR),
    Close(),
    Close(ERROR),
    SaslMechanisms(["ANONYMOUS", "PLAIN"]),
    SaslInit("PLAIN", b"\x00user\x00key", "host"),
    SaslInit("ANONYMOUS"),
    SaslChallenge(b"c"),
    SaslResponse(b"r"),
    SaslOutcome(0),
    SaslOutcome(1, b"more"),
]


def content(value: object) -> object:
    """What a composite consists of, for comparing."""
    if isinstance(value, Composite):
        names = [name for name in dir(value) if name[0] != "_" and name != "encode"]
        return type(value), {name: content(getattr(value, name)) for name in names}
    return value


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_there_and_back(sample: Performative) -> None:
    data = sample.encode()
    for around in (b"", b"\x01\x02\x03" * 10):
        read, after = decode_performative(around + data + around, len(around), len(around + data))
        assert content(read) == content(sample)
        assert after == len(around) + len(data)
    # With the body of a frame behind it, and the next frame behind that.
    read, after = decode_performative(data + b"body" + b"next", 0, len(data) + 4)
    assert content(read) == content(sample)
    assert after == len(data)
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_performative(data, 0, length)
        assert caught.value.condition == "amqp:decode-error"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_any_form_of_descriptor_and_list(sample: Performative) -> None:
    described = decode_whole(sample.encode())
    assert isinstance(described, Described)
    assert isinstance(described.value, list)
    fields = b"".join(encode_value(field) for field in described.value)
    size, count = (len(fields) + 4).to_bytes(4, "big"), len(described.value).to_bytes(4, "big")
    wide = b"\xd0" + size + count + fields
    assert isinstance(described.descriptor, ULong)
    name = type(sample).__name__.replace("Sasl", "Sasl-").lower()
    for descriptor in (
        b"\x80" + described.descriptor.to_bytes(8, "big"),
        encode_value(Symbol(f"amqp:{name}:list")),
    ):
        data = b"\x00" + descriptor + wide
        read, after = decode_performative(data, 0, len(data))
        assert content(read) == content(sample)
        assert after == len(data)


def performative(code: int, *fields: object) -> bytes:
    return encode_value(Described(ULong(code), list(fields)))


@pytest.mark.parametrize(
    "data",
    [
        b"\x40",  # no performative at all
        encode_value(Described(ULong(0x19), [])),
        encode_value(Described(ULong(0x24), [])),  # an outcome is not a performative
        encode_value(Described(Symbol("amqp:unknown:list"), [])),
        encode_value(Described("amqp:unknown:list", [])),
        encode_value(Described(b"\x10", ["c"])),
        encode_value(Described(True, ["c"])),
        encode_value(Described(ULong(0x10), {"container-id": "c"})),
        encode_value(Described(ULong(0x10), Array(["c"]))),
        performative(0x10),  # open without container-id
        performative(0x10, None),
        performative(0x10, b"binary"),
        performative(0x10, "c", None, True),
        performative(0x10, "c", None, UInt(5), UInt(65_536)),
        performative(0x10, "c", None, Int(-1)),
        performative(0x10, "c", None, None, None, None, Int(1)),
        performative(0x10, "c", None, None, None, None, [Int(1)]),
        performative(0x10, "c", None, None, None, None, None, None, None, None, "map"),
        performative(0x10, "c", *[None] * 10),  # one field too many
        performative(0x11, None, None, UInt(1), UInt(1)),  # begin without next-outgoing-id
        performative(0x12, "l", UInt(0)),  # attach without role
        performative(0x12, "l", UInt(0), UInt(1)),
        performative(0x12, "l", UInt(0), True, UInt(3)),
        performative(0x12, "l", UInt(0), True, UInt(0), UInt(2)),
        performative(0x12, "l", UInt(0), True, None, None, "source"),
        performative(0x12, "l", UInt(0), True, None, None, Described(ULong(0x29), [])),
        performative(0x12, "l", UInt(0), True, None, None, None, Described(ULong(0x28), [])),
        performative(0x13, None, UInt(1), UInt(1)),  # flow without outgoing-window
        performative(0x14),  # transfer without handle
        performative(0x14, UInt(0), UInt(1), b"t" * 33),  # a delivery tag of 33 bytes
        performative(0x14, UInt(0), UInt(1), "tag", UInt(0), False),
        performative(0x14, UInt(0), UInt(1), b"tag", UInt(0), UInt(1), False, None, None),
        performative(0x14, UInt(0), UInt(1), b"tag", UInt(0), False, False, UInt(2)),
        performative(0x15, True),  # disposition without first
        performative(0x15, UInt(1), UInt(1), UInt(1), True, None, None),
        performative(0x15, True, UInt(1), UInt(1), True, Described(ULong(0x1D), [])),
        performative(0x15, True, UInt(1), UInt(1), True, Symbol("accepted-or-not")),
        performative(0x15, True, UInt(1), UInt(1), True, Described(ULong(0x24), [None])),
        performative(0x15, True, UInt(1), UInt(1), True, Described(ULong(0x25), ["error"])),
        performative(
            0x15,
            True,
            UInt(1),
            UInt(1),
            True,
            Described(ULong(0x34), [b"a", Described(ULong(0x34), [b"b"])]),
        ),
        performative(0x16),
        performative(0x17, Described(ULong(0x1D), [None])),  # error without condition
        performative(0x40),
        performative(0x41, None),
        performative(0x42, None),
        performative(0x44, UInt(256)),
    ],
)
def test_bad_performatives_are_decode_errors(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_performative(data, 0, len(data))
    assert caught.value.condition == "amqp:decode-error"


def test_numbers_and_texts_of_any_kind_are_taken() -> None:
    data = performative(0x10, Symbol("c"), "h", ULong(512), Int(7), 1_000, Symbol("en"), ["a", "b"])
    read, _ = decode_performative(data, 0, len(data))
    assert isinstance(read, Open)
    assert (read.container_id, read.max_frame_size, read.channel_max) == ("c", 512, 7)
    assert (read.idle_time_out, read.outgoing_locales) == (1_000, ["en"])
    assert read.incoming_locales == ["a", "b"]
    assert type(read.max_frame_size) is int
    assert type(read.container_id) is str


def test_defaults_of_what_is_left_out() -> None:
    data = performative(0x12, "l", UInt(0), True)
    read, _ = decode_performative(data, 0, len(data))
    assert content(read) == content(Attach("l", 0, True))
    assert isinstance(read, Attach)
    assert (read.snd_settle_mode, read.rcv_settle_mode, read.source) == (2, 0, None)
    data = performative(0x15, False, UInt(3))
    read, _ = decode_performative(data, 0, len(data))
    assert content(read) == content(Disposition(False, 3, 3))


def test_errors_always_have_their_three_fields() -> None:
    described = decode_whole(AmqpError("amqp:internal-error").encode())
    assert described == Described(ULong(0x1D), [Symbol("amqp:internal-error"), None, None])


def test_composites_show_their_bytes() -> None:
    assert repr(Accepted()) == "Accepted(00 53 24 45)"
    with pytest.raises(NotImplementedError):
        Composite().encode()


def test_outcomes() -> None:
    assert Accepted().encode() == ACCEPTED == b"\x00\x53\x24\x45"
    assert Released().encode() == RELEASED
    assert Rejected().encode() == REJECTED == rejected(None)
    assert decode_whole(modified(True, False)) == Described(ULong(0x27), [True, False, None])


def test_transaction_requests() -> None:
    declare = read_transaction_request(decode_whole(Declare(b"g").encode()))
    assert isinstance(declare, Declare)
    assert declare.global_id == b"g"
    discharge = read_transaction_request(decode_whole(Discharge(b"t", True).encode()))
    assert isinstance(discharge, Discharge)
    assert (discharge.txn_id, discharge.fail) == (b"t", True)
    for value in (None, Described(ULong(0x33), [b"t"]), Described(ULong(0x32), [])):
        with pytest.raises(RemoteProtocolError):
            read_transaction_request(value)


# Encodings of one field, valid and not, and what else may stand in its place.
NUMBERS = [
    b"\x43",
    b"\x52\x07",
    b"\x70\x00\x01\x00\x00",
    b"\x53\x07",
    b"\x40",
    b"\x54\xff",
    b"\x41",
]
TAGS = [b"\xa0\x04abcd", b"\xa0\x00", b"\xa0\x20" + b"t" * 32, b"\xa0\x21" + b"t" * 33, b"\x40",
        b"\xb0\x00\x00\x00\x01t", b"\xa1\x01t"]  # fmt: skip
TRANSFER_ENDS = [[], [b"\x43"], [b"\x43", b"\x42", b"\x41"], [b"\x40", b"\x56\x01", b"\x56\x00"],
                 [b"\x43", b"\x42", b"\x42", b"\x40", ACCEPTED, *[b"\x42"] * 3],
                 [b"\x43", b"\x42", b"\x42", b"\x40", b"\x40", *[b"\x42"] * 4],
                 [b"\x41"]]  # fmt: skip
ROLES = [b"\x41", b"\x42", b"\x56\x00", b"\x56\x01", b"\x56\x02", b"\x40", b"\x43"]
DISPOSITION_ENDS = [[], [b"\x41"], [b"\x42", ACCEPTED], [b"\x41", ACCEPTED, b"\x41"],
                    [b"\x40", b"\x40"], [b"\x41", b"\x43"], [b"\x42"] * 4]  # fmt: skip


def read_or_refuse(data: bytes, end: int) -> object:
    try:
        read, after = decode_performative(data, 0, end)
    except RemoteProtocolError:
        return "refused"
    assert after == end - 4
    return content(read)


def check_both_ways(code: int, fields: list[bytes]) -> None:
    """A list8 may take the short way, a list32 never does; they must agree, twice."""
    body = b"".join(fields)
    head = b"\x00\x53" + bytes((code,))
    narrow = head + bytes((0xC0, len(body) + 1, len(fields))) + body + b"body"
    wide = (
        head + b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + body
    )
    expected = read_or_refuse(wide + b"body", len(wide) + 4)
    for _ in range(2):  # the second time from what was remembered
        assert read_or_refuse(narrow, len(narrow)) == expected
        assert read_or_refuse(narrow + b"\xff" * 20, len(narrow)) == expected
    # A count that does not match what is there is refused, also when the end is known by heart.
    for claimed in (len(fields) - 1, len(fields) + 1):
        wrong = head + bytes((0xC0, len(body) + 1, claimed)) + body + b"body"
        assert read_or_refuse(wrong, len(wrong)) == "refused"


def test_transfers_read_the_same_both_ways() -> None:
    for handle, number, tag, rest in itertools.product(NUMBERS, NUMBERS, TAGS, TRANSFER_ENDS):
        check_both_ways(0x14, [handle, number, tag, *rest])


def test_dispositions_read_the_same_both_ways() -> None:
    for role, first, last, rest in itertools.product(ROLES, NUMBERS, NUMBERS, DISPOSITION_ENDS):
        check_both_ways(0x15, [role, first, last, *rest])


# --- whole frames --------------------------------------------------------------------------------
def one_frame(data: bytes) -> tuple[Performative, bytes, int]:
    frames = FrameBuffer(1_048_576)
    frames.feed(data)
    assert frames.next_frame()
    read, body = decode_performative(frames.data, frames.start, frames.end)
    assert frames.end == len(data)
    return read, data[body : frames.end], frames.channel


@pytest.mark.parametrize("tag", [b"", b"\x00\x00\x00\x01", b"t" * 16, b"t" * 32])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("message_format", [0, 0x8001_3700])
def test_transfer_frames(tag: bytes, settled: bool, more: bool, message_format: int) -> None:
    start = encode_transfer_start(7, 3, 70_000, tag, settled, b"prefix", 4, more, message_format)
    read, body, channel = one_frame(start + b"bare")
    expected = Transfer(3, 70_000, tag, message_format, settled, more)
    assert content(read) == content(expected)
    assert (body, channel) == (b"prefixbare", 7)


@pytest.mark.parametrize("more", [False, True])
def test_continuation_frames(more: bool) -> None:
    read, body, channel = one_frame(encode_continuation_frame(7, 3, more, b"rest"))
    assert content(read) == content(Transfer(3, more=more))
    assert (body, channel) == (b"rest", 7)


@pytest.mark.parametrize(
    "state", [b"", ACCEPTED, rejected(ERROR), rejected(AmqpError("c", "d" * 500))]
)
def test_disposition_frames(state: bytes) -> None:
    read, body, channel = one_frame(encode_disposition_frame(2, True, 5, 70_000, True, state))
    assert isinstance(read, Disposition)
    assert (read.role, read.first, read.last, read.settled) == (True, 5, 70_000, True)
    assert (read.state.encode() if read.state else b"") == state
    assert (body, channel) == (b"", 2)


# --- against azure-servicebus --------------------------------------------------------------------
def sdk_frame(frame: object) -> bytes:
    header, body = sdk_encode(frame)  # type: ignore[arg-type]
    assert body is not None
    return bytes(header + b"\x00\x01" + body)


def test_what_the_sdk_sends() -> None:
    source_type: Any = SdkSource
    target_type: Any = SdkTarget
    source = source_type(address="q", filters=None, expiry_policy=None)
    target = target_type(address="t")
    frame: object = sdk.AttachFrame(
        "n", 1, True, 0, 1, source, target, None, None, 0, 1_048_576, None, None, {b"p": "v"}
    )
    read, _, _ = one_frame(sdk_frame(frame))
    assert isinstance(read, Attach)
    assert read.source is not None
    assert isinstance(read.target, Target)
    assert (read.name, read.handle, read.role, read.source.address) == ("n", 1, True, "q")
    for number in (0, 1, 255, 256, 2**32 - 1):
        frame = sdk.TransferFrame(
            1, number, b"\x00\x00\x00\x01", 0, False, False, None, None, None, None, None, b"body"
        )
        read, body, channel = one_frame(sdk_frame(frame))
        assert content(read) == content(Transfer(1, number, b"\x00\x00\x00\x01"))
        assert (body, channel) == (b"body", 1)
        for state, expected in (
            (SdkAccepted(), Accepted()),
            (SdkModified(True, False, None), Modified(True)),
        ):
            frame = sdk.DispositionFrame(True, number, None, False, state, None)
            read, _, _ = one_frame(sdk_frame(frame))
            assert content(read) == content(Disposition(True, number, number, False, expected))


def test_what_the_sdk_understands() -> None:
    """It reads open, begin and attach by index, and finds every field there."""
    code, fields = sdk_decode(memoryview(Open("c", "h", 4_096, 63, 30_000).encode()))
    assert code == 0x10
    assert fields[:5] == [b"c", b"h", 4_096, 63, 30_000]
    assert len(fields) >= 10
    code, fields = sdk_decode(memoryview(Begin(1, 0, 10, 20).encode()))
    assert (code, fields[:4], len(fields)) == (0x11, [1, 0, 10, 20], 8)
    attach = Attach("n", 1, True, 0, 1, SOURCE, TARGET, None, False, 0, 100, None, None, {"p": 1})
    code, fields = sdk_decode(memoryview(attach.encode()))
    assert (code, fields[0], len(fields)) == (0x12, b"n", 14)
    assert fields[13] == {b"p": 1}
    frame = encode_transfer_start(1, 0, 9, UUID(int=5).bytes, False, b"pre", 4) + b"bare"
    code, fields = sdk_decode(memoryview(frame[8:]))
    assert (code, fields[:6]) == (0x14, [0, 9, UUID(int=5).bytes, 0, False, False])
    assert bytes(fields[11]) == b"prebare"
    frame = encode_disposition_frame(1, False, 3, 4, True, rejected(ERROR))
    code, fields = sdk_decode(memoryview(frame[8:]))
    assert (code, fields[:4]) == (0x15, [False, 3, 4, True])
    assert fields[4] == {"rejected": [[b"amqp:not-found", b"no such queue", {b"k": b"v"}]]}
