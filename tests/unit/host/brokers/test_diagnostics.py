"""Bundles about brokers in trouble."""

import json
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from twinbus.host.brokers.diagnostics import Evidence, LogTail, read_process, write_bundle
from twinbus.limits import DIAGNOSTICS_MAX
from twinbus.telemetry.secrets import KnownSecrets

EVIDENCE = Evidence(
    broker=1,
    reason="no sign of life for 2250 ms",
    utc_ms=1_794_821_400_250,
    pid=4711,
    running_ms=60_000,
    silent_ms=2_250,
    stores=[1, 3],
    stacks="Current thread (most recent call first)",
    beats=[{"lag_ms": 3, "stores": {1: {"commit_age_ms": 7}}}],
    gateway_log=["a line of the gateway"],
    broker_log=["a line of the broker"],
)


@pytest.mark.proves("A-4")
def test_a_bundle_says_what_where_and_since_when(tmp_path: Path) -> None:
    """What, where, stacks, recent log."""
    bundle = write_bundle(tmp_path / "diagnostics", EVIDENCE)
    assert bundle.name == "20261116T093000.250Z-broker-1"
    assert sorted(path.name for path in bundle.iterdir()) == [
        "counters.json",
        "log.txt",
        "reason.txt",
        "stacks.txt",
    ]
    assert (bundle / "reason.txt").read_text() == (
        "broker 1: no sign of life for 2250 ms\n"
        "seen: 2026-11-16T09:30:00.250+00:00\n"
        "process: 4711, running for 60000 ms\n"
        "last sign of life: 2250 ms before\n"
        "stores: 1, 3\n"
    )
    assert (bundle / "stacks.txt").read_text() == "Current thread (most recent call first)\n"
    (beat,) = json.loads((bundle / "counters.json").read_text())
    assert beat == {"lag_ms": 3, "stores": {"1": {"commit_age_ms": 7}}}
    assert (bundle / "log.txt").read_text() == (
        "# gateway\na line of the gateway\n\n# broker 1\na line of the broker\n"
    )


def test_a_bundle_is_nobody_elses_business(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "diagnostics", EVIDENCE)
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    assert stat.S_IMODE(bundle.parent.stat().st_mode) == 0o700


def test_a_process_that_never_was_has_a_bundle_too(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, replace(EVIDENCE, pid=None, stores=[]))
    text = (bundle / "reason.txt").read_text()
    assert "process: none" in text
    assert "stores: none" in text


def test_the_newest_bundles_are_kept_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for second in range(DIAGNOSTICS_MAX + 5):
        write_bundle(tmp_path, replace(EVIDENCE, utc_ms=EVIDENCE.utc_ms + second * 1_000))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names.pop() == "notes.txt"
    assert len(names) == DIAGNOSTICS_MAX
    assert names[0].startswith("20261116T093005.250Z")


def test_two_brokers_at_the_same_moment(tmp_path: Path) -> None:
    write_bundle(tmp_path, EVIDENCE)
    write_bundle(tmp_path, replace(EVIDENCE, broker=2))
    write_bundle(tmp_path, EVIDENCE)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_kernel_is_asked_about_every_thread() -> None:
    text = read_process(os.getpid())
    assert f"Pid:\t{os.getpid()}" in text
    assert f"/task/{os.getpid()}/wchan" in text


def test_a_process_that_is_gone_is_no_error() -> None:
    assert "No such file" in read_process(2**22 + 1)


def test_the_newest_log_lines_are_kept_though_they_are_not_shown() -> None:
    ours = logging.getLogger("twinbus")
    before = ours.level
    tail = LogTail(KnownSecrets(), 2)
    tail.begin()
    try:
        for number in range(3):
            logging.getLogger("twinbus.test").info("broker=%d", number)
        logging.getLogger("twinbus.test").debug("too much")
    finally:
        tail.end()
    logging.getLogger("twinbus.test").error("too late")
    assert [line.split(" ", 1)[1] for line in tail.lines()] == [
        "INFO twinbus.test: broker=1",
        "INFO twinbus.test: broker=2",
    ]
    assert ours.level == before
