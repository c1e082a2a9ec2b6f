"""Where a capture keeps its files, and the few things that are done to files besides Spark's own.

    <directory>/entity=orders/date=2026-11-16/hour=09/00000007-part-00000-….zstd.parquet
    <directory>/_capture/format                  the format of all data files
    <directory>/_capture/<name>/checkpoint       Spark's: how far this capture has come
    <directory>/_capture/<name>/staging/<batch>  a batch that is being written, or moved into place
    <directory>/_capture/<name>/done/<batch>     the last batch that is wholly in its place

Names that begin with `_` or `.` are invisible to Spark, Arrow and most others, so a reader of the
directory sees whole data files and nothing else.  Local directories and whatever Hadoop knows
(`hdfs:`, `abfss:`) are the same here; both must rename atomically, as file systems do and plain
object stores do not.
"""

import ctypes
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from twinbus.errors import ConfigError

HIDDEN: Final = ("_", ".")
CAPTURE: Final = "_capture"
FORMAT_DEFAULT: Final = "parquet"
FORMAT: Final = re.compile(r"[A-Za-z][\w.]{0,63}")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Files(Protocol):
    """A tree of files; paths are texts with `/` between the names."""

    def names(self, folder: str) -> dict[str, int]:
        """What is in a folder: files with their sizes, folders with -1.  Empty if it is not there.

        Without checksums and such: names that begin with a dot are left out.
        """

    def rename(self, old: str, new: str) -> None:
        """Atomically; folders above `new` are made.  `new` must not be there."""

    def exchange(self, one: str, other: str) -> bool:
        """Let two folders change places in one step; False where that cannot be done."""

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it; nothing happens if it is not there."""

    def read_text(self, path: str) -> str | None: ...

    def write_text(self, path: str, text: str) -> None:
        """Whole or not at all; what was there is replaced."""


class LocalFiles:
    """Files of this machine."""

    def names(self, folder: str) -> dict[str, int]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return {}
        return {
            entry.name: -1 if entry.is_dir() else entry.stat().st_size
            for entry in entries
            if not entry.name.startswith(".")
        }

    def rename(self, old: str, new: str) -> None:
        target = Path(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FileExistsError(f"{new} is there already")
        if Path(old).is_file():  # Spark does not care about power cuts; a bus that deletes does
            _sync(Path(old))
        Path(old).rename(target)
        _sync(target.parent)
        # Hadoop keeps the checksum of a file next to it; one that stays behind does no harm.
        checksum = Path(old).with_name(f".{Path(old).name}.crc")
        if checksum.exists():
            checksum.rename(target.with_name(f".{target.name}.crc"))

    def exchange(self, one: str, other: str) -> bool:
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        paths = os.fsencode(one), os.fsencode(other)
        outcome: int = rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
        return outcome == 0

    def delete(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def read_text(self, path: str) -> str | None:
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            return None

    def write_text(self, path: str, text: str) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.new")
        with new.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """Files of whatever file system Hadoop finds for the address, through Spark's own Java."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._java: Any = spark.sparkContext._jvm  # noqa: SLF001 – the only way to Hadoop's files
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files: Any = self._path(address).getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def names(self, folder: str) -> dict[str, int]:
        path = self._path(folder)
        if not self._files.exists(path):
            return {}
        found = {
            str(entry.getPath().getName()): -1 if entry.isDirectory() else int(entry.getLen())
            for entry in self._files.listStatus(path)
        }
        return {name: size for name, size in found.items() if not name.startswith(".")}

    def rename(self, old: str, new: str) -> None:
        target = self._path(new)
        if self._files.exists(target):
            raise FileExistsError(f"{new} is there already")
        self._files.mkdirs(target.getParent())
        if not self._files.rename(self._path(old), target):
            raise OSError(f"{old} could not be renamed to {new}")

    def exchange(self, one: str, other: str) -> bool:
        del one, other  # Hadoop knows no such thing
        return False

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def read_text(self, path: str) -> str | None:
        target = self._path(path)
        if not self._files.exists(target):
            return None
        stream = self._files.open(target)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        new = f"{path}.new"
        stream = self._files.create(self._path(new), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.delete(path)
        self.rename(new, path)


def files_for(spark: SparkSession, directory: str) -> tuple[Files, str]:
    """What reaches the directory, and the directory's address without an end slash.

    A local one is made absolute: Spark's Java and this process might stand in different places.
    """
    address = urlsplit(directory)
    scheme = address.scheme
    if not scheme:
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        scheme = urlsplit(str(configuration.get("fs.defaultFS", "file:///"))).scheme
    if scheme != "file":
        return HadoopFiles(spark, directory), directory.rstrip("/")
    path = unquote(address.path) if address.scheme == "file" else directory
    return LocalFiles(), str(Path(path).absolute())


def visible(names: dict[str, int]) -> list[str]:
    """Data files, in order."""
    return sorted(name for name, size in names.items() if size >= 0 and name[0] not in HIDDEN)


def folders(files: Files, folder: str, prefix: str) -> list[str]:
    """Sub-folders whose names begin so, in order."""
    found = files.names(folder)
    return sorted(name for name, size in found.items() if size < 0 and name.startswith(prefix))


def hour_folders(files: Files, directory: str) -> list[str]:
    """`entity=…/date=…/hour=…` of all hours in a capture, relative to it."""
    return [
        f"{entity}/{date}/{hour}"
        for entity in folders(files, directory, "entity=")
        for date in folders(files, f"{directory}/{entity}", "date=")
        for hour in folders(files, f"{directory}/{entity}/{date}", "hour=")
    ]


def hour_end(folder: str) -> datetime | None:
    """When the hour of such a folder is over; None if it is not one by time."""
    _, date, hour = folder.rsplit("/", 2)
    try:
        start = datetime.strptime(f"{date[5:]} {hour[5:]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:  # of messages without an enqueued time
        return None
    return start + timedelta(hours=1)


def read_format(files: Files, directory: str) -> str:
    """The format that a capture was written in; raises if there is none."""
    found = files.read_text(f"{directory}/{CAPTURE}/format")
    if found is not None:
        return check_format(found.strip())
    if not files.names(directory):
        raise ConfigError(f"there is nothing at {directory}")
    raise ConfigError(f"{directory} is not a capture: {CAPTURE}/format is missing; give --format")


def claim_format(files: Files, directory: str, given: str | None) -> str:
    """The format to write in: the one that the capture has, or will have from now on."""
    path = f"{directory}/{CAPTURE}/format"
    found = files.read_text(path)
    if found is None:
        if folders(files, directory, "entity="):
            raise ConfigError(
                f"{directory} holds captured messages, but {CAPTURE}/ with the checkpoint is gone: "
                "to go on would capture them once more; take another directory"
            )
        chosen = check_format(given or FORMAT_DEFAULT)
        files.write_text(path, chosen)
        return chosen
    if given is not None and given != found.strip():
        raise ConfigError(f"{directory} is a capture in {found.strip()[:64]}, not in {given[:64]}")
    return check_format(found.strip())


def check_format(name: str) -> str:
    if FORMAT.fullmatch(name) is None:
        raise ConfigError(f"'{name[:64]}' is not the name of a format")
    return name


def check_name(name: str, option: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"{option}: letters, digits, '.', '_' and '-', 64 at most")
    return name
