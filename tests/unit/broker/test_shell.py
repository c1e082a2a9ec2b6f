"""The broker's shell when its disk fails: whatever notices it, the store is given up once."""

import pytest

from twinbus.broker.shell import BrokerShell
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import LogPoisoned
from twinbus.storage.store import Store
from twinbus.testing.clock import SimClock
from twinbus.testing.disk import SimDisk

SEGMENT_SIZE = 65_536


@pytest.mark.asyncio
async def test_a_commit_fails_while_maintenance_is_under_way() -> None:
    """Found by chance: the end of the task raised, and took the process's other stores along."""
    disk, clock = SimDisk(), SimClock()
    failures: list[BaseException] = []
    store = Store.open(disk, clock.now(), 7, SEGMENT_SIZE)
    shell = BrokerShell(store, clock, lambda replies: None, failures.append)
    task = store.next_task(clock.now())
    assert task is not None, "a spare segment is to be made"
    task.run()
    store.create_entity("queue", "orders", QueueDescription())
    commit = store.begin_commit()
    assert commit is not None
    disk.fail("write", for_ever=True)
    with pytest.raises(LogPoisoned):
        commit.write()
    shell._maintained(task, None)
    assert [type(failure) for failure in failures] == [LogPoisoned]
    await shell.close()
