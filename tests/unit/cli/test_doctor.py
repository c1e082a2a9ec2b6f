"""`twinbus doctor`: what it finds, and that everything that is not well comes with a fix."""

import datetime as dt
import json
import re
import socket
import tomllib
from pathlib import Path

import pytest

from twinbus.certificates import server_context
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.cli.doctor.disk import judge_syncs, look_at_certificates, measure_syncs
from twinbus.cli.doctor.findings import BAD, OK, WARN
from twinbus.cli.doctor.machine import EXTRAS, look_at_machine
from twinbus.cli.doctor.server import look_at_ports, look_at_server
from twinbus.cli.main import main
from twinbus.clock import Now

pytestmark = pytest.mark.feature("cli.doctor")

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for extra, names in EXTRAS.items():
        given = [re.split(r"[^\w-]", line)[0] for line in project[extra]]
        assert [name for name in given if name != "twinbus"] == list(names)


def test_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code = main(["doctor", "--json", "--port", port, "--data", str(tmp_path)])
    shown = json.loads(capsys.readouterr().out)
    found = {each["check"]: each for each in shown["findings"]}
    assert code == (3 if shown["bad"] else 0)
    assert found["python"]["state"] == found["clock"]["state"] == OK
    assert found[f"port {port}"]["state"] == WARN
    assert "other than twinbus" in found[f"port {port}"]["found"]
    assert "median" in found["disk sync"]["found"]
    assert all(each["fix"] for each in shown["findings"] if each["state"] != OK)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_something_bad_is_exit_code_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--data", str(tmp_path / "missing")]) == 3
    shown = capsys.readouterr().out
    assert re.search(r"^bad   data +.* is not a directory$", shown, re.MULTILINE)
    assert re.search(r"^\d+ checks: \d+ bad, \d+ to look at$", shown, re.MULTILINE)


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, state in ((256, BAD), (2_048, WARN), (65_536, OK)):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=limit: (soft, 65_536))
        [finding] = [each for each in look_at_machine() if each.check == "open files"]
        assert finding.state == state


@pytest.mark.parametrize("median_ms, state", [(0.001, WARN), (0.5, OK), (30.0, WARN), (900.0, BAD)])
def test_what_a_sync_means(median_ms: float, state: str) -> None:
    finding = judge_syncs([median_ms] * 99 + [1_000.0])
    assert finding.state == state
    assert f"median {median_ms:.2f} ms" in finding.found
    assert bool(finding.fix) == (state != OK)


def test_syncs_are_measured(tmp_path: Path) -> None:
    latencies_ms = measure_syncs(tmp_path)
    assert latencies_ms == sorted(latencies_ms)
    assert latencies_ms[0] > 0


class At:
    """A clock that stands."""

    def __init__(self, years: int) -> None:
        moment = dt.datetime.now(dt.UTC) - dt.timedelta(days=365 * years)
        self._utc_ms = int(moment.timestamp() * 1_000)

    def now(self) -> Now:
        return Now(self._utc_ms, 0)


def test_certificates(tmp_path: Path) -> None:
    def states(folder: Path) -> dict[str, str]:
        return {each.check: each.state for each in look_at_certificates(folder / "tls")}

    assert states(tmp_path) == {"certificates": OK}  # there are none yet
    server_context(tmp_path, "127.0.0.1", At(0))
    assert {states(tmp_path)[name] for name in ("development CA", "server certificate")} == {OK}
    (tmp_path / "tls" / "server.key").chmod(0o644)
    assert states(tmp_path)["private keys"] == BAD
    (tmp_path / "tls" / "ca.pem").write_text("nothing")
    assert states(tmp_path)["development CA"] == BAD
    old = tmp_path / "old"
    old.mkdir()
    server_context(old, "127.0.0.1", At(2))
    assert states(old) == {"development CA": OK, "server certificate": BAD}


def test_ports() -> None:
    [free] = look_at_ports("127.0.0.1", [0])
    assert (free.state, free.found) == (OK, "free")
    [elsewhere] = look_at_ports("192.0.2.1", [1234])
    assert elsewhere.state == BAD and elsewhere.fix


def test_connection_strings_that_lead_nowhere() -> None:
    [nonsense] = look_at_server("nonsense")
    assert nonsense.state == BAD and nonsense.fix.startswith("it looks like Endpoint=")
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=secret;"
    known, server = look_at_server(text + "UseDevelopmentEmulator=true;")
    assert known.state == OK and "secret" not in known.found
    assert server.state == BAD and "no bus answers at 127.0.0.1:1" in server.found
