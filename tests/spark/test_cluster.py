"""A real cluster: a standalone master and two workers, as processes of the pip package."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

import twinbus
from twinbus.pipeline.running.archive import using_options
from twinbus.pipeline.running.home import SparkHome, prepare_home
from twinbus.pipeline.running.java import find_java
from twinbus.testing.server import ServerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COUNT = 500
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"

pytestmark = pytest.mark.feature("pipeline.running")


def environment(home: SparkHome, bus: ServerProcess) -> dict[str, str]:
    """Of those who work with the cluster; it is for those of the cluster to know its home."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SPARK")}
    options = [*using_options(home), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return {
        **clean,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(options),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "TWINBUS_CONNECTION_STRING": bus.connection_string,
    }


def run(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run a program to its end; what it has printed."""
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@contextmanager
def daemon(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[Iterator[str]]:
    """A process of the cluster, and the lines of its log as they come."""
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def wait_for(pattern: str, log: Iterator[str]) -> str:
    seen = []
    for line in log:
        seen.append(line)
        match = re.search(pattern, line)
        if match is not None:
            return match[0]
    raise AssertionError("".join(seen))


@pytest.fixture(scope="module")
def home() -> SparkHome:
    return prepare_home(Path(pyspark.__file__).parent, pyspark.__version__, find_java())


@pytest.fixture
def master(home: SparkHome, bus: ServerProcess, tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers of one core each."""
    java = {"SPARK_HOME": str(home.path), "JAVA_HOME": str(home.java_home)}
    variables = environment(home, bus) | java
    node = [str(home.path / "bin" / "spark-class")]
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    size = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path)]
    with ExitStack() as stack:
        log = stack.enter_context(daemon([*node, MASTER, *address], variables))
        master = wait_for(r"spark://127\.0\.0\.1:\d+", log)
        for _ in range(2):
            stack.enter_context(daemon([*node, WORKER, *address, *size, master], variables))
        yield master


@pytest.fixture(scope="module")
def orders(bus: ServerProcess) -> str:
    """A partitioned queue with messages."""
    bus.create_queue("orders", enable_partitioning=True)
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(
            [ServiceBusMessage(f"order {n}", message_id=str(n)) for n in range(COUNT)]
        )
    return "orders"


def received(bus: ServerProcess, queue: str) -> list[str]:
    bodies: list[str] = []
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver,
    ):
        while messages := receiver.receive_messages(COUNT, max_wait_time=2):
            bodies += [str(message) for message in messages]
    return bodies


@pytest.mark.proves("D-7")
def test_source_and_sink_on_a_cluster(
    master: str, home: SparkHome, bus: ServerProcess, orders: str
) -> None:
    """A driver outside, two workers, both of which take part."""
    bus.create_queue("copies")
    driver = [sys.executable, str(HERE / "cluster_driver.py"), master, orders, "copies"]
    told = json.loads(run(driver, environment(home, bus)).splitlines()[-1])
    assert told["master"] == master
    assert len(told["executors"]) == 2
    assert sorted(received(bus, "copies")) == sorted(f"order {n}" for n in range(COUNT))


@pytest.mark.proves("D-7")
def test_spark_submit_takes_the_same_arguments(
    home: SparkHome, bus: ServerProcess, orders: str
) -> None:
    """As docs/operating/spark.md has it."""
    variables = environment(home, bus)
    submit = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]", "--driver-java-options", variables["SPARK_DAEMON_JAVA_OPTS"]),
        str(Path(twinbus.__file__).parent / "__main__.py"),
        *("pipeline", "dead-letters", "show", "--entity", orders),
    ]
    variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home.path)}
    variables |= {"JAVA_HOME": str(home.java_home)}  # where it runs there is one
    assert run(submit, variables) == "no dead letters\n"
