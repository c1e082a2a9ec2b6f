"""The options of the syphon's source, and what its rows add up to."""

import pytest

from twinbus.errors import ConfigError, TwinbusError
from twinbus.pipeline.jobs.syphon import Totals, default_checkpoint
from twinbus.pipeline.syphon.source import SyphonOptions, SyphonReader

pytestmark = pytest.mark.proves("D-2")

PRIMARY = "Endpoint=sb://one;SharedAccessKeyName=k;SharedAccessKey=s3cret"
GIVEN = {"primary": PRIMARY, "secondary": PRIMARY.replace("one", "two"), "queues": "a/0, a/1,"}


def test_options() -> None:
    options = SyphonOptions.parse(GIVEN | {"restoredtimetolive": "Remaining", "patience": "0"})
    assert options.queues == ("a/0", "a/1")
    assert (options.time_to_live, options.patience_s) == ("remaining", 0)
    assert options.operations == "auto"


@pytest.mark.proves("P-19")
def test_whose_messages_are_moved() -> None:
    queue = "shop/x-servicebus-transfer/0"
    owner = SyphonOptions.parse(GIVEN).identity.owner_of(queue)
    assert (owner.mark, owner.takes_unmarked) == ("one-5671", False)
    owner = SyphonOptions.parse(GIVEN | {"adoptUnmarked": "true"}).identity.owner_of(queue)
    assert (owner.mark, owner.takes_unmarked) == ("one-5671", True)
    owner = SyphonOptions.parse(GIVEN | {"primaryName": "shop"}).identity.owner_of(queue)
    assert (owner.mark, owner.takes_unmarked) == ("shop", True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"queue": "a/0"}, "there is no option queue; did you mean queues?"),
        ({"queues": " "}, "the option queues is missing"),
        ({"primary": ""}, "the option primary is missing"),
        ({"secondary": "nonsense"}, "onnection string"),
        ({"maxPerTask": "0"}, "the option maxPerTask is a whole number"),
        ({"restoredTimeToLive": "half"}, "the option restoredTimeToLive is one of"),
        ({"operations": "other"}, "the option operations is one of"),
        ({"adoptUnmarked": "perhaps"}, "the option adoptUnmarked is one of"),
        ({"primaryName": "a/b"}, "the option primaryName is a text without '/'"),
        ({"secondary": PRIMARY}, "one cannot be paired with itself"),
    ],
)
def test_options_that_cannot_be(change: dict[str, str], text: str) -> None:
    """Told before a query starts, and without a key."""
    with pytest.raises((ConfigError, TwinbusError), match=text) as refused:
        SyphonOptions.parse(GIVEN | change)
    assert "s3cret" not in str(refused.value)


def test_the_first_offset_is_always_the_same() -> None:
    """Spark does not store it, and asks again after a crash."""
    assert SyphonReader(SyphonOptions.parse(GIVEN)).initialOffset() == {"round": 0}


def test_totals_are_of_the_run_but_held_is_of_the_round() -> None:
    totals = Totals()
    held = {"destination": "a", "outcome": "held", "reason": "down", "count": 3, "bytes": 30}
    moved = {"destination": "b", "outcome": "moved", "reason": "", "count": 5, "bytes": 50}
    dead = {"destination": "", "outcome": "dead_lettered", "reason": "X", "count": 1, "bytes": 1}
    totals.add([held, moved, dead])
    assert (totals.held, totals.held_for) == ({"a": 3}, {"a": "down"})
    totals.add([moved | {"destination": "a"}, moved])
    assert totals.moved == {"a": 5, "b": 10}
    assert (totals.moved_count, totals.dead_letter_count, totals.held_count) == (15, 1, 0)
    assert totals.size_bytes == 150
    left = {"destination": "", "outcome": "left", "reason": "belongs to x", "count": 2, "bytes": 2}
    totals.add([left | {"queue": "q"}])
    assert (totals.left, totals.moved_count) == ({("q", "belongs to x"): 2}, 15)


def test_each_pair_has_a_checkpoint_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    one = default_checkpoint("bus", "shop/x-servicebus-transfer/")
    assert one.startswith("/state/twinbus/syphon/")
    assert default_checkpoint("BUS", "Shop/x-servicebus-transfer/") == one
    assert default_checkpoint("bus", "other/x-servicebus-transfer/") != one
