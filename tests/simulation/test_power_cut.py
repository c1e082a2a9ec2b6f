"""The power is cut at every disk operation of a workload, and nothing acknowledged is lost.

What is synced is there, what is not may be there or not, in any combination; the fault model is
stated in `twinbus.testing.disk`.  Whatever is found, the store opens and holds the state of the
last finished commit or of the one in flight: nothing lost, nothing back from the dead, nothing
invented.  What is true only together is whole or not there at all.
"""

import random

import pytest

from tests.simulation.store_workload import START, Workload, open_store, overview
from twinbus.broker.store_run import finish_commit
from twinbus.clock import Now
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import MAIN, gather
from twinbus.entities.message import NewMessage
from twinbus.storage.log import numbered
from twinbus.storage.store import Store
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

pytestmark = pytest.mark.proves("M-3", "M-10")

STEPS = 1_000
PARTS = 4
LATER = Now(START.utc_ms + 1_000_000, START.mono_ms + 1_000_000)


def operations_of(seed: int) -> int:
    disk = SimDisk()
    Workload(open_store(disk), seed).run(STEPS)
    return disk.operation_count


def run_until_cut(seed: int, operations: int) -> tuple[SimDisk, Workload | None]:
    """The workload with the power cut after so many operations; None: while opening."""
    disk = SimDisk()
    disk.cut_power_after(operations)
    workload = None
    try:
        workload = Workload(open_store(disk), seed)
        workload.run(STEPS)
    except PowerCut:
        pass
    return disk, workload


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", [1, 2])
def test_power_cut_at_every_operation(seed: int, part: int) -> None:
    total = operations_of(seed)
    assert total >= 300
    for operations in range(part, total, PARTS):
        disk, workload = run_until_cut(seed, operations)
        # Where several names are in the balance, each mode is tried often enough to meet them all.
        trials = list(CrashMode) * (4 if disk.unsynced_name_count > 1 else 1)
        for trial, mode in enumerate(trials):
            found = disk.after_power_cut(random.Random(f"{operations} {trial}"), mode)
            where = f"seed {seed}, operation {operations}, {mode}, last: {disk.log[-3:]}"
            try:
                store = open_store(found, LATER)
                if workload is None:
                    assert not store.entities
                else:
                    workload.check(store)
            except Exception as error:
                raise AssertionError(where) from error
            store.close()


@pytest.mark.parametrize("seed", range(12))
def test_one_power_cut_after_another(seed: int) -> None:
    """A store that lives through many of them, some while it recovers."""
    rng = random.Random(seed)
    disk = SimDisk()
    workload: Workload | None = None
    for life in range(25):
        mode = rng.choice(list(CrashMode))
        disk.cut_power_after(rng.randrange(1, 120))
        try:
            store = open_store(disk, LATER)
            if workload is not None:
                workload.check(store)
            workload = Workload(store, seed * 1_000 + life, LATER)
            workload.run(150)
        except PowerCut:
            pass
        disk = disk.after_power_cut(random.Random(rng.random()), mode)
    store = open_store(disk, LATER)
    if workload is not None:
        workload.check(store)


GROUPS = 16
NAMES = ("one", "two", "three")


def write_groups(disk: SimDisk, seed: int) -> None:
    """Groups of sends that belong together, with other sends before and after each."""
    rng = random.Random(seed)
    store = open_store(disk)
    for name in NAMES:
        store.create_entity("queue", name, QueueDescription())
    queues = [store.entities[store.names[name]] for name in NAMES]
    for group in range(GROUPS):
        for _ in range(rng.randrange(3)):
            rng.choice(queues).send([NewMessage(rng.randbytes(rng.randrange(900)))], START)
        mark = len(store.facts)
        for queue in rng.sample(queues, len(queues)):
            body = b"group %d:" % group + rng.randbytes(rng.randrange(900))
            queue.send([NewMessage(body)], START)
        gather(store.facts, mark)
        while store.facts and rng.random() < 0.8:
            commit = store.begin_commit()
            if commit is not None:
                commit.write()
                finish_commit(store, commit)
            task = store.next_task(START)
            if task is not None:
                task.run()
                store.finish_task(task)


def groups_in(store: Store, name: str) -> set[bytes]:
    queue = store.entities[store.names[name]]
    bodies = store.read_bodies(queue.messages_from(MAIN, 0, 1_000))
    return {body.partition(b":")[0] for body in bodies if body.startswith(b"group ")}


@pytest.mark.proves("M-10")
@pytest.mark.parametrize("seed", range(2))
def test_what_is_true_only_together_is_whole_or_not_there(seed: int) -> None:
    """At every operation and in every mode; also where a group needs a new segment."""
    whole = SimDisk()
    write_groups(whole, seed)
    seen = set()
    for operations in range(whole.operation_count):
        disk = SimDisk()
        disk.cut_power_after(operations)
        with pytest.raises(PowerCut):
            write_groups(disk, seed)
        for mode in CrashMode:
            found = open_store(disk.after_power_cut(random.Random(operations), mode))
            if NAMES[-1] in found.names:
                groups = groups_in(found, NAMES[0])
                assert all(groups_in(found, name) == groups for name in NAMES)
                seen.add(len(groups))
            found.close()
    assert len(seen) > GROUPS // 2


@pytest.mark.parametrize("seed", range(6))
def test_restart_gives_the_same_state(seed: int) -> None:
    """Also after an orderly end, with snapshots taken and messages moved in between."""
    disk = SimDisk()
    workload = Workload(open_store(disk), seed)
    for life in range(6):
        workload.run(300)
        workload.settle_down()
        expected = overview(workload.store)
        assert workload.durable == expected
        workload.store.close()
        store = open_store(disk, workload.now)
        assert overview(store) == expected
        workload = Workload(store, seed * 100 + life, workload.now)
    names = disk.names()
    assert any(name.endswith(".snapshot") for name in names)
    segments = numbered(names, ".log")
    assert len(segments) < segments[-1], "nothing was ever reclaimed"
