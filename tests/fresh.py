"""The README's two commands on a machine that has never seen twinbus: `python -m tests.fresh`.

A clone of what is committed, an empty home, no virtual environment, and a PATH on which everything
is but Java.  Takes as long as an installation, the drill and all tests: `make nightly` runs it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
COMMANDS: Final = ("make demo", "make test")
# How a machine reaches its package registries is not what is tested.
KEPT: Final = re.compile(r"(?i)(pip|npm|uv|ssl|curl|node|requests)_.*|(https?|no|all)_proxy|LANG")
JAVA: Final = re.compile(r"java|jdk|jre|jshell|keytool")


def told_by_the_readme() -> set[str]:
    """Every line of a shell block, without its remark."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return {line.split("#")[0].strip() for block in blocks for line in block.splitlines()}


def path_without_java(folder: Path) -> str:
    """One directory with a link to every program there is, except Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(place).glob("*")) if place else ():
            link = folder / program.name
            if not JAVA.match(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def environment(folder: Path) -> Mapping[str, str]:
    home = folder / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    return {**kept, "HOME": str(home), "PATH": path_without_java(folder / "programs")}


def main() -> int:
    missing = set(COMMANDS) - told_by_the_readme()
    if missing:
        sys.stderr.write(f"the README does not tell of {', '.join(sorted(missing))}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="twinbus-fresh-") as name:
        folder = Path(name)
        clone = folder / "twinbus"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        variables = environment(folder)
        for command in COMMANDS:
            sys.stdout.write(f"== {command}, as on a new machine\n")
            sys.stdout.flush()
            begun = time.monotonic()
            ended = subprocess.run(command.split(), cwd=clone, env=variables, check=False)
            took = (time.monotonic() - begun) / 60
            sys.stdout.write(f"== {command}: exit code {ended.returncode}, {took:.1f} minutes\n")
            if ended.returncode != 0:
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
