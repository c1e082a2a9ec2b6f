"""Builds twinbus as a wheel away from the repository, and installs it in empty environments."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What a build needs; the Dockerfile copies the same.
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would lead to the twinbus of this repository."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | more


def run(
    *command: str | Path, cwd: Path, env: Mapping[str, str] | None = None, code: int = 0
) -> str:
    """What a command writes to standard output; it must end as expected."""
    ran = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment() if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, f"{command[0]} ended with {ran.returncode}\n{ran.stderr}"
    return ran.stdout


def copy_sources(folder: Path) -> Path:
    """The sources elsewhere: a build writes beside them, and finds what older builds wrote."""
    folder.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "*.so")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def build_wheels(sources: Path, wheels: Path) -> Path:
    """The pure wheel, and those of what it needs beside it; with the setuptools that is here."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--wheel-dir", str(wheels), "."]
    run(*command, cwd=sources, env=environment(TWINBUS_PURE="1"))
    return next(wheels.glob("twinbus-*.whl"))


def empty_environment(folder: Path) -> Path:
    """A virtual environment with nothing in it at all; gives the directory of its commands."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin"


def pip(commands: Path, action: str, *arguments: str) -> None:
    """The pip of this environment, for that one."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command += ["--python", str(commands / "python"), action]
    if action == "install":
        command.append("--no-compile")  # of most modules nobody will ask anything
    run(*command, *arguments, cwd=commands)
