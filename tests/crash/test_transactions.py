"""kill -9 while transactions commit: each of them has happened as a whole or not at all."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from proton import Message, ProtonException, Timeout
from proton.reactor import AtMostOnce
from proton.utils import ConnectionClosed, LinkDetached

from tests.crash.crashing import QUEUES, sized
from tests.interop.test_proton_transactions import Client, open_connection
from twinbus.testing.server import ServerProcess

SEED = 20_261_116
GONE = (ProtonException, ConnectionClosed, LinkDetached, Timeout, OSError)
SOURCE, *TARGETS = QUEUES


class Mover(threading.Thread):
    """Moves messages from one queue to two others, a transaction for each, until it is cut off."""

    def __init__(self, connection_string: str) -> None:
        super().__init__()
        self._connection_string = connection_string
        self.committed: list[int] = []

    def run(self) -> None:
        with suppress(*GONE):
            connection = open_connection(self._connection_string)
            with closing(connection):
                self._move(Client(connection))

    def _move(self, client: Client) -> None:
        receiver = client.connection.create_receiver(SOURCE, credit=1)
        senders = [client.connection.create_sender(target) for target in TARGETS]
        while True:
            number, delivery = client.receive(receiver)
            transaction = client.declare()
            client.accept(transaction, delivery)
            for sender in senders:
                client.send(transaction, sender, number)
            assert client.discharge(transaction) == "committed"
            self.committed.append(number)


def message_count(server: ServerProcess, queue: str) -> int:
    return int(server.admin.get_queue(queue).properties["MessageCount"])


def taken_out(connection: Any, queue: str) -> Counter[int]:
    receiver = connection.create_receiver(queue, credit=100, options=AtMostOnce())
    found: Counter[int] = Counter()
    with suppress(Timeout):
        while True:
            found[receiver.receive(timeout=1).body] += 1
    return found


@pytest.mark.proves("M-7")
@pytest.mark.feature("transaction.crash")
def test_kill_9_during_commits(server_with_queues: Callable[..., ServerProcess]) -> None:
    """All or nothing, and an acknowledged commit survives."""
    server = server_with_queues()
    moments = random.Random(SEED)
    total = sized(500, nightly=20_000)
    with closing(open_connection(server.connection_string)) as connection:
        sender = connection.create_sender(SOURCE)
        for number in range(total):
            sender.send(Message(body=number))
    committed: list[int] = []
    for _ in range(sized(4, nightly=200)):
        mover = Mover(server.connection_string)
        mover.start()
        while mover.is_alive() and len(mover.committed) < 5:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        server.kill()
        mover.join()
        committed += mover.committed
        server.restart()
    left = message_count(server, SOURCE)
    with closing(open_connection(server.connection_string)) as connection:
        first, second = (taken_out(connection, target) for target in TARGETS)
    server.stop()
    assert len(committed) >= 20
    assert first == second, "half a transaction"
    assert set(committed) <= set(first), "an acknowledged commit is gone"
    assert set(first.values()) == {1}, "a message was moved twice"
    assert len(first) + left == total, "a message was moved and kept, or is gone"
