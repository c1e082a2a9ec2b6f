"""Dispositions of the peer, for our deliveries and its own (OASIS AMQP 1.0 part 2.6.12).

A range costs no more than the deliveries that are really unsettled, however many ids it names.
"""

from collections.abc import Mapping

from twinbus.amqp.composites import Received
from twinbus.amqp.egress import Deliveries, EgressLink
from twinbus.amqp.events import DispositionReceived, IncomingSettled
from twinbus.amqp.frames import UINT_MASK, Wire
from twinbus.amqp.performatives import SENDER
from twinbus.amqp.session import AmqpSession
from twinbus.amqp.transfers import Disposition
from twinbus.errors import RemoteProtocolError
from twinbus.limits import DISPOSITION_MISSES_MAX


def receive_disposition(session: AmqpSession, disposition: Disposition) -> None:
    """Most name one delivery, or a run of one link; both are looked for first."""
    wire = session.wire
    first = disposition.first
    settled = disposition.settled
    if disposition.role == SENDER:
        wire.events.append(
            IncomingSettled(session, first, disposition.last, settled, disposition.state)
        )
        return
    if not settled and (disposition.state is None or isinstance(disposition.state, Received)):
        return  # no outcome yet
    deliveries = session.deliveries
    count = ((disposition.last - first) & UINT_MASK) + 1
    if count == 1:
        entry = deliveries.unsettled.get(first)
        if entry is not None:
            del deliveries.unsettled[first]
            _dispose(deliveries, entry[0], first, settled)
            wire.events.append(
                DispositionReceived(entry[0], [first], [entry[1]], settled, disposition.state)
            )
        elif settled and first in deliveries.disposed:
            _settle_disposed(deliveries, [first])
        return
    if not _report_run(wire, deliveries, disposition, count):
        ids = _within(deliveries, deliveries.unsettled, first, count)
        _report(wire, deliveries, ids, disposition)
    if settled and deliveries.disposed:
        _settle_disposed(deliveries, _within(deliveries, deliveries.disposed, first, count))


def _dispose(deliveries: Deliveries, link: EgressLink, delivery_id: int, settled: bool) -> None:
    """The receiver has spoken about a delivery: it is settled, or waits for our word."""
    if settled:
        link.count_unsettled(-1)
    else:
        deliveries.disposed[delivery_id] = link


def _report_run(wire: Wire, deliveries: Deliveries, disposition: Disposition, count: int) -> bool:
    """The usual range, all of it unsettled and of one link; False: nothing done, it is not."""
    unsettled = deliveries.unsettled
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
            deliveries.disposed[delivery_id] = link
    wire.events.append(
        DispositionReceived(link, ids, contexts, disposition.settled, disposition.state)
    )
    deliveries.misses = max(0, deliveries.misses - count)
    return True


def _within(
    deliveries: Deliveries, known: Mapping[int, object], first: int, count: int
) -> list[int]:
    """Which of the known ids lie in a range, by the shorter way."""
    if count > len(known):
        steps = len(known)
        ids = [n for n in known if (n - first) & UINT_MASK < count]
    else:
        steps = count
        ids = [n & UINT_MASK for n in range(first, first + count) if n & UINT_MASK in known]
    deliveries.misses = max(0, deliveries.misses + steps - 2 * len(ids))
    if deliveries.misses > DISPOSITION_MISSES_MAX:
        raise RemoteProtocolError(
            "dispositions of nothing that is unsettled", "amqp:resource-limit-exceeded"
        )
    return ids


def _settle_disposed(deliveries: Deliveries, ids: list[int]) -> None:
    """The receiver settles what it has spoken about before: no need to tell anybody."""
    for delivery_id in ids:
        deliveries.disposed.pop(delivery_id).count_unsettled(-1)


def _report(wire: Wire, deliveries: Deliveries, ids: list[int], disposition: Disposition) -> None:
    """Report unsettled deliveries, link by link."""
    settled = disposition.settled
    by_link: dict[int, DispositionReceived] = {}  # by our handle
    for delivery_id in ids:
        link, context = deliveries.unsettled.pop(delivery_id)
        _dispose(deliveries, link, delivery_id, settled)
        event = by_link.get(link.handle)
        if event is None:
            event = DispositionReceived(link, [], [], settled, disposition.state)
            by_link[link.handle] = event
            wire.events.append(event)
        event.delivery_ids.append(delivery_id)
        event.contexts.append(context)
