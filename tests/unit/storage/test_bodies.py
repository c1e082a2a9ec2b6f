"""Bodies: a bounded cache, and reads that take neighbours together."""

from tests.unit.storage.scene import Scene
from twinbus.entities.facts import MAIN
from twinbus.entities.message import Message, NewMessage
from twinbus.storage.bodies import ENTRY_BYTES, BodyCache
from twinbus.testing.disk import SimDisk


def durable(count: int, length: int = 10) -> list[Message]:
    messages = []
    for number in range(1, count + 1):
        message = Message(number, bytes(length), length, 0)
        message.position = number
        messages.append(message)
    return messages


def test_the_oldest_bodies_go_first() -> None:
    cache = BodyCache(5 * (10 + ENTRY_BYTES))
    messages = durable(8)
    cache.add(messages, 1_000)
    assert [m.body is None for m in messages] == [True] * 3 + [False] * 5
    assert len(cache) == 5
    assert cache.size == 5 * (10 + ENTRY_BYTES)


def test_bodies_of_messages_that_are_gone_do_not_pile_up() -> None:
    cache = BodyCache(1 << 20)
    messages = durable(100)
    cache.add(messages, 1_000)
    for message in messages:
        message.state = 3
    cache.add(durable(1), 1_000)
    assert len(cache) == 1


def test_tiny_bodies_cannot_make_the_cache_long() -> None:
    cache = BodyCache(10_000)
    for _ in range(10):
        cache.add(durable(100, 0), 1_000)
    assert len(cache) <= 10_000 // ENTRY_BYTES


def test_a_body_that_is_not_durable_is_never_let_go() -> None:
    cache = BodyCache(0)
    messages = durable(4)
    messages[1].position = 0  # about to move
    messages[2].position = 2_000  # moving
    cache.add(messages, 1_000)
    assert [m.body is None for m in messages] == [True, False, False, True]
    messages[1].position = messages[2].position = 900
    cache.add([], 1_000)
    assert [m.body is None for m in messages] == [True] * 4


class CountingDisk(SimDisk):
    """Counts reads."""

    reads = 0

    def _operation(self, kind: str, what: str) -> None:
        self.reads += kind == "read"
        super()._operation(kind, what)


def test_neighbours_are_read_at_once() -> None:
    disk = CountingDisk()
    scene = Scene(disk, segment_size=1 << 20, cache_bytes=0)
    expected = [b"%d" % index * 50 for index in range(100)]
    scene.queue.send([NewMessage(body) for body in expected], scene.now)
    scene.commit()
    messages = scene.messages()
    assert all(message.body is None for message in messages)
    disk.reads = 0
    assert scene.store.read_bodies(messages) == expected
    assert disk.reads == 1
    assert scene.store.read_bodies(messages[::-1]) == expected[::-1]
    assert all(message.body is None for message in messages), "reading fills no memory for good"


def test_bodies_come_in_the_order_asked_for_wherever_they_are() -> None:
    scene = Scene(SimDisk(), cache_bytes=5_000)
    expected = [bytes([index]) * (index * 13 % 700) for index in range(60)]
    for body in expected:
        scene.send(body)
    messages = scene.messages()
    assert {message.body is None for message in messages} == {True, False}
    assert len({message.position >> 32 for message in messages}) > 1
    assert scene.store.read_bodies(messages) == expected
    order = sorted(range(60), key=lambda index: index * 31 % 60)
    assert scene.store.read_bodies([messages[i] for i in order]) == [expected[i] for i in order]


def test_more_segments_than_open_files() -> None:
    scene = Scene(SimDisk(), segment_size=8_192, cache_bytes=0)
    for index in range(400):
        scene.send(b"%d" % index * 400)
    assert len(scene.store._log.segments) > 140
    for message in scene.messages():
        (body,) = scene.store.read_bodies([message])
        assert body == b"%d" % (message.sequence_number - 1) * 400
    assert len(scene.store._log._files) <= 128


def test_a_message_taken_is_readable_until_its_removal_is_durable() -> None:
    scene = Scene(SimDisk(), cache_bytes=0)
    scene.send(b"taken")
    (message,) = scene.queue.take_next(MAIN, 1, scene.now)
    assert scene.store.read_bodies([message]) == [b"taken"]
