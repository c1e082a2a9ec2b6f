"""How deep can a queue be?  `python -m bench.depth [--count 10000000] [--build pure|compiled]`

Fills one queue with 1 KiB messages in steps and measures at each step what it costs: memory and
disk a message, the rate of sending, the rate of receiving at that depth.  At the end: how long a
start takes after SIGTERM (the snapshot is as fresh as the server keeps it) and after SIGKILL.
"""

import argparse
import tempfile
import time
from pathlib import Path

from bench import tools
from bench.brokers import Twinbus

MEBIBYTE = 1 << 20
SAMPLE = 20_000  # messages received to measure the rate at a depth
QUEUE_SIZE_MEGABYTES = 81_920


def memory_bytes(pid: int) -> int:
    """Resident memory, without the pages of files that the kernel could drop at any time."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["RssAnon"].split()[0]) * 1_024


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    parser.add_argument("--data", type=Path, help="where to keep the messages")
    options = parser.parse_args()
    tools.prepare()
    with tempfile.TemporaryDirectory(prefix="twinbus-depth-", dir=options.data) as name:
        broker = Twinbus(Path(name), options.build)
        broker.server.start()
        broker.server.create_queue("bench", max_size_in_megabytes=QUEUE_SIZE_MEGABYTES)
        try:
            fill(broker, options.count, options.steps)
            restart(broker, options.count)
        finally:
            broker.server.kill()


def fill(broker: Twinbus, count: int, steps: int) -> None:
    """Fill step by step; a line of the table for each."""
    server = broker.server
    empty = memory_bytes(server.pid)
    print(f"{broker.name}, 1 KiB messages; empty: {empty / MEBIBYTE:.0f} MiB")
    print("| waiting | send/s | receive + settle/s | memory, bytes a message | disk, GiB |")
    print("|---:|---:|---:|---:|---:|")
    for step in range(1, steps + 1):
        wanted = count // steps
        shape = ("-b", 1_024, "-w", 1_000, "-c", 1_000, *broker.target())
        sent = tools.run("amqpbench", "send", "-n", wanted, "--timeout", 600, *shape)
        received = tools.run("amqpbench", "recv", "-n", SAMPLE, *shape)
        tools.run("amqpbench", "send", "-n", SAMPLE, *shape)
        each = (memory_bytes(server.pid) - empty) / (wanted * step)
        disk = disk_bytes(server.data_dir) / (1 << 30)
        print(
            f"| {wanted * step:,} | {sent['msgs_per_s']:,.0f} | {received['msgs_per_s']:,.0f} "
            f"| {each:.0f} | {disk:.1f} |",
            flush=True,
        )


def restart(broker: Twinbus, count: int) -> None:
    """Stop, kill, and start again each time."""
    server = broker.server
    for word, end in (("SIGTERM", server.stop), ("SIGKILL", server.kill)):
        began = time.monotonic()
        end()
        ended = time.monotonic()
        server.start()
        ready = time.monotonic()
        waiting = int(server.admin.get_queue("bench").properties["MessageCount"])
        memory = memory_bytes(server.pid) / waiting
        print(
            f"{word}: ended after {ended - began:.1f} s, ready again after {ready - ended:.1f} s, "
            f"{waiting:,} of {count:,} messages, {memory:.0f} bytes of memory a message"
        )


if __name__ == "__main__":
    main()
