"""Dockerfile and compose.yaml, as far as they can be tested without Docker.

No image is built here.  What they name is there, what they run is what other tests run, and their
health check judges a real server rightly.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.building import ROOT, SOURCES
from twinbus.cli.emulator import CONFIG_IN_CONTAINER, HTTP_PORT, KEY, adapt
from twinbus.cli.main import parser
from twinbus.config import PORT_DEFAULT
from twinbus.emulator_config import read_emulator_config
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("packaging.docker")

COMPOSE = (ROOT / "compose.yaml").read_text()


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, each with what follows it in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(name, rest.strip()) for name, _, rest in pairs]


def those(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def listed(text: str) -> list[str]:
    """A command in the form that needs no shell."""
    found = json.loads(text)
    assert isinstance(found, list)
    return found


def test_what_is_copied_is_there() -> None:
    copied = [name for line in those("COPY") for name in line.split()[:-1]]
    assert copied == list(SOURCES)
    ignored = (ROOT / ".dockerignore").read_text()
    assert {f"!{name}" for name in SOURCES} <= set(ignored.split())


def test_the_wheel_is_built_and_installed_as_tested() -> None:
    """test_wheel.py does the same: all wheels first, then an install from them alone."""
    build, install = those("RUN")[1:3]
    assert re.fullmatch(r"pip wheel --no-cache-dir --wheel-dir /wheels \.", build)
    assert install.endswith("pip install --no-cache-dir --no-index --find-links /wheels twinbus")


def test_it_does_not_run_as_root() -> None:
    names = [name for name, _ in instructions()]
    assert those("USER") == ["twinbus"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "--owner twinbus" in those("RUN")[3]


def test_what_runs() -> None:
    """The emulator on its ports, with everything in the volume."""
    (entry,), (command,) = those("ENTRYPOINT"), those("CMD")
    assert listed(entry) == ["twinbus"]
    options = parser("emulator").parse_args(listed(command))
    adapt(options, {})
    assert [str(options.data)] == those("VOLUME") == those("WORKDIR")[1:]
    ports = [options.port, *options.extra_port]
    assert ports == [PORT_DEFAULT, HTTP_PORT]
    assert those("EXPOSE") == [" ".join(map(str, ports))]
    assert options.host == "0.0.0.0"
    assert options.key == [KEY]


def test_health_check(tmp_path: Path) -> None:
    (line,) = those("HEALTHCHECK")
    python, *arguments = listed(line.partition(" CMD ")[2])
    assert python == "python"
    assert f"127.0.0.1:{PORT_DEFAULT}/health" in arguments[-1]
    with ServerProcess(tmp_path / "data") as server:
        where = f"127.0.0.1:{server.port}/"
        check = [text.replace(f"127.0.0.1:{PORT_DEFAULT}/", where) for text in arguments]
        command = [sys.executable, *check]
        assert subprocess.run(command, check=False).returncode == 0
        server.stop()
        assert subprocess.run(command, check=False, capture_output=True).returncode == 1


@pytest.mark.parametrize(
    "line",
    [
        "  emulator:",
        "    container_name: servicebus-emulator",
        f'      - "127.0.0.1:{PORT_DEFAULT}:{PORT_DEFAULT}"',
        f'      - "127.0.0.1:${{EMULATOR_HTTP_PORT:-{HTTP_PORT}}}:{HTTP_PORT}"',
        '      - "data:/data"',
        "          - sb-emulator",
    ],
)
def test_compose_is_as_compatible_as_it_says(line: str) -> None:
    assert line in COMPOSE.splitlines()


def test_compose_mounts_a_config_that_can_be_read() -> None:
    found = re.search(r'"\$\{CONFIG_PATH:-(.+?)\}:(.+?):ro"', COMPOSE)
    assert found is not None
    assert Path(found[2]) == CONFIG_IN_CONTAINER
    ((name, declared),) = read_emulator_config(ROOT / found[1]).namespaces
    assert name == "sbemulatorns"
    assert [queue for queue, _ in declared.queues] == ["queue.1"]
