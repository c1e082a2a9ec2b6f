"""The store: what is visible when, what a failing or full disk does, and large facts."""

import errno
import random

import pytest

from tests.unit.storage.scene import SALT, Scene
from twinbus.broker.store_run import finish_commit
from twinbus.clock import Now
from twinbus.entities.commands import COMPLETE
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN, Stored
from twinbus.entities.message import NewMessage
from twinbus.errors import DirectoryInUse, EntityAlreadyExists, LogPoisoned, StorageError
from twinbus.limits import SEGMENT_SIZE_BYTES
from twinbus.storage.store import Store
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk


def test_nothing_is_visible_before_its_commit_is_finished() -> None:
    scene = Scene(SimDisk())
    scene.queue.send([NewMessage(b"a")], scene.now)
    assert not scene.queue.has_ready(MAIN)
    commit = scene.store.begin_commit()
    assert commit is not None
    assert not scene.queue.has_ready(MAIN)
    commit.write()
    assert not scene.queue.has_ready(MAIN)
    assert finish_commit(scene.store, commit) == [scene.queue]
    assert scene.queue.has_ready(MAIN)


def test_a_commit_publishes_only_what_is_in_it() -> None:
    scene = Scene(SimDisk())
    scene.queue.send([NewMessage(b"a")], scene.now)
    commit = scene.store.begin_commit()
    assert commit is not None
    scene.queue.send([NewMessage(b"b")], scene.now)
    assert scene.store.begin_commit() is None, "one commit at a time"
    commit.write()
    finish_commit(scene.store, commit)
    assert scene.queue.published == 1
    scene.commit()
    assert scene.queue.published == 2


def test_an_old_message_that_moves_hides_no_new_one() -> None:
    scene = Scene(SimDisk())
    scene.send(b"old")
    (old,) = scene.messages()
    scene.queue.send([NewMessage(b"new")], scene.now)
    scene.store.facts.append(Stored(scene.queue.entity_id, MAIN, [old]))
    assert scene.commit() == 1
    assert scene.queue.published == 2
    assert scene.reopened().bodies() == [b"old", b"new"]


def test_the_same_commit_is_never_finished_twice() -> None:
    scene = Scene(SimDisk())
    scene.queue.send([NewMessage(b"a")], scene.now)
    commit = scene.store.begin_commit()
    assert commit is not None
    commit.write()
    finish_commit(scene.store, commit)
    with pytest.raises(LogPoisoned):
        finish_commit(scene.store, commit)


def test_entities_survive_with_their_names_and_descriptions() -> None:
    scene = Scene(SimDisk())
    store = scene.store
    invoices = store.create_entity("queue", "Invoices", QueueDescription(max_delivery_count=3))
    gone = store.create_entity("queue", "gone", QueueDescription())
    store.update_entity(scene.queue.entity_id, QueueDescription(max_delivery_count=7))
    store.delete_entities([gone.entity_id])
    scene.commit()
    found = scene.reopened().store
    assert found.names == {"orders": scene.queue.entity_id, "invoices": invoices.entity_id}
    assert found.entities[invoices.entity_id].name == "Invoices"
    assert found.entities[invoices.entity_id].description.max_delivery_count == 3
    assert found.entities[scene.queue.entity_id].description.max_delivery_count == 7
    fresh = found.create_entity("queue", "another", QueueDescription())
    assert fresh.entity_id > gone.entity_id, "numbers of entities are never used again"


def test_names_are_unique_whatever_their_case() -> None:
    scene = Scene(SimDisk())
    with pytest.raises(EntityAlreadyExists):
        scene.store.create_entity("queue", "ORDERS", QueueDescription())


def test_a_second_server_is_kept_out() -> None:
    scene = Scene(SimDisk())
    with pytest.raises(DirectoryInUse):
        Store.open(scene.disk, scene.now, SALT)


def test_grants_are_never_used_twice() -> None:
    scene = Scene(SimDisk())
    scene.send(b"a", b"b")
    grants = [message.grant for message in scene.queue.lock_next(MAIN, 2, scene.now)]
    scene.commit()
    assert scene.reopened().store.grants.next > max(grants)


# --- failing disks ----------------------------------------------------------------------------


@pytest.mark.proves("M-3")
@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_one_error_poisons_the_store_for_good(kind: str, code: int) -> None:
    """After a failed write or sync nothing more is acknowledged; a restart recovers."""
    disk = SimDisk()
    scene = Scene(disk)
    scene.send(b"durable")
    scene.queue.send([NewMessage(b"in doubt")], scene.now)
    commit = scene.store.begin_commit()
    assert commit is not None
    disk.fail(kind, code=code)  # once: the next sync would lie and say that all is well
    with pytest.raises(LogPoisoned):
        commit.write()
    with pytest.raises(LogPoisoned):
        commit.write()
    with pytest.raises(LogPoisoned):
        finish_commit(scene.store, commit)
    with pytest.raises(LogPoisoned):
        scene.store.begin_commit()
    with pytest.raises(LogPoisoned):
        scene.store.next_task(scene.now)
    with pytest.raises(LogPoisoned):
        scene.store.create_entity("queue", "another", QueueDescription())
    assert not scene.queue.published > 1
    scene.store.close()
    for mode in CrashMode:
        found = Scene(disk.after_power_cut(random.Random(1), mode))
        assert found.bodies() in ([b"durable"], [b"durable", b"in doubt"])


@pytest.mark.parametrize("kind", ["sync", "rename", "sync_directory"])
def test_an_error_in_the_background_poisons_too(kind: str) -> None:
    disk = SimDisk()
    scene = Scene(disk)
    disk.fail(kind)
    with pytest.raises(LogPoisoned):
        scene.work()


def test_an_error_while_opening_names_the_reason() -> None:
    disk = SimDisk()
    disk.fail("sync")
    with pytest.raises(StorageError, match="Input/output error"):
        Scene(disk)
    small = SimDisk(capacity=1_000)
    with pytest.raises(StorageError, match="no room"):
        Scene(small)


def test_what_a_killed_process_left_is_made_durable_before_it_is_served() -> None:
    """It was written, but not synced: the kernel has it.  A power cut later must not take it."""
    disk = SimDisk()
    scene = Scene(disk)
    scene.queue.send([NewMessage(b"a")], scene.now)
    commit = scene.store.begin_commit()
    assert commit is not None
    disk.cut_power_after(1)  # after the write, before the sync
    with pytest.raises(PowerCut):
        commit.write()
    disk.revive()
    found = Scene(disk)
    assert found.bodies() == [b"a"]
    later = Scene(disk.after_power_cut(random.Random(1), CrashMode.DROP))
    assert later.bodies() == [b"a"]


# --- full disks -------------------------------------------------------------------------------


def full_scene() -> tuple[Scene, SimDisk]:
    """A disk with room for a few segments, filled until sends are refused."""
    disk = SimDisk(capacity=1_300_000)
    scene = Scene(disk)
    for _ in range(10_000):
        scene.now.mono_ms += 2_000
        scene.work()
        if not scene.store.room_for(1_600):
            return scene, disk
        scene.send(bytes(1_500))
    raise AssertionError("the disk never fills")


@pytest.mark.proves("M-3")
def test_a_full_disk_refuses_sends_and_settles_on() -> None:
    """Sends are refused, receiving and completing go on, and room that returns is used."""
    scene, disk = full_scene()
    count = len(scene.messages())
    assert count > 20
    for _ in range(count - 5):
        locked = scene.queue.lock_next(MAIN, 1, scene.now)
        locks = [(message.sequence_number, message.grant) for message in locked]
        assert scene.queue.settle(MAIN, locks, COMPLETE, None, scene.now) is None
        commit = scene.store.begin_commit()
        assert commit is not None, "no room to settle"
        commit.write()
        finish_commit(scene.store, commit)
        scene.now.mono_ms += 100
        scene.work()
    assert scene.store.room_for(1_600), "settling has made room, but sends are still refused"
    scene.send(b"again")
    assert len(scene.messages()) == 6
    assert len(Scene(disk.restarted()).messages()) == 6


def test_sends_go_on_when_somebody_else_makes_room() -> None:
    scene, disk = full_scene()
    disk.capacity = 10_000_000
    scene.work()
    assert not scene.store.room_for(1_600), "the disk is not asked again at once"
    scene.now.mono_ms += 1_000
    scene.work()
    scene.commit()  # of messages that were moved meanwhile
    scene.work()
    assert scene.store.room_for(1_600)


def test_room_is_promised_once() -> None:
    scene = Scene(SimDisk())
    taken = 0
    while scene.store.room_for(1_000):
        taken += 1_000
    assert 0 < taken < 16_384
    scene.send(b"a")
    assert scene.store.room_for(1_000), "a commit ends all promises"


# --- large facts ------------------------------------------------------------------------------


def test_facts_that_do_not_fit_wait_for_the_next_commit() -> None:
    scene = Scene(SimDisk())
    for index in range(30):
        scene.queue.send([NewMessage(bytes([index]) * 1_500)], scene.now)
    commit = scene.store.begin_commit()
    assert commit is not None
    waiting = [fact for fact in scene.store.facts if isinstance(fact, Stored)]
    assert len(waiting) == 30 - commit.fact_count
    assert {m.position for fact in waiting for m in fact.messages} == {0}, "they lie nowhere yet"
    commit.write()
    finish_commit(scene.store, commit)
    assert scene.commit() >= 2
    assert len(scene.bodies()) == 30
    assert scene.reopened().bodies() == [bytes([index]) * 1_500 for index in range(30)]


def test_a_fact_larger_than_a_segment_is_split_and_counts_once() -> None:
    scene = Scene(SimDisk())
    scene.send(*[b"%d" % index for index in range(5_000)])
    scene.work()
    messages = scene.queue.lock_next(MAIN, 5_000, scene.now)
    locks = [(message.sequence_number, message.grant) for message in messages]
    scene.queue.settle(MAIN, locks, COMPLETE, None, scene.now)
    assert len(scene.store.facts) == 2
    counted = 0
    commits = 0
    while scene.store.facts:
        commit = scene.store.begin_commit()
        if commit is None:
            scene.work()
            continue
        commit.write()
        finish_commit(scene.store, commit)
        counted += commit.fact_count
        commits += 1
    assert counted == 2
    assert commits > 2
    found = scene.reopened()
    assert found.messages() == []
    assert found.store.grants.next == scene.store.grants.next


def test_a_message_larger_than_a_segment_is_a_bug_that_shows() -> None:
    scene = Scene(SimDisk())
    scene.queue.send([NewMessage(bytes(20_000))], scene.now)
    with pytest.raises(StorageError, match="a segment of the log holds"):
        scene.store.begin_commit()


def test_the_real_segment_size_takes_the_largest_batch() -> None:
    disk = SimDisk()
    store = Store.open(disk, Now(0, 0), SALT)
    queue = store.create_entity("queue", "q", QueueDescription())
    queue.send([NewMessage(bytes(250))] * 4_500, Now(0, 0))
    commit = store.begin_commit()
    assert commit is not None
    assert commit.fact_count == 2
    assert commit.size < SEGMENT_SIZE_BYTES
