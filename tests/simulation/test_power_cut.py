"""M-3: the power is cut at every disk operation of a workload, and nothing acknowledged is lost.

What is synced is there, what is not may be there or not, in any combination; the fault model is
stated in `twinbus.testing.disk`.  Whatever is found, the store opens and holds the state of the
last finished commit or of the one in flight: nothing lost, nothing back from the dead, nothing
invented.
"""

import random

import pytest

from tests.simulation.store_workload import START, Workload, open_store, overview
from twinbus.clock import Now
from twinbus.testing import CrashMode, PowerCut, SimDisk

STEPS = 1_400
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
    assert "0000000001.log" not in names, "nothing was ever reclaimed"
