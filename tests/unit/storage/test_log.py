"""The log: what ends it, what damages it, and what a recycled segment must never say."""

import random

import pytest

from tests.unit.storage.scene import SALT, SEGMENT_SIZE, Scene
from twinbus.errors import LogDamaged
from twinbus.limits import SEGMENT_HEADER_BYTES
from twinbus.storage.log import (
    RECORDS,
    SECTOR_SIZE,
    SEGMENT_MAGIC,
    FrameReader,
    encode_frame,
    numbered,
    read_header,
    segment_name,
)
from twinbus.storage.maintenance import PrepareSegment
from twinbus.testing.disk import CrashMode, SimDisk


def frame_at(offset: int, frame: int, records: bytes = b"x", number: int = 1) -> bytes:
    return b"".join(encode_frame(records, RECORDS, SALT, number, offset, frame))


def reader_of(data: bytes, number: int = 1) -> FrameReader:
    disk = SimDisk()
    file = disk.create("f")
    file.write([data], 0)
    return FrameReader(file, number, SALT, len(data), 0)


def test_frames_keep_to_their_own_sectors() -> None:
    assert len(frame_at(0, 1)) == SECTOR_SIZE
    assert len(frame_at(0, 1, bytes(SECTOR_SIZE - 32))) == SECTOR_SIZE
    assert len(frame_at(0, 1, bytes(SECTOR_SIZE - 31))) == 2 * SECTOR_SIZE


def test_a_frame_is_valid_only_where_it_was_written() -> None:
    data = frame_at(0, 1) + frame_at(512, 2, b"second")
    reader = reader_of(data)
    first, second = reader.next(), reader.next()
    assert first is not None
    assert second is not None
    assert (first.frame, second.frame, second.records) == (1, 2, b"second")
    assert reader.next() is None
    assert reader_of(data[512:]).next() is None, "the same bytes at another offset"
    assert reader_of(data, number=2).next() is None, "the same bytes in another segment"


def test_no_flipped_bit_goes_unnoticed() -> None:
    data = frame_at(0, 1, b"some records")
    for place in range(32 + len(b"some records")):
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            assert reader_of(bytes(bad)).next() is None


def test_the_next_valid_frame_is_found_behind_a_window() -> None:
    gap = (1 << 22) + 1_024
    data = bytes(gap) + frame_at(gap, 9)
    assert reader_of(data).valid_frame_after(0) == gap
    assert reader_of(bytes(gap)).valid_frame_after(0) == -1


def test_a_body_that_looks_like_a_frame_is_no_frame() -> None:
    """Somebody sends us our own log as a message, and then the frame around it is torn."""
    scene = Scene(SimDisk())
    inner = frame_at(SEGMENT_HEADER_BYTES + 512, 99)
    padding = bytes(SECTOR_SIZE - 32 - 60)  # brings the body to the start of a sector
    scene.send(padding + inner)
    assert isinstance(scene.disk, SimDisk)
    disk = scene.disk.restarted()
    torn = scene.messages()[0].position & 0xFFFF_FFFF
    disk.damage(scene.head, torn - 60 - 32, bytes(16))
    assert Scene(disk).bodies() == []


def test_only_our_names_are_ours() -> None:
    names = ["0000000012.log", "12.log", "x000000012.log", "0000000003.log", "0000000001.spare"]
    assert numbered(names, ".log") == [3, 12]


def test_a_torn_last_frame_is_the_end_of_the_log_byte_by_byte() -> None:
    """Whatever part of an unsynced frame is there: what was before it stays, and it opens."""
    scene = Scene(SimDisk())
    scene.send(b"first", b"second")
    assert isinstance(scene.disk, SimDisk)
    before = scene.disk.contents(scene.head)
    scene.send(b"third" * 50)
    after = scene.disk.contents(scene.head)
    changed = [i for i in range(len(before)) if before[i] != after[i]]
    for cut in range(changed[0], changed[-1] + 1):
        disk = scene.disk.restarted()
        disk.damage(scene.head, 0, after[:cut] + before[cut:])
        found = Scene(disk)
        assert found.bodies() == [b"first", b"second"], cut
        if cut % 16 == 0:  # and the log goes on there
            found.send(b"fourth")
            assert found.reopened().bodies() == [b"first", b"second", b"fourth"]


def test_damage_before_a_valid_frame_is_damage() -> None:
    scene = Scene(SimDisk())
    scene.send(b"first")
    place = scene.messages()[0].position & 0xFFFF_FFFF
    scene.send(b"second")
    assert isinstance(scene.disk, SimDisk)
    disk = scene.disk.restarted()
    disk.damage(scene.head, place, b"F")
    with pytest.raises(LogDamaged) as caught:
        Scene(disk)
    assert caught.value.path == scene.head
    assert caught.value.offset == place - 60 - 32


def test_damage_to_the_last_frame_shows_after_an_orderly_end() -> None:
    scene = Scene(SimDisk())
    scene.send(b"only")
    place = scene.messages()[0].position & 0xFFFF_FFFF
    head = scene.head
    scene.store.close()
    assert isinstance(scene.disk, SimDisk)
    scene.disk.damage(head, place, b"O")
    with pytest.raises(LogDamaged, match="had reached byte"):
        Scene(scene.disk)


def test_damage_to_the_last_frame_shows_a_few_seconds_after_it_was_written() -> None:
    scene = Scene(SimDisk())
    scene.send(b"only")
    place = scene.messages()[0].position & 0xFFFF_FFFF
    scene.now.mono_ms += 10_000
    scene.work()
    assert isinstance(scene.disk, SimDisk)
    disk = scene.disk.restarted()
    disk.damage(scene.head, place, b"O")
    with pytest.raises(LogDamaged, match="had reached byte"):
        Scene(disk)


def filled(segments: int) -> Scene:
    scene = Scene(SimDisk())
    scene.work()
    while scene.store._log.head_segment < segments:
        scene.send(bytes(1_500))
    return scene


def test_messages_span_segments() -> None:
    scene = filled(4)
    expected = scene.bodies()
    assert len(scene.segments()) >= 4
    assert scene.reopened().bodies() == expected


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_never_taken_for_empty(number: int) -> None:
    scene = filled(3)
    scene.store.close()
    assert isinstance(scene.disk, SimDisk)
    scene.disk.lose(segment_name(number))
    with pytest.raises(LogDamaged):
        Scene(scene.disk)


def test_a_missing_snapshot_is_never_taken_for_an_empty_store() -> None:
    scene = Scene(SimDisk())
    while segment_name(1) in scene.segments():
        scene.turn_over(1)
    scene.store.close()
    assert isinstance(scene.disk, SimDisk)
    for name in scene.disk.names():
        if name.endswith(".snapshot"):
            scene.disk.lose(name)
    with pytest.raises(LogDamaged, match="snapshot before it is missing"):
        Scene(scene.disk)


def test_a_log_without_segments_is_damaged_not_new() -> None:
    scene = filled(3)
    scene.work()
    scene.store.close()
    assert isinstance(scene.disk, SimDisk)
    for name in scene.segments():
        scene.disk.lose(name)
    assert scene.disk.names()
    with pytest.raises(LogDamaged, match="its log is missing"):
        Scene(scene.disk)


def test_segments_of_another_store_are_refused() -> None:
    scene, other = filled(3), filled(3)
    assert isinstance(scene.disk, SimDisk)
    assert isinstance(other.disk, SimDisk)
    scene.store.close()
    header = bytearray(other.disk.contents(segment_name(2))[:SEGMENT_HEADER_BYTES])
    header[16] ^= 1  # the salt
    scene.disk.damage(segment_name(2), 0, bytes(header))
    with pytest.raises(LogDamaged, match="header"):
        Scene(scene.disk)


def test_what_a_recycled_segment_held_is_never_read() -> None:
    """Old frames stay in the file; after a crash at its very beginning none of them counts."""
    scene = Scene(SimDisk())
    scene.keep(b"kept")
    while not any(isinstance(task, PrepareSegment) and task.spare for task in scene.done):
        scene.turn_over(1)
    scene.turn_over(1)  # goes on into the recycled one
    assert isinstance(scene.disk, SimDisk)
    expected = scene.bodies()
    for mode in CrashMode:
        found = Scene(scene.disk.after_power_cut(random.Random(1), mode))
        assert found.bodies() == expected
        assert found.kept() == [b"kept"]


def test_a_segment_has_the_header_it_was_given() -> None:
    scene = filled(2)
    file = scene.disk.open(segment_name(2))
    header = read_header(file, segment_name(2), SEGMENT_MAGIC, 2)
    assert (header.number, header.salt, header.size) == (2, SALT, SEGMENT_SIZE)
    with pytest.raises(LogDamaged, match="another file"):
        read_header(file, segment_name(3), SEGMENT_MAGIC, 3)
