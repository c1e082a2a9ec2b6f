"""The brokers that are compared: started on loopback, with data in a directory of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from twinbus.client.connection_string import ConnectionString
from twinbus.limits import SEGMENT_SIZE_MEGABYTES
from twinbus.testing.server import ServerProcess

ROOT = Path(__file__).parent.parent
START_S_MAX = 90


class Broker(Protocol):
    """What the measurements need to know of a broker."""

    name: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def target(self) -> list[str]:
        """Arguments of amqpbench that name the queue and who we are."""


class Twinbus:
    """Our own, pure or compiled."""

    def __init__(self, directory: Path, build: str) -> None:
        self.name = f"twinbus, {build}"
        path = ROOT / "build" / "compiled" if build == "compiled" else ROOT / "src"
        environment = {"PYTHONPATH": str(path), "TWINBUS_PURE": "0" if build == "compiled" else "1"}
        self.server = ServerProcess(
            directory / f"twinbus-{build}",
            environment=environment,
            arguments=("--segment-size", str(SEGMENT_SIZE_MEGABYTES)),
        )

    def start(self) -> None:
        self.server.start()
        self.server.create_queue("bench")

    def stop(self) -> None:
        self.server.stop()

    def target(self) -> list[str]:
        known = ConnectionString.parse(self.server.connection_string)
        return [
            *("-p", str(known.port), "-a", "bench", "--sasl", "plain"),
            *("-u", known.key_name, "-P", known.key),
        ]


class RabbitNode:
    """One RabbitMQ with the AMQP 1.0 plugin, shared by its two kinds of queue."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "rabbitmq"
        self.port, epmd_port, distribution_port = _free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
        self._programs = found[-1] if found else Path("/usr/sbin")
        data = self._directory
        self._environment = {
            **os.environ,
            "HOME": str(data),
            "RABBITMQ_NODENAME": f"bench-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(data / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }

    def start(self) -> None:
        if self._process is not None:
            return
        self._directory.mkdir(parents=True)
        (self._directory / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (self._directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "log.file.level = warning\n"
            "disk_free_limit.absolute = 1GB\n"
        )
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [str(self._programs / "rabbitmq-server")],
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        _wait_for_port(self.port, self._directory / "output")
        self.control("await_startup")

    def stop(self) -> None:
        """Ends the node, and with it every process it started (its port mapper among them)."""
        if self._process is None:
            return
        self.control("shutdown")
        self._process.wait(60)
        self._process = None
        _end_by_environment("ERL_EPMD_PORT", self._environment["ERL_EPMD_PORT"])

    def control(self, *arguments: str) -> None:
        command = [str(self._programs / "rabbitmqctl"), "--quiet", *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def version(self) -> str:
        package = ["dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server"]
        if shutil.which("dpkg-query") is None:
            return "RabbitMQ"
        done = subprocess.run(package, capture_output=True, text=True, check=False)
        return f"RabbitMQ {done.stdout.partition('-')[0]}"


class RabbitQueue:
    """One kind of queue of a RabbitMQ node: classic (durable) or quorum."""

    def __init__(self, node: RabbitNode, kind: str) -> None:
        self.name = f"{node.version()}, {kind} queue"
        self._node = node
        self._kind = kind

    def start(self) -> None:
        self._node.start()
        kind = f'[{{<<"x-queue-type">>,longstr,<<"{self._kind}">>}}]'
        name = f'rabbit_misc:r(<<"/">>,queue,<<"{self._kind}">>)'
        declare = f'element(1, rabbit_amqqueue:declare({name},true,false,{kind},none,<<"guest">>)).'
        self._node.control("eval", declare)

    def stop(self) -> None:
        self._node.stop()

    def target(self) -> list[str]:
        return [
            *("-p", str(self._node.port), "-a", f"/amq/queue/{self._kind}"),
            *("--sasl", "plain", "-u", "guest", "-P", "guest"),
        ]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def _wait_for_port(port: int, output: Path) -> None:
    for _ in range(START_S_MAX * 10):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"port {port} did not open in {START_S_MAX} s: {output.read_text()}")


def _end_by_environment(name: str, value: str) -> None:
    """Ends the processes that carry exactly this variable: the ones our node left behind."""
    wanted = f"{name}={value}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGTERM)
        except OSError:
            continue
