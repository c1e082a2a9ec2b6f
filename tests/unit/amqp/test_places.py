"""What a peer can make us keep: sessions, links and channel numbers, and what it is told beyond."""

import pytest

from tests.unit.amqp.wiring import (
    MECHANISMS,
    Shell,
    attach_frame,
    begin_frame,
    frame,
    open_flight,
    sasl_flight,
    sent,
)
from twinbus.amqp.composites import AmqpError, Source, Target
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import ConnectionClosed, LinkAttached, SessionBegun, SessionEnded
from twinbus.amqp.frames import AMQP_HEADER
from twinbus.amqp.performatives import RECEIVER, SENDER, Attach, Begin, Detach, End, Flow, Open
from twinbus.amqp.places import Places, ServerPlaces
from twinbus.amqp.settings import ConnectionSettings
from twinbus.amqp.states import ENDED, MAPPED, SERVER
from twinbus.amqp.transfers import Disposition, Transfer
from twinbus.limits import (
    ATTACH_SIZE_BYTES_MAX,
    CHANNELS_MAX,
    CONNECTION_LINKS_MAX,
    HANDLES_MAX,
    PLACES_FREE,
    PLACES_MAX,
    STRANGER_PLACES_MAX,
)

EXCEEDED = "amqp:resource-limit-exceeded"


def opened(server: ServerPlaces, is_known: bool = True, peer_channel_max: int = 65_535) -> Shell:
    """A server's side of a connection that is open and has no session yet."""
    settings = ConnectionSettings("server", sasl_mechanisms=MECHANISMS, places=server)
    shell = Shell(Connection(SERVER, settings))
    shell.feed(sasl_flight())
    shell.feed(AMQP_HEADER + frame(0, Open("peer", "broker", 65_536, peer_channel_max)))
    if is_known:
        shell.connection.places.know()
    shell.connection.data_to_send()
    return shell


def error_of(performative: object) -> AmqpError:
    assert isinstance(performative, Detach | End)
    assert performative.error is not None
    return performative.error


def closed_with(shell: Shell) -> str:
    event = shell.events[-1]
    assert isinstance(event, ConnectionClosed)
    assert event.error is not None
    return event.error.condition


# --- channels ------------------------------------------------------------------------------------
def test_the_announced_channel_max_is_that_of_service_bus() -> None:
    shell = Shell(Connection(SERVER, ConnectionSettings("server", sasl_mechanisms=MECHANISMS)))
    shell.feed(sasl_flight())
    shell.connection.data_to_send()
    shell.feed(open_flight())
    (answer,) = sent(shell.connection)
    assert isinstance(answer, Open)
    assert answer.channel_max == 4_999


def test_every_channel_can_have_its_session_and_none_above() -> None:
    shell = opened(ServerPlaces())
    shell.feed(b"".join(begin_frame(channel) for channel in range(CHANNELS_MAX)))
    assert sum(isinstance(each, SessionBegun) for each in shell.events) == CHANNELS_MAX
    shell.feed(begin_frame(CHANNELS_MAX))
    assert closed_with(shell) == "amqp:connection:framing-error"


@pytest.mark.proves("M-17")
def test_link_and_session_closed_in_one_breath_and_the_channel_used_again() -> None:
    """.NET sends detach and end without waiting, and begins on the same channel at once."""
    shell = opened(ServerPlaces())
    again = begin_frame(7) + attach_frame(RECEIVER, 0, "link", 7)
    shell.feed(again)
    link = shell.connection.channels.sessions[7].links[0]
    link.lingers = True  # as the server has it: its detach comes later, or never
    shell.connection.data_to_send()
    shell.feed(frame(7, Detach(0, True)) + frame(7, End()) + again)
    assert [type(each) for each in sent(shell.connection)] == [End, Begin, Attach]
    assert not shell.connection.finished
    link.detach()
    assert sent(shell.connection) == []  # the late detach of the old link is none of the new one's
    assert shell.connection.places.taken == 2


def test_a_session_that_the_peer_has_ended_is_kept_nowhere() -> None:
    shell = opened(ServerPlaces())
    for channel in range(100):
        shell.feed(begin_frame(channel) + attach_frame(SENDER, 0, f"l{channel}", channel))
        shell.feed(frame(channel, End()))
        # pyamqp detaches after end
        assert shell.feed(frame(channel, Detach(0, True))) == []
    assert shell.connection.channels.sessions == {}
    assert shell.connection.places.taken == 0
    assert not shell.connection.finished


def test_our_answers_stay_within_the_channels_of_the_peer() -> None:
    shell = opened(ServerPlaces(), peer_channel_max=1)
    shell.feed(begin_frame(9) + begin_frame(0))
    first, second = (shell.connection.channels.sessions[number].channel for number in (9, 0))
    assert {first, second} == {0, 1}
    shell.feed(frame(9, End()) + begin_frame(4))
    assert shell.connection.channels.sessions[4].channel == first
    shell.feed(begin_frame(5))
    assert closed_with(shell) == "amqp:connection:framing-error"


# --- sessions beyond -----------------------------------------------------------------------------
def test_a_session_beyond_what_the_server_has_is_ended() -> None:
    server = ServerPlaces()
    shell = opened(server)
    shell.feed(b"".join(begin_frame(channel) for channel in range(PLACES_FREE)))
    server.taken = PLACES_MAX
    shell.connection.data_to_send()
    assert shell.feed(begin_frame(100)) == []
    begin, end = sent(shell.connection)
    assert isinstance(begin, Begin)
    assert begin.remote_channel == 100
    assert error_of(end).condition == EXCEEDED
    assert str(PLACES_MAX) in str(error_of(end).description)
    # What the peer sent before it heard of it is dropped, until it ends too.
    flow = frame(100, Flow(0, 10, 0, 10))
    transfer = frame(100, Transfer(0, 0, b"t"), b"x")
    disposition = frame(100, Disposition(RECEIVER, 0, 5, True))
    attach = attach_frame(SENDER, 0, "l", 100)
    assert shell.feed(attach + flow + transfer + disposition) == []
    assert shell.connection.channels.peer_state(100) == MAPPED
    assert shell.feed(frame(100, End())) == []
    assert shell.connection.channels.peer_state(100) == ENDED
    assert sent(shell.connection) == []
    server.taken = PLACES_FREE
    assert isinstance(shell.feed(begin_frame(100))[0], SessionBegun)


def test_a_refused_channel_cannot_begin_before_it_has_ended() -> None:
    server = ServerPlaces()
    shell = opened(server)
    shell.feed(b"".join(begin_frame(channel) for channel in range(PLACES_FREE)))
    server.taken = PLACES_MAX
    shell.feed(begin_frame(100))
    shell.feed(begin_frame(100))
    assert closed_with(shell) == "amqp:illegal-state"


# --- strangers -----------------------------------------------------------------------------------
def test_strangers_share_few_places_and_each_has_some_of_its_own() -> None:
    server = ServerPlaces()
    greedy = [opened(server, is_known=False) for _ in range(3)]
    for shell in greedy:
        shell.feed(b"".join(begin_frame(channel) for channel in range(CHANNELS_MAX)))
    kept = [len(shell.connection.channels.sessions) for shell in greedy]
    assert kept == [CHANNELS_MAX, CHANNELS_MAX, PLACES_FREE]
    assert server.strangers == STRANGER_PLACES_MAX + PLACES_FREE
    # Others come in all the same, and whoever has shown a token is no stranger.
    shell = opened(server, is_known=False)
    shell.feed(begin_frame(0) + attach_frame(SENDER, 0, "$cbs", 0))
    assert isinstance(shell.events[-1], LinkAttached)
    shell.connection.places.know()
    shell.feed(b"".join(begin_frame(channel) for channel in range(1, 100)))
    assert len(shell.connection.channels.sessions) == 100
    assert server.taken == 101
    for each in (*greedy, shell):
        each.connection.places.close()
    assert (server.taken, server.strangers) == (0, 0)


def test_sessions_begun_before_the_token_are_kept_after_it() -> None:
    """Java begins the sessions of all its entities before it has its first token's answer."""
    server = ServerPlaces()
    shell = opened(server, is_known=False)
    shell.feed(b"".join(begin_frame(channel) for channel in range(300)))
    shell.connection.places.know()
    assert (server.taken, server.strangers) == (300, 0)
    assert sum(isinstance(each, SessionBegun) for each in shell.events) == 300


# --- links beyond --------------------------------------------------------------------------------
def test_a_link_beyond_what_a_connection_may_have_is_detached() -> None:
    shell = opened(ServerPlaces())
    shell.feed(begin_frame(0))
    shell.connection.places.link_count = CONNECTION_LINKS_MAX
    shell.connection.data_to_send()
    assert shell.feed(attach_frame(SENDER, 0, "one more", 0)) == []
    attach, detach = sent(shell.connection)
    assert isinstance(attach, Attach)
    assert attach.target is None
    assert error_of(detach).condition == EXCEEDED
    assert str(CONNECTION_LINKS_MAX) in str(error_of(detach).description)
    # Frames for it are dropped until the peer detaches; the session goes on.
    shell.feed(frame(0, Transfer(0, 0, b"t"), b"x") + frame(0, Detach(0, True)))
    shell.connection.places.link_count = 1
    (event,) = shell.feed(attach_frame(SENDER, 0, "one more", 0))
    assert isinstance(event, LinkAttached)


@pytest.mark.parametrize("is_known", [True, False])
def test_who_attaches_on_and_on_beyond_a_limit_is_hung_up_on(is_known: bool) -> None:
    server = ServerPlaces()
    shell = opened(server, is_known)
    shell.feed(begin_frame(0))
    for handle in range(PLACES_FREE - 1):
        shell.feed(attach_frame(SENDER, handle, f"l{handle}", 0))
    server.taken, server.strangers = PLACES_MAX, STRANGER_PLACES_MAX
    patience = HANDLES_MAX if is_known else PLACES_FREE
    for handle in range(100, 100 + patience):
        assert shell.feed(attach_frame(SENDER, handle, f"l{handle}", 0)) == []
    shell.feed(attach_frame(SENDER, 99, "the last", 0))
    assert closed_with(shell) == EXCEEDED


def test_links_give_their_places_back() -> None:
    server = ServerPlaces()
    shell = opened(server)
    shell.feed(begin_frame(0) + begin_frame(1))
    for handle in range(5):
        shell.feed(attach_frame(SENDER, handle, f"a{handle}", 0))
        shell.feed(attach_frame(RECEIVER, handle, f"b{handle}", 1))
    assert (server.taken, shell.connection.places.link_count) == (12, 10)
    shell.feed(frame(0, Detach(2, True)))
    shell.connection.channels.sessions[0].links[3].detach()
    assert server.taken == 11  # the one that the peer has yet to detach counts
    shell.feed(frame(0, Detach(3, True)))
    assert server.taken == 10
    shell.feed(frame(1, End()))
    assert isinstance(shell.events[-1], SessionEnded)
    assert (server.taken, shell.connection.places.link_count) == (4, 3)
    shell.connection.close()
    shell.connection.places.close()
    assert server.taken == 0


def test_nothing_is_given_back_twice() -> None:
    server = ServerPlaces()
    places = Places(server)
    places.take()
    places.know()
    places.know()
    places.take_link()
    assert (server.taken, server.strangers) == (2, 0)
    places.close()
    places.give_link()
    places.close()
    assert (server.taken, server.strangers) == (0, 0)


def test_an_attach_that_would_be_much_to_keep_is_refused() -> None:
    shell = opened(ServerPlaces())
    shell.feed(begin_frame(0))
    long = Attach("n" * ATTACH_SIZE_BYTES_MAX, 0, SENDER, 0, 0, Source("a"), Target("b"))
    long.initial_delivery_count = 0
    shell.feed(frame(0, long))
    assert closed_with(shell) == EXCEEDED
