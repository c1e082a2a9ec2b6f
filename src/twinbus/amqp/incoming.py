"""From transfers to deliveries: the way in of every message.

A delivery is one transfer frame, or several in a row on its link, which are joined here; other
links may send in between.  Whatever a peer does, no more is kept than the link's max-message-size
for each half-received delivery, and PARTIAL_DELIVERY_BYTES_MAX for all of a connection.
"""

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.endpoints import Link
from twinbus.amqp.events import DeliveryReceived, DeliveryTooLarge
from twinbus.amqp.link import IngressLink
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.shapes import U32
from twinbus.amqp.states import ATTACHED, DETACHED, REFUSALS, TRANSFER, refusal
from twinbus.amqp.transfers import PLAIN_ENDINGS, Transfer, decode_transfer, remember_ending
from twinbus.amqp.wire import UINT_MASK
from twinbus.errors import RemoteProtocolError
from twinbus.limits import PARTIAL_DELIVERY_BYTES_MAX, UNSETTLED_COUNT_MAX


def receive_transfer_frame(session: AmqpSession, data: bytes, at: int, end: int) -> None:
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


def _receive_any(session: AmqpSession, data: bytes, at: int, end: int) -> Transfer:
    transfer, at = decode_transfer(data, at, end)
    receive_transfer(session, transfer, data[at:end])
    return transfer


def receive_transfer(session: AmqpSession, transfer: Transfer, part: bytes) -> None:
    """One frame of a delivery, which brings this part of the message."""
    _count_frame(session)
    link = session.links.get(transfer.handle)
    if isinstance(link, IngressLink):
        _receive_part(session, link, transfer, part)
    else:
        _refuse_direction(session, link, transfer.handle)


def _count_frame(session: AmqpSession) -> None:
    received = session.next_incoming_id + 1
    session.next_incoming_id = received
    if received >= session.window_due:
        session.send_flow()


def _receive_part(session: AmqpSession, link: IngressLink, transfer: Transfer, part: bytes) -> None:
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


def _keep_part(session: AmqpSession, link: IngressLink, part: bytes) -> None:
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


def _finish(session: AmqpSession, link: IngressLink) -> None:
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


def _count_delivery(session: AmqpSession, link: IngressLink, settled: bool) -> bool:
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


def _fail_unsettled(session: AmqpSession, link: IngressLink) -> None:
    session.fail_link(
        link, AmqpError("amqp:resource-limit-exceeded", "too many unsettled deliveries")
    )


def _refuse_unanswered(session: AmqpSession, link: IngressLink) -> None:
    """A transfer on a link that we have detached is dropped: the peer may not know yet.  On one
    that we have not answered, nobody has checked whether the peer may send at all."""
    if not link.answered:
        session.fail_link(
            link, AmqpError("amqp:link:transfer-limit-exceeded", "transfer before any credit")
        )


def _refuse_direction(session: AmqpSession, link: Link | None, handle: int) -> None:
    """A transfer on no link, or on one where we are the sender."""
    if link is None:
        session.fail(
            AmqpError(REFUSALS[DETACHED], f"{refusal(DETACHED, TRANSFER)} (handle {handle})")
        )
    elif link.own_state == ATTACHED or not link.answered:
        session.fail_link(link, AmqpError("amqp:not-allowed", "transfer by a link's receiver"))
