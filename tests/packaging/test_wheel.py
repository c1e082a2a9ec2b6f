"""The wheel: what is in it, and that it works in an environment that has nothing else.

Needs what `pip` needs to find the dependencies, as `make setup` does.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import twinbus
from tests.packaging.building import (
    build_wheels,
    copy_sources,
    empty_environment,
    environment,
    pip,
    run,
)

pytestmark = pytest.mark.feature("packaging.wheel")

# Of the folders in src, what is for readers of the repository and not for users of the package.
NOT_PACKAGED = {"README.md"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("build") / "sources")


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    """The pure wheel; what it needs lies beside it."""
    return build_wheels(sources, sources.parent / "wheels")


def packaged(sources: Path) -> set[str]:
    """Every file of our packages that has to be in what we give away."""
    packages = sources / "src"
    return {
        path.relative_to(packages).as_posix()
        for path in packages.rglob("*")
        if path.is_file() and path.name not in NOT_PACKAGED and ".egg-info" not in path.parent.name
    }


def test_what_is_in_the_wheel(sources: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        folder = f"twinbus-{twinbus.__version__}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert names == packaged(sources)
    assert {"twinbus/py.typed", "twinbus/costs/prices.toml"} <= names
    assert wheel.name == f"twinbus-{twinbus.__version__}-py3-none-any.whl"
    assert metadata["Version"] == twinbus.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"pairing", "spark", "java", "drill", "telemetry"} <= extras
    needed = metadata.get_all("Requires-Dist", [])
    base = {text.split(">")[0] for text in needed if "extra ==" not in text}
    assert base == {"cryptography", "h11", "isal", "PyJWT", "wsproto"}
    assert "twinbus = twinbus.cli.main:main" in entry_points
    assert "[pytest11]\ntwinbus = twinbus.testing.plugin" in entry_points


def test_the_source_archive_is_whole(sources: Path, tmp_path: Path) -> None:
    """Everything that a build needs is in it, so that one can be made of it."""
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    pure = environment(TWINBUS_PURE="1")  # compiling would be for nothing
    name = run(sys.executable, "-c", code, cwd=sources, env=pure).splitlines()[-1]
    assert name == f"twinbus-{twinbus.__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        inside = {member.partition("/")[2] for member in archive.getnames()}
    assert {f"src/{each}" for each in packaged(sources)} <= inside
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "PKG-INFO"} <= inside


def test_the_base_install(wheel: Path, tmp_path: Path) -> None:
    """From wheels alone, as the Dockerfile does it: a message goes there and back."""
    commands = empty_environment(tmp_path / "environment")
    place = tmp_path / "empty"
    place.mkdir()
    pip(commands, "install", "--no-index", "--find-links", str(wheel.parent), "twinbus")
    pip(commands, "check")
    command = commands / "twinbus"
    version = run(command, "--version", cwd=place)
    assert version == f"twinbus {twinbus.__version__} (pure)\n"
    with subprocess.Popen(
        [command, "serve", "--data", "data", "--port", "0"],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        where = environment(TWINBUS_CONNECTION_STRING=server.stdout.readline().strip())
        try:
            run(command, "queue", "create", "orders", cwd=place, env=where)
            run(command, "send", "orders", "as installed", cwd=place, env=where)
            received = run(command, "receive", "orders", "--raw", cwd=place, env=where)
            assert received.strip() == "as installed"
        finally:
            server.terminate()
    assert server.returncode == 0


def test_the_drill_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """With its extras, from an empty directory: an outage is rehearsed, and nothing is lost."""
    commands = empty_environment(tmp_path / "environment")
    place = tmp_path / "empty"
    place.mkdir()
    # Spark is half a gigabyte, which takes longer to install than the whole drill.
    with_spark = os.environ.get("TWINBUS_TEST_SIZE") == "nightly"
    wanted = [f"{wheel}[drill]"] if with_spark else [f"{wheel}[pairing]", "rich"]
    pip(commands, "install", *wanted)
    drill = ["drill", "--json", "--duration", "25", *([] if with_spark else ["--no-spark"])]
    verdict = json.loads(run(commands / "twinbus", *drill, cwd=place))
    assert verdict["verdict"] == "yes"
    assert verdict["arrived"] == verdict["expected"] > 0
    assert verdict["lost"] == verdict["duplicated"] == 0
    assert list(place.iterdir()) == []
