"""Numbers that were carried into an entity are as durable as its messages."""

import pytest

from tests.unit.storage.scene import Scene
from twinbus.entities.commands import Send
from twinbus.entities.facts import Carried
from twinbus.entities.message import NewMessage
from twinbus.storage.log import numbered
from twinbus.storage.snapshot import SLICE_BYTES_MAX
from twinbus.storage.verify import verify
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("A-3", "E-11")


def carry(scene: Scene, carrier: str, *numbers: int) -> list[int]:
    """Carry messages over from another store, durably."""
    send = Send(scene.queue.entity_id, [NewMessage(b"%d" % number) for number in numbers])
    send.carrier = carrier
    send.carrier_numbers = list(numbers)
    given = scene.queue.send_carried(send, scene.now)
    scene.commit()
    return given


def test_a_restart_remembers_what_was_carried() -> None:
    scene = Scene(SimDisk())
    carry(scene, "far", 5, 6)
    found = scene.reopened()
    assert carry(found, "far", 5, 6, 7) == [0, 0, 3]
    assert found.bodies() == [b"5", b"6", b"7"]


def test_messages_and_numbers_are_in_one_frame() -> None:
    scene = Scene(SimDisk())
    send = Send(scene.queue.entity_id, [NewMessage(bytes(5_000)), NewMessage(bytes(5_000))])
    send.carrier = "far"
    send.carrier_numbers = [1, 2]
    scene.work()
    scene.send(bytes(6_000))  # the segment has room for the one message, not for both
    scene.queue.send_carried(send, scene.now)
    assert scene.commit() == 1


def test_a_snapshot_and_the_segments_that_it_lets_go_keep_them() -> None:
    scene = Scene(SimDisk())
    carry(scene, "first", 5, 6)
    carry(scene, "zweiter · 二", 5)
    scene.complete(3)
    scene.turn_over(4)
    assert numbered(scene.disk.names(), ".snapshot")
    assert scene.segments()[0] != "0000000001.log", "the frame that stated them is gone"
    found = scene.reopened()
    assert found.queue.carried is not None
    assert found.queue.carried.all() == [("first", [5, 6]), ("zweiter · 二", [5])]
    found.store.close()
    assert isinstance(found.disk, SimDisk)
    assert "carriers 2" in str(verify(found.disk.restarted()))


def test_the_numbers_of_many_carriers_are_written_in_slices() -> None:
    scene = Scene(SimDisk(), segment_size=8 << 20)
    expected = []
    for carrier in range(SLICE_BYTES_MAX // 4_000):
        numbers = list(range(carrier, carrier + 600))
        scene.queue.replay(_carried(scene, f"carrier {carrier}", numbers), scene.now)
        expected.append((f"carrier {carrier}", numbers))
    while not numbered(scene.disk.names(), ".snapshot"):
        scene.send(bytes(1_000_000))
        scene.complete(1)
        scene.work()
    found = scene.reopened()
    assert found.queue.carried is not None
    assert found.queue.carried.all() == expected


def _carried(scene: Scene, carrier: str, numbers: list[int]) -> Carried:
    fact = Carried(scene.queue.entity_id, carrier, numbers)
    scene.store.facts.append(fact)
    return fact
