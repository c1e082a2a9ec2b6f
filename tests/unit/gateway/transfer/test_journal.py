"""The journal: a store may be ill for a while, and nobody who sends to it is refused."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.sim_stores import Answers, SimStores, key_of_body, keyed
from twinbus.entities.commands import DeleteEntities, Reply, Send, UpdateEntities, dispatch_replies
from twinbus.entities.descriptions import DISABLED, QueueDescription
from twinbus.entities.facts import DEAD_LETTER
from twinbus.entities.message import NewMessage, Overlay
from twinbus.entities.partitions import hash_key
from twinbus.errors import EntityDisabled, InvalidOperation, Unavailable
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.transfer.journal import (
    AGE_MS_MAX,
    CLOSING,
    DRAINING,
    JOURNALLING,
    NORMAL,
    Journals,
)
from twinbus.gateway.transfer.journal_entries import decode_entry, encode_entry
from twinbus.links.store_link import SLOW, UP
from twinbus.testing.disk import CrashMode

pytestmark = pytest.mark.proves("A-3")

PARTITIONED = QueueDescription(enable_partitioning=True)
SICK = 1


class Scene(SimStores):
    """Stores with journals; store 1 is the one that falls ill."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(count)
        self.answers = Answers()
        self.new_journals()

    def new_journals(self) -> None:
        """As after a start of the gateway."""
        self.forget_gateway()
        self.journals = Journals(self.stores, self.directory, self.clock, self._answer)
        self.tickers = [self.journals.tick]
        for store, listed in self.listings():
            self.journals.found(store, listed)

    def _answer(self, reply: Reply) -> None:
        dispatch_replies([reply])

    def send(self, entity: Entity, *bodies: bytes) -> None:
        """As the gateway does it: each by itself, to the journal if that takes it."""
        for body in bodies:
            self.submit(entity, Send(entity.entity_id, [keyed(body)]))

    def submit(self, entity: Entity, command: Send) -> None:
        key = command.messages[0].partition_key or ""
        part = entity.parts[hash_key(key) if entity.is_partitioned else 0]
        command.context = (self.answers, None)
        if not self.journals.divert(entity, part, command):
            command.entity_id = part.entity_id
            self.stores[part.store].submit([command])

    def fall_ill(self) -> None:
        self.stores[SICK].health = SLOW

    def recover(self) -> None:
        self.stores[SICK].health = UP

    @property
    def state(self) -> int:
        return self.journals.state(SICK)

    def journal_names(self) -> list[str]:
        return [name for store in self.stores for name in store.store.names if name.startswith("$")]

    def arrived(self, entity: Entity) -> list[bytes]:
        return [body for part in self.contents(entity) for body in part]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def some(count: int) -> list[bytes]:
    return [b"key %d|%d" % (index % 7, index) for index in range(count)]


# --- the way through its states ---------------------------------------------------------------


def test_a_store_that_is_well_needs_no_journal(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.send(queue, *some(5))
    scene.settle_down()
    assert scene.state == NORMAL
    assert scene.arrived(queue) == some(5)
    assert scene.journal_names() == []


def test_sends_are_acknowledged_while_the_store_is_ill_and_arrive_later(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(300))
    scene.settle_down()
    assert scene.state == JOURNALLING
    assert scene.answers.errors == [None] * 300
    assert scene.arrived(queue) == []
    scene.recover()
    scene.pass_time(1_000)
    assert scene.state == NORMAL
    assert scene.arrived(queue) == some(300), "all of them, in order"
    assert scene.journal_names() == [], "an empty journal goes"


def test_nothing_is_acknowledged_before_it_is_durable_in_the_journal(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.stores[2].broker.turn(may_commit=False)
    assert scene.answers.replies == []
    scene.settle_down()
    assert scene.answers.errors == [None]


def test_what_comes_while_it_is_emptied_does_not_overtake(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(400)[:350])
    scene.settle_down()
    scene.recover()
    scene.journals.tick(scene.clock.now())
    assert scene.state == DRAINING
    for body in some(400)[350:]:
        scene.send(queue, body)
        for store in scene.stores:
            store.step()
    scene.pass_time(1_000)
    assert scene.state == NORMAL
    assert scene.arrived(queue) == some(400)
    assert scene.answers.errors == [None] * 400


def test_it_is_closed_under_steady_load(scene: Scene) -> None:
    """Sends that never pause must not keep the journal open for ever."""
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(20))
    scene.settle_down()
    scene.recover()
    sent = 20
    states = set()
    while scene.state != NORMAL or sent == 20:
        scene.send(queue, b"key|%d" % sent)
        sent += 1
        scene.clock.advance(1)
        scene.journals.tick(scene.clock.now())
        states.add(scene.state)
        for store in scene.stores:
            store.step()
        assert sent < 1_000
    scene.settle_down()
    assert CLOSING in states
    arrived = [int(body.partition(b"|")[2]) for body in scene.arrived(queue)]
    assert arrived == list(range(sent))


def test_entries_for_places_that_take_turns_do_not_go_one_by_one(scene: Scene) -> None:
    """More comes in each round than one message; the journal is emptied all the same."""
    queues = [scene.create(f"orders-{number}", [SICK]) for number in range(5)]
    scene.fall_ill()
    sent = 0

    def send_to_each() -> None:
        nonlocal sent
        for queue in queues:
            scene.send(queue, b"key|%d" % sent)
        sent += 1

    for _ in range(200):
        send_to_each()
    scene.settle_down()
    scene.recover()
    while scene.state != NORMAL or sent == 200:
        send_to_each()
        scene.clock.advance(1)
        scene.journals.tick(scene.clock.now())
        for store in scene.stores:
            store.step()
        assert sent < 2_000
    scene.settle_down()
    for queue in queues:
        arrived = [int(body.partition(b"|")[2]) for body in scene.arrived(queue)]
        assert arrived == list(range(sent))


def test_it_falls_ill_again_while_the_journal_is_emptied(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(100)[:60])
    scene.settle_down()
    for start in (60, 80):
        scene.recover()
        scene.journals.tick(scene.clock.now())
        scene.stores[2].step()
        scene.fall_ill()
        scene.journals.tick(scene.clock.now())
        scene.send(queue, *some(100)[start : start + 20])
        scene.settle_down()
        assert scene.state == JOURNALLING
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(100)


def test_those_who_wait_at_its_end_go_into_it_when_that_fails(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(10)[:5])
    scene.settle_down()
    scene.recover()
    while scene.state != CLOSING:
        scene.journals.tick(scene.clock.now())
        scene.stores[2].step()
    scene.send(queue, *some(10)[5:])
    assert len(scene.answers.replies) == 5
    scene.fall_ill()
    scene.journals.tick(scene.clock.now())
    scene.settle_down()
    assert scene.state == JOURNALLING
    assert scene.answers.errors == [None] * 10
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(10)


def test_all_partitions_in_the_store_share_its_journal(scene: Scene) -> None:
    orders = scene.create("orders", [0, 1, 2], PARTITIONED)
    scene.fall_ill()
    scene.send(orders, *some(140))
    scene.settle_down()
    assert scene.answers.errors == [None] * 140
    assert len(scene.journal_names()) == 1
    scene.recover()
    scene.pass_time(1_000)
    for partition, bodies in enumerate(scene.contents(orders)):
        assert bodies == [b for b in some(140) if hash_key(key_of_body(b)) == partition]


def test_a_store_that_was_never_written_to_is_normal_at_once(scene: Scene) -> None:
    scene.fall_ill()
    scene.journals.tick(scene.clock.now())
    assert scene.state == JOURNALLING
    scene.recover()
    scene.journals.tick(scene.clock.now())
    assert scene.state == NORMAL
    assert not scene.journals.takes(SICK)


# --- what is journalled -------------------------------------------------------------------------


def test_a_batch_is_journalled_whole(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.submit(queue, Send(0, [keyed(body) for body in some(5)]))
    scene.settle_down()
    assert [reply.result for reply in scene.answers.replies] == [[0] * 5]
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(5)


def test_scheduled_sends_go_straight(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    due = scene.clock.now().utc_ms + 60_000
    scene.submit(queue, Send(0, [NewMessage(b"|1", scheduled_ms=due)]))
    scene.settle_down()
    assert [reply.result for reply in scene.answers.replies] == [[1]]


def test_what_the_entity_would_refuse_is_refused_at_once(scene: Scene) -> None:
    sessions = scene.create("steps", [SICK], QueueDescription(requires_session=True))
    closed = scene.create("closed", [SICK], QueueDescription(status=DISABLED))
    scene.fall_ill()
    scene.send(sessions, b"no session|1")
    scene.send(closed, b"|1")
    assert [type(error) for error in scene.answers.errors] == [InvalidOperation, EntityDisabled]


def test_what_was_acknowledged_is_let_into_an_entity_that_was_disabled_since(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.settle_down()
    disabled = replace(queue.description, status=DISABLED)
    scene.ask(SICK, UpdateEntities([queue.parts[0].entity_id], disabled))
    queue.describe(disabled)
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [b"|1"]


def test_with_its_entity_an_entry_goes(scene: Scene) -> None:
    gone = scene.create("gone", [SICK])
    stays = scene.create("stays", [SICK])
    scene.fall_ill()
    scene.send(gone, b"|1")
    scene.send(stays, b"|2")
    scene.settle_down()
    scene.directory.remove(gone)
    scene.ask(SICK, DeleteEntities([gone.parts[0].entity_id]))
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(stays) == [b"|2"]
    assert scene.state == NORMAL


def test_its_life_counts_from_when_it_was_accepted(scene: Scene) -> None:
    described = QueueDescription(dead_lettering_on_message_expiration=True)
    queue = scene.create("orders", [SICK], described)
    scene.fall_ill()
    scene.submit(queue, Send(0, [NewMessage(b"|short", 10_000), NewMessage(b"|long", 60_000)]))
    scene.settle_down()
    scene.pass_time(30_000, 1_000)
    scene.recover()
    scene.pass_time(1_000)
    (message,) = scene.messages(queue.parts[0])
    assert 29_000 <= message.expires_ms - message.enqueued_ms <= 30_000
    assert scene.contents(queue, DEAD_LETTER) == [[b"|short"]]


def test_duplicates_are_found_among_what_was_journalled(scene: Scene) -> None:
    described = QueueDescription(enable_partitioning=True, requires_duplicate_detection=True)
    orders = scene.create("orders", [SICK], described)
    scene.send(orders, b"key|1")
    scene.settle_down()
    scene.fall_ill()
    scene.send(orders, b"key|1", b"key|2", b"key|2")
    scene.settle_down()
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(orders) == [b"key|1", b"key|2"]


def test_what_was_for_a_queue_that_is_made_anew_does_not_come_back(scene: Scene) -> None:
    old = scene.create("orders", [SICK], QueueDescription(created_utc_ms=1))
    scene.fall_ill()
    scene.send(old, b"|old")
    scene.settle_down()
    scene.ask(SICK, DeleteEntities([old.parts[0].entity_id]))
    scene.directory.remove(old)
    new = scene.create("orders", [0], QueueDescription(created_utc_ms=2))
    scene.recover()
    scene.pass_time(5_000)
    assert scene.arrived(new) == []
    assert scene.journals.state(SICK) == NORMAL


texts = st.none() | st.text(max_size=20)


@given(st.text(max_size=40), st.integers(0, 1 << 61), st.integers(0, 1 << 61), texts, texts, texts)
def test_an_entry_survives_the_way_to_bytes_and_back(
    name: str,
    accepted: int,
    life: int,
    message_id: str | None,
    session: str | None,
    key: str | None,
) -> None:
    message = NewMessage(b"body", life, 0, message_id, session, key)
    data = encode_entry(name, 7, accepted, message)
    entry = decode_entry(data)
    assert (entry.name, entry.created_ms) == (name, 7)
    assert (entry.accepted_ms, entry.time_to_live_ms) == (accepted, life)
    assert entry.keys == (message_id, session, key)
    assert entry.body == b"body"
    for size in range(len(data) - 4):
        with pytest.raises(ValueError, match="entry"):
            decode_entry(data[:size])


# --- limits and failures ------------------------------------------------------------------------


def test_where_all_stores_are_slow_nobody_is_refused(scene: Scene) -> None:
    """As when several of them are on one disk."""
    queue = scene.create("orders", [SICK])
    for store in scene.stores:
        store.health = SLOW
    scene.send(queue, b"|1")
    scene.settle_down()
    assert scene.answers.errors == [None]
    assert scene.arrived(queue) == [b"|1"]
    assert scene.journal_names() == []


def test_a_journal_that_has_become_slow_is_used_if_there_is_no_better_place(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.settle_down()
    for store in scene.stores:
        store.health = SLOW
    scene.send(queue, b"|2")
    scene.settle_down()
    assert scene.answers.errors == [None, None]
    assert scene.arrived(queue) == []
    for store in scene.stores:
        store.health = UP
    scene.pass_time(5_000)
    assert scene.arrived(queue) == [b"|1", b"|2"]
    assert scene.state == NORMAL


def test_after_fifteen_minutes_it_takes_no_more(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.settle_down()
    scene.clock.advance(AGE_MS_MAX + 1)
    scene.send(queue, b"|2")
    scene.settle_down()
    assert [type(error) for error in scene.answers.errors] == [type(None), Unavailable]
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [b"|1"]
    scene.fall_ill()
    scene.send(queue, b"|3")
    scene.settle_down()
    assert scene.answers.errors[-1] is None


def test_a_full_journal_says_so(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.settle_down()
    (name,) = scene.journal_names()
    journal = scene.stores[2].queue(name)
    journal._size_bytes_max = 10
    scene.send(queue, b"|2")
    scene.settle_down()
    error = scene.answers.errors[-1]
    assert isinstance(error, Unavailable)
    assert "full" in str(error)


def test_when_the_store_of_the_journal_goes_another_one_takes_over() -> None:
    scene = Scene(4)
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(20)[:10])
    scene.settle_down()
    scene.crash(2, random.Random(1))
    scene.send(queue, *some(20)[10:])
    scene.settle_down()
    assert scene.answers.errors == [None] * 20
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [], "what came later must not overtake"
    scene.restart(2)
    scene.pass_time(10_000)
    assert scene.arrived(queue) == some(20)
    assert scene.state == NORMAL
    assert scene.journal_names() == []


def test_with_no_store_left_it_is_unavailable(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    for store in range(3):
        scene.crash(store, random.Random(1))
    scene.send(queue, b"|1")
    assert [type(error) for error in scene.answers.errors] == [Unavailable]
    scene.restart(0)
    scene.send(queue, b"|2")
    scene.settle_down()
    assert scene.answers.errors[-1] is None


def test_one_store_alone_has_no_journal() -> None:
    scene = Scene(1)
    queue = scene.create("orders", [0])
    scene.stores[0].health = SLOW
    scene.send(queue, b"|1")
    scene.settle_down()
    assert scene.arrived(queue) == [b"|1"]


def test_a_journal_of_before_is_emptied_before_anything_goes_straight(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(30)[:20])
    scene.settle_down()
    scene.recover()
    scene.new_journals()
    scene.send(queue, *some(30)[20:])
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(30)
    assert scene.state == NORMAL


def test_a_journal_of_before_is_found_before_its_store_is_up(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(5))
    scene.settle_down()
    scene.new_journals()
    assert scene.state == JOURNALLING
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(5)
    assert scene.state == NORMAL


def test_of_two_journals_of_before_the_older_goes_first_though_it_is_found_last(
    scene: Scene,
) -> None:
    """Stores are opened in any order; the journal that is found first may be the younger one."""
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(30)[:20])
    scene.settle_down()
    scene.crash(2, random.Random(1))
    scene.pass_time(100)
    scene.send(queue, *some(30)[20:])
    scene.settle_down()
    scene.restart(2)
    scene.recover()
    assert [len(store.store.names) for store in scene.stores] == [1, 1, 1]
    scene.new_journals()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(30)
    assert scene.state == NORMAL
    assert scene.journal_names() == []


def test_its_own_store_is_opened_again(scene: Scene) -> None:
    """It is listed once more, and is still one journal: it is removed at the end, not earlier."""
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(30)[:20])
    scene.settle_down()
    for store, listed in scene.listings():
        scene.journals.found(store, listed)
    assert len(scene.journals._journals[SICK].places) == 1
    scene.recover()
    for body in some(60)[20:]:
        scene.send(queue, body)
        scene.journals.tick(scene.clock.now())
        scene.stores[2].step()
        scene.stores[SICK].step()
    scene.pass_time(1_000)
    assert scene.answers.errors == [None] * 60
    assert scene.arrived(queue) == some(60)
    assert scene.state == NORMAL


def test_an_entry_that_nobody_can_read_is_kept_aside(scene: Scene) -> None:
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, b"|1")
    scene.settle_down()
    (name,) = scene.journal_names()
    journal = scene.stores[2].queue(name)
    scene.ask(2, Send(journal.entity_id, [NewMessage(b"\xff")]))
    scene.recover()
    scene.pass_time(1_000)
    assert scene.arrived(queue) == [b"|1"]
    assert scene.state == NORMAL
    assert scene.journal_names() == [name]
    (kept,) = journal.messages_from(DEAD_LETTER, 0, 10)
    assert isinstance(kept.overlay, Overlay)


# --- exactly once, whatever goes ----------------------------------------------------------------


@pytest.mark.parametrize("victim", [SICK, 2])
@pytest.mark.parametrize("mode", [CrashMode.DROP, CrashMode.KEEP])
def test_power_cuts_at_every_step(victim: int, mode: CrashMode) -> None:
    """The ill store or that of the journal goes at any step of the emptying."""
    for at in range(16):
        scene = Scene()
        queue = scene.create("orders", [SICK])
        scene.fall_ill()
        scene.send(queue, *some(100))
        scene.settle_down()
        assert scene.answers.errors == [None] * 100
        scene.recover()
        scene.journals.tick(scene.clock.now())
        for step in range(at):
            scene.stores[(2, SICK)[step % 2]].step()
        scene.crash(victim, random.Random(at), mode)
        if at % 3 == 0:
            scene.settle_down()
        scene.restart(victim)
        if at % 4 == 0:
            scene.new_journals()
        scene.pass_time(130_000, 5_000)
        assert scene.arrived(queue) == some(100), f"cut at {at}"
        assert scene.state == NORMAL


@pytest.mark.parametrize("at", range(16))
def test_a_new_gateway_goes_on_where_the_old_one_ended(at: int) -> None:
    scene = Scene()
    queue = scene.create("orders", [SICK])
    scene.fall_ill()
    scene.send(queue, *some(150)[:100])
    scene.settle_down()
    scene.recover()
    scene.journals.tick(scene.clock.now())
    for step in range(at):
        scene.stores[(2, SICK)[step % 2]].step()
    scene.new_journals()
    scene.send(queue, *some(150)[100:])
    scene.pass_time(1_000)
    assert scene.arrived(queue) == some(150)
    assert scene.state == NORMAL


@pytest.mark.proves("A-3")
@pytest.mark.parametrize("seed", range(25))
def test_many_faults_while_messages_keep_coming(seed: int) -> None:
    """What was acknowledged arrives, exactly once and in order within its key."""
    rng = random.Random(seed)
    scene = Scene()
    orders = scene.create("orders", [0, 1, 2], PARTITIONED)
    plain = scene.create("plain", [SICK])
    for number in range(250):
        choice = rng.random()
        if choice < 0.5:
            scene.send(rng.choice([orders, plain]), b"key %d|%d" % (rng.randrange(5), number))
        elif choice < 0.8:
            rng.choice(scene.stores).step()
            scene.journals.tick(scene.clock.now())
        elif choice < 0.88:
            store = scene.stores[rng.randrange(3)]
            store.health = rng.choice([UP, SLOW, UP])
        elif choice < 0.95:
            scene.pass_time(rng.choice([100, 500, 3_000]), 100)
        elif choice < 0.98:
            victim = rng.randrange(3)
            scene.crash(victim, rng, rng.choice([CrashMode.DROP, CrashMode.KEEP, CrashMode.TEAR]))
            scene.journals.tick(scene.clock.now())
            if rng.random() < 0.5:
                scene.settle_down()
            scene.restart(victim)
        else:
            scene.pass_time(200)
    for store in scene.stores:
        store.health = UP
    scene.pass_time(130_000, 2_000)
    acknowledged = set()
    for reply in scene.answers.replies:
        assert isinstance(reply.command, Send)
        if reply.error is None:
            acknowledged.add(reply.command.messages[0].body)
    for entity in (orders, plain):
        arrived = scene.arrived(entity)
        assert len(set(arrived)) == len(arrived)
        for bodies in scene.contents(entity):
            _assert_order_within_keys(bodies)
    assert acknowledged <= set(scene.arrived(orders)) | set(scene.arrived(plain))
    assert not scene.journals.takes(SICK)


def _assert_order_within_keys(bodies: list[bytes]) -> None:
    last: dict[str, int] = {}
    for body in bodies:
        key, number = key_of_body(body), int(body.partition(b"|")[2])
        assert last.get(key, -1) < number
        last[key] = number
