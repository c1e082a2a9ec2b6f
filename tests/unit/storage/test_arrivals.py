"""Numbers that have come from producers are as durable as their messages."""

import pytest

from tests.unit.storage.scene import Scene
from twinbus.entities.facts import Arrived
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.errors import LogDamaged
from twinbus.storage.decoder import Decoder
from twinbus.storage.log import numbered
from twinbus.storage.records import encode
from twinbus.storage.snapshot import SLICE_BYTES_MAX
from twinbus.storage.verify import verify
from twinbus.testing.disk import SimDisk

pytestmark = pytest.mark.proves("P-13")


def send(scene: Scene, producer: str, *numbers: int) -> list[int]:
    """Send numbered messages, durably."""
    messages = []
    for number in numbers:
        message = NewMessage(b"%d" % number)
        message.producer_key = ProducerKey(producer, number)
        messages.append(message)
    given = scene.queue.send(messages, scene.now)
    scene.commit()
    return given


def remembered(scene: Scene) -> dict[str, list[int]]:
    arrivals = scene.queue.arrivals
    assert arrivals is not None
    return {producer: arrivals.bounds_of(producer) for producer in arrivals.producers()}


def test_a_restart_remembers_what_has_come() -> None:
    scene = Scene(SimDisk())
    send(scene, "far", 5, 6)
    found = scene.reopened()
    assert send(found, "far", 5, 6, 7) == [0, 0, 3]
    assert found.bodies() == [b"5", b"6", b"7"]


def test_messages_and_numbers_are_in_one_frame() -> None:
    scene = Scene(SimDisk())
    messages = [NewMessage(bytes(5_000)), NewMessage(bytes(5_000))]
    for number, message in enumerate(messages):
        message.producer_key = ProducerKey("far", 1 + number)
    scene.work()
    scene.send(bytes(6_000))  # the segment has room for the one message, not for both
    scene.queue.send(messages, scene.now)
    assert scene.commit() == 1


def test_a_copy_and_a_ping_are_a_frame_of_their_own() -> None:
    """Whoever waits for one waits for a write: a log that does not work answers nobody."""
    scene = Scene(SimDisk())
    send(scene, "far", 1)
    scene.queue.send([_ping()], scene.now)
    assert scene.commit() == 1
    assert scene.bodies() == [b"1"]
    assert len(scene.reopened().messages()) == 1


def _ping() -> NewMessage:
    message = NewMessage(b"")
    message.producer_key = ProducerKey("", 0, True)
    return message


def test_a_snapshot_and_the_segments_that_it_lets_go_keep_them() -> None:
    scene = Scene(SimDisk())
    send(scene, "first", 5, 6, 9)
    send(scene, "zweiter · 二", 5)
    scene.complete(4)
    scene.turn_over(4)
    assert numbered(scene.disk.names(), ".snapshot")
    assert scene.segments()[0] != "0000000001.log", "the frame that stated them is gone"
    found = scene.reopened()
    assert remembered(found) == {"first": [5, 7, 9, 10], "zweiter · 二": [5, 6]}
    found.store.close()
    assert isinstance(found.disk, SimDisk)
    assert "producers 2" in str(verify(found.disk.restarted()))


def test_the_numbers_of_many_producers_are_written_in_slices() -> None:
    scene = Scene(SimDisk(), segment_size=8 << 20)
    expected = {}
    for producer in range(SLICE_BYTES_MAX // 4_000):
        bounds = list(range(producer, producer + 600))
        fact = Arrived(scene.queue.entity_id, f"producer {producer}", bounds)
        scene.store.facts.append(fact)
        scene.queue.replay(fact, scene.now)
        expected[f"producer {producer}"] = bounds
    while not numbered(scene.disk.names(), ".snapshot"):
        scene.send(bytes(1_000_000))
        scene.complete(1)
        scene.work()
    assert remembered(scene.reopened()) == expected


@pytest.mark.parametrize("bounds", [[5, 5], [5, 4], [1, 3, 3, 4], [1, 3, 2, 4]])
def test_bounds_that_no_entity_has_stated_are_damage(bounds: list[int]) -> None:
    parts: list[bytes] = []
    encode(Arrived(1, "a", bounds), parts, 0)
    with pytest.raises(LogDamaged, match="not in order"):
        Decoder(b"".join(parts), "x.log", 0, 1).facts()
