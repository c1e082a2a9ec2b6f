"""The broker inside the server's process: its health, and what faults do to its disk."""

from pathlib import Path

from twinbus.gateway.faults.faults import DiskPlan
from twinbus.gateway.throttling.throttle import Usage
from twinbus.host.brokers.in_process import LocalEffects, LocalHealth, disk_free
from twinbus.links.store_link import SLOW, UP
from twinbus.storage.faulty import DiskFaults


class Link:
    """A store in this process, as far as anybody looks."""

    health = UP
    pending_bytes = 5
    open_count = 7


def test_a_store_in_this_process(tmp_path: Path) -> None:
    usage = Usage(0.5, 3, 1_048_576)
    trouble = [""]
    health = LocalHealth(Link(), tmp_path, lambda: trouble[0], usage)  # type: ignore[arg-type]
    (broker,) = health.brokers()
    assert (broker.state, broker.cpu_share, broker.lag_ms) == ("up", 0.5, 3)
    (store,) = health.stores()
    assert (store.health, store.pending_bytes, store.open_count) == (UP, 5, 7)
    assert store.disk_free_bytes > 0
    trouble[0] = "replies wait"
    (store,) = health.stores()
    assert (store.health, store.trouble) == (SLOW, "replies wait")


def test_what_nobody_can_tell(tmp_path: Path) -> None:
    assert disk_free(tmp_path / "missing") == -1


def test_the_disk_in_this_process() -> None:
    disk = DiskFaults(lambda: 0.0)
    inline: list[bool] = []
    effects = LocalEffects(disk, inline.append)
    effects.set_disk_plan(0, DiskPlan(5, 1.0, 0.0, 0.0))
    was_active = disk.active
    effects.set_disk_plan(0, DiskPlan(0, 0.0, 0.0, 0.0))
    assert (was_active, disk.active) == (True, False)
    assert inline == [True, False]
    assert effects.disk_counts(0) == (0, 0, 0)
