"""What a task of the syphon makes of a backlog, whatever its destinations do."""

import pytest

from tests.unit.pipeline.memory_bus import Entity, MemoryBus
from twinbus.amqp.types import Timestamp
from twinbus.client.blocking import CannotConnect
from twinbus.client.links import ConnectionLost
from twinbus.clock import Now
from twinbus.errors import EntityDisabled, InvalidOperation, ServerBusy, TwinbusError, Unauthorized
from twinbus.message.plain import Properties, data_section, decode_message, encode_message
from twinbus.pairing.primary import Owner
from twinbus.pipeline.syphon.mover import Memory, Mover, lines_of, parts_of
from twinbus.pipeline.syphon.restoring import RestoredBytes
from twinbus.pipeline.syphon.rounds import REST_MS_MAX

pytestmark = pytest.mark.proves("D-2")

QUEUE = "shop/x-servicebus-transfer/0"


class World:
    """A pair of namespaces; time only passes when a test says so."""

    def __init__(self) -> None:
        self.primary = MemoryBus()
        self.secondary = MemoryBus()
        self.backlog = self.secondary.create(QUEUE)
        self.owner = Owner("shop", takes_unmarked=True)
        self.memory = Memory()
        self.now_ms = 1_000_000
        self.tick_ms = 0  # how long each look at the clock takes
        self.last = 0

    def now(self) -> Now:
        self.now_ms += self.tick_ms
        return Now(self.now_ms, self.now_ms)

    def wait(self, body: str, path: str | None = "orders", **given: str) -> int:
        """Put a message into the backlog, as the pair does."""
        self.last += 1
        properties: dict[str, object] = {}
        if path is not None:
            properties["x-ms-path"] = path
        if "session" in given:
            properties["x-ms-sessionid"] = given["session"]
        if "mark" in given:
            properties["x-twinbus-primary"] = given["mark"]
        if "namespace" in given:
            properties["x-twinbus-namespace"] = given["namespace"]
        if given.get("key", "p") != "":
            properties["x-twinbus-producer-key"] = f"{given.get('key', 'p')}/{self.last}"
        annotations: dict[str, object] = {
            "x-opt-sequence-number": self.last,
            "x-opt-enqueued-time": Timestamp(self.now_ms),
        }
        if "partition_key" in given:
            annotations["x-opt-partition-key"] = given["partition_key"]
        self.backlog.waiting[self.last] = encode_message(
            data_section(body.encode()), Properties(message_id=body), properties, annotations
        )
        return self.last

    def move(self, count_max: int = 1_000) -> dict[tuple[str, str, str], int]:
        """A round in a process of its own would forget `memory`; give it a new one then."""
        mover = Mover(
            self.secondary,
            lambda: self.primary,
            QUEUE,
            self.owner,
            self.memory,
            self.now,
            position="bus/q@1#0/",
        )
        try:
            mover.move(1, 1 << 40, count_max)
        finally:
            self.counts = {key: tally.count for key, tally in mover.tallies.items()}
        return self.counts


@pytest.fixture
def world() -> World:
    world = World()
    world.primary.create("orders")
    return world


def bodies(entity: Entity) -> list[str]:
    found = [decode_message(message).body for message in entity.received]
    return [body.decode() for body in found if isinstance(body, bytes)]


@pytest.mark.proves("D-2")
def test_everything_goes_home_in_order(world: World) -> None:
    """And is gone from the backlog."""
    for number in range(10):
        world.wait(f"{number}")
    assert world.move() == {("orders", "moved", ""): 10}
    assert bodies(world.primary.entities["orders"]) == [f"{number}" for number in range(10)]
    assert not world.backlog.waiting


def test_a_limit_ends_a_round_early(world: World) -> None:
    for number in range(20):
        world.wait(f"{number}")
    world.move(count_max=4)
    assert 0 < len(world.backlog.waiting) < 20
    while world.backlog.waiting:
        world.move(count_max=4)
    assert len(world.primary.entities["orders"].received) == 20


@pytest.mark.proves("D-2")
def test_nothing_is_deleted_that_was_not_acknowledged(world: World) -> None:
    """A connection that is lost in the middle of a batch."""
    for number in range(8):
        world.wait(f"{number}")
    world.primary.fails_after = 2
    assert world.move()["orders", "held", "ConnectionLost: the connection is lost"] == 8
    assert len(world.backlog.waiting) == 8
    world.primary.fails_after = None
    world.now_ms += REST_MS_MAX
    world.move()
    assert bodies(world.primary.entities["orders"]) == [f"{number}" for number in range(8)]


@pytest.mark.proves("D-2")
def test_a_task_that_dies_before_it_deletes_sends_copies_with_the_same_keys(world: World) -> None:
    """Nothing twice, also of messages that had no producer key."""
    world.wait("with a key")
    world.wait("without one", key="")
    world.secondary.settle_fault = TwinbusError("the backlog is away")
    with pytest.raises(TwinbusError, match="is away"):
        world.move()
    world.secondary.settle_fault = None
    world.memory = Memory()  # another process takes over
    world.move()
    assert bodies(world.primary.entities["orders"]) == ["with a key", "without one"]
    assert world.primary.entities["orders"].keys == {"p/1", "bus/q@1#0/2"}
    assert not world.backlog.waiting


@pytest.mark.proves("P-15")
def test_what_somebody_else_has_locked_is_sent_once_by_a_process(world: World) -> None:
    """A syphon beside us; without keys a second copy would arrive."""
    number = world.wait("one")
    world.backlog.locked.add(number)
    world.move()
    tries = len(world.primary.tries)
    world.backlog.locked.clear()
    world.move()
    assert len(world.primary.tries) == tries
    assert not world.backlog.waiting


@pytest.mark.proves("D-2")
@pytest.mark.parametrize(
    "fault",
    [EntityDisabled("off"), ServerBusy("busy"), Unauthorized("no"), ConnectionLost("lost")],
    ids=lambda fault: type(fault).__name__,
)
def test_a_destination_that_does_not_take_it_now(world: World, fault: TwinbusError) -> None:
    """Its messages are held, others pass; it rests longer and longer."""
    world.primary.create("others")
    world.wait("1")
    world.wait("2", "others")
    world.primary.faults["orders"] = fault
    counts = world.move()
    assert counts["orders", "held", f"{type(fault).__name__}: {fault}"] == 1
    world.now_ms += REST_MS_MAX
    world.move()
    assert bodies(world.primary.entities["others"]) == ["2"]
    assert not world.backlog.dead
    world.primary.tries.clear()
    world.move()  # it rests: nobody asks
    assert not world.primary.tries
    del world.primary.faults["orders"]
    world.now_ms += REST_MS_MAX
    world.move()
    assert bodies(world.primary.entities["orders"]) == ["1"]


def test_a_primary_that_is_away_is_asked_once_in_a_round(world: World) -> None:
    """Whoever cannot be connected to takes its time to say so."""
    for path in ("orders", "others", "more"):
        world.wait(path, path)
    for path in ("orders", "others", "more"):
        world.primary.faults[path] = CannotConnect("refused", is_final=False)
    world.move()
    assert world.primary.tries == ["orders"]
    assert len(world.backlog.waiting) == 3


@pytest.mark.proves("D-2")
def test_a_session_is_never_overtaken(world: World) -> None:
    """What comes after a held message of its session waits with it, whatever happens."""
    world.secondary.chunk_count = 2
    for number in range(6):
        world.wait(f"{number}", session=f"s{number % 2}")
    world.primary.fails_after = 1  # the second message of the first chunk
    world.move()
    world.primary.fails_after = None
    world.now_ms += REST_MS_MAX
    world.move()
    received = bodies(world.primary.entities["orders"])
    assert [each for each in received if int(each) % 2 == 0] == ["0", "2", "4"]
    assert [each for each in received if int(each) % 2] == ["1", "3", "5"]


def test_a_destination_that_comes_back_in_the_middle_of_a_round(world: World) -> None:
    """The first chunk was held; the second has the same session, so it waits as well."""
    world.secondary.chunk_count = 1
    world.wait("1", session="s")
    world.wait("2", session="s")
    world.primary.faults["orders"] = EntityDisabled("off")

    class Mended(dict[str, TwinbusError]):
        def __getitem__(self, path: str) -> TwinbusError:
            return self.pop(path)

    world.primary.faults = Mended(world.primary.faults)
    world.tick_ms = REST_MS_MAX
    world.move()
    assert not world.primary.entities["orders"].received
    world.move()
    assert bodies(world.primary.entities["orders"]) == ["1", "2"]


@pytest.mark.proves("D-2")
def test_what_can_never_be_delivered(world: World) -> None:
    """Dead-lettered with the reasons of the in-process syphon, and nobody else for it."""
    world.primary.size_bytes_max = 500
    world.wait("1")
    large = world.wait("x" * 600)
    world.wait("2")
    gone = world.wait("3", "gone")
    nowhere = world.wait("4", None)
    damaged = world.wait("5", session="s")
    world.backlog.waiting[damaged] = world.backlog.waiting[damaged].replace(
        b"x-ms-sessionid\xa1\x01s", b"x-ms-sessionid\x54\x01"[:16] + b"\x41"
    )
    world.move()
    assert bodies(world.primary.entities["orders"]) == ["1", "2"]
    dead = world.backlog.dead
    assert {number: reason for number, (reason, _) in dead.items()} == {
        large: "MessageSizeExceeded",
        gone: "DestinationNotFound",
        nowhere: "NoDestinationPath",
        damaged: "DamagedBacklogMessage",
    }
    assert dead[gone][1] == "gone: 'gone' does not exist"
    assert not world.backlog.waiting


def test_a_destination_that_refuses_a_message(world: World) -> None:
    world.wait("1")
    world.primary.faults["orders"] = InvalidOperation("needs a session")
    world.move()
    assert world.backlog.dead == {1: ("DestinationRefused", "orders: needs a session")}


def test_partitions_get_one_key_at_a_time(world: World) -> None:
    """What is sent together ends up in one partition; copies of it do so again."""
    world.secondary.chunk_count = 100
    world.primary.create("parts", is_partitioned=True)
    for path in ("parts", "orders"):
        for number in range(12):
            world.wait(f"{number}", path, session=f"s{number % 3}")
        world.wait("keyed", path, partition_key="k")
        world.wait("free", path)
    world.move()
    parts = world.primary.entities["parts"]
    assert sorted(parts.batches) == [1, 1, 4, 4, 4, 13]
    assert len(parts.received) == 14
    assert world.primary.entities["orders"].batches == [1, 13]
    world.wait("a", "parts", session="s1")
    world.wait("b", "parts", session="s2")
    world.move()
    assert parts.batches[-2:] == [1, 1]  # it is known by now


def restored(number: int, key: str, session_id: str | None = None, size: int = 10) -> RestoredBytes:
    return RestoredBytes(number, 1, "q", b"x" * size, session_id, None, key)


def test_messages_without_a_key_stay_within_their_block() -> None:
    """4,096 numbers of a producer go to one partition, then to the next."""
    messages = [restored(n, f"a/{4_090 + n}") for n in range(10)] + [restored(11, "b/1")]
    lines = lines_of("q", messages, is_by_key=False)
    assert [len(part) for line in lines for part in line.parts] == [6, 4, 1]


def test_parts_that_follow_each_other_fit_into_a_batch() -> None:
    messages = [restored(n, f"a/{n}", "s", 100_000) for n in range(1, 4)]
    messages.append(restored(4, "a/4", "s", 900_000))
    assert [[each.number for each in part] for part in parts_of(messages)] == [[1], [2], [3], [4]]
    small = [restored(n, f"a/{n}", "s", 1_000) for n in range(1, 100)]
    assert len(parts_of(small)) == 1


# --- messages of other primaries ------------------------------------------------------------------


@pytest.mark.proves("P-19", "D-2")
def test_only_this_primarys_are_moved(world: World) -> None:
    """The others stay where they are, and a round goes on past them."""
    for number in range(6):
        world.wait(f"{number}", mark="SHOP" if number % 2 else "another")
    world.wait("6")
    assert world.move(count_max=1_000) == {
        ("orders", "moved", ""): 4,
        ("", "left", "belongs to another"): 3,
    }
    assert bodies(world.primary.entities["orders"]) == ["1", "3", "5", "6"]
    assert sorted(world.backlog.waiting) == [1, 3, 5]
    assert not world.backlog.dead
    first = decode_message(world.primary.entities["orders"].received[0])
    assert first.application_properties == {}, "the mark is taken off"


@pytest.mark.proves("P-19", "D-2")
def test_without_a_mark_only_out_of_ones_own_queue(world: World) -> None:
    """Nor is it dead-lettered for being damaged: it may be somebody's."""
    world.owner = Owner("shop", takes_unmarked=False)
    world.wait("unmarked")
    world.wait("no path", path=None)
    world.wait("ours", mark="shop")
    world.wait("damaged, and another's", path=None, mark="another")
    world.wait("damaged, and ours", path=None, mark="shop")
    broken = world.wait("broken")
    world.backlog.waiting[broken] = world.backlog.waiting[broken][:-3]
    counts = world.move()
    assert counts["orders", "moved", ""] == 1
    assert counts["", "left", "does not say whose it is"] == 3
    assert counts["", "left", "belongs to another"] == 1
    assert counts["", "dead_lettered", "NoDestinationPath"] == 1
    assert sorted(world.backlog.waiting) == [1, 2, 4, broken]


@pytest.mark.proves("P-19", "D-2")
def test_another_namespace_at_the_same_address(world: World) -> None:
    """It does not get what was sent to the one before, however many parts there are."""
    world.primary.namespace_id = "new"
    large = "." * 150_000  # so that each is a part of its own
    for number in range(3):
        world.wait(f"old {number}{large}", mark="shop", namespace="old", session="s")
    world.wait("new", mark="shop", namespace="new", session="s")
    world.wait("any", mark="shop")
    assert world.move() == {("orders", "moved", ""): 2, ("", "left", "belongs to shop#old"): 3}
    assert sorted(bodies(world.primary.entities["orders"])) == ["any", "new"]
    assert sorted(world.backlog.waiting) == [1, 2, 3]
    world.owner = Owner("shop", takes_unmarked=True, compares_ids=False)
    assert world.move() == {("orders", "moved", ""): 3}, "somebody has said that it is the same"


@pytest.mark.proves("P-19", "D-2")
def test_a_bus_that_tells_no_id(world: World) -> None:
    """Or a message that has none: then the mark decides."""
    world.wait("1", mark="shop", namespace="old")
    world.wait("2", mark="another", namespace="old")
    assert world.move() == {("orders", "moved", ""): 1, ("", "left", "belongs to another"): 1}
