"""From transfers to deliveries: the way in of every message.

A delivery is one transfer frame, or several in a row on its link, which are joined here; other
links may send in between.  Whatever a peer does, no more is kept than the link's max-message-size
for each half-received delivery, and PARTIAL_DELIVERY_BYTES_MAX for all of a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.composites import AmqpError
from twinbus.amqp.events import DeliveryReceived, DeliveryTooLarge
from twinbus.amqp.link import IngressLink, Link
from twinbus.amqp.states import ATTACHED, DETACHED, REFUSALS, TRANSFER, refusal
from twinbus.amqp.wire import UINT_MASK
from twinbus.errors import RemoteProtocolError
from twinbus.limits import PARTIAL_DELIVERY_BYTES_MAX, UNSETTLED_COUNT_MAX

if TYPE_CHECKING:
    from twinbus.amqp.session import AmqpSession
    from twinbus.amqp.transfers import Transfer


def receive_transfer(
    session: AmqpSession, transfer: Transfer, data: bytes, start: int, end: int
) -> None:
    """One frame of a delivery; its part of the message is `data[start:end]`."""
    received = session.next_incoming_id + 1
    session.next_incoming_id = received
    if received >= session.window_due:
        session.send_flow(None)
    link = session.links.get(transfer.handle)
    if not isinstance(link, IngressLink):
        _refuse_direction(session, link, transfer.handle)
        return
    delivery_id = transfer.delivery_id
    tag = transfer.delivery_tag
    settled = transfer.settled
    if (
        transfer.more
        or settled
        or delivery_id < 0
        or tag is None
        or link.partial_id >= 0
        or end - start > link.max_message_size
        or transfer.aborted
        or transfer.resume
        or link.own_state != ATTACHED
    ):
        _receive_unusual(session, link, transfer, data[start:end])
        return
    # _count_delivery, spelt out: every message comes along here.
    link.delivery_count = (link.delivery_count + 1) & UINT_MASK
    link.credit -= 1
    link.unsettled_count += 1
    if link.unsettled_count > UNSETTLED_COUNT_MAX:
        _fail_unsettled(session, link)
        return
    session.wire.events.append(
        DeliveryReceived(
            link,
            delivery_id,
            tag,
            transfer.message_format,
            False,
            transfer.state,
            data[start:end],
        )
    )


def _receive_unusual(
    session: AmqpSession, link: IngressLink, transfer: Transfer, part: bytes
) -> None:
    """Everything but a whole, unsettled delivery in one frame."""
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
    link.partial_size += len(part)
    _keep_part(session, link, part)
    if not transfer.more:
        _finish(session, link, transfer)


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


def _finish(session: AmqpSession, link: IngressLink, transfer: Transfer) -> None:
    """The last frame of a delivery has come."""
    delivery_id = link.partial_id
    settled = link.partial_settled
    partial = link.partial
    size = link.partial_size
    link.drop_partial()
    if not _count_delivery(session, link, settled):
        return
    if partial is None:
        session.wire.events.append(DeliveryTooLarge(link, delivery_id, settled, size))
        return
    session.wire.events.append(
        DeliveryReceived(
            link,
            delivery_id,
            link.partial_tag,
            link.partial_format,
            settled,
            transfer.state,
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
