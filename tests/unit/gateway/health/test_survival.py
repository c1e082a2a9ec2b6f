"""What a deployment survives: one table, and the documentation has the same."""

from itertools import product
from pathlib import Path

import pytest

from twinbus.gateway.health.survival import (
    GOES_ON,
    LOST,
    STOPS,
    WAITS,
    Deployment,
    Outcome,
    survival,
)

ROOT = Path(__file__).parents[4]
DEFAULT = Deployment(brokers=0, stores=1, disks=1)
BROKERS = Deployment(brokers=2, stores=2, disks=1)
DISKS = Deployment(brokers=2, stores=2, disks=2)
RANKS = {GOES_ON: 0, WAITS: 1, STOPS: 2, LOST: 3}


def by_failure(deployment: Deployment) -> dict[str, Outcome]:
    return {each.failure: each for each in survival(deployment)}


@pytest.mark.proves("A-3")
@pytest.mark.parametrize("page", ["docs/concepts/failure-modes.md", "README.md"])
def test_the_pages_say_the_same(page: str) -> None:
    text = (ROOT / page).read_text()
    columns = [survival(each) for each in (DEFAULT, BROKERS, DISKS)]
    for outcomes in zip(*columns, strict=True):
        (failure,) = {each.failure for each in outcomes}
        row = f"| {failure} | {' | '.join(each.verdict for each in outcomes)} |"
        assert row in text, row


@pytest.mark.proves("A-3")
def test_one_store_has_no_journal_and_one_disk_no_use_for_it() -> None:
    for deployment in (DEFAULT, BROKERS, Deployment(brokers=2, stores=1, disks=1)):
        for failure in ("store slow", "disk failed"):
            found = by_failure(deployment)[failure]
            assert found.verdict != GOES_ON
            assert "--store on each of two disks" in found.fix
    assert "exit code 3" in by_failure(DEFAULT)["disk failed"].what
    assert by_failure(DISKS)["store slow"].verdict == GOES_ON


def test_a_broker_alone_comes_back_and_two_take_over() -> None:
    for failure in ("broker lost", "broker hung"):
        assert by_failure(DEFAULT)[failure].verdict == STOPS
        assert by_failure(Deployment(1, 2, 2))[failure].verdict == WAITS
        assert by_failure(Deployment(2, 1, 1))[failure].verdict == WAITS
        assert by_failure(BROKERS)[failure].verdict == GOES_ON


def test_more_parts_are_never_worse_and_whatever_is_said_helps() -> None:
    shapes = [
        Deployment(brokers, stores, disks)
        for brokers, stores, disks in product((0, 1, 2, 5), (1, 2, 9), (1, 2, 9))
        if disks <= stores and (brokers > 0 or stores == 1)
    ]
    best = by_failure(DISKS)
    for shape in shapes:
        for failure, found in by_failure(shape).items():
            assert found.what
            assert RANKS[found.verdict] >= RANKS[best[failure].verdict]
            # What could be better here has a fix; where nothing can, there is none.
            assert bool(found.fix) == (found.verdict != best[failure].verdict), (shape, failure)
            assert found.verdict == GOES_ON or found.fix or found.beyond
