"""Sessions: links on one channel, and the windows they share (OASIS AMQP 1.0 part 2.5).

A session counts transfer frames in both directions, joins the frames of large deliveries, and
remembers which of our deliveries wait for the receiver's word.  It never enforces link credit or
its own incoming window: pyamqp ignores the one and counts the other by delivery.  What a peer can
make us keep is bounded by other means: links a session and a connection, places of a server
(places.py), unsettled deliveries a link, and the bytes of half-received deliveries a connection.

Here is what a peer's frames do, apart from the two of every message: transfers are in ingress.py,
dispositions in settling.py.
"""

from twinbus.amqp.composites import AmqpError, Coordinator, Source, Target
from twinbus.amqp.egress import Deliveries, EgressLink
from twinbus.amqp.endpoints import WINDOW_HALF, Link, SessionEndpoint
from twinbus.amqp.events import CreditChanged, LinkAttached, LinkDetached, SessionEnded
from twinbus.amqp.frames import Wire, serial_distance
from twinbus.amqp.ingress import IngressLink
from twinbus.amqp.performatives import FIRST, MIXED, SENDER, Attach, Begin, Detach, End, Flow
from twinbus.amqp.states import (
    ATTACH,
    ATTACHED,
    DETACH,
    DETACHED,
    ENDED,
    FLOW,
    MAPPED,
    REFUSALS,
    refusal,
)
from twinbus.errors import LocalProtocolError, RemoteProtocolError
from twinbus.limits import HANDLES_MAX


class AmqpSession(SessionEndpoint):
    """One session."""

    __slots__ = ("_names", "deliveries")

    def __init__(self, wire: Wire, channel: int, handle_max: int) -> None:
        super().__init__(wire, channel, handle_max)
        self.deliveries = Deliveries()
        self._names: dict[tuple[str, bool], Link] = {}  # attached by us, not yet answered

    # --- for the shell ---------------------------------------------------------------------------
    def attach_sender(
        self,
        name: str,
        source: Source,
        target: Target | Coordinator,
        snd_settle_mode: int = MIXED,
        rcv_settle_mode: int = FIRST,
        properties: dict[object, object] | None = None,
    ) -> EgressLink:
        """As client: a link on which we send.  LinkAttached tells when the peer has agreed."""
        link = EgressLink(self, self.deliveries, name, self.free_handle())
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        self._attach(link, source, target, 0, properties)
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
        link = IngressLink(self, name, self.free_handle())
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
        self.keep(link)
        self._names[(link.name, link.role)] = link

    # --- receiving -------------------------------------------------------------------------------
    def peer_begun(self, begin: Begin) -> None:
        """Note what the peer's begin says."""
        self.peer_state = MAPPED
        self.live = self.own_state == MAPPED
        self.next_incoming_id = begin.next_outgoing_id
        self.window_due = begin.next_outgoing_id + WINDOW_HALF
        self.peer_window = begin.incoming_window
        self.peer_handle_max = begin.handle_max
        self.release()

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
        own_handle = self.free_handle()
        if own_handle < 0:
            reason = f"more links than the handle-max of {self.peer_handle_max} allows us to answer"
            self.fail(AmqpError("amqp:resource-limit-exceeded", reason))
            return
        link = self._new_link(attach, own_handle)
        places = self.wire.places
        refusal = places.link_refusal()
        if len(self._handles) >= HANDLES_MAX:
            refusal = f"the session has {HANDLES_MAX} links; begin another session"
        self.keep(link)
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
            link = EgressLink(self, self.deliveries, attach.name, own_handle)
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
                link.send_detach(detach.closed, None)
            self.wire.events.append(LinkDetached(link, detach.closed, detach.error))
        else:
            self.drop(link)

    def receive_flow(self, flow: Flow) -> None:
        """Windows for the session and, with a handle, the state of a link."""
        self.window_due += flow.next_outgoing_id - self.next_incoming_id
        self.next_incoming_id = flow.next_outgoing_id
        # The peer's window counts from the frame it expects next: what is under way uses it up.
        under_way = serial_distance(flow.next_incoming_id or 0, self.next_outgoing_id)
        self.peer_window = max(0, flow.incoming_window - max(0, under_way))
        if self.held:
            self.release()
        if flow.handle is None:
            if flow.echo:
                self.send_flow()
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
                link.send_flow()

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
                link.send_flow()

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

    def _forget_links(self) -> None:
        self.deliveries.unsettled = {}
        self.deliveries.disposed = {}
        super()._forget_links()
        self._names = {}
