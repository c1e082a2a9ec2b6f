"""Sessions: links on one channel, and the windows they share (OASIS AMQP 1.0 part 2.5).

A session counts transfer frames in both directions, joins the frames of large deliveries, and
remembers which of our deliveries wait for the receiver's word.  It never enforces link credit or
its own incoming window: pyamqp ignores the one and counts the other by delivery.  What a peer can
make us keep is bounded by other means: links a session and a connection, places of a server
(places.py), unsettled deliveries a link, and the bytes of half-received deliveries a connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.amqp.composites import AmqpError, Received
from twinbus.amqp.events import (
    CreditChanged,
    DispositionReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SessionEnded,
)
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import EgressLink, IngressLink, Link
from twinbus.amqp.performatives import (
    FIRST,
    MIXED,
    SENDER,
    Attach,
    Begin,
    Detach,
    End,
    Flow,
)
from twinbus.amqp.states import (
    ATTACH,
    ATTACHED,
    DETACH,
    DETACHED,
    ENDED,
    FLOW,
    MAPPED,
    REFUSALS,
    UNMAPPED,
    refusal,
)
from twinbus.amqp.wire import UINT_MASK, Wire, serial_distance
from twinbus.errors import LocalProtocolError, RemoteProtocolError
from twinbus.limits import (
    DISPOSITION_MISSES_MAX,
    HANDLES_MAX,
    SESSION_WINDOW,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.composites import Coordinator, Source, Target
    from twinbus.amqp.transfers import Disposition

_WINDOW_HALF: Final = SESSION_WINDOW // 2


class AmqpSession:
    """One session; `context` is free for the shell."""

    __slots__ = (
        "_handles",
        "_misses",
        "_names",
        "channel",
        "context",
        "disposed",
        "handle_max",
        "held",
        "links",
        "live",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "own_state",
        "peer_channel",
        "peer_handle_max",
        "peer_state",
        "peer_window",
        "unsettled",
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
        self.next_delivery_id = 0
        # Our deliveries that wait for the receiver's word, ascending as sent; and those it has
        # spoken about and that wait for ours.  Each is reported once, so that a peer that repeats
        # itself costs nothing.
        self.unsettled: dict[int, tuple[EgressLink, object]] = {}
        self.disposed: dict[int, EgressLink] = {}
        self._misses = 0
        # Frames that wait for the peer's window, and what must not overtake them; True: a transfer.
        self.held: deque[tuple[bytes, bool]] = deque()
        # Incoming: the id of the next transfer frame, and the one at which to state a new window.
        # Both only grow between two flows and are cut to 32 bits when they are written.
        self.next_incoming_id = 0
        self.window_due = 0
        self.links: dict[int, Link] = {}  # by the peer's handle
        self._handles: dict[int, Link] = {}  # by ours
        self._names: dict[tuple[str, bool], Link] = {}  # attached by us, not yet answered

    # --- for the shell ---------------------------------------------------------------------------
    def end(self, error: AmqpError | None = None) -> None:
        """End the session with all its links.  What the peer still sends on it is dropped."""
        if self.own_state == MAPPED:
            self._forget_links()
            self.write(encode_frame(self.channel, End(error).encode()))
            self.own_state = ENDED
            self.live = False

    def attach_sender(
        self,
        name: str,
        source: Source,
        target: Target | Coordinator,
        snd_settle_mode: int = MIXED,
        rcv_settle_mode: int = FIRST,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
    ) -> EgressLink:
        """As client: a link on which we send.  LinkAttached tells when the peer has agreed."""
        link = EgressLink(self, name, self._free_handle())
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        self._attach(link, source, target, max_message_size, properties)
        return link

    def attach_receiver(
        self,
        name: str,
        source: Source,
        target: Target | Coordinator,
        snd_settle_mode: int = MIXED,
        rcv_settle_mode: int = FIRST,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
    ) -> IngressLink:
        """As client: a link on which we receive; credit is given by `grant` or `credit_window`."""
        link = IngressLink(self, name, self._free_handle())
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        if max_message_size:
            link.max_message_size = max_message_size
        self._attach(link, source, target, max_message_size, properties)
        return link

    def _attach(
        self,
        link: Link,
        source: Source,
        target: Target | Coordinator,
        max_message_size: int,
        properties: dict[object, object] | None,
    ) -> None:
        if self.own_state != MAPPED:
            raise LocalProtocolError("attach in a session that has ended")
        if link.handle < 0:
            raise LocalProtocolError("no handle left in this session")
        link.attach(source, target, max_message_size, properties)
        self._keep(link)
        self._names[(link.name, link.role)] = link

    # --- writing ---------------------------------------------------------------------------------
    def write(self, frame: bytes) -> None:
        """Send a frame at once."""
        self.wire.write(frame)

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

    def begin(self, incoming: Begin | None) -> None:
        """Send our begin, as answer to the peer's if there is one."""
        begin = Begin(
            None if incoming is None else self.peer_channel,
            self.next_outgoing_id,
            SESSION_WINDOW,
            SESSION_WINDOW,
            self.handle_max,
        )
        self.write(encode_frame(self.channel, begin.encode()))
        self.own_state = MAPPED

    def send_flow(self, link: Link | None) -> None:
        """State our windows (always fresh ones) and, if given, a link's count and credit."""
        self.next_incoming_id &= UINT_MASK
        self.window_due = self.next_incoming_id + _WINDOW_HALF
        flow = Flow(
            self.next_incoming_id if self.peer_state == MAPPED else None,
            SESSION_WINDOW,
            self.next_outgoing_id,
            SESSION_WINDOW,
        )
        if isinstance(link, IngressLink):
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = max(0, link.credit)
            flow.drain = link.drain
        elif isinstance(link, EgressLink):
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = link.link_credit
            flow.drain = link.drain
            flow.available = 0
        frame = encode_frame(self.channel, flow.encode())
        if link is None:
            self.wire.write(frame)
        else:
            self.write_in_order(frame)

    def detach(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        """Send our detach of an attached link; its handle is free once the peer's has come too."""
        detach = Detach(link.handle, closed, error)
        self.write_in_order(encode_frame(self.channel, detach.encode()))
        link.own_state = DETACHED
        link.forget()
        if link.peer_state == DETACHED:
            self._drop(link)

    def abandon(self) -> None:
        """The connection goes: forget everything, say nothing."""
        if self.own_state == MAPPED:
            self._forget_links()
            self.own_state = ENDED
            self.live = False

    # --- receiving -------------------------------------------------------------------------------
    def peer_begun(self, begin: Begin) -> None:
        """Note what the peer's begin says."""
        self.peer_state = MAPPED
        self.live = self.own_state == MAPPED
        self.next_incoming_id = begin.next_outgoing_id
        self.window_due = begin.next_outgoing_id + _WINDOW_HALF
        self.peer_window = begin.incoming_window
        self.peer_handle_max = begin.handle_max
        self._release()

    def peer_ended(self, end: End) -> None:
        """The peer ends the session, or agrees that we do."""
        self.peer_state = ENDED
        if self.own_state == MAPPED:
            self.end()
            self.wire.events.append(SessionEnded(self, end.error))

    def receive_attach(self, attach: Attach) -> None:
        """A new link of the peer's, or its answer to one of ours."""
        handle = attach.handle
        if handle > self.handle_max:
            # The specification names the error and that it closes the connection (2.7.2).
            raise RemoteProtocolError(f"handle {handle} is above handle-max {self.handle_max}")
        if handle in self.links:
            self._refuse_handle(ATTACHED, ATTACH, handle)
            return
        link = self._names.pop((attach.name, not attach.role), None)
        if link is None:
            self._receive_new_link(attach)
            return
        link.peer_attached(attach)
        self.links[handle] = link
        if isinstance(link, IngressLink):
            link.delivery_count = attach.initial_delivery_count or 0
            agreed = attach.source is not None
        else:
            agreed = attach.target is not None
        # An empty terminus is a refusal: the detach that says why comes next.
        if agreed and link.own_state == ATTACHED:
            self.wire.events.append(LinkAttached(link))

    def _receive_new_link(self, attach: Attach) -> None:
        own_handle = self._free_handle()
        if own_handle < 0:
            reason = f"more links than the handle-max of {self.peer_handle_max} allows us to answer"
            self.fail(AmqpError("amqp:resource-limit-exceeded", reason))
            return
        link = self._new_link(attach, own_handle)
        places = self.wire.places
        refusal = places.link_refusal()
        if len(self._handles) >= HANDLES_MAX:
            refusal = f"the session has {HANDLES_MAX} links; begin another session"
        self._keep(link)
        self.links[attach.handle] = link
        if not refusal:
            self.wire.events.append(LinkAttached(link))
            return
        link.is_beyond = True
        places.refused_count += 1
        if places.refused_count > places.refused_max:
            raise RemoteProtocolError(
                f"{places.refused_max} links were refused and not detached; {refusal}",
                "amqp:resource-limit-exceeded",
            )
        link.refuse(AmqpError("amqp:resource-limit-exceeded", refusal))

    def _new_link(self, attach: Attach, own_handle: int) -> Link:
        link: Link
        if attach.role == SENDER:
            ingress = IngressLink(self, attach.name, own_handle)
            ingress.delivery_count = attach.initial_delivery_count or 0
            link = ingress
        else:
            link = EgressLink(self, attach.name, own_handle)
        link.peer_attached(attach)
        return link

    def receive_detach(self, detach: Detach) -> None:
        """The peer leaves a link, or agrees that we do."""
        link = self.links.pop(detach.handle, None)
        if link is None:
            self._refuse_handle(DETACHED, DETACH, detach.handle)
            return
        link.peer_state = DETACHED
        if not link.answered:
            link.attach_empty()
        if link.own_state == ATTACHED:
            if not link.lingers:
                self.detach(link, detach.closed, None)
            self.wire.events.append(LinkDetached(link, detach.closed, detach.error))
        else:
            self._drop(link)

    def receive_flow(self, flow: Flow) -> None:
        """Windows for the session and, with a handle, the state of a link."""
        self.window_due += flow.next_outgoing_id - self.next_incoming_id
        self.next_incoming_id = flow.next_outgoing_id
        # The peer's window counts from the frame it expects next: what is under way uses it up.
        under_way = serial_distance(flow.next_incoming_id or 0, self.next_outgoing_id)
        self.peer_window = max(0, flow.incoming_window - max(0, under_way))
        if self.held:
            self._release()
        if flow.handle is None:
            if flow.echo:
                self.send_flow(None)
            return
        link = self.links.get(flow.handle)
        if link is None:
            self._refuse_handle(DETACHED, FLOW, flow.handle)
            return
        if link.answered and link.own_state != ATTACHED:
            return
        if isinstance(link, EgressLink):
            self._receive_credit(link, flow)
        elif isinstance(link, IngressLink):
            if link.peer_flow(flow):
                self.wire.events.append(CreditChanged(link))
            if flow.echo and link.own_state == ATTACHED:
                self.send_flow(link)

    def _receive_credit(self, link: EgressLink, flow: Flow) -> None:
        if flow.properties and "txn-id" in flow.properties:
            error = "messages are not acquired in transactions; settle them in one"
            self.fail_link(link, AmqpError("amqp:not-implemented", error))
            return
        link.peer_flow(flow)
        self.wire.events.append(CreditChanged(link, link.link_credit, link.drain))
        if link.own_state == ATTACHED:
            if link.drain and link.link_credit == 0:
                link.drained()  # nothing to wait for: pyamqp closes its receivers like this
            elif flow.echo and not link.drain:
                self.send_flow(link)

    def receive_disposition(self, disposition: Disposition) -> None:
        """The peer's word on deliveries; a range costs no more than what is really unsettled."""
        first = disposition.first
        settled = disposition.settled
        if disposition.role == SENDER:
            self.wire.events.append(
                IncomingSettled(self, first, disposition.last, settled, disposition.state)
            )
            return
        if not settled and (disposition.state is None or isinstance(disposition.state, Received)):
            return  # no outcome yet
        unsettled = self.unsettled
        count = ((disposition.last - first) & UINT_MASK) + 1
        if count == 1:
            entry = unsettled.get(first)
            if entry is not None:
                link = entry[0]
                del unsettled[first]
                if settled:
                    link.count_unsettled(-1)
                else:
                    self.disposed[first] = link
                self.wire.events.append(
                    DispositionReceived(link, [first], [entry[1]], settled, disposition.state)
                )
            elif settled and first in self.disposed:
                self._settle_disposed([first])
            return
        if not self._report_run(disposition, count):
            self._report(self._within(unsettled, first, count), disposition)
        if settled and self.disposed:
            self._settle_disposed(self._within(self.disposed, first, count))

    def _report_run(self, disposition: Disposition, count: int) -> bool:
        """The usual range, all of it unsettled and of one link; False: nothing done, it is not."""
        unsettled = self.unsettled
        first = disposition.first
        if count > len(unsettled) or first + count > UINT_MASK:
            return False
        entry = unsettled.get(first)
        if entry is None:
            return False
        link = entry[0]
        ids: list[int] = []
        contexts: list[object] = []
        for delivery_id in range(first, first + count):
            entry = unsettled.pop(delivery_id, None)
            if entry is None or entry[0] is not link:
                if entry is not None:
                    unsettled[delivery_id] = entry
                for taken, context in zip(ids, contexts, strict=True):
                    unsettled[taken] = (link, context)
                return False
            ids.append(delivery_id)
            contexts.append(entry[1])
        if disposition.settled:
            link.count_unsettled(-count)
        else:
            for delivery_id in ids:
                self.disposed[delivery_id] = link
        self.wire.events.append(
            DispositionReceived(link, ids, contexts, disposition.settled, disposition.state)
        )
        self._misses = max(0, self._misses - count)
        return True

    def _within(self, known: Mapping[int, object], first: int, count: int) -> list[int]:
        """Which of the known ids lie in a range, by the shorter way."""
        if count > len(known):
            steps = len(known)
            ids = [n for n in known if (n - first) & UINT_MASK < count]
        else:
            steps = count
            ids = [n & UINT_MASK for n in range(first, first + count) if n & UINT_MASK in known]
        self._misses = max(0, self._misses + steps - 2 * len(ids))
        if self._misses > DISPOSITION_MISSES_MAX:
            raise RemoteProtocolError(
                "dispositions of nothing that is unsettled", "amqp:resource-limit-exceeded"
            )
        return ids

    def _settle_disposed(self, ids: list[int]) -> None:
        """The receiver settles what it has spoken about before: no need to tell anybody."""
        for delivery_id in ids:
            self.disposed.pop(delivery_id).count_unsettled(-1)

    def _report(self, ids: list[int], disposition: Disposition) -> None:
        """Report unsettled deliveries, link by link."""
        unsettled = self.unsettled
        settled = disposition.settled
        by_link: dict[int, DispositionReceived] = {}  # by our handle
        for delivery_id in ids:
            link, context = unsettled.pop(delivery_id)
            if settled:
                link.count_unsettled(-1)
            else:
                self.disposed[delivery_id] = link
            event = by_link.get(link.handle)
            if event is None:
                event = DispositionReceived(link, [], [], settled, disposition.state)
                by_link[link.handle] = event
                self.wire.events.append(event)
            event.delivery_ids.append(delivery_id)
            event.contexts.append(context)

    # --- errors of the peer ----------------------------------------------------------------------
    def fail(self, error: AmqpError) -> None:
        """The peer broke a rule of the session: end it."""
        self.end(error)
        self.wire.events.append(SessionEnded(self, error))

    def _refuse_handle(self, state: int, received: int, handle: int) -> None:
        """A frame that the link's table does not have in this state."""
        self.fail(AmqpError(REFUSALS[state], f"{refusal(state, received)} (handle {handle})"))

    def fail_link(self, link: Link, error: AmqpError) -> None:
        """The peer broke a rule of the link: detach it."""
        link.detach(error)
        self.wire.events.append(LinkDetached(link, True, error))

    # --- book-keeping ----------------------------------------------------------------------------
    def _count_outgoing(self) -> None:
        self.peer_window -= 1
        self.next_outgoing_id = (self.next_outgoing_id + 1) & UINT_MASK

    def _hold(self, frame: bytes, transfer: bool) -> None:
        self.held.append((frame, transfer))
        self.wire.held_bytes += len(frame)

    def _release(self) -> None:
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

    def _free_handle(self) -> int:
        """The lowest handle of ours that is not in use, or -1."""
        handle = 0
        while handle in self._handles:
            handle += 1
        return handle if handle <= self.peer_handle_max else -1

    def _keep(self, link: Link) -> None:
        self._handles[link.handle] = link
        self.wire.places.take_link()

    def _drop(self, link: Link) -> None:
        """Both sides have detached: the handle may be used again."""
        if self._handles.pop(link.handle, None) is not None:
            self._leave(link)

    def _leave(self, link: Link) -> None:
        places = self.wire.places
        places.give_link()
        if link.is_beyond:
            places.refused_count -= 1

    def _forget_links(self) -> None:
        self.unsettled = {}
        self.disposed = {}
        for link in self._handles.values():
            link.own_state = DETACHED
            link.answered = True
            link.forget()
            self._leave(link)
        # `links` stays, for the shell that wants to know what has gone.
        self._handles = {}
        self._names = {}
        for frame, _ in self.held:
            self.wire.held_bytes -= len(frame)
        self.held.clear()
