"""Ledgers, verdicts and timelines of drills that never took place."""

from twinbus.drill.director import EntityRow, Snapshot
from twinbus.drill.events import BAD, GOOD, Told
from twinbus.drill.judging import Bill, Verdict, reconcile
from twinbus.drill.ledger import Arrived, Ledger, Sent
from twinbus.drill.plan import CARTS, DOWN_PARTITION, ENTITIES, NEWS, ORDERS, PAYMENTS, Act
from twinbus.drill.spread import COUNTER_BITS, PARTITION_COUNT, Spread
from twinbus.drill.timeline import Sample, Timeline

COUNT = 12  # messages of each entity

BILL = Bill(
    operations=100,
    units=110,
    pairing_units=22,
    kinds={"send": 60, "receive": 50},
    currency="USD",
    prices_date="2026-11-01",
    base=10.0,
    cost=0.0,
    list_price=0.000088,
    pairing_list_price=0.000018,
)


def sent(entity: str, number: int, session: str | None = None) -> Sent:
    return Sent(f"{entity}-{number}", entity, session, number, 1_000 + number, f"hash {number}")


def arrived(place: str, each: Sent, sequence_number: int | None = None) -> Arrived:
    number = each.number if sequence_number is None else sequence_number
    return Arrived(each.message_id, place, each.session_id, number, 2_000, each.body_hash)


def perfect() -> Ledger:
    """Everything that was accepted has arrived where it had to."""
    ledger = Ledger()
    for entity in ENTITIES:
        for number in range(1, COUNT + 1):
            session = f"cart-{number % entity.sessions}, leg 1" if entity.sessions else None
            each = sent(entity.name, number, session)
            ledger.accept(each)
            for place in entity.places:
                ledger.receive(arrived(place, each))
    return ledger


def verdict_of(ledger: Ledger, **told: int) -> Verdict:
    found = {"through_backlog": 5, "left_in_backlog": 0, "dead_lettered": 0, **told}
    return Verdict(
        sent=ledger.sent_count(),
        places=reconcile(ledger),
        redelivered=ledger.redelivered,
        raised=ledger.raised,
        outages_s=(27.04,),
        failover_s=3.26,
        drain_s=4.0,
        by="Spark 4.3.0",
        bill=BILL,
        latency_ms={"p50": 12.0, "p99": 20_000.0},
        spread=spread(),
        **found,
    )


def spread() -> Spread:
    """A hundred messages in each partition and one more in the last; 60 in the one that failed."""
    numbers = [
        each << COUNTER_BITS | number
        for each in range(PARTITION_COUNT)
        for number in range(60 if each == DOWN_PARTITION else 100)
    ]
    numbers.append(PARTITION_COUNT - 1 << COUNTER_BITS | 100)
    return Spread.of(ORDERS.name, numbers, DOWN_PARTITION, 17.3)


def timeline() -> Timeline:
    """Ten seconds, an outage from 3 to 6."""
    made = Timeline()
    made.mark(0.0, Act.WELL)
    made.mark(3.0, Act.FAILS)
    made.mark(6.0, Act.RETURNS)
    for second in range(11):
        state = "failed over" if 3 <= second < 6 else "healthy"
        depth = max(0, min(second, 6) - 3) * 10 if second < 8 else 0
        states = {entity.name: state for entity in ENTITIES}
        made.add(Sample(float(second), second * 100, second * 90, depth, states))
    return made


def told() -> list[Told]:
    return [Told(3.0, "kill -9 <for> all", BAD), Told(6.0, "the primary is back", GOOD)]


def snapshot(act: Act = Act.FAILS) -> Snapshot:
    lines = timeline()
    names = (ORDERS, PAYMENTS, CARTS, NEWS)
    return Snapshot(
        time_s=73.2,
        act=act,
        words="kill -9",
        primary="down",
        secondary="up",
        authorities=("127.0.0.1:1", "127.0.0.1:2"),
        entities=[EntityRow(each.name, each.kind, "failed over", 10, 4, 6) for each in names],
        backlog=1_234,
        sent_rate=120.0,
        arrived_rate=0.0,
        sent_rates=lines.rates()[1],
        depths=lines.depths()[1],
        clerk="Spark is starting",
        told=told(),
    )
