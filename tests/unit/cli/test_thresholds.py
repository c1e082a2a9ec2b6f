"""`--throttle NAME=VALUE`."""

import pytest

from twinbus.cli.thresholds import read_thresholds
from twinbus.errors import ConfigError
from twinbus.limits import THRESHOLDS_DEFAULT, Thresholds


def test_what_is_not_said_stays() -> None:
    assert read_thresholds([]) == THRESHOLDS_DEFAULT


def test_everything_said() -> None:
    texts = ["cpu=0.5", "lag=200", "memory=1", "disk=0.5", "operations=9"]
    assert read_thresholds(texts) == Thresholds(0.5, 200, 1_048_576, 524_288, 9)


def test_the_last_word_counts() -> None:
    assert read_thresholds(["operations=9", "operations=0"]).operations_max == 0


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu=", "cpu=much", "cpu=-1", "cpu=nan", "cpu=inf", "lag=0", "heat=1", "=1"]
)
def test_what_is_no_threshold(text: str) -> None:
    with pytest.raises(ConfigError, match="cpu, lag, memory, disk, operations"):
        read_thresholds(["operations=9", text])
