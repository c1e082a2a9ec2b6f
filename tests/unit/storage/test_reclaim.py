"""Snapshots and reclaiming: equal to a full replay, and no old message pins a segment for ever."""

import random

import pytest

from tests.simulation.store_workload import Workload, open_store, overview
from tests.unit.storage.scene import SEGMENT_SIZE, Scene
from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import DEAD_LETTER, MAIN
from twinbus.entities.message import NewMessage, Overlay
from twinbus.errors import LogDamaged
from twinbus.storage.maintenance import IDLE_MS, MakeSpare, PrepareSegment, ReserveSegment, Retire
from twinbus.storage.snapshot import TEMPORARY_NAME
from twinbus.testing.disk import CrashMode, SimDisk


@pytest.mark.parametrize("seed", [0, 1, 2, *range(4, 9)])  # with 3 not everything fits
def test_a_snapshot_equals_a_full_replay(seed: int) -> None:
    """The first snapshot of a workload, with and without it: the same state comes out."""
    disk = SimDisk()
    workload = Workload(open_store(disk), seed)
    while not workload.finishing_snapshot:
        workload.step()
    workload.begin_or_finish_task()  # segments are retired only after it
    workload.commit_without_tasks()
    assert not workload.store.facts
    expected = overview(workload.store)
    with_snapshot = disk.restarted()
    assert any(name.endswith(".snapshot") for name in with_snapshot.names())
    assert overview(open_store(with_snapshot)) == expected
    without = disk.restarted()
    for name in without.names():
        if name.endswith(".snapshot"):
            without.lose(name)
    assert overview(open_store(without)) == expected


def test_segments_are_reclaimed_when_their_messages_are_gone() -> None:
    scene = Scene(SimDisk())
    scene.turn_over(40)
    assert len(scene.segments()) <= 8
    spares = [name for name in scene.disk.names() if name.endswith(".spare")]
    assert len(spares) <= 2


def test_a_few_old_messages_do_not_pin_segments() -> None:
    scene = Scene(SimDisk(), cache_bytes=4_096)
    kept = []
    old = scene.store.create_entity("queue", "old", QueueDescription())
    for index in range(40):
        kept.append(b"old %d" % index)
        old.send([NewMessage(kept[-1])], scene.now)
        scene.turn_over(2)
    assert len(scene.segments()) <= 14, "80 segments were written, and each held an old message"
    messages = old.messages_from(MAIN, 0, 1_000)
    assert scene.store.read_bodies(messages) == kept
    scene.store.close()
    found = Scene(scene.disk, cache_bytes=4_096)
    old = found.store.entities[found.store.names["old"]]
    assert found.store.read_bodies(old.messages_from(MAIN, 0, 1_000)) == kept


def test_the_cache_keeps_its_hands_off_a_message_that_moves() -> None:
    """It is still cached from when it was sent, and the cache needs room before the commit."""
    scene = Scene(SimDisk())
    scene.keep(b"kept")
    queue = scene.store.entities[scene.store.names["kept"]]
    (message,) = queue.messages_from(MAIN, 0, 1)
    while not scene.store.facts:
        scene.send(bytes(1_500))
        scene.complete(1)
        task = scene.store.next_task(scene.now)
        if task is not None:
            task.run()
            scene.store.finish_task(task)
    assert message.body == b"kept"
    cache = scene.store._cache
    cache._size_max = 0
    cache.add([], 1 << 62)
    scene.commit()
    cache.add([], 1 << 62)
    assert len(cache) == 0
    assert scene.kept() == [b"kept"]


def test_damage_is_not_made_right_by_moving() -> None:
    """A body that has rotted since the start would get a new, valid checksum."""
    scene = Scene(SimDisk(), cache_bytes=0)
    scene.keep(b"kept")
    queue = scene.store.entities[scene.store.names["kept"]]
    (message,) = queue.messages_from(MAIN, 0, 1)
    assert message.position >> 32 == 1
    assert isinstance(scene.disk, SimDisk)
    scene.disk.damage(scene.head, message.position & 0xFFFF_FFFF, b"K")
    with pytest.raises(LogDamaged, match=r"0000000001\.log"):
        scene.turn_over(60)


def test_moved_messages_keep_their_state() -> None:
    """Locked, deferred, scheduled and dead-lettered messages move like all others."""
    scene = Scene(SimDisk(), cache_bytes=4_096)
    old = scene.store.create_entity("queue", "old", QueueDescription())
    old.send([NewMessage(b"%d" % index) for index in range(6)], scene.now)
    old.send([NewMessage(b"later", scheduled_ms=scene.now.utc_ms + 10**9)], scene.now)
    scene.commit()
    locked, deferred, dead = old.lock_next(MAIN, 3, scene.now)
    old.settle(MAIN, [(deferred.sequence_number, deferred.grant)], 2, None, scene.now)
    reason = Overlay("poisonous", "it was")
    old.settle(MAIN, [(dead.sequence_number, dead.grant)], 3, reason, scene.now)
    first = [m.position for m in (locked, deferred, dead)]
    scene.turn_over(60)
    assert all(m.position > 5 << 32 for m in (locked, deferred, dead)), "nothing has moved"
    assert [m.position for m in (locked, deferred, dead)] != first
    before = scene.store.read_bodies(old.messages_from(MAIN, 0, 100))
    scene.store.close()
    found = Scene(scene.disk)
    again = found.store.entities[found.store.names["old"]]
    assert found.store.read_bodies(again.messages_from(MAIN, 0, 100)) == before
    counts, expected = again.counts(), old.counts()
    assert (counts.active, counts.deferred, counts.scheduled, counts.dead_letter) == (4, 1, 1, 1)
    assert counts.size_bytes == expected.size_bytes
    (buried,) = again.messages_from(DEAD_LETTER, 0, 10)
    assert buried.overlay is not None
    assert buried.overlay.reason == "poisonous"
    assert again.messages_from(MAIN, 0, 1)[0].grant == locked.grant


def test_a_message_activated_while_a_snapshot_is_taken_is_not_lost() -> None:
    """It has left its old number, and its new one is not published yet when the slice is taken."""
    scene = Scene(SimDisk())
    scene.send(*[bytes(1_500)] * 20)
    due = scene.now.utc_ms + 1_000
    scene.queue.send([NewMessage(b"due", scheduled_ms=due)], scene.now)
    scene.send(*[bytes(1_500)] * 20)
    scene.complete(20)
    scene.now.utc_ms = due
    scene.queue.tick(scene.now)  # stated, but in no commit yet
    task = scene.store.next_task(scene.now)
    while task is not None:
        task.run()
        scene.store.finish_task(task)
        task = scene.store.next_task(scene.now)
    assert not any(name.endswith(".snapshot") for name in scene.disk.names()), "too early"
    scene.commit()
    scene.work()
    assert any(name.endswith(".snapshot") for name in scene.disk.names())
    assert isinstance(scene.disk, SimDisk)
    assert b"due" in Scene(scene.disk.restarted()).bodies()


def test_a_torn_snapshot_is_ignored_and_a_damaged_one_is_not() -> None:
    scene = Scene(SimDisk())
    disk = scene.disk
    assert isinstance(disk, SimDisk)
    scene.keep(b"kept")
    scene.turn_over(12)
    torn = disk.restarted()
    torn.damage(TEMPORARY_NAME, 0, b"\xff" * 5_000)
    assert Scene(torn).kept() == [b"kept"]
    (name,) = [name for name in disk.names() if name.endswith(".snapshot")]
    for place in range(0, disk.size(name), 97):
        damaged = disk.restarted()
        content = disk.contents(name)
        damaged.damage(name, place, bytes([content[place] ^ 0x40]))
        try:
            bodies = Scene(damaged).kept()
        except LogDamaged as error:
            assert error.path == name
        else:
            assert bodies == [b"kept"]
            assert content[place] == 0, "only the empty rest of a sector may change unnoticed"


def test_a_power_cut_around_a_snapshot_leaves_one_and_all_it_needs() -> None:
    """The old snapshot may come back, or segments that are gone already; the newest counts."""
    scene = Scene(SimDisk())
    disk = scene.disk
    assert isinstance(disk, SimDisk)
    scene.keep(b"kept")
    retired = 0
    while retired < 3:
        scene.send(bytes(1_500))
        scene.complete(1)
        while (task := scene.store.next_task(scene.now)) is not None:
            task.run()
            scene.store.finish_task(task)
            retired += isinstance(task, Retire)
            for mode in CrashMode:
                found = Scene(disk.after_power_cut(random.Random(retired), mode))
                assert found.kept() == [b"kept"]


def test_a_spare_segment_is_made_while_nothing_is_written_and_used_for_the_next_burst() -> None:
    disk = SimDisk()
    scene = Scene(disk)
    scene.work()
    assert not [task for task in scene.done if isinstance(task, MakeSpare)]  # just written
    scene.now = Now(scene.now.utc_ms, scene.now.mono_ms + IDLE_MS)
    scene.work()
    assert [task.made for task in scene.done if isinstance(task, MakeSpare)] == [True]
    scene.done.clear()
    scene.send(*[b"x" * 1_000] * 40)  # more than one segment
    prepared = [task for task in scene.done if isinstance(task, PrepareSegment)]
    assert prepared[0].spare
    scene.store.close()
    again = Scene(disk.restarted())
    assert len(again.bodies()) == 40


def test_sends_count_on_a_segment_whose_room_is_taken() -> None:
    """To fill it takes a while: nobody is told meanwhile that the disk is full."""
    scene = Scene(SimDisk(), segment_size=1 << 20)
    store = scene.store
    scene.work()  # the next segment is ready
    scene.send(b"x" * 600_000)
    scene.send(b"x" * 600_000)  # goes there
    assert not store.room_for(600_000)
    task = store.next_task(scene.now)
    assert isinstance(task, ReserveSegment)
    assert store.has_urgent_task
    task.run()
    store.finish_task(task)
    assert store.room_for(600_000)
    scene.queue.send([NewMessage(b"y" * 600_000)], scene.now)
    assert store.begin_commit() is None  # it waits for the zeros
    task = store.next_task(scene.now)
    assert isinstance(task, PrepareSegment)
    task.run()
    store.finish_task(task)
    scene.commit()
    assert len(scene.bodies()) == 3


def test_no_room_for_the_next_segment_is_seen_before_anybody_counts_on_it() -> None:
    disk = SimDisk()
    scene = Scene(disk, segment_size=1 << 20)
    scene.work()
    scene.send(b"x" * 600_000)
    scene.send(b"x" * 600_000)
    disk.capacity = sum(disk.size(name) for name in disk.names()) + 1_000
    task = scene.store.next_task(scene.now)
    assert isinstance(task, ReserveSegment)
    task.run()
    scene.store.finish_task(task)
    assert task.full
    assert not scene.store.room_for(600_000)
    assert not scene.store.has_urgent_task  # the disk is asked again after a while
    assert not [name for name in disk.names() if name.endswith(".fresh")]


def test_a_store_that_is_hardly_used_makes_no_spare_segment() -> None:
    scene = Scene(SimDisk(), segment_size=1 << 20)

    def spares() -> int:
        scene.now = Now(scene.now.utc_ms, scene.now.mono_ms + IDLE_MS)
        scene.work()  # sees that something was written
        scene.now = Now(scene.now.utc_ms, scene.now.mono_ms + IDLE_MS)
        scene.work()
        return sum(isinstance(task, MakeSpare) for task in scene.done)

    scene.send(b"x" * 1_000)
    assert spares() == 0
    scene.send(b"x" * (1 << 16))
    assert spares() == 1


def test_a_disk_with_little_room_is_not_filled_with_spares() -> None:
    disk = SimDisk()
    scene = Scene(disk)
    scene.work()
    disk.capacity = sum(disk.size(name) for name in disk.names()) + 4 * SEGMENT_SIZE
    scene.now = Now(scene.now.utc_ms, scene.now.mono_ms + IDLE_MS)
    scene.work()
    assert [task.made for task in scene.done if isinstance(task, MakeSpare)] == [False]
    assert scene.store.room_for(1_000)
