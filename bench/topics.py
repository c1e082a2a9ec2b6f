"""What does a topic cost?  `python -m bench.topics [--build pure|compiled]`

Sends 1 KiB messages to topics with different subscriptions and rules, in windows of 500, and shows
the rate, the copies it made and the server's own processor time a message.  Correlation filters are
found by hash, so the row with 10,000 rules should look like the one with 100; a message that every
subscription wants is stored once, so its copies should cost little.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from bench.brokers import Twinbus
from bench.queues import WINDOW, processor_s
from twinbus.client.connection import BusConnection
from twinbus.message.plain import data_section, encode_message

BODY = data_section(bytes(1_024))
REGION = "region"


class Case:
    """One row: a topic, and how many of its subscriptions a message reaches."""

    def __init__(self, title: str, subscriptions: int, rules_each: int, reached: int) -> None:
        self.title = title
        self.subscriptions = subscriptions
        self.rules_each = rules_each
        self.reached = reached

    def config(self) -> dict[str, object]:
        """Subscription i wants regions of its own, and `all` where everybody is to get a copy."""
        subscriptions = []
        for number in range(self.subscriptions):
            wanted = [f"r{number}-{rule}" for rule in range(self.rules_each)]
            if self.reached > 1:
                wanted[0] = "all"
            rules = [correlation(f"rule{n}", region) for n, region in enumerate(wanted)]
            subscriptions.append({"Name": f"s{number}", "Rules": rules})
        topics = [{"Name": "topic", "Subscriptions": subscriptions}] if subscriptions else []
        queues = [] if subscriptions else [{"Name": "topic"}]
        namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
        return {"UserConfig": {"Namespaces": [namespace]}}

    def region(self, number: int) -> str:
        return "all" if self.reached > 1 else f"r{number % max(1, self.subscriptions)}-0"


CASES = (
    Case("a queue, to compare", 0, 0, 1),
    Case("100 subscriptions, one rule each, one matches", 100, 1, 1),
    Case("100 subscriptions, 100 rules each (10,000), one matches", 100, 100, 1),
    Case("2,000 subscriptions, one rule each, one matches", 2_000, 1, 1),
    Case("100 subscriptions, one rule each, all match", 100, 1, 100),
)


def correlation(name: str, region: str) -> dict[str, object]:
    properties = {
        "FilterType": "Correlation",
        "CorrelationFilter": {"Properties": {REGION: region}},
    }
    return {"Name": name, "Properties": properties}


async def measure(case: Case, connection_string: str, pid: int, count: int) -> str:
    """One row of the table."""
    async with await BusConnection.open(connection_string) as connection:
        sender = await connection.open_sender("topic")
        messages = [
            encode_message(BODY, application_properties={REGION: case.region(number)})
            for number in range(min(count, 2_000))
        ]
        before_s, started_s = processor_s(pid), time.perf_counter()
        for start in range(0, count, WINDOW):
            numbers = range(start, min(start + WINDOW, count))
            await asyncio.gather(
                *(sender.send_encoded(messages[n % len(messages)]) for n in numbers)
            )
        took_s, used_s = time.perf_counter() - started_s, processor_s(pid) - before_s
    rate = count / took_s
    return (
        f"| {case.title} | {rate:,.0f} | {rate * case.reached:,.0f} | {used_s / count * 1e6:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--build", choices=("pure", "compiled"), default="compiled")
    options = parser.parse_args()
    print(f"twinbus, {options.build}, {options.count:,} messages of 1 KiB, one sender")
    print("| sent to | messages/s | copies/s | server µs a message |")
    print("|---|---:|---:|---:|")
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="twinbus-topics-") as name:
            config = Path(name) / "Config.json"
            config.write_text(json.dumps(case.config()))
            broker = Twinbus(Path(name), options.build)
            broker.server.arguments = ("--config", str(config))
            with broker.server as server:
                row = measure(case, server.connection_string, server.pid, options.count)
                print(asyncio.run(row), flush=True)


if __name__ == "__main__":
    main()
