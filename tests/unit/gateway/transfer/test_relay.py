"""Relays: forwarding that no single frame can do, and everything arrives exactly once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.gateway.sim_stores import (
    SEGMENT_SIZE,
    SEGMENT_SIZE_LARGE,
    SimStores,
    key_of_body,
    keyed,
)
from twinbus.entities.commands import DeleteEntities, Send, UpdateEntities
from twinbus.entities.descriptions import (
    DISABLED,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.entities.partitions import PARTITION_COUNT, hash_key
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.transfer.relay import Relays
from twinbus.limits import FORWARD_HOPS_MAX
from twinbus.testing.disk import CrashMode

pytestmark = pytest.mark.proves("E-11")

PARTITIONED = QueueDescription(enable_partitioning=True)
EVERYWHERE = [0, 1, 2]


class Scene(SimStores):
    """Three stores and the relays between them."""

    def __init__(self, segment_size: int = SEGMENT_SIZE, count: int = 3) -> None:
        super().__init__(count, segment_size)
        self.new_relays()

    def new_relays(self) -> None:
        """As after a restart of the gateway: nothing is known of former relays."""
        self.forget_gateway()
        self.relays = Relays(self.stores, self.directory, self.clock, self.codec)
        self.tickers = [self.relays.tick]
        self.relays.load()

    def forwarding(
        self, source: str, target: str, stores: list[int], is_partitioned: bool = False
    ) -> Entity:
        """A source that forwards, with its relays running."""
        described = QueueDescription(forward_to=target, enable_partitioning=is_partitioned)
        entity = self.create(source, stores, described)
        self.relays.entity_changed(entity)
        return entity

    def update(self, entity: Entity, description: QueueDescription) -> None:
        for part in entity.parts:
            self.ask(part.store, UpdateEntities([part.entity_id], description))
        entity.describe(description)
        self.relays.entity_changed(entity)

    def send(self, entity: Entity, *bodies: bytes) -> None:
        """Send to a plain entity, or to the partition of the key."""
        for body in bodies:
            partition = hash_key(key_of_body(body)) if entity.is_partitioned else 0
            part = entity.parts[partition]
            message = keyed(body) if entity.is_partitioned else NewMessage(body)
            self.stores[part.store].submit([Send(part.entity_id, [message])])

    def arrived(self, entity: Entity, subqueue: int = MAIN) -> list[bytes]:
        return sorted(body for part in self.contents(entity, subqueue) for body in part)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def some(count: int) -> list[bytes]:
    return [b"key %d|%d" % (index % 7, index) for index in range(count)]


# --- where messages go ------------------------------------------------------------------------


def test_from_a_plain_queue_to_one_in_another_store(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.send(source, *some(300))
    scene.settle_down()
    assert scene.contents(target) == [some(300)], "all of them, in order"
    assert scene.contents(source) == [[]]


def test_to_a_partitioned_queue_by_key(scene: Scene) -> None:
    target = scene.create("there", EVERYWHERE, PARTITIONED)
    source = scene.forwarding("here", "there", [0])
    scene.send(source, *some(100))
    scene.settle_down()
    for partition, bodies in enumerate(scene.contents(target)):
        assert bodies == [b for b in some(100) if hash_key(key_of_body(b)) == partition]
    numbers = [message.sequence_number for message in scene.messages(target.parts[5])]
    assert all(number >> 48 == 5 for number in numbers)


def test_without_a_key_all_partitions_get_their_share(scene: Scene) -> None:
    target = scene.create("there", EVERYWHERE, PARTITIONED)
    source = scene.forwarding("here", "there", [0])
    scene.send(source, *[b"|%d" % index for index in range(64)])
    scene.settle_down()
    assert [len(bodies) for bodies in scene.contents(target)] == [4] * PARTITION_COUNT


def test_from_a_partitioned_queue_to_a_plain_one(scene: Scene) -> None:
    target = scene.create("there", [2])
    source = scene.forwarding("here", "there", EVERYWHERE, is_partitioned=True)
    scene.send(source, *some(100))
    scene.settle_down()
    assert scene.arrived(target) == sorted(some(100))
    _assert_order_within_keys(scene.contents(target)[0])


def test_between_partitioned_queues(scene: Scene) -> None:
    target = scene.create("there", [2, 1], PARTITIONED)
    source = scene.forwarding("here", "there", EVERYWHERE, is_partitioned=True)
    scene.send(source, *some(200))
    scene.settle_down()
    assert scene.arrived(target) == sorted(some(200))
    for bodies in scene.contents(target):
        _assert_order_within_keys(bodies)


def test_sessions_keep_their_order_and_their_ids(scene: Scene) -> None:
    described = QueueDescription(enable_partitioning=True, requires_session=True)
    target = scene.create("there", EVERYWHERE, described)
    source = scene.forwarding("here", "there", [1])
    bodies = [b"s%d|%d" % (index % 3, index) for index in range(60)]
    scene.send(source, *bodies)
    scene.settle_down()
    assert scene.arrived(target) == sorted(bodies)
    for part in target.parts:
        for message in scene.messages(part):
            assert message.session_id in ("s0", "s1", "s2")
    for found in scene.contents(target):
        _assert_order_within_keys(found)


def test_into_a_partitioned_topic_and_out_of_a_subscription(scene: Scene) -> None:
    topic = scene.create("news", EVERYWHERE, TopicDescription(enable_partitioning=True), "topic")
    target = scene.create("there", [0])
    described = SubscriptionDescription(enable_partitioning=True, forward_to="there")
    name = subscription_path("news", "all")
    subscription = scene.create(name, EVERYWHERE, described, "subscription")
    scene.relays.entity_changed(subscription)
    source = scene.forwarding("here", "news", [2])
    scene.send(source, *some(50))
    scene.settle_down()
    assert scene.arrived(target) == sorted(some(50))
    assert scene.arrived(subscription) == []
    assert topic.is_partitioned


def test_dead_letters_say_where_they_died(scene: Scene) -> None:
    target = scene.create("graves", [1])
    described = QueueDescription(
        enable_partitioning=True,
        forward_dead_lettered_messages_to="graves",
        dead_lettering_on_message_expiration=True,
    )
    source = scene.create("here", EVERYWHERE, described)
    scene.relays.entity_changed(source)
    part = source.parts[3]
    scene.stores[part.store].submit([Send(part.entity_id, [NewMessage(b"key|a", 1_000)])])
    scene.pass_time(1_500)
    (message,) = scene.messages(target.parts[0])
    overlay = message.overlay
    assert overlay is not None
    assert overlay.source == "here"
    assert overlay.reason == "TTLExpiredException"
    assert overlay.hop_count == 1
    assert overlay.enqueued_sequence_number == 3 << 48 | 1
    assert scene.arrived(source, DEAD_LETTER) == []


def test_a_message_keeps_what_is_left_of_its_life(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.stores[0].submit([Send(source.parts[0].entity_id, [NewMessage(b"|a", 10_000)])])
    scene.crash(1, random.Random(1))
    scene.pass_time(4_000)
    scene.restart(1)
    scene.relays.health_changed(1)
    scene.settle_down()
    (message,) = scene.messages(target.parts[0])
    assert message.expires_ms - message.enqueued_ms == 6_000


def test_between_plain_entities_of_one_store_no_relay_runs(scene: Scene) -> None:
    target = scene.create("there", [0])
    source = scene.forwarding("here", "there", [0])
    scene.send(source, b"|a")
    scene.settle_down()
    assert scene.arrived(target) == [b"|a"]
    assert not any(isinstance(c, Send) and c.carrier for c in scene.stores[0].sent)


def test_in_one_store_alone_partitions_take_a_relay_and_nothing_else_does() -> None:
    scene = Scene(count=1)
    spread = scene.create("spread", [0], PARTITIONED)
    plain = scene.create("plain", [0])
    to_spread = scene.forwarding("a", "spread", [0])
    to_plain = scene.forwarding("b", "plain", [0])
    to_nobody = scene.forwarding("c", "nobody", [0])
    for source in (to_spread, to_plain, to_nobody):
        scene.send(source, *some(40))
    scene.settle_down()
    assert scene.arrived(spread) == sorted(some(40))
    assert scene.arrived(plain) == sorted(some(40))
    assert _reasons(scene, to_nobody) == ["EntityNotFound"] * 40
    targets = {c.entity_id for c in scene.stores[0].sent if isinstance(c, Send) and c.carrier}
    assert targets <= {part.entity_id for part in spread.parts}


def _assert_order_within_keys(bodies: list[bytes]) -> None:
    last: dict[str, int] = {}
    for body in bodies:
        key, number = key_of_body(body), int(body.partition(b"|")[2])
        assert last.get(key, -1) < number
        last[key] = number


# --- what cannot go on ------------------------------------------------------------------------


def _reasons(scene: Scene, source: Entity, subqueue: int = TRANSFER_DEAD_LETTER) -> list[str]:
    found = []
    for part in source.parts:
        for message in scene.messages(part, subqueue):
            assert message.overlay is not None
            found.append(message.overlay.reason or "")
    return found


def test_a_target_that_is_gone(scene: Scene) -> None:
    source = scene.forwarding("here", "nowhere", EVERYWHERE, is_partitioned=True)
    scene.send(source, b"a|1", b"b|2")
    scene.settle_down()
    assert _reasons(scene, source) == ["EntityNotFound"] * 2


def test_a_target_that_goes_and_comes_again(scene: Scene) -> None:
    first = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.send(source, b"|1")
    scene.settle_down()
    scene.directory.remove(first)
    scene.relays.entity_changed(first)
    scene.ask(1, DeleteEntities([first.parts[0].entity_id]))
    scene.send(source, b"|2")
    scene.pass_time(1_000)
    assert _reasons(scene, source) == ["EntityNotFound"]
    second = scene.create("there", EVERYWHERE, PARTITIONED)
    scene.relays.entity_changed(second)
    scene.pass_time(1_000)
    scene.send(source, b"|3")
    scene.settle_down()
    assert scene.arrived(second) == [b"|3"]


def test_a_target_that_is_disabled(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.update(target, replace(target.description, status=DISABLED))
    scene.send(source, b"|1")
    scene.settle_down()
    assert _reasons(scene, source) == ["EntityDisabled"]


def test_of_a_full_target_only_what_has_no_room_is_refused() -> None:
    scene = Scene(SEGMENT_SIZE_LARGE)
    target = scene.create("there", [1], QueueDescription(max_size_megabytes=1))
    source = scene.forwarding("here", "there", [0])
    big = b"|" + bytes(100_000)
    scene.send(source, *[big] * 12, b"|small")
    scene.pass_time(3_000)
    assert len(scene.arrived(target)) == 11, "ten large ones and the small one"
    assert _reasons(scene, source) == ["QuotaExceeded"] * 2


def test_circles_end(scene: Scene) -> None:
    scene.create("ping", [0], QueueDescription(forward_to="pong"))
    pong = scene.create("pong", EVERYWHERE, replace(PARTITIONED, forward_to="ping"))
    scene.new_relays()
    ping = scene.directory.find("ping")
    assert ping is not None
    scene.send(ping, b"key|1")
    scene.pass_time(1_000)
    reasons = _reasons(scene, ping) + _reasons(scene, pong)
    assert reasons == ["MaxTransferHopCountExceeded"]
    assert FORWARD_HOPS_MAX == 4
    assert _reasons(scene, ping) == reasons, "four hops lead back to where it began"


def test_a_queue_cannot_forward_to_itself(scene: Scene) -> None:
    source = scene.forwarding("here", "here", EVERYWHERE, is_partitioned=True)
    scene.send(source, b"a|1")
    scene.settle_down()
    assert _reasons(scene, source) == ["EntityNotFound"]


def test_nothing_is_dead_lettered_while_a_store_is_down(scene: Scene) -> None:
    """Not even when every lock has run out, and the queue allows one delivery only."""
    target = scene.create("there", [1])
    source = scene.create("here", [0], QueueDescription(forward_to="there", max_delivery_count=1))
    scene.relays.entity_changed(source)
    scene.crash(1, random.Random(1))
    scene.send(source, *some(20))
    scene.pass_time(200_000, 5_000)
    assert scene.arrived(source) == sorted(some(20))
    scene.restart(1)
    scene.relays.health_changed(1)
    scene.settle_down()
    assert scene.contents(target) == [some(20)]
    assert _reasons(scene, source) == []


def test_other_partitions_go_on_while_one_store_is_down(scene: Scene) -> None:
    target = scene.create("there", EVERYWHERE, PARTITIONED)
    source = scene.forwarding("here", "there", [0])
    scene.crash(2, random.Random(1))
    scene.send(source, *some(70))
    scene.settle_down()
    lost = [b for b in some(70) if target.parts[hash_key(key_of_body(b))].store == 2]
    assert 0 < len(lost) < 70
    assert scene.arrived(source) == sorted(lost)
    scene.restart(2)
    scene.pass_time(10_000)
    assert scene.arrived(target) == sorted(some(70))


# --- changes ----------------------------------------------------------------------------------


def test_forwarding_that_ends_gives_back_what_was_not_sent(scene: Scene) -> None:
    scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.crash(1, random.Random(1))
    scene.send(source, *some(100))
    scene.settle_down()
    scene.update(source, QueueDescription())
    scene.restart(1)
    scene.pass_time(10_000)
    queue = scene.stores[0].queue("here")
    free = queue.take_ready(MAIN, 100, scene.clock.now())
    assert len(free) == 100 - len(scene.arrived(scene.directory.names["there"]))
    assert all(message.delivery_count == 0 for message in free)


def test_a_relay_to_another_target_begins_when_the_former_is_done(scene: Scene) -> None:
    """What may have gone to the old target must not go to the new one."""
    old = scene.create("old", [1])
    new = scene.create("new", [2])
    source = scene.forwarding("here", "old", [0])
    scene.send(source, *some(10))
    scene.stores[0].step()
    scene.stores[0].step()  # it is under way to store 1
    scene.stores[1].step()  # and durable there, but the answer is lost with the next step
    scene.update(source, QueueDescription(forward_to="new"))
    scene.send(source, b"|last")
    scene.pass_time(5_000)
    assert scene.arrived(old) + scene.arrived(new) == [*sorted(some(10)), b"|last"]
    assert b"|last" in scene.arrived(new)


def test_settings_of_a_source_change_while_its_relay_runs(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.update(source, replace(source.description, user_metadata="changed"))
    scene.send(source, b"|1")
    scene.settle_down()
    assert scene.arrived(target) == [b"|1"]


def test_a_disabled_source_waits_and_goes_on(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.update(source, replace(source.description, status="ReceiveDisabled"))
    scene.new_relays()
    scene.send(source, b"|1")
    scene.pass_time(1_000)
    assert scene.arrived(target) == []
    scene.update(source, replace(source.description, status="Active"))
    scene.pass_time(6_000)
    assert scene.arrived(target) == [b"|1"]


def test_a_source_that_is_deleted_ends_its_relay(scene: Scene) -> None:
    scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.directory.remove(source)
    scene.ask(0, DeleteEntities([source.parts[0].entity_id]))
    scene.relays.entity_changed(source)
    scene.pass_time(1_000)


# --- exactly once, whatever goes --------------------------------------------------------------


def _steps(scene: Scene) -> Iterator[Callable[[], bool]]:
    while True:
        yield from (store.step for store in scene.stores)


@pytest.mark.proves("E-11")
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("mode", [CrashMode.DROP, CrashMode.KEEP])
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_power_cuts_at_every_step(victim: int, mode: CrashMode, is_partitioned: bool) -> None:
    """Source or target goes at any step, and the gateway itself begins anew at some."""
    for at in range(14):
        scene = Scene()
        stores = EVERYWHERE if is_partitioned else [1]
        target = scene.create("there", stores, replace(PARTITIONED) if is_partitioned else None)
        source = scene.forwarding("here", "there", [0])
        scene.send(source, *some(150))
        while scene.stores[0].step():  # durable at the source
            if scene.stores[0].store.facts == [] and at % 2:
                break
        steps = _steps(scene)
        for _ in range(at):
            next(steps)()
        scene.crash(victim, random.Random(at), mode)
        if at % 3 == 0:
            scene.new_relays()
        scene.settle_down()
        scene.restart(victim)
        scene.relays.health_changed(victim)
        scene.pass_time(130_000, 10_000)
        kept = scene.arrived(target)
        assert len(set(kept)) == len(kept), f"twice, cut at {at}"
        assert scene.arrived(source) == []
        if mode is CrashMode.KEEP or victim == 1:
            assert kept == sorted(some(150)), f"lost, cut at {at}"
        for bodies in scene.contents(target):
            _assert_order_within_keys(bodies)


@pytest.mark.parametrize("at", range(24))
def test_a_new_gateway_goes_on_where_the_old_one_ended(at: int) -> None:
    """What the old one had locked comes first again, and what it had sent is known there."""
    scene = Scene()
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    scene.send(source, *some(150)[:100])
    steps = _steps(scene)
    for _ in range(at):
        next(steps)()
    scene.new_relays()
    scene.send(source, *some(150)[100:])
    scene.settle_down()
    assert scene.contents(target) == [some(150)]
    assert scene.arrived(source) == []


@pytest.mark.parametrize("seed", range(25))
def test_many_faults_while_messages_keep_coming(seed: int) -> None:
    """Exactly once and in order within each key, over power cuts and restarts of the gateway."""
    rng = random.Random(seed)
    scene = Scene()
    target = scene.create("there", EVERYWHERE, PARTITIONED)
    source = scene.forwarding("here", "there", EVERYWHERE, is_partitioned=True)
    sent: list[bytes] = []
    asked: list[tuple[bytes, Send]] = []
    for number in range(200):
        choice = rng.random()
        if choice < 0.5:
            body = b"key %d|%d" % (rng.randrange(9), number)
            part = source.parts[hash_key(key_of_body(body))]
            if scene.stores[part.store].health == 0:
                send = Send(part.entity_id, [keyed(body)])
                scene.stores[part.store].submit([send])
                asked.append((body, send))
        elif choice < 0.85:
            rng.choice(scene.stores).step()
        elif choice < 0.92:
            scene.pass_time(rng.choice([100, 1_000, 61_000]), 10_000)
        elif choice < 0.97:
            victim = rng.randrange(3)
            lost = {id(command) for command in scene.stores[victim].pending.values()}
            asked, gone = [a for a in asked if id(a[1]) not in lost], asked
            sent += [body for body, send in gone if id(send) not in lost and (body, send) in asked]
            scene.crash(victim, rng, rng.choice([CrashMode.DROP, CrashMode.KEEP, CrashMode.TEAR]))
            if rng.random() < 0.5:
                scene.settle_down()
            scene.restart(victim)
        else:
            scene.new_relays()
    scene.pass_time(200_000, 10_000)
    kept = scene.arrived(target)
    assert scene.arrived(source) == []
    assert len(set(kept)) == len(kept)
    assert {body for body, _ in asked} <= set(kept)
    for bodies in scene.contents(target):
        _assert_order_within_keys(bodies)


def test_the_numbers_remembered_stay_few(scene: Scene) -> None:
    target = scene.create("there", [1])
    source = scene.forwarding("here", "there", [0])
    for _ in range(20):
        scene.send(source, *some(50))
        scene.settle_down()
    carried = scene.stores[1].queue("there").carried
    assert carried is not None
    ((carrier, numbers),) = carried.all()
    assert carrier.startswith("here@")
    assert len(numbers) <= 128
    assert all(a < b for a, b in pairwise(numbers))
    assert len(scene.arrived(target)) == 1_000
    assert scene.messages(target.parts[0])[0].expires_ms == NEVER_MS
