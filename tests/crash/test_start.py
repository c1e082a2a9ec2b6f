"""Two servers where one belongs: a reason, a fix, an exit code, and the first is undisturbed."""

from pathlib import Path

import pytest

from tests.complaint import complaint
from twinbus.launch import ServerFailed
from twinbus.testing.server import ServerProcess


def _refusal(second: ServerProcess) -> str:
    before = second.log  # two servers on one directory share a log file
    with pytest.raises(ServerFailed) as failure:
        second.start()
    assert failure.value.exit_code > 0
    return complaint(failure.value.text.removeprefix(before))


def test_a_second_server_on_the_same_directory_is_refused(server: ServerProcess) -> None:
    server.create_queue("q")
    reason = _refusal(ServerProcess(server.data_dir))
    assert str(server.data_dir) in reason
    assert server.admin.get_queue("q").name == "q"


def test_a_port_in_use_is_named(server: ServerProcess, tmp_path: Path) -> None:
    reason = _refusal(ServerProcess(tmp_path / "other", port=server.port))
    assert str(server.port) in reason
    server.create_queue("q")


def test_a_data_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert str(tmp_path / "file") in _refusal(ServerProcess(tmp_path / "file"))
