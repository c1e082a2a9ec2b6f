"""C1 to C6 and C9: any bytes, in any order, in any pieces.

The oracle of all of them: receive_data answers with events or with a close, never with an
exception; what we send back is always well-formed; what we keep stays within the limits; and how
the bytes were cut into pieces makes no difference.
"""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.amqp.wiring import (
    Pair,
    Shell,
    attach_frame,
    begin_frame,
    describe,
    frame,
    make_server,
    open_flight,
    read_frames,
    sasl_flight,
)
from twinbus.amqp.composites import (
    Accepted,
    AmqpError,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
)
from twinbus.amqp.connection import Connection
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.events import ConnectionClosed, SaslInitReceived
from twinbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, TLS_HEADER, Event
from twinbus.amqp.ingress import IngressLink
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
)
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.limits import (
    CHANNELS_MAX,
    EGRESS_CREDIT_MAX,
    FRAME_SIZE_BYTES_MAX,
    HANDLES_MAX,
    PARTIAL_DELIVERY_BYTES_MAX,
    UNSETTLED_COUNT_MAX,
)


# --- the oracle ----------------------------------------------------------------------------------
def check_bounds(connection: Connection) -> None:
    assert connection._buffer.unread_bytes() <= FRAME_SIZE_BYTES_MAX
    assert 0 <= connection._wire.partial_bytes <= PARTIAL_DELIVERY_BYTES_MAX
    assert connection._wire.held_bytes >= 0
    assert len(connection.channels.sessions) <= CHANNELS_MAX
    sessions = set(connection.channels.sessions.values()) | set(connection.channels.own.values())
    links = [link for session in sessions for link in session._handles.values()]
    places = connection.places
    assert places.taken == len(sessions) + len(links)
    assert places.link_count == len(links)
    unsettled = sum(link.unsettled_count for link in links if isinstance(link, EgressLink))
    assert connection.unsettled_count == unsettled
    for session in connection.channels.sessions.values():
        assert len(session.links) <= HANDLES_MAX + places.refused_max
        for link in session.links.values():
            if isinstance(link, EgressLink):
                assert 0 <= link.credit <= EGRESS_CREDIT_MAX
                assert 0 <= link.unsettled_count <= UNSETTLED_COUNT_MAX
            elif isinstance(link, IngressLink):
                assert link.partial is None or len(link.partial) <= link.max_message_size


def check_events(events: list[Event]) -> None:
    closed = [n for n, event in enumerate(events) if isinstance(event, ConnectionClosed)]
    assert closed in ([], [len(events) - 1])


class Busy(Shell):
    """A shell that also sends, settles and drains whenever it can."""

    def feed(self, data: bytes) -> list[Event]:
        events = super().feed(data)
        for session in self.connection.channels.sessions.values():
            for link in list(session.links.values()):
                if isinstance(link, EgressLink):
                    for _ in range(min(3, link.credit)):
                        link.send(bytes(16), b"prefix", b"bare", False, None)
                    link.settle(list(session.deliveries.unsettled)[:2], b"\x00\x53\x24\x45")
                    link.drained()
                elif isinstance(link, IngressLink) and link.unsettled_count:
                    link.settle(0, 0, b"\x00\x53\x24\x45")
        return events


def run(shell: Shell, pieces: list[bytes]) -> None:
    for piece in pieces:
        shell.feed(piece)
        check_bounds(shell.connection)
        read_frames(b"".join(shell.connection.data_to_send()))
    check_events(shell.events)
    if shell.connection.finished:
        assert shell.feed(begin_frame(3)) == []


def observe(data: bytes, cuts: list[int]) -> list[tuple[object, ...]]:
    """The events of `data` cut at `cuts`, when nobody answers anything but SASL."""
    connection = make_server()
    events: list[Event] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        queue = connection.receive_data(data[start:end])
        while queue:
            event = queue.pop(0)
            events.append(event)
            if isinstance(event, SaslInitReceived):
                queue.extend(connection.sasl_accept())
    check_events(events)
    return [describe(event) for event in events]


# --- what a peer may send ------------------------------------------------------------------------
uints = st.sampled_from([0, 1, 2, 3, 4, 255, 256, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
handles = st.sampled_from([0, 1, 2, 300, 65_535, 65_536, 0xFFFF_FFFF])
few = st.sampled_from([0, 1, 2, 3])
booleans = st.booleans()
bodies = st.sampled_from([b"", b"x", bytes(700)])
errors = st.sampled_from([None, AmqpError("amqp:internal-error", "why", {"a": 1})])
delivery_states: st.SearchStrategy[DeliveryState | None] = st.sampled_from(
    [None, Accepted(), Released(), Rejected(AmqpError("a:b")), Modified(True, False)]
)
numbers_or_none = st.none() | uints

attaches = st.builds(
    Attach,
    st.sampled_from(["a", "b", ""]),
    handles,
    booleans,
    few.filter(lambda n: n < 3),
    few.filter(lambda n: n < 2),
    st.sampled_from([None, Source("a"), Source("q", filter={"x": None})]),
    st.sampled_from([None, Target("b")]),
    st.none(),
    booleans,
    numbers_or_none,
    numbers_or_none,
)
flows = st.builds(
    Flow,
    numbers_or_none,
    uints,
    uints,
    uints,
    st.none() | handles,
    numbers_or_none,
    numbers_or_none,
    numbers_or_none,
    booleans,
    booleans,
)
transfers = st.builds(
    Transfer,
    handles,
    st.sampled_from([-1, 0, 1, 2, 0xFFFF_FFFF]),
    st.sampled_from([None, b"", b"tag", bytes(32)]),
    st.sampled_from([0, 0x80013700]),
    booleans,
    booleans,
    st.none(),
    delivery_states,
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
)
dispositions = st.builds(Disposition, booleans, uints, uints, booleans, delivery_states)
detaches = st.builds(Detach, handles, booleans, errors)
begins = st.builds(Begin, st.sampled_from([None, None, None, 1]), uints, uints, uints, uints)
rare = st.one_of(
    st.builds(End, errors),
    st.builds(Close, errors),
    st.builds(Open, st.just("x"), st.none(), uints),
    begins,
)
performatives = st.one_of(attaches, attaches, flows, transfers, transfers, dispositions, detaches)
channels = st.sampled_from([1, 1, 1, 1, 1, 1, 2, 63, 64, 65_535])
frames = st.one_of(
    st.builds(frame, channels, performatives, bodies),
    st.builds(frame, channels, performatives, st.just(b"")),
    st.builds(frame, channels, rare),
    st.just(EMPTY_FRAME),
)
links = st.sampled_from([attach_frame(SENDER, 0, "x"), attach_frame(RECEIVER, 1, "y")])


@given(st.lists(st.one_of(frames, frames, links), max_size=30))
def test_any_sequence_of_performatives(pieces: list[bytes]) -> None:
    shell = Busy(make_server())
    run(shell, [sasl_flight(), open_flight(512), begin_frame(1), *pieces])


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 10_000), max_size=8))
def test_pieces_make_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    data = sasl_flight() + open_flight(512) + begin_frame(1) + b"".join(pieces)
    whole = observe(data, [])
    assert observe(data, cuts) == whole
    assert observe(data, list(range(len(data)))) == whole


@given(
    st.sampled_from([b"", SASL_HEADER, AMQP_HEADER, TLS_HEADER, sasl_flight()]),
    st.binary(max_size=200),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_random_bytes_before_open(start: bytes, noise: bytes, cuts: list[int]) -> None:
    shell = Busy(make_server())
    run(shell, [start, noise, noise])
    assert observe(start + noise, cuts) == observe(start + noise, [])


@given(st.binary(max_size=300))
def test_random_bytes_after_open(noise: bytes) -> None:
    shell = Busy(make_server())
    run(shell, [sasl_flight(), open_flight() + begin_frame(1), attach_frame(SENDER, 1), noise])


def conversation() -> list[bytes]:
    """What a client of ours sends in an ordinary run, in flights."""
    pair = Pair()
    flights: list[bytes] = []

    def exchange() -> None:
        while data := b"".join(pair.client.connection.data_to_send()):
            flights.append(data)
            pair.server.feed(data)
            pair.client.feed(b"".join(pair.server.connection.data_to_send()))

    exchange()
    sender = pair.session.attach_sender("s", Source("s"), Target("q"), 0, 1)
    receiver = pair.session.attach_receiver("r", Source("q"), Target("r"), 0, 1)
    exchange()
    for n in range(5):
        sender.send(bytes([n]), b"", bytes(40), n == 3, None)
    receiver.grant(10)
    exchange()
    receiver.settle(0, 3, Accepted().encode(), False)
    receiver.grant(0, True)
    receiver.detach()
    exchange()
    pair.session.end()
    pair.client.connection.close()
    exchange()
    return flights


CONVERSATION = conversation()


@given(
    st.lists(
        st.tuples(st.integers(0, sum(map(len, CONVERSATION)) - 1), st.integers(0, 7)),
        min_size=1,
        max_size=4,
    )
)
def test_flipped_bits_of_an_ordinary_run(flips: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(CONVERSATION))
    for at, bit in flips:
        data[at] ^= 1 << bit
    pieces: list[bytes] = []
    for flight in CONVERSATION:
        pieces.append(bytes(data[: len(flight)]))
        del data[: len(flight)]
    run(Busy(make_server()), pieces)
    whole = b"".join(pieces)
    assert observe(whole, [7, 50, 51, 200]) == observe(whole, [])


@given(st.integers(0, 2**32))
def test_ordinary_run_in_random_pieces(seed: int) -> None:
    """With a shell that answers, each flight may be cut anywhere."""
    whole = Shell(make_server())
    for flight in CONVERSATION:
        whole.feed(flight)
    expected = [describe(event) for event in whole.events]
    assert expected[-1] == ("ConnectionClosed", "", True)
    rng = random.Random(seed)
    cut = Shell(make_server())
    for flight in CONVERSATION:
        at = 0
        while at < len(flight):
            size = rng.choice([1, 2, 9, 60, 1_000])
            cut.feed(flight[at : at + size])
            at += size
    assert [describe(event) for event in cut.events] == expected


def test_fragments_of_one_byte_do_not_multiply_memory() -> None:
    """C4: a delivery in a hundred thousand frames costs its bytes, not an object for each."""
    shell = Shell(make_server())
    shell.feed(sasl_flight())
    shell.feed(open_flight() + begin_frame(1))
    shell.feed(attach_frame(SENDER, 1))
    part = frame(1, Transfer(1, 0, b"t", 0, False, True), b"x")
    for _ in range(100):
        assert shell.feed(part * 1_000) == []
    link = shell.connection.channels.sessions[1].links[1]
    assert isinstance(link, IngressLink)
    assert isinstance(link.partial, bytearray)
    assert shell.connection._wire.partial_bytes == len(link.partial) == 100_000
