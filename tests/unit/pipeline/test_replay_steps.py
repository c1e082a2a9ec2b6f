"""The steps of a replay: minutes put together, as far as a step may reach."""

from twinbus.pipeline.jobs.replay import MINUTE_MS, STEP_COUNT_MAX, ReplaySettings, Step, joined


def minutes(*counts: int) -> list[Step]:
    return [Step({n * MINUTE_MS: count}, n * MINUTE_MS + 7) for n, count in enumerate(counts)]


def sizes(
    steps: list[Step], rate: float = 0, speed: float = 0, as_scheduled: bool = False
) -> list[int]:
    settings = ReplaySettings("", "", "x", rate=rate, speed=speed, as_scheduled=as_scheduled)
    found = list(joined(steps, settings))
    merged = {minute: count for step in found for minute, count in step.minutes.items()}
    assert merged == {minute: count for step in steps for minute, count in step.minutes.items()}
    assert [step.first_ms for step in found] == sorted(step.first_ms for step in found)
    return [step.message_count for step in found]


def test_steps_are_bounded_by_their_number_of_messages() -> None:
    most = STEP_COUNT_MAX
    assert sizes([]) == []
    assert sizes(minutes(1, 2, 3)) == [6]
    assert sizes(minutes(most - 1, 1, 1)) == [most, 1]
    assert sizes(minutes(2 * most, 5)) == [2 * most, 5], "a minute is the least"


def test_a_slow_replay_has_steps_of_some_seconds() -> None:
    assert sizes(minutes(50, 50, 50), rate=10) == [100, 50]


def test_a_replay_that_keeps_the_pace_goes_by_time() -> None:
    assert sizes(minutes(1, 1, 1), speed=1) == [1, 1, 1]
    assert sizes(minutes(1, 1, 1), speed=10) == [2, 1]
    assert sizes(minutes(1, 1, 1), speed=1, as_scheduled=True) == [3], "the bus does"
