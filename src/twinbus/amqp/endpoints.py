"""Sessions and links from inside: our end of each, and what goes out through it (part 2.5, 2.6).

A session and its links know each other, so what both build on is here together: a session's
windows, the order of its frames, its handles; a link's attach and detach.  A link is named from our
side: on an IngressLink the peer sends, on an EgressLink it receives.  What a peer's frames do is in
session.py.  The shell calls a link's methods to answer.  Those of a link that is gone do nothing:
the peer may detach at any time, and the shell learns of it only with the next events.
"""

from collections import deque
from typing import Final

from twinbus.amqp.composites import AmqpError, Coordinator, Source, Target
from twinbus.amqp.frames import UINT_MASK, Wire, encode_frame
from twinbus.amqp.performatives import MIXED, SENDER, Attach, Begin, Detach, End, Flow
from twinbus.amqp.states import ATTACHED, DETACHED, ENDED, MAPPED, UNMAPPED
from twinbus.errors import LocalProtocolError
from twinbus.limits import SESSION_WINDOW

WINDOW_HALF: Final = SESSION_WINDOW // 2


class SessionEndpoint:
    """Our end of a session; `context` is free for the shell."""

    __slots__ = (
        "_handles",
        "channel",
        "context",
        "handle_max",
        "held",
        "links",
        "live",
        "next_incoming_id",
        "next_outgoing_id",
        "own_state",
        "peer_channel",
        "peer_handle_max",
        "peer_state",
        "peer_window",
        "window_due",
        "wire",
    )

    def __init__(self, wire: Wire, channel: int, handle_max: int) -> None:
        self.wire = wire
        self.channel = channel  # in the frames we send
        self.peer_channel = -1  # in the frames we get
        self.own_state: int = UNMAPPED
        self.peer_state: int = UNMAPPED
        self.live = False  # both sides have begun and neither has ended
        self.handle_max = handle_max
        self.peer_handle_max = handle_max
        self.context: object = None
        # Outgoing: ids of transfer frames, and how many more the peer takes now.
        self.next_outgoing_id = 0
        self.peer_window = 0
        # Frames that wait for the peer's window, and what must not overtake them; True: a transfer.
        self.held: deque[tuple[bytes, bool]] = deque()
        # Incoming: the id of the next transfer frame, and the one at which to state a new window.
        # Both only grow between two flows and are cut to 32 bits when they are written.
        self.next_incoming_id = 0
        self.window_due = 0
        self.links: dict[int, Link] = {}  # by the peer's handle
        self._handles: dict[int, Link] = {}  # by ours

    # --- beginning and end -----------------------------------------------------------------------
    def begin(self, incoming: Begin | None) -> None:
        """Send our begin, as answer to the peer's if there is one."""
        begin = Begin(
            None if incoming is None else self.peer_channel,
            self.next_outgoing_id,
            SESSION_WINDOW,
            SESSION_WINDOW,
            self.handle_max,
        )
        self.wire.write(encode_frame(self.channel, begin.encode()))
        self.own_state = MAPPED

    def end(self, error: AmqpError | None = None) -> None:
        """End the session with all its links.  What the peer still sends on it is dropped."""
        if self.own_state == MAPPED:
            self._forget_links()
            self.wire.write(encode_frame(self.channel, End(error).encode()))
            self.own_state = ENDED
            self.live = False

    def abandon(self) -> None:
        """The connection goes: forget everything, say nothing."""
        if self.own_state == MAPPED:
            self._forget_links()
            self.own_state = ENDED
            self.live = False

    # --- writing ---------------------------------------------------------------------------------
    def write_transfer(self, frame: bytes) -> None:
        """Send a transfer frame as soon as the peer's window allows."""
        if self.peer_window > 0 and not self.held:
            self._count_outgoing()
            self.wire.write(frame)
        else:
            self._hold(frame, True)

    def write_in_order(self, frame: bytes) -> None:
        """Send a frame that must not overtake transfers: a link's flow or detach."""
        if self.held:
            self._hold(frame, False)
        else:
            self.wire.write(frame)

    def next_flow(self) -> Flow:
        """A flow that states our windows, always fresh ones; a link adds its count and credit."""
        self.next_incoming_id &= UINT_MASK
        self.window_due = self.next_incoming_id + WINDOW_HALF
        return Flow(
            self.next_incoming_id if self.peer_state == MAPPED else None,
            SESSION_WINDOW,
            self.next_outgoing_id,
            SESSION_WINDOW,
        )

    def send_flow(self) -> None:
        """State our windows."""
        self.wire.write(encode_frame(self.channel, self.next_flow().encode()))

    def release(self) -> None:
        """Send what was held back, as far as the peer's window allows."""
        held = self.held
        while held:
            frame, transfer = held[0]
            if transfer:
                if self.peer_window <= 0:
                    return
                self._count_outgoing()
            held.popleft()
            self.wire.held_bytes -= len(frame)
            self.wire.write(frame)

    def _count_outgoing(self) -> None:
        self.peer_window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & UINT_MASK

    def _hold(self, frame: bytes, transfer: bool) -> None:
        self.held.append((frame, transfer))
        self.wire.held_bytes += len(frame)

    # --- links -----------------------------------------------------------------------------------
    def fail(self, error: AmqpError) -> None:
        """The peer broke a rule of the session: end it, and tell the shell."""
        raise NotImplementedError

    def fail_link(self, link: "Link", error: AmqpError) -> None:
        """The peer broke a rule of the link: detach it, and tell the shell."""
        raise NotImplementedError

    def free_handle(self) -> int:
        """The lowest handle of ours that is not in use, or -1."""
        handle = 0
        while handle in self._handles:
            handle += 1
        return handle if handle <= self.peer_handle_max else -1

    def keep(self, link: "Link") -> None:
        """The link's handle is in use from now on."""
        self._handles[link.handle] = link
        self.wire.places.take_link()

    def drop(self, link: "Link") -> None:
        """Both sides have detached: the handle may be used again."""
        if self._handles.pop(link.handle, None) is not None:
            self._leave(link)

    def _leave(self, link: "Link") -> None:
        places = self.wire.places
        places.give_link()
        if link.is_beyond:
            places.refused_count -= 1

    def _forget_links(self) -> None:
        for link in self._handles.values():
            link.own_state = DETACHED
            link.answered = True
            link.forget()
            self._leave(link)
        # `links` stays, for the shell that wants to know what has gone.
        self._handles = {}
        for frame, _ in self.held:
            self.wire.held_bytes -= len(frame)
        self.held.clear()


class Link:
    """Our end of a link: what both directions have in common."""

    __slots__ = (
        "answered",
        "context",
        "desired_capabilities",
        "handle",
        "is_beyond",
        "lingers",
        "name",
        "own_state",
        "peer_handle",
        "peer_max_message_size",
        "peer_state",
        "properties",
        "rcv_settle_mode",
        "role",
        "session",
        "snd_settle_mode",
        "source",
        "target",
    )

    def __init__(self, session: SessionEndpoint, name: str, handle: int, role: bool) -> None:
        self.session = session
        self.name = name
        self.handle = handle  # in the frames we send
        self.peer_handle = -1  # in the frames we get
        self.role = role  # ours
        self.own_state: int = DETACHED
        self.peer_state: int = DETACHED
        self.answered = False  # whether we have ever sent our attach
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.snd_settle_mode: int = MIXED
        self.rcv_settle_mode: int = 0
        self.properties: dict[object, object] | None = None  # the peer's
        self.desired_capabilities: list[str] = []
        self.peer_max_message_size = 0  # 0: none stated
        self.context: object = None  # free for the shell
        self.is_beyond = False  # refused by a ceiling (places.py); the shell never hears of it
        self.lingers = False  # the shell's own `detach` answers the peer's, in its own time

    @property
    def attached(self) -> bool:
        """Whether both sides have attached and neither has detached."""
        return self.own_state == ATTACHED and self.peer_state == ATTACHED

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with an empty one and close it at once: clients only accept a
        detach for a link that was attached."""
        if not self.answered and self.peer_state == ATTACHED:
            self.attach_empty()
            self.send_detach(True, error)

    def detach(self, error: AmqpError | None = None, closed: bool = True) -> None:
        """Close the link.  What the peer still sends on it is dropped."""
        if self.own_state == ATTACHED:
            self.send_detach(closed, error)
        elif error is not None:
            self.refuse(error)

    def attach(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int,
        properties: dict[object, object] | None,
    ) -> None:
        """Send our attach, with the settle modes as they stand."""
        attach = Attach(
            self.name,
            self.handle,
            self.role,
            self.snd_settle_mode,
            self.rcv_settle_mode,
            source,
            target,
            None,
            False,
            0 if self.role == SENDER else None,
            max_message_size,
            None,
            None,
            properties,
        )
        self.session.wire.write(encode_frame(self.session.channel, attach.encode()))
        self.own_state = ATTACHED
        self.answered = True

    def attach_empty(self) -> None:
        """Send an attach without source and target, which is how a refusal begins."""
        self.attach(None, None, 0, None)

    def send_detach(self, closed: bool, error: AmqpError | None) -> None:
        """Send our detach of an attached link; its handle is free once the peer's has come too."""
        session = self.session
        detach = Detach(self.handle, closed, error)
        session.write_in_order(encode_frame(session.channel, detach.encode()))
        self.own_state = DETACHED
        self.forget()
        if self.peer_state == DETACHED:
            session.drop(self)

    def forget(self) -> None:
        """Drop what is kept for deliveries: the link is gone."""

    def peer_attached(self, attach: Attach) -> None:
        """Note what the peer's attach says."""
        self.peer_state = ATTACHED
        self.peer_handle = attach.handle
        self.source = attach.source
        self.target = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties = attach.properties
        self.desired_capabilities = attach.desired_capabilities
        self.peer_max_message_size = attach.max_message_size or 0

    def forget_terms(self) -> None:
        """The shell has answered the peer's attach: what that said is not needed any more."""
        self.source = None
        self.target = None
        self.properties = None
        self.desired_capabilities = []

    def _accept(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int,
        properties: dict[object, object] | None,
    ) -> bool:
        if self.answered or self.peer_state != ATTACHED:
            return False
        try:
            self.attach(source, target, max_message_size, properties)
        except LocalProtocolError:
            # We read more than we can write, such as a symbol sent as a string beyond ASCII.
            # LinkDetached comes with the next events.
            error = AmqpError("amqp:invalid-field", "source or target cannot be echoed")
            self.session.fail_link(self, error)
            return False
        return True
