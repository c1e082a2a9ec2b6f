"""`twinbus pipeline` without Spark: what it offers, and what it says where Spark is missing."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.complaint import complaint
from twinbus.cli.main import main, parser
from twinbus.cli.pipeline.command import ACTIONS
from twinbus.errors import ConfigError

# Stands for an environment without the extra: nothing of these can be imported.
WITHOUT_SPARK = """\
import sys
for name in ("pyspark", "pyarrow", "py4j"):
    sys.modules[name] = None
from twinbus.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_SPARK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.proves("D-7")
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_says_what_it_is_for(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", action, "--help"])
    assert caught.value.code == 0
    purpose: str = importlib.import_module(f"twinbus.cli.pipeline.{ACTIONS[action]}").PURPOSE
    assert purpose.split(maxsplit=1)[0] in capsys.readouterr().out


def test_arguments_are_read_without_loading_spark() -> None:
    """Help, and a mistake in an argument, must not take seconds or need the extra."""
    ended = run_without_spark("pipeline", "--help")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.proves("D-7")
def test_without_the_extra_it_says_what_to_install() -> None:
    ended = run_without_spark("pipeline", "warm")
    assert ended.returncode == 1
    assert complaint(ended.stderr) == (
        "the pipeline builds on Spark, which is not installed; pip install 'twinbus[spark]'"
    )


def test_other_missing_modules_are_not_blamed_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parser("pipeline").parse_args(["pipeline", "warm"])
    monkeypatch.setitem(sys.modules, "twinbus.pipeline.running.session", None)
    with pytest.raises(ModuleNotFoundError, match=r"twinbus\.pipeline\.running\.session"):
        options.run(options)


@pytest.mark.proves("D-7")
def test_the_wrong_spark_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An older pyspark, and a SPARK_HOME that is older or none at all."""
    session = importlib.import_module("twinbus.pipeline.running.session")
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    with pytest.raises(ConfigError, match=r"needs Spark 4\.3, but pyspark is 3\.5\.1; pip install"):
        session.open_session("test")
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="where no Spark is"):
        session.open_session("test")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.0.1.jar").touch()
    with pytest.raises(ConfigError, match=r"but SPARK_HOME=.* is 4\.0\.1"):
        session.open_session("test")


def test_spark_submit_has_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    session = importlib.import_module("twinbus.pipeline.running.session")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError, match="say the master to spark-submit"):
        session.open_session("test", master="local[2]")


def test_settings_are_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", "cost", "--conf", "spark.driver.memory"])
    assert caught.value.code == 2
    assert "'spark.driver.memory' is not of the form KEY=VALUE" in capsys.readouterr().err
