"""What a server says that its deployment survives, and what `twinbus doctor` makes of it."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.main import main
from twinbus.gateway.health.survival import GOES_ON, LOST, Deployment, survival
from twinbus.testing.server import ServerProcess

pytestmark = [pytest.mark.proves("A-3"), pytest.mark.feature("cli.doctor")]

ELSEWHERE = Path("/dev/shm")  # a file system of its own on most machines


def told(
    data_dir: Path,
    arguments: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, Any]:
    """What doctor says of a running server, by what it looked at."""
    with ServerProcess(data_dir, arguments=arguments) as server:
        monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
        main(["doctor", "--json", "--port", str(server.port)])
    assert "Traceback" not in server.log, server.log
    findings = json.loads(capsys.readouterr().out)["findings"]
    return {each["check"]: each for each in findings}


def check(found: dict[str, Any], deployment: Deployment) -> None:
    """Each failure is told as the table has it; a warning where another deployment is better."""
    for outcome in survival(deployment):
        finding = found[outcome.failure]
        assert finding["found"] == f"{outcome.verdict}: {outcome.what}"
        is_warned = outcome.fix or outcome.verdict == LOST
        assert finding["state"] == ("warn" if is_warned else "ok")
        assert outcome.fix in finding["fix"] and outcome.beyond in finding["fix"]


def test_a_default_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(tmp_path / "data", (), monkeypatch, capsys)
    check(found, Deployment(brokers=0, stores=1, disks=1))
    assert found["disk failed"]["state"] == found["store slow"]["state"] == "warn"


@pytest.mark.parametrize("brokers", [1, 2])
def test_several_stores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    brokers: int,
) -> None:
    """On one disk, and on two where this machine has two."""
    near = tmp_path / "a", tmp_path / "b"
    arguments = ["--brokers", str(brokers)]
    found = told(tmp_path / "one", [*arguments, *stores(*near)], monkeypatch, capsys)
    check(found, Deployment(brokers, stores=2, disks=1))
    assert (found["broker lost"]["found"].startswith(GOES_ON)) is (brokers == 2)
    with tempfile.TemporaryDirectory(dir=ELSEWHERE if ELSEWHERE.is_dir() else None) as far:
        both = tmp_path / "c", Path(far) / "d"
        found = told(tmp_path / "two", [*arguments, *stores(*both)], monkeypatch, capsys)
        disks = len({tmp_path.stat().st_dev, Path(far).stat().st_dev})
        check(found, Deployment(brokers, stores=2, disks=disks))


def stores(*paths: Path) -> list[str]:
    return [word for path in paths for word in ("--store", str(path))]
