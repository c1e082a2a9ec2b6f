"""`twinbus emulator`: the defaults are Microsoft's, and its variables are taken."""

import argparse
from pathlib import Path

import pytest

from twinbus.cli.emulator import CONFIG_IN_CONTAINER, adapt, find_config, read_http_port
from twinbus.cli.main import main, parser
from twinbus.errors import ConfigError

pytestmark = pytest.mark.feature("dropin.emulator")


def adapted(*arguments: str, **environment: str) -> argparse.Namespace:
    options = parser("emulator").parse_args(["emulator", *arguments])
    adapt(options, environment)
    return options


def test_the_defaults_are_those_of_microsoft() -> None:
    options = adapted()
    assert options.port == 5672
    assert options.extra_port == [5300]
    assert options.key == ["SAS_KEY_VALUE"]
    assert options.config is None
    assert Path("/ServiceBus_Emulator/ConfigFiles/Config.json") == CONFIG_IN_CONTAINER


def test_none_of_its_limits_unless_asked_for() -> None:
    serve = parser("serve").parse_args(["serve", "--data", "here"])
    assert adapted().limits == serve.limits
    assert adapted("--limits", "standard").limits == "standard"


def test_every_option_of_serve_is_taken() -> None:
    serve = vars(parser("serve").parse_args(["serve", "--data", "here"]))
    assert vars(adapted()).keys() - serve.keys() == {"http_port"}
    assert not serve.keys() - vars(adapted()).keys()


def test_the_command_line_is_stronger() -> None:
    options = adapted("--http-port", "15300", "--key", "mine", EMULATOR_HTTP_PORT="25300")
    assert options.extra_port == [15300]
    assert options.key == ["mine"]


@pytest.mark.parametrize(
    "arguments, extra_ports",
    [
        (("--http-port", "0"), []),
        (("--port", "5300"), []),
        (("--extra-port", "5671"), [5671, 5300]),
        (("--extra-port", "5300"), [5300]),
    ],
)
def test_second_port(arguments: tuple[str, ...], extra_ports: list[int]) -> None:
    assert adapted(*arguments).extra_port == extra_ports


def test_second_port_by_the_environment() -> None:
    assert adapted(EMULATOR_HTTP_PORT="25300").extra_port == [25300]
    for text in ("http", "-1", "65536", "5300.0", "９", "9" * 5_000):
        with pytest.raises(ConfigError, match="EMULATOR_HTTP_PORT"):
            read_http_port(text)


def test_which_config(tmp_path: Path) -> None:
    mounted, own = tmp_path / "mounted.json", tmp_path / "own.json"
    missing = {"CONFIG_PATH": str(tmp_path / "elsewhere.json")}
    assert find_config({}, mounted) is None
    # Named and not there is an error, which reading it will tell.
    assert find_config(missing, mounted) == Path(missing["CONFIG_PATH"])
    mounted.touch()
    assert find_config({}, mounted) == mounted
    assert find_config(missing, mounted) == mounted  # the name is the host's, the file is here
    own.touch()
    assert find_config({"CONFIG_PATH": str(own)}, mounted) == own
    assert adapted("--config", "given.json", CONFIG_PATH=str(own)).config == Path("given.json")


def test_what_is_not_needed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ACCEPT_EULA", "SQL_SERVER", "MSSQL_SA_PASSWORD", "SQL_WAIT_INTERVAL"):
        monkeypatch.setenv(name, "geheim")
    monkeypatch.setenv("CONFIG_PATH", str(tmp_path / "missing.json"))
    arguments = ["emulator", "--host", "0.0.0.0", "--data", str(tmp_path / "data")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "not needed" in said
    assert "MSSQL_SA_PASSWORD" in said
    assert "geheim" not in said
    assert "is public" in said
    assert "missing.json" in said
