"""One way to a Spark session, for the commands, for tests, and for your own programs.

    spark = open_session("my report")                               # Spark in this machine
    spark = open_session("my report", master="spark://host:7077")   # or on a cluster

Sees to what otherwise goes wrong at the first try: finds a Java, makes workers use this very
Python, keeps the logs quiet, listens on 127.0.0.1 only, starts quickly.  Whatever `conf` says wins.
Under `spark-submit` the session is the one that was submitted, and `conf` only adds to it.
Needs pyspark; leaves the environment of this process as it was.
"""

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from twinbus.errors import ConfigError
from twinbus.pipeline.registering import SPARK_VERSION, register
from twinbus.pipeline.running.archive import (
    archive_path,
    claim,
    finish,
    make_in_background,
    making_options,
    should_make,
    using_options,
)
from twinbus.pipeline.running.home import SparkHome, prepare_home
from twinbus.pipeline.running.java import find_java

Profile = Literal["job", "test"]

# A failed task is tried again: a namespace that is away for a moment must not end a query.
LOCAL_MASTER: Final[Mapping[Profile, str]] = {"job": "local[*,4]", "test": "local[2,4]"}
DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Java's warnings, of archives for example, go to standard output, where results belong.
_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Starts quicker and runs slower than Java's own choice, which is made for runs of hours.
_QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOOPBACK: Final = "127.0.0.1"
_MEMORY_MB_MIN: Final = 1_024
_MEMORY_MB_MAX: Final = 8_192

_ALWAYS: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Options are shown in plans and in Spark's web pages; this one holds a key.
    "spark.sql.redaction.options.regex": "(?i)url|connectionstring",
    # After each row that a sink gets Spark asks how large the batch is by now, and goes through all
    # null maps at its end again: with 10,000 rows, its default, that is most of what Java does.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
}
_TEST: Final = {
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    # Renames without asking a shell: saves 80 ms a batch.  Not examined for crashes of a machine.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def open_session(
    name: str,
    *,
    master: str | None = None,
    profile: Profile = "job",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session that knows `format("servicebus")`; the one of this process if there is one."""
    _check_version(pyspark.__version__, "pyspark")
    given = dict(conf or {})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        if master is not None:
            raise ConfigError("say the master to spark-submit, not here")
        spark = _start(name, {**_ALWAYS, **given})
    else:
        master = master or LOCAL_MASTER[profile]
        home = _own_home()
        settings = settings_for(master, profile, home)
        own_options = settings.pop(DRIVER_OPTIONS)
        settings.update(given)
        settings[DRIVER_OPTIONS] = f"{own_options} {given.get(DRIVER_OPTIONS, '')}".rstrip()
        with _environment(_variables(master, home)):
            spark = _start(name, {**settings, "spark.master": master})
        if home is not None and sys.stderr.isatty() and should_make(home):
            atexit.register(make_in_background)
    register(spark)
    return spark


def warm() -> Path | None:
    """Make the archive of classes that lets later sessions start quicker; where it is.

    Needs a process in which no session was.  None: this Java, or this Spark, cannot have one.
    """
    home = _own_home()
    path = archive_path(home) if home is not None else None
    if home is None or path is None or path.exists():
        return path
    new = claim(path)
    master = LOCAL_MASTER["job"]
    settings = settings_for(master, "job", home)
    settings[DRIVER_OPTIONS] += " " + " ".join(making_options(new))
    with _environment(_variables(master, home)):
        spark = _start("warm", {**settings, "spark.master": master})
    return path if finish(spark, new, path) else None


def settings_for(master: str, profile: Profile, home: SparkHome | None) -> dict[str, str]:
    """What we would have Spark do, before the user is asked."""
    settings = dict(_ALWAYS)
    java_options = list(_QUIET)
    if home is not None:
        java_options += using_options(home)
        if not _has_own_log4j():
            java_options.append(f"-Dlog4j2.configurationFile={home.log4j.as_uri()}")
    if is_local(master):
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
        settings["spark.driver.memory"] = f"{_driver_memory_mb()}m"
    if profile == "test":
        settings |= _TEST
        settings["spark.driver.memory"] = f"{_MEMORY_MB_MIN}m"
        java_options += _QUICK_START
    settings[DRIVER_OPTIONS] = " ".join(java_options)
    return settings


def is_local(master: str) -> bool:
    """Whether everything runs in this machine, in one Java."""
    return master == "local" or master.startswith("local[")


def _check_version(version: str, what: str) -> None:
    if not version.startswith(f"{SPARK_VERSION}."):
        raise ConfigError(
            f"the pipeline needs Spark {SPARK_VERSION}, but {what} is {version}; "
            "pip install 'twinbus[spark]'"
        )


def _own_home() -> SparkHome | None:
    """Our home; or None where the user has a Spark, which is then theirs in everything."""
    theirs = os.environ.get("SPARK_HOME")
    if not theirs:
        return prepare_home(Path(pyspark.__file__).parent, pyspark.__version__, find_java())
    jars = sorted(Path(theirs).glob("jars/spark-core_*.jar"))
    if not jars:
        raise ConfigError(f"SPARK_HOME is {theirs}, where no Spark is; unset it or put it right")
    _check_version(jars[0].stem.split("-")[-1], f"SPARK_HOME={theirs}")
    find_java()  # complains in words; otherwise theirs is good
    return None


def _variables(master: str, home: SparkHome | None) -> dict[str, str]:
    variables = {}
    # Otherwise workers would be PATH's python3, with other packages or none.
    if "PYSPARK_PYTHON" not in os.environ:
        variables["PYSPARK_PYTHON"] = sys.executable
    if is_local(master):
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    if home is not None:
        variables["SPARK_HOME"] = str(home.path)
        variables["JAVA_HOME"] = str(home.java_home)
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Spark reads these once, when it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError("Spark's Java did not start; its reason is in the lines above") from error


def _has_own_log4j() -> bool:
    directory = os.environ.get("SPARK_CONF_DIR")
    return directory is not None and (Path(directory) / "log4j2.properties").exists()


def _driver_memory_mb() -> int:
    """A quarter of the machine: bodies of 100 MB have to fit, and so have other programs."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return min(max(machine // 4, _MEMORY_MB_MIN), _MEMORY_MB_MAX)
