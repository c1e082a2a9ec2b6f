"""What do many queues cost?  `python -m bench.queues [--build pure|compiled]`

Sends and then receives the same number of messages, in short runs spread over 1, 10, … 10,000
queues, one link a queue, and shows the server's own processor time a message.  Flat means that a
message does not pay for queues it is not in.
"""

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path

from bench.brokers import Twinbus
from bench.depth import memory_bytes
from twinbus.client.connection import BusConnection
from twinbus.client.links import Receiver, Sender

BODY = bytes(1_024)
WINDOW = 500
RUN = 20  # messages in a row to one queue
LINKS_A_CONNECTION = 200


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Clients:
    """A sender and a receiver for each queue, over as few connections as the limits allow."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self._connections: list[BusConnection] = []
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []

    async def open(self, queues: list[str]) -> None:
        for queue in queues:
            if len(self.senders) % (LINKS_A_CONNECTION // 2) == 0:
                self._connections.append(await BusConnection.open(self._connection_string))
            connection = self._connections[-1]
            self.senders.append(await connection.open_sender(queue))
            self.receivers.append(await connection.open_receiver(queue, credit=0))

    async def send(self, count: int) -> None:
        """A window at a time."""
        for start in range(0, count, WINDOW):
            numbers = range(start, min(start + WINDOW, count))
            senders = self.senders
            await asyncio.gather(*(senders[n // RUN % len(senders)].send(BODY) for n in numbers))

    async def receive(self, count: int) -> None:
        for receiver in self.receivers:
            receiver.set_credit(max(RUN, WINDOW // len(self.receivers)))
        for start in range(0, count, WINDOW):
            numbers = range(start, min(start + WINDOW, count))
            receivers = self.receivers
            await asyncio.gather(*(_receive(receivers[n // RUN % len(receivers)]) for n in numbers))

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


async def _receive(receiver: Receiver) -> None:
    received = await receiver.receive()
    assert received is not None
    await receiver.complete(received)


async def measure(broker: Twinbus, queues: list[str], count: int) -> str:
    """One row of the table."""
    server = broker.server
    clients = Clients(server.connection_string)
    await clients.open(queues)
    before = processor_s(server.pid)
    await clients.send(count)
    sent = processor_s(server.pid)
    await clients.receive(count)
    received = processor_s(server.pid)
    await clients.close()
    return (
        f"| {len(queues):,} | {(sent - before) / count * 1e6:.1f} "
        f"| {(received - sent) / count * 1e6:.1f} | {memory_bytes(server.pid) >> 20} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10_000, help="queues (default: %(default)s)")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    options = parser.parse_args()
    print(f"twinbus, {options.build}, {options.count:,} messages of 1 KiB")
    print("| queues | send: server µs a message | receive + settle: µs | server memory, MiB |")
    print("|---:|---:|---:|---:|")
    number = 1
    while number <= options.most:
        queues = [f"q{place}" for place in range(number)]
        # A server for each row: none inherits the background work of the row before.
        with tempfile.TemporaryDirectory(prefix="twinbus-queues-") as name:
            broker = Twinbus(Path(name), options.build)
            broker.server.arguments = ("--config", str(declare(Path(name), queues)))
            with broker.server:
                print(asyncio.run(measure(broker, queues, options.count)), flush=True)
        number *= 10


def declare(directory: Path, queues: list[str]) -> Path:
    """A configuration file that has the server make the queues."""
    namespace = {"Name": "sbemulatorns", "Queues": [{"Name": queue} for queue in queues]}
    path = directory / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    return path


if __name__ == "__main__":
    main()
