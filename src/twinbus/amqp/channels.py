"""The sessions of a connection, by the channels of either side."""

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.events import SessionBegun
from twinbus.amqp.frames import Wire
from twinbus.amqp.performatives import Begin, End
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.settings import ConnectionSettings, Peer
from twinbus.amqp.states import (
    BEGIN,
    CLIENT,
    END,
    ENDED,
    ILLEGAL,
    MAPPED,
    REFUSALS,
    SERVER,
    SESSION,
    UNMAPPED,
    advance,
    refusal,
)
from twinbus.errors import LocalProtocolError, RemoteProtocolError


class Channels:
    """Which sessions there are, and which channels are free."""

    __slots__ = ("_ended", "_peer", "_refused", "_role", "_settings", "_wire", "own", "sessions")

    def __init__(self, role: int, settings: ConnectionSettings, peer: Peer, wire: Wire) -> None:
        self._role = role
        self._settings = settings
        self._peer = peer
        self._wire = wire
        self.sessions: dict[int, AmqpSession] = {}  # by the peer's channel, until the peer ends
        self.own: dict[int, AmqpSession] = {}  # by ours
        # Channels of the peer without a session of ours, a bit for each: those it has ended, and
        # those whose begin was refused and that it has yet to end.
        self._ended = 0
        self._refused = 0

    def begin(self, highest: int) -> AmqpSession:
        """Client: begin a session on the first free channel up to this one."""
        channel = 0
        while channel in self.own:
            channel += 1
        if channel > highest:
            raise LocalProtocolError("no channel left on this connection")
        session = AmqpSession(self._wire, channel, self._settings.handle_max)
        self.own[channel] = session
        self._wire.places.take()
        session.begin(None)
        return session

    def abandon(self) -> None:
        """The connection goes, and all sessions with it."""
        for session in self.own.values():
            session.abandon()

    # --- receiving -------------------------------------------------------------------------------
    def peer_state(self, channel: int) -> int:
        """The peer's half of the session on one of its channels."""
        session = self.sessions.get(channel)
        if session is not None:
            return session.peer_state
        if self._refused >> channel & 1:
            return MAPPED
        return ENDED if self._ended >> channel & 1 else UNMAPPED

    def may_receive(self, channel: int, code: int) -> bool:
        """Whether a session's frame is to be looked at; False when it is to be dropped."""
        state = self.peer_state(channel)
        if advance(SESSION, state, code) == ILLEGAL:
            raise RemoteProtocolError(
                f"{refusal(state, code)} (channel {channel})", REFUSALS[state]
            )
        if code == BEGIN:
            return True
        if state == ENDED:
            return False  # pyamqp detaches links after end
        if code == END:
            return True
        session = self.sessions.get(channel)  # others came before it heard our end
        return session is not None and session.own_state == MAPPED

    def receive_begin(self, channel: int, begin: Begin) -> None:
        """A session of the peer's, or its answer to one of ours."""
        settings = self._settings
        if channel > settings.channel_max:
            # The specification names the error (2.7.1).
            raise RemoteProtocolError(f"channel {channel} is above {settings.channel_max}")
        if begin.remote_channel is None:
            if self._role == CLIENT:
                raise RemoteProtocolError("a server does not begin sessions", "amqp:not-allowed")
            session = AmqpSession(self._wire, self._free_channel(channel), settings.handle_max)
            session.peer_channel = channel
            session.begin(begin)
            places = self._wire.places
            reason = places.refusal()
            if reason:
                session.end(AmqpError("amqp:resource-limit-exceeded", reason))
                self._refused |= 1 << channel
                return
            places.take()
            self.own[session.channel] = session
        else:
            answered = self.own.get(begin.remote_channel)
            if self._role == SERVER or answered is None or answered.peer_state != UNMAPPED:
                raise RemoteProtocolError("answer to no begin", "amqp:not-allowed")
            session = answered
            session.peer_channel = channel
        self.sessions[channel] = session
        session.peer_begun(begin)
        if session.live:
            self._wire.events.append(SessionBegun(session))

    def receive_end(self, channel: int, end: End) -> None:
        """The peer ends a session, or agrees that we do."""
        session = self.sessions.pop(channel, None)
        self._ended |= 1 << channel
        if session is None:
            self._refused &= ~(1 << channel)
            return
        session.peer_ended(end)
        self.own.pop(session.channel, None)
        self._wire.places.give()

    def _free_channel(self, channel: int) -> int:
        """A channel for our answer to a begin on this one: the same, wherever the peer takes it."""
        highest = self._peer.channel_max
        if channel <= highest and channel not in self.own:
            return channel
        for free in range(highest + 1):
            if free not in self.own:
                return free
        raise RemoteProtocolError(f"more sessions than the channel-max of {highest} lets us answer")
