"""Links on which the peer sends: credit, transfers, deliveries, settlements.

A delivery is one transfer frame, or several in a row on its link, which are joined here; other
links may send in between.  Whatever a peer does, no more is kept than the link's max-message-size
for each half-received delivery, and PARTIAL_DELIVERY_BYTES_MAX for all of a connection.

Links are never resumed: whatever was unsettled when one goes is forgotten here, and it is for the
shell to decide what that means for the messages.
"""

from twinbus.amqp.composites import AmqpError, Coordinator, DeliveryState, Source, Target
from twinbus.amqp.endpoints import Link, SessionEndpoint
from twinbus.amqp.frames import (
    UINT_MASK,
    Event,
    encode_disposition_frame,
    encode_frame,
    serial_distance,
)
from twinbus.amqp.performatives import RECEIVER, Flow
from twinbus.amqp.shapes import U32
from twinbus.amqp.states import ATTACHED, DETACHED, REFUSALS, TRANSFER, refusal
from twinbus.amqp.transfers import PLAIN_ENDINGS, Transfer, decode_transfer, remember_ending
from twinbus.errors import RemoteProtocolError
from twinbus.limits import (
    INGRESS_CREDIT,
    MESSAGE_SIZE_BYTES_MAX,
    PARTIAL_DELIVERY_BYTES_MAX,
    UNSETTLED_COUNT_MAX,
)


class IngressLink(Link):
    """The peer sends, we receive and settle."""

    __slots__ = (
        "credit",
        "credit_window",
        "delivery_count",
        "drain",
        "max_message_size",
        "partial",
        "partial_format",
        "partial_id",
        "partial_settled",
        "partial_size",
        "partial_state",
        "partial_tag",
        "unsettled_count",
    )

    def __init__(self, session: SessionEndpoint, name: str, handle: int) -> None:
        super().__init__(session, name, handle, RECEIVER)
        self.credit = 0  # what the peer may still send; below zero when it does not care
        self.credit_window = 0  # kept filled up; 0: credit only by grant()
        self.drain = False
        self.delivery_count = 0
        self.max_message_size = MESSAGE_SIZE_BYTES_MAX
        self.unsettled_count = 0  # received, not yet settled by us
        self.partial_id = -1  # delivery whose last frame has not come; -1: none
        self.partial: bytearray | None = None  # None while a too large one is thrown away
        self.partial_size = 0
        self.partial_tag = b""
        self.partial_format = 0
        self.partial_settled = False
        self.partial_state: DeliveryState | None = None  # as any of its frames has it

    def accept(
        self,
        max_message_size: int = MESSAGE_SIZE_BYTES_MAX,
        properties: dict[object, object] | None = None,
        credit: int = INGRESS_CREDIT,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
    ) -> None:
        """Answer the peer's attach and give credit, which is then kept filled up.

        Source and target are echoed as they came, unless given here.
        """
        if not self._accept(
            self.source if source is None else source,
            self.target if target is None else target,
            max_message_size,
            properties,
        ):
            return
        self.max_message_size = max_message_size
        self.credit_window = credit
        if credit:
            self.grant(credit)

    def grant(self, credit: int, drain: bool = False) -> None:
        """Allow the peer `credit` more deliveries from here; with `drain` it has to use them at
        once or give them back (CreditChanged)."""
        if self.own_state == ATTACHED:
            self.credit = credit
            self.drain = drain
            self.send_flow()

    def settle(self, first: int, last: int, state: bytes, settled: bool = True) -> None:
        """Tell the sender the outcome of deliveries `first` to `last`, all of this link."""
        if self.own_state != ATTACHED:
            return
        session = self.session
        session.wire.write(
            encode_disposition_frame(session.channel, RECEIVER, first, last, settled, state)
        )
        if settled:
            self.unsettled_count -= ((last - first) & UINT_MASK) + 1
            self.top_up()

    def send_flow(self) -> None:
        """Tell the sender our count and its credit, with the windows of the session."""
        session = self.session
        flow = session.next_flow()
        flow.handle = self.handle
        flow.delivery_count = self.delivery_count
        flow.link_credit = max(0, self.credit)
        flow.drain = self.drain
        session.write_in_order(encode_frame(session.channel, flow.encode()))

    def top_up(self) -> None:
        """Give fresh credit once half of the window is free again.  Deliveries that wait for their
        settlement take from it, so a sender cannot run ahead of what we get done."""
        window = self.credit_window
        free = window - self.unsettled_count - self.credit
        if window and free * 2 >= window and not self.drain and self.attached:
            self.credit += free
            self.send_flow()

    def peer_flow(self, flow: Flow) -> bool:
        """The sender's side of the flow state; True when it has answered our drain.

        Credit in it is meaningless (pyamqp says 10,000) and not looked at.
        """
        if not self.drain or flow.delivery_count is None:
            return False
        ahead = serial_distance(self.delivery_count, flow.delivery_count)
        if ahead > 0:
            self.delivery_count = flow.delivery_count
            self.credit = max(0, self.credit - ahead)
        if self.credit > 0:
            return False
        self.drain = False
        return True

    def forget(self) -> None:
        self.drop_partial()

    def begin_partial(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        """The first frame of a delivery has come."""
        self.partial_id = delivery_id
        self.partial_tag = tag
        self.partial_format = message_format
        self.partial_settled = False
        self.partial_state = None
        self.partial_size = 0
        self.partial = bytearray()

    def drop_partial(self) -> None:
        """Forget a delivery whose last frame has not come."""
        if self.partial is not None:
            self.session.wire.partial_bytes -= len(self.partial)
            self.partial = None
        self.partial_id = -1


class DeliveryReceived(Event):
    """A whole delivery; the frames of a large one are joined, aborted ones never show."""

    __slots__ = ("data", "delivery_id", "link", "message_format", "settled", "state", "tag")

    def __init__(
        self,
        link: IngressLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: DeliveryState | None,
        data: bytes,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.data = data


class DeliveryTooLarge(Event):
    """A delivery was larger than the link's max-message-size.  Its bytes are gone; the shell
    settles it with `rejected`, so that the sender learns which of its messages it was."""

    __slots__ = ("delivery_id", "link", "settled", "size", "state")

    def __init__(
        self,
        link: IngressLink,
        delivery_id: int,
        settled: bool,
        state: DeliveryState | None,
        size: int,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.settled = settled
        self.state = state
        self.size = size


def receive_transfer_frame(session: SessionEndpoint, data: bytes, at: int, end: int) -> None:
    """A transfer whose descriptor ends at `at`.  Every message comes along here.

    The short way reads handle, delivery id and tag in place and looks the rest up by its raw bytes,
    which repeat from message to message.  What it does not know goes through the codec once.
    """
    # 15 bytes hold the longest start of a list8: size, count, two numbers of 5, tag and its size.
    if end - at <= 15 or data[at] != 0xC0:
        _receive_any(session, data, at, end)
        return
    stop = at + 2 + data[at + 1]
    p = at + 3
    code = data[p]
    if code == 0x43:
        handle = 0
        p += 1
    elif code == 0x52:
        handle = data[p + 1]
        p += 2
    else:
        _receive_any(session, data, at, end)
        return
    code = data[p]
    if code == 0x70:
        delivery_id: int = U32.unpack_from(data, p + 1)[0]
        p += 5
    elif code == 0x52:
        delivery_id = data[p + 1]
        p += 2
    elif code == 0x43:
        delivery_id = 0
        p += 1
    else:
        _receive_any(session, data, at, end)
        return
    tag_end = p + 2 + data[p + 1]
    if data[p] != 0xA0 or tag_end > stop or stop > end or tag_end - p > 34:
        _receive_any(session, data, at, end)
        return
    known = PLAIN_ENDINGS.get(data[tag_end:stop])
    link = session.links.get(handle)
    if (
        known is None
        or known[0] != data[at + 2]
        or not isinstance(link, IngressLink)
        or link.partial_id >= 0
        or end - stop > link.max_message_size
        or link.own_state != ATTACHED
    ):
        transfer = _receive_any(session, data, at, end)
        remember_ending(data[tag_end:stop], data[at + 2], transfer)
        return
    # _count_frame and _count_delivery, spelt out for what nearly always comes.
    received = session.next_incoming_id + 1
    session.next_incoming_id = received
    if received >= session.window_due:
        session.send_flow()
    settled = known[2]
    if settled or link.unsettled_count >= UNSETTLED_COUNT_MAX:
        if not _count_delivery(session, link, settled):
            return
    else:
        link.delivery_count = (link.delivery_count + 1) & UINT_MASK
        link.credit -= 1
        link.unsettled_count += 1
    session.wire.events.append(
        DeliveryReceived(
            link, delivery_id, data[p + 2 : tag_end], known[1], settled, None, data[stop:end]
        )
    )


def _receive_any(session: SessionEndpoint, data: bytes, at: int, end: int) -> Transfer:
    transfer, at = decode_transfer(data, at, end)
    receive_transfer(session, transfer, data[at:end])
    return transfer


def receive_transfer(session: SessionEndpoint, transfer: Transfer, part: bytes) -> None:
    """One frame of a delivery, which brings this part of the message."""
    _count_frame(session)
    link = session.links.get(transfer.handle)
    if isinstance(link, IngressLink):
        _receive_part(session, link, transfer, part)
    else:
        _refuse_direction(session, link, transfer.handle)


def _count_frame(session: SessionEndpoint) -> None:
    received = session.next_incoming_id + 1
    session.next_incoming_id = received
    if received >= session.window_due:
        session.send_flow()


def _receive_part(
    session: SessionEndpoint, link: IngressLink, transfer: Transfer, part: bytes
) -> None:
    """Any transfer on a link: a whole delivery, its first part, a later one, its end."""
    if link.own_state != ATTACHED:
        _refuse_unanswered(session, link)
        return
    if transfer.resume:
        session.fail_link(link, AmqpError("amqp:not-implemented", "deliveries are not resumed"))
        return
    if link.partial_id < 0:
        if transfer.delivery_id < 0 or transfer.delivery_tag is None:
            session.fail_link(
                link, AmqpError("amqp:invalid-field", "first transfer without id or tag")
            )
            return
        link.begin_partial(transfer.delivery_id, transfer.delivery_tag, transfer.message_format)
    elif transfer.delivery_id >= 0 and transfer.delivery_id != link.partial_id:
        session.fail_link(
            link, AmqpError("amqp:not-allowed", "a delivery begins inside another one")
        )
        return
    if transfer.aborted:
        link.drop_partial()
        _count_delivery(session, link, True)
        return
    link.partial_settled = link.partial_settled or transfer.settled
    if transfer.state is not None:
        link.partial_state = transfer.state
    link.partial_size += len(part)
    _keep_part(session, link, part)
    if not transfer.more:
        _finish(session, link)


def _keep_part(session: SessionEndpoint, link: IngressLink, part: bytes) -> None:
    """Keep the bytes of a delivery unless it has grown too large."""
    partial = link.partial
    if partial is None:
        return
    wire = session.wire
    if link.partial_size > link.max_message_size:
        wire.partial_bytes -= len(partial)
        link.partial = None
        return
    partial += part
    wire.partial_bytes += len(part)
    if wire.partial_bytes > PARTIAL_DELIVERY_BYTES_MAX:
        raise RemoteProtocolError(
            "too many bytes in unfinished deliveries", "amqp:resource-limit-exceeded"
        )


def _finish(session: SessionEndpoint, link: IngressLink) -> None:
    """The last frame of a delivery has come."""
    delivery_id = link.partial_id
    settled = link.partial_settled
    partial = link.partial
    size = link.partial_size
    link.drop_partial()
    if not _count_delivery(session, link, settled):
        return
    if partial is None:
        session.wire.events.append(
            DeliveryTooLarge(link, delivery_id, settled, link.partial_state, size)
        )
        return
    session.wire.events.append(
        DeliveryReceived(
            link,
            delivery_id,
            link.partial_tag,
            link.partial_format,
            settled,
            link.partial_state,
            bytes(partial),
        )
    )


def _count_delivery(session: SessionEndpoint, link: IngressLink, settled: bool) -> bool:
    """A whole delivery has come; False when it was one too many and the link is gone."""
    link.delivery_count = (link.delivery_count + 1) & UINT_MASK
    link.credit -= 1
    if settled:
        link.top_up()
        return True
    link.unsettled_count += 1
    if link.unsettled_count <= UNSETTLED_COUNT_MAX:
        return True
    _fail_unsettled(session, link)
    return False


def _fail_unsettled(session: SessionEndpoint, link: IngressLink) -> None:
    session.fail_link(
        link, AmqpError("amqp:resource-limit-exceeded", "too many unsettled deliveries")
    )


def _refuse_unanswered(session: SessionEndpoint, link: IngressLink) -> None:
    """A transfer on a link that we have detached is dropped: the peer may not know yet.  On one
    that we have not answered, nobody has checked whether the peer may send at all."""
    if not link.answered:
        session.fail_link(
            link, AmqpError("amqp:link:transfer-limit-exceeded", "transfer before any credit")
        )


def _refuse_direction(session: SessionEndpoint, link: Link | None, handle: int) -> None:
    """A transfer on no link, or on one where we are the sender."""
    if link is None:
        session.fail(
            AmqpError(REFUSALS[DETACHED], f"{refusal(DETACHED, TRANSFER)} (handle {handle})")
        )
    elif link.own_state == ATTACHED or not link.answered:
        session.fail_link(link, AmqpError("amqp:not-allowed", "transfer by a link's receiver"))
