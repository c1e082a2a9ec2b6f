"""A real server with broker processes for tests that take a part of it away, with the SDK watching.

    with run_server(tmp_path, brokers=2, stores=4) as bus:   # its ServerProcess is bus.server
        bus.faults.add({"kind": "kill-broker", "broker": 1})
        bus.wait_until_even()

Tests wait for what `/health` says, never for a number of seconds.
"""

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.client.faults import FaultClient
from twinbus.entities.partitions import PARTITION_COUNT, hash_key
from twinbus.testing.server import ServerProcess

WAIT_S_MAX: Final = 60.0  # what has not happened by then never will
RECEIVE_S: Final = 5.0
QUIET_S: Final = 0.3


def _key_for(partition: int) -> str:
    return next(key for key in map(str, range(10_000)) if hash_key(key) == partition)


KEYS: Final = tuple(_key_for(partition) for partition in range(PARTITION_COUNT))
"""A key for each partition: KEYS[3] leads to partition 3."""


def until(condition: Callable[[], object], why: str) -> None:
    """Wait for something that comes by itself."""
    end_s = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end_s, f"in vain: {why}"
        time.sleep(0.02)


class Bus:
    """A server, what it says of itself, and what can be done to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    @property
    def faults(self) -> FaultClient:
        return FaultClient(self.server.connection_string)

    def client(self, **settings: Any) -> ServiceBusClient:
        """An SDK client; `retry_total=0` for those who want to see every error."""
        string = self.server.connection_string
        return ServiceBusClient.from_connection_string(string, **settings)

    def health(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.server.port}/health?detail"
        with urllib.request.urlopen(url) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def owners(self) -> list[int]:
        """The broker of each store; -1: nobody has it."""
        return [store["broker"] for store in self.health()["stores"]]

    def entity(self, name: str) -> dict[str, Any]:
        """What `/health` says of an entity; empty when there is nothing to say."""
        found = [each for each in self.health()["entities"] if each["entity"] == name]
        return found[0] if found else {}

    def stores_of(self, name: str) -> list[int]:
        """The store of each partition: a fault on all of them shows where they are."""
        fault = self.faults.add({"kind": "partition-down", "entity": name})
        partitions = sorted(self.entity(name)["partitions"], key=lambda each: each["partition"])
        self.faults.clear(fault["id"])
        assert [each["partition"] for each in partitions] == list(range(PARTITION_COUNT))
        return [each["store"] for each in partitions]

    def is_even(self) -> bool:
        """Everybody is up, and every store is at home."""
        seen = self.health()
        homes = [store["store"] % len(seen["brokers"]) for store in seen["stores"]]
        at = [store["broker"] for store in seen["stores"]]
        return seen["status"] == "healthy" and at == homes

    def wait_until_well(self) -> None:
        until(lambda: self.health()["status"] == "healthy", "not well again")

    def wait_until_even(self) -> None:
        until(self.is_even, "stores have not come home")

    def wait_until_down(self, store: int) -> None:
        until(lambda: self.health()["stores"][store]["health"] == "down", "the store goes on")

    def bundles(self, broker: int) -> list[Path]:
        """The diagnostics of one broker, in the order they were written."""
        return sorted((self.server.data_dir / "diagnostics").glob(f"*-broker-{broker}"))


@contextmanager
def run_server(
    directory: Path, *, brokers: int, stores: int, arguments: Iterable[str] = ()
) -> Iterator[Bus]:
    """A server on stores in `directory`; it must end cleanly and have met no surprise."""
    given = ["--brokers", str(brokers), *arguments]
    for number in range(stores):
        given += ["--store", str(directory / f"disk-{number}")]
    with ServerProcess(directory / "data", arguments=given) as server:
        yield Bus(server)
    assert "Traceback" not in server.log, server.log


def text_of(messages: Iterable[Any]) -> list[str]:
    return [str(message) for message in messages]


def send(sender: Any, text: str, key: str | None = None) -> None:
    sender.send_messages(ServiceBusMessage(text, partition_key=key))


def take(receiver: Any, count: int) -> list[Any]:
    """Receive and complete so many messages, in the order they come."""
    messages: list[Any] = []
    while len(messages) < count:
        more = receiver.receive_messages(count - len(messages), max_wait_time=RECEIVE_S)
        assert more, f"{len(messages)} of {count} came"
        for message in more:
            receiver.complete_message(message)
        messages += more
    return messages


def take_rest(receiver: Any) -> list[Any]:
    """Everything that comes until there is nothing for a moment, completed."""
    messages: list[Any] = []
    while more := receiver.receive_messages(100, max_wait_time=QUIET_S):
        for message in more:
            receiver.complete_message(message)
        messages += more
    return messages


def peek_all(receiver: Any) -> list[Any]:
    """Page by page, from the first sequence number on."""
    messages: list[Any] = []
    start = 1
    while page := receiver.peek_messages(20, sequence_number=start):
        messages += page
        start = page[-1].sequence_number + 1
    return messages


class Traffic:
    """Sends and receives all the time, on threads and connections of their own, until it is left.

    A sender without a key tries again as the SDK does by default; one with a key never does.  Who
    was refused all the same is in `refused`, everything that was acknowledged in `sent`.  Leaving
    waits until all of that has been received.
    """

    def __init__(self, bus: Bus, queue: str, keys: Iterable[str | None]) -> None:
        self.sent: dict[str | None, list[str]] = {key: [] for key in keys}
        self.received: list[str] = []
        self.refused: list[str] = []
        self._bus = bus
        self._queue = queue
        self._stopping = threading.Event()
        self._sending = [threading.Thread(target=self._send, args=(key,)) for key in self.sent]
        self._receiving = threading.Thread(target=self._receive)

    def __enter__(self) -> Self:
        for thread in (*self._sending, self._receiving):
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *details: object) -> None:
        self._stopping.set()
        for thread in (*self._sending, self._receiving):
            thread.join()
        assert self.missing == set()

    def goes_on(self) -> None:
        """Wait until everybody has sent once more, and something has been received."""
        counts = {key: len(texts) for key, texts in self.sent.items()}
        received = len(self.received)

        def is_more() -> bool:
            more = all(len(texts) > counts[key] for key, texts in self.sent.items())
            return more and len(self.received) > received

        until(is_more, "nothing comes through")

    @property
    def missing(self) -> set[str]:
        return {text for texts in self.sent.values() for text in texts} - set(self.received)

    def _send(self, key: str | None) -> None:
        client = self._bus.client() if key is None else self._bus.client(retry_total=0)
        with client, client.get_queue_sender(self._queue) as sender:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                text = f"{key} {number}"
                try:
                    send(sender, text, key)
                except ServiceBusError as error:
                    self.refused.append(f"{text}: {error}")
                else:
                    self.sent[key].append(text)
                time.sleep(0.02)  # others need the machine, too

    def _receive(self) -> None:
        with self._bus.client() as client, client.get_queue_receiver(self._queue) as receiver:
            while not self._stopping.is_set():
                self._take(receiver)
            for thread in self._sending:
                thread.join()
            end_s = time.monotonic() + WAIT_S_MAX
            while self.missing and time.monotonic() < end_s:
                self._take(receiver)

    def _take(self, receiver: Any) -> None:
        for message in receiver.receive_messages(50, max_wait_time=QUIET_S):
            self.received.append(str(message))
            try:
                receiver.complete_message(message)
            except (ServiceBusError, ValueError):
                continue  # its broker is gone, or with it the link: it comes again
