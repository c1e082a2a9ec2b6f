"""Whole pairs on a simulated cluster: random outages of everything, and what arrives after them.

Each schedule draws from its seed which faults it meets and when (`PairNemesis`): killed, hanging
and restarted processes, stores that stay down, full disks and partitions, a primary that nobody
reaches, lost and late answers, and restarts of applications, syphons and the secondary.  Then:

- every message that an application was told of as sent is at its primary, once
- one that it has given up is there once or not at all
- nothing is at the other pair's primary, and nothing is a dead letter
- messages with one key are in the partition of the key

A failure names its seed; `PYTHONPATH=src:. python -m tests.simulation.test_paired_cluster SEED`
plays it again.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.simulation.paired_cluster import HEALTHY_ENTITY, Schedule
from tests.simulation.paired_primary import Call
from tests.simulation.paired_senders import Caller
from twinbus.entities.arrivals import Arrivals
from twinbus.entities.commands import Command, Send
from twinbus.entities.partitions import PARTITION_COUNT, partition_of
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.partitions import routing, sends
from twinbus.gateway.partitions.fan_out import Routes
from twinbus.gateway.partitions.numbered_sends import numbered_partition
from twinbus.links.store_link import DOWN, UP
from twinbus.pairing.primary import Owner
from twinbus.pairing.steps import Step
from twinbus.pairing.syphon import Syphon

pytestmark = pytest.mark.proves("P-15", "P-19", "P-20")

SCHEDULES = 10_000 if os.environ.get("TWINBUS_TEST_SIZE") == "nightly" else 300
PARTS = 20  # of a test each, so that a failure does not hide the rest
STEADY_COUNT: Final = 480  # messages: 30 for each partition


def play(seed: int) -> Schedule:
    """One schedule; an error tells its seed."""
    schedule = Schedule(seed)
    try:
        schedule.run()
    except BaseException as error:
        done = [] if schedule.nemesis is None else schedule.nemesis.done
        error.add_note(f"seed {seed}, faults: {done}")
        again = f"python -m tests.simulation.test_paired_cluster {seed}"
        error.add_note(f"again: PYTHONPATH=src:. {again}")
        raise
    return schedule


def play_all(seeds: range) -> Counter[str]:
    """How much of what was seen."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        schedule = play(seed)
        seen["sent"] += len(schedule.judge.attempts)
        seen["in the backlog"] += sum(each.last_number for each in schedule.backlog.queues.values())
        seen["at the stranger's"] += len(schedule.stranger.arrived)
        seen["tried again"] += schedule.network.retries
    return seen


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    seen = play_all(range(part, SCHEDULES, PARTS))
    # A simulation in which nothing goes wrong proves nothing.
    assert min(seen.values()) > SCHEDULES // PARTS, seen


# --- evenness ---------------------------------------------------------------------------------


def send_some(schedule: Schedule) -> None:
    """Messages without a key, while nothing changes."""
    for _ in range(3):
        Caller(schedule.pair, HEALTHY_ENTITY, 100)
    attempts = schedule.judge.attempts
    assert schedule.loop.run(60_000, lambda: len(attempts) >= STEADY_COUNT)
    schedule.pair.is_over = True
    assert schedule.loop.run(60_000, lambda: schedule.pair.is_quiet)


def check_even(schedule: Schedule, partitions: set[int]) -> None:
    """These have got their share, about, and next to nothing has gone anywhere else."""
    assert not any(each.last_number for each in schedule.backlog.queues.values())
    found = [copy for copy in schedule.judge.copies.values() if copy.is_found]
    shares = Counter(partition_of(copy.number) for copy in found)
    fair = shares.total() / len(partitions)
    assert partitions <= set(shares), f"some get nothing: {shares}"
    assert all(fair / 3 < shares[each] < 3 * fair for each in partitions), shares
    assert sum(shares[each] for each in partitions) > 0.9 * shares.total(), shares


@pytest.mark.proves("P-20")
@pytest.mark.parametrize("seed", range(3))
def test_messages_without_a_key_spread_over_all_partitions(seed: int) -> None:
    schedule = Schedule(seed, ("pq", "q0"))
    schedule.come_up()
    send_some(schedule)
    schedule.heal()
    schedule.check()
    check_even(schedule, set(range(PARTITION_COUNT)))


@pytest.mark.proves("P-20")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_down", [True, False])
def test_messages_without_a_key_evade_a_store(seed: int, is_down: bool) -> None:
    """Its partitions are down, or full: the others take everything, and no backlog is needed."""
    schedule = Schedule(seed, ("pq", "q0"))
    schedule.come_up()
    entity = schedule.cluster.gateway.gateway.directory.find("pq")
    assert entity is not None
    disk = schedule.cluster.disks[0]
    (process,) = [each for each in schedule.cluster.processes() if each.holds(0)]
    if is_down:
        for kind in ("write", "sync", "create"):
            disk.fail(kind, 1, for_ever=True)
        process.kill()
        schedule.loop.run(8_000)
        assert schedule.cluster.gateway.links[0].health == DOWN
    else:
        store = process.store(0)
        assert store is not None
        for each in store.entities.values():
            each._size_bytes_max = 0
    send_some(schedule)
    disk.heal()
    schedule.heal()
    schedule.check()
    check_even(schedule, {each.partition for each in entity.parts if each.store != 0})


# --- mistakes: the schedules would find them --------------------------------------------------


def forget_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not record which numbers have come."""
    monkeypatch.setattr(Arrivals, "add", lambda *arguments: None)


def complete_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The syphon completes before it sends."""
    send: Callable[..., Iterator[Step]] = Syphon._to_destination

    def wrong(self: Syphon, cycle: Any, path: str, taken: list[Any]) -> Any:
        yield from self._complete(cycle, [each.received for each in taken])
        yield from send(self, cycle, path, taken)

    monkeypatch.setattr(Syphon, "_to_destination", wrong)


def ignore_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A syphon takes whatever is in its queues."""
    monkeypatch.setattr(Owner, "owns", lambda *arguments: True)


def evade_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A numbered message goes to another partition when its home is not well."""

    def wrong(gateway: Routes, entity: Entity, command: Command) -> None:
        assert isinstance(command, Send)
        home = numbered_partition(command.messages)
        is_keyed = sends.key_partition(entity, command.messages) != sends.UNKEYED
        is_not_meant = is_keyed or bool(command.carrier)
        if is_not_meant or home < 0 or gateway.links[entity.parts[home].store].health == UP:
            sends.route_send(gateway, entity, command)
        else:
            command.partition = sends.next_partition(gateway.links, entity)
            sends._Evasion(gateway, entity, command).send()

    monkeypatch.setitem(routing._WAYS, Send, wrong)


def believe_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal a pair numbers anew, although an earlier try may have arrived."""
    monkeypatch.setattr(Call, "is_certain", True)


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (forget_arrivals, 30),
        (complete_too_early, 30),
        (ignore_marks, 30),
        (evade_home, 600),
        (believe_refusals, 600),
    ],
)
def test_a_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the schedules would show nothing."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_all(range(seeds))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        play(int(argument))
        sys.stdout.write(f"seed {argument}: all promises are kept\n")
