"""The power is cut at every disk operation of the catalog, and nothing it told is forgotten.

Whatever the disk has then (the fault model is stated in `twinbus.testing.disk`), the catalog opens
and says what it said after the last finished change, or after the one in flight.
"""

import random

import pytest

from twinbus.entities.catalog_entry import MAKING, THERE, CatalogEntry
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import Unavailable
from twinbus.storage.catalog import CatalogFile
from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

pytestmark = pytest.mark.proves("E-12")

STEPS = 60
State = dict[str, tuple[str, str, tuple[int, ...]]]


def state_of(catalog: CatalogFile) -> State:
    return {
        name: (entry.state, entry.description, tuple(entry.entity_ids))
        for name, entry in catalog.entries.items()
    }


class Workload:
    """Makes, changes and removes entities at random, and knows what must be durable."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.durable: State = {}  # after the last change that returned
        self.wanted: State = {}  # after the one in flight

    def run(self, catalog: CatalogFile, steps: int) -> None:
        for _ in range(steps):
            self._step(catalog)
            self.durable = dict(self.wanted)
            assert state_of(catalog) == self.durable

    def _step(self, catalog: CatalogFile) -> None:
        rng = self.rng
        name = f"queue-{rng.randrange(6)}"
        text = QueueDescription(user_metadata="x" * rng.randrange(1_000)).to_json()
        number = rng.randrange(1, 1_000)
        if rng.random() < 0.1:
            gone = f"queue-{rng.randrange(6)}"
            self.wanted[name] = (THERE, text, (number,))
            self.wanted.pop(gone, None)
            catalog.put_right([CatalogEntry("queue", name, text, [1], THERE, [number])], [gone])
        elif name not in self.wanted:
            self.wanted[name] = (MAKING, text, (0,))
            catalog.making("queue", name, text, [1])
        elif rng.random() < 0.5:
            self.wanted[name] = (THERE, text, (number,))
            catalog.there(name, text, [number])
        else:
            del self.wanted[name]
            catalog.removed(name)


def run_until_cut(seed: int, operations: int) -> tuple[SimDisk, Workload]:
    disk = SimDisk()
    disk.cut_power_after(operations)
    workload = Workload(seed)
    try:
        workload.run(CatalogFile(disk), STEPS)
    except PowerCut:
        pass
    return disk, workload


@pytest.mark.proves("E-12")
@pytest.mark.parametrize("seed", [1, 2])
def test_power_cut_at_every_operation(seed: int) -> None:
    whole, _ = run_until_cut(seed, 1 << 30)
    assert whole.operation_count >= 2 * STEPS
    for operations in range(whole.operation_count):
        disk, workload = run_until_cut(seed, operations)
        for trial, mode in enumerate(list(CrashMode) * 2):
            found = disk.after_power_cut(random.Random(f"{operations} {trial}"), mode)
            where = f"seed {seed}, operation {operations}, {mode}, last: {disk.log[-3:]}"
            state = state_of(CatalogFile(found))
            assert state in (workload.durable, workload.wanted), where
            # Opening it has made that durable: another cut changes nothing.
            again = found.after_power_cut(random.Random(0), CrashMode.DROP)
            assert state_of(CatalogFile(again)) == state, where


@pytest.mark.parametrize("seed", range(10))
def test_one_power_cut_after_another(seed: int) -> None:
    """A catalog that lives through many of them, some while it is opened, and failing disks too."""
    rng = random.Random(seed)
    disk = SimDisk()
    workload = Workload(seed)
    for life in range(30):
        disk.cut_power_after(rng.randrange(1, 60))
        if rng.random() < 0.5:
            disk.fail(rng.choice(["write", "sync"]), nth=rng.randrange(3, 20))
        try:
            catalog = CatalogFile(disk)
            state = state_of(catalog)
            assert state in (workload.durable, workload.wanted), f"seed {seed}, life {life}"
            workload.durable, workload.wanted = dict(state), dict(state)
            workload.run(catalog, STEPS)
        except Unavailable:
            pass  # the disk failed: whether it has happened shows now
        except PowerCut:
            pass
        disk = disk.after_power_cut(rng, rng.choice(list(CrashMode)))
