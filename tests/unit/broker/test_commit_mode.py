"""Who waits for the disk: the loop where it is worth it and the disk is quick, or a thread."""

import pytest

from twinbus.broker.shell import (
    LARGE_SIZE_BYTES_MAX,
    PAUSE_MAX,
    PAUSE_MIN,
    SLOW_MS,
    SMALL_SIZE_BYTES_MAX,
    CommitMode,
)


def commits_of_the_thread(pace: CommitMode) -> int:
    """How many come before the loop tries again."""
    count = 0
    while not pace.may_wait(1, is_light=True):
        count += 1
    return count


@pytest.mark.parametrize(
    ("size", "is_light", "waits"),
    [
        (1, True, True),
        (LARGE_SIZE_BYTES_MAX + 1, True, True),  # one message, and a large one
        (SMALL_SIZE_BYTES_MAX, False, False),
        (SMALL_SIZE_BYTES_MAX + 1, False, True),
        (LARGE_SIZE_BYTES_MAX, False, True),
        (LARGE_SIZE_BYTES_MAX + 1, False, False),
    ],
)
def test_by_what_a_commit_carries(size: int, is_light: bool, waits: bool) -> None:
    pace = CommitMode(has_ring=False)
    for _ in range(2):
        assert pace.may_wait(size, is_light) is waits
        pace.waited(SLOW_MS - 1)


@pytest.mark.parametrize("size", [1, SMALL_SIZE_BYTES_MAX + 1, LARGE_SIZE_BYTES_MAX + 1])
def test_with_a_ring_the_loop_waits_for_few_messages_only(size: int) -> None:
    pace = CommitMode(has_ring=True)
    assert pace.may_wait(size, is_light=True)
    assert not pace.may_wait(size, is_light=False)


def test_a_slow_disk_is_tried_ever_more_rarely() -> None:
    pace = CommitMode(has_ring=False)
    pauses = []
    for _ in range(9):
        pace.waited(SLOW_MS)
        pauses.append(commits_of_the_thread(pace))
    assert pauses[:3] == [PAUSE_MIN, 2 * PAUSE_MIN, 4 * PAUSE_MIN]
    assert pauses[-1] == pauses[-2] == PAUSE_MAX


def test_what_is_the_threads_anyway_shortens_no_pause() -> None:
    pace = CommitMode(has_ring=False)
    pace.waited(SLOW_MS)
    assert not pace.may_wait(LARGE_SIZE_BYTES_MAX + 1, is_light=False)
    assert commits_of_the_thread(pace) == PAUSE_MIN


def test_a_disk_that_is_quick_again_is_forgiven() -> None:
    pace = CommitMode(has_ring=False)
    pace.waited(SLOW_MS)
    pace.waited(SLOW_MS)
    commits_of_the_thread(pace)
    pace.waited(0)
    assert pace.may_wait(1, is_light=True)
    pace.waited(SLOW_MS)
    assert commits_of_the_thread(pace) == PAUSE_MIN
