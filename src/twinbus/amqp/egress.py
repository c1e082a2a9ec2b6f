"""Links on which we send: credit, transfers, and what the peer says about our deliveries.

Links are never resumed: whatever was unsettled when one goes is forgotten here, and it is for the
shell to decide what that means for the messages.
"""

from typing import Final

from twinbus.amqp.composites import Coordinator, Source, Target
from twinbus.amqp.endpoints import Link, SessionEndpoint
from twinbus.amqp.frames import (
    UINT_MASK,
    encode_continuation_frame,
    encode_disposition_frame,
    encode_frame,
    encode_transfer_start,
    serial_distance,
)
from twinbus.amqp.performatives import SENDER, Flow
from twinbus.amqp.states import ATTACHED
from twinbus.errors import LocalProtocolError
from twinbus.limits import EGRESS_CREDIT_MAX, UNSETTLED_COUNT_MAX

# Size of a transfer frame besides the body: 8 of header, 3 of descriptor, list8 of 3, and at most
# handle 5, id 5, tag 2 + 32, format 5, settled 1, more 1.
_TRANSFER_BYTES_MAX: Final = 65


class Deliveries:
    """Deliveries that we sent in a session, on any link, and those not yet settled."""

    __slots__ = ("disposed", "misses", "next_id", "unsettled")

    def __init__(self) -> None:
        self.next_id = 0
        # Those that wait for the receiver's word, ascending as sent; and those it has spoken about
        # and that wait for ours.  Each is reported once, so that a peer that repeats itself costs
        # nothing.
        self.unsettled: dict[int, tuple[EgressLink, object]] = {}
        self.disposed: dict[int, EgressLink] = {}
        self.misses = 0  # ids that the receiver has named and that are none of these

    def forget(self, link: "EgressLink") -> None:
        """The link is gone."""
        for delivery_id in [n for n, entry in self.unsettled.items() if entry[0] is link]:
            del self.unsettled[delivery_id]
        for delivery_id in [n for n, sender in self.disposed.items() if sender is link]:
            del self.disposed[delivery_id]


class EgressLink(Link):
    """We send, the peer receives and settles."""

    __slots__ = ("deliveries", "delivery_count", "drain", "echo", "link_credit", "unsettled_count")

    def __init__(
        self, session: SessionEndpoint, deliveries: Deliveries, name: str, handle: int
    ) -> None:
        super().__init__(session, name, handle, SENDER)
        self.deliveries = deliveries  # of the session
        self.delivery_count = 0
        self.link_credit = 0  # as the peer sees it
        self.drain = False  # the peer waits for its credit to be used up or given back
        self.echo = False  # the last flow asked for an answer; it has got one
        self.unsettled_count = 0

    @property
    def credit(self) -> int:
        """How many messages may be sent now: the peer's credit within our own limits."""
        room = UNSETTLED_COUNT_MAX - self.unsettled_count
        credit = self.link_credit if self.link_credit < EGRESS_CREDIT_MAX else EGRESS_CREDIT_MAX
        return credit if credit < room else room

    def accept(
        self,
        properties: dict[object, object] | None = None,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int = 0,
    ) -> None:
        """Answer the peer's attach.  Source and target are echoed unless given here."""
        self._accept(
            self.source if source is None else source,
            self.target if target is None else target,
            max_message_size,
            properties,
        )

    def send(
        self,
        tag: bytes,
        prefix: bytes,
        bare: bytes,
        settled: bool,
        context: object,
        message_format: int = 0,
    ) -> int:
        """Send `prefix + bare` as one delivery; returns its id, or -1 when the link is gone.

        `context` comes back with the receiver's disposition.
        """
        if self.own_state != ATTACHED or self.peer_state != ATTACHED:
            return -1
        if self.link_credit <= 0:
            raise LocalProtocolError("transfer without credit")
        deliveries = self.deliveries
        delivery_id = deliveries.next_id
        deliveries.next_id = (delivery_id + 1) & UINT_MASK
        self.delivery_count = (self.delivery_count + 1) & UINT_MASK
        self.link_credit -= 1
        if not settled:
            deliveries.unsettled[delivery_id] = (self, context)
            self.count_unsettled(1)
        session = self.session
        wire = session.wire
        if (
            session.peer_window > 0
            and not session.held
            and len(prefix) + len(bare) + _TRANSFER_BYTES_MAX <= wire.frame_size_max
        ):
            session.peer_window -= 1
            session.next_outgoing_id = (session.next_outgoing_id + 1) & UINT_MASK
            start = encode_transfer_start(
                session.channel,
                self.handle,
                delivery_id,
                tag,
                settled,
                prefix,
                len(bare),
                False,
                message_format,
            )
            # In two pieces: whoever writes them puts all pieces together once.  None is empty: from
            # Python 3.12 on a socket's transport would try to send it for ever.
            wire.frames.append(start)
            if bare:
                wire.frames.append(bare)
            wire.size += len(start) + len(bare)
        else:
            self._send_in_parts(delivery_id, tag, message_format, settled, prefix + bare)
        return delivery_id

    def _send_in_parts(
        self, delivery_id: int, tag: bytes, message_format: int, settled: bool, body: bytes
    ) -> None:
        """The long way: more than one frame, or the peer's window is closed."""
        session = self.session
        channel = session.channel
        room = session.wire.frame_size_max - _TRANSFER_BYTES_MAX
        more = len(body) > room
        session.write_transfer(
            encode_transfer_start(
                channel,
                self.handle,
                delivery_id,
                tag,
                settled,
                body[:room],
                0,
                more,
                message_format,
            )
        )
        at = room
        while more:
            part = body[at : at + room]
            at += room
            more = at < len(body)
            session.write_transfer(encode_continuation_frame(channel, self.handle, more, part))

    def settle(self, delivery_ids: list[int], state: bytes) -> None:
        """Confirm the outcome of deliveries to the receiver and forget them.  Ids that are not
        unsettled any more are passed over.  Afterwards `credit` may have grown."""
        if self.own_state != ATTACHED:
            return
        session = self.session
        unsettled = self.deliveries.unsettled
        disposed = self.deliveries.disposed
        first = -1
        last = -1
        for delivery_id in delivery_ids:
            if disposed.pop(delivery_id, None) is None and unsettled.pop(delivery_id, None) is None:
                continue
            self.count_unsettled(-1)
            if first < 0:
                first = delivery_id
            elif delivery_id != (last + 1) & UINT_MASK:
                session.wire.write(
                    encode_disposition_frame(session.channel, SENDER, first, last, True, state)
                )
                first = delivery_id
            last = delivery_id
        if first >= 0:
            session.wire.write(
                encode_disposition_frame(session.channel, SENDER, first, last, True, state)
            )

    def confirm(self, delivery_ids: list[int], state: bytes) -> None:
        """Tell the receiver what the outcome of deliveries would be; they stay unsettled until
        `settle` or `reopen`.  This is how a settlement inside a transaction is answered."""
        if self.own_state != ATTACHED:
            return
        session = self.session
        for delivery_id in delivery_ids:
            if delivery_id in self.deliveries.disposed:
                session.wire.write(
                    encode_disposition_frame(
                        session.channel, SENDER, delivery_id, delivery_id, False, state
                    )
                )

    def reopen(self, delivery_ids: list[int], contexts: list[object]) -> None:
        """What the receiver said about deliveries does not count any more (its transaction was
        rolled back): its next word on them is reported again."""
        deliveries = self.deliveries
        for delivery_id, context in zip(delivery_ids, contexts, strict=True):
            if deliveries.disposed.pop(delivery_id, None) is not None:
                deliveries.unsettled[delivery_id] = (self, context)

    def send_flow(self) -> None:
        """Tell the receiver our count and its credit, with the windows of the session."""
        session = self.session
        flow = session.next_flow()
        flow.handle = self.handle
        flow.delivery_count = self.delivery_count
        flow.link_credit = self.link_credit
        flow.drain = self.drain
        flow.available = 0
        session.write_in_order(encode_frame(session.channel, flow.encode()))

    def drained(self) -> None:
        """Answer a drain: what credit is left is given back."""
        if self.drain and self.own_state == ATTACHED:
            self.delivery_count = (self.delivery_count + self.link_credit) & UINT_MASK
            self.link_credit = 0
            self.send_flow()
            self.drain = False

    def forget(self) -> None:
        self.link_credit = 0
        if self.unsettled_count:
            self.deliveries.forget(self)
            self.count_unsettled(-self.unsettled_count)

    def count_unsettled(self, change: int) -> None:
        """So many more of our deliveries wait for the receiver's word, or fewer."""
        self.unsettled_count += change
        self.session.wire.unsettled_count += change

    def peer_flow(self, flow: Flow) -> None:
        """The receiver's credit, less what it has not seen yet of what we sent."""
        if flow.link_credit is None:
            return
        under_way = serial_distance(flow.delivery_count or 0, self.delivery_count)
        self.link_credit = max(0, flow.link_credit - max(0, under_way))
        self.drain = flow.drain
        self.echo = flow.echo
