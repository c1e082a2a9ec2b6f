"""Senders of a simulated cluster: they try again as the SDKs do, and cancel what they scheduled."""

from typing import Final

from tests.simulation.cluster_clients import Client, World, is_unknown
from tests.unit.broker.stored_messages import stored
from twinbus.amqp.codec import encode_string, encode_symbol
from twinbus.amqp.stored import STORED_HEAD_BYTES, encode_stored
from twinbus.entities.commands import CancelScheduled, Reply, Send
from twinbus.entities.message import NewMessage
from twinbus.errors import MessageNotFound, QuotaExceeded, Unavailable

# Where to send, and where that comes to rest.
TARGETS: Final = {
    "pq": ["pq"],
    "ps": ["ps"],
    "pt": ["pt/Subscriptions/a", "pt/Subscriptions/b"],
    "q0": ["q0"],
    "q1": ["q1"],
    "s0": ["s0"],
    "f0": ["pq"],  # these two forward what they get, by relays
    "fp": ["q1"],
}
PARTITION_KEY: Final = "x-opt-partition-key"
SENDABLE: Final = ("pq", "pq", "pq", "ps", "ps", "pt", "pt", "q0", "q1", "s0", "f0", "fp")
TRIES_MAX: Final = 4


def body_with(text: bytes, key: str | None, session_id: str | None) -> bytes:
    """A message as the gateway stores it; a partition key is read from there by a relay."""
    if key is None or session_id is not None:
        return stored(text, session_id=session_id)
    annotations = encode_symbol(PARTITION_KEY) + encode_string(key)
    whole = stored(text)
    bare = whole[STORED_HEAD_BYTES:]
    return encode_stored(True, 4, -1, 2, annotations, b"", bare)


class Sender(Client):
    """Sends to everything there is, with keys of its own."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self._name = name
        self._open = 0
        self._scheduled: list[tuple[str, list[int], list[int]]] = []

    def act(self) -> None:
        if self._scheduled and self.rng.random() < 0.1:
            self._cancel()
        elif self._open < 4:
            entity = self.rng.choice(SENDABLE)
            key = f"{self._name}{self.rng.randrange(4)}"
            if entity in ("f0", "fp"):
                key = f"{entity}{key}"  # what takes another way has an order of its own
            if entity not in ("ps", "s0") and self.rng.random() < 0.4:
                key = ""
            count = self.rng.choice((1, 1, 1, 1, 2, 5))
            is_scheduled = self.rng.random() < 0.08
            for _ in range(self.rng.choice((1, 1, 1, 3))):  # without waiting for the answers
                self._send(entity, key or None, count, is_scheduled, 1)

    def _send(
        self, entity: str, key: str | None, count: int, is_scheduled: bool, trial: int
    ) -> None:
        due_ms = 0
        if is_scheduled:
            due_ms = self.world.loop.clock.now().utc_ms + self.rng.choice((10, 2_000, 15_000))
        has_sessions = entity in ("ps", "s0")
        names: list[int] = []
        messages: list[NewMessage] = []
        for _ in range(count):
            name = self.judge.sending(entity, TARGETS[entity], key, trial > 1, is_scheduled)
            names.append(name)
            session_id = key if has_sessions else None
            body = body_with(b"%d:" % name + bytes(self.rng.choice((0, 100))), key, session_id)
            message = NewMessage(body, scheduled_ms=due_ms, message_id=f"{name}")
            message.session_id = session_id
            message.partition_key = None if has_sessions else key
            messages.append(message)
        self._open += 1
        command = Send(self.world.number_of(entity), messages)

        def then(reply: Reply) -> None:
            self._open -= 1
            self._sent(reply, names)
            if reply.error is not None and trial < TRIES_MAX:
                self.world.loop.after(self.rng.choice((0, 800, 3_000)), again)

        def again() -> None:
            if self.world.cluster.is_ready and not self.world.is_over:
                self._send(entity, key, count, is_scheduled, trial + 1)

        self.world.ask(command, then)

    def _sent(self, reply: Reply, names: list[int]) -> None:
        error = reply.error
        if error is None:
            numbers = reply.result
            assert isinstance(numbers, list)
            self.judge.sent(names, numbers)
            attempt = self.judge.attempts[names[0]]
            if attempt.is_scheduled:
                self._scheduled.append((attempt.entity, numbers, names))
        elif not is_unknown(error):
            assert isinstance(error, Unavailable | QuotaExceeded), f"a send was refused: {error!r}"
            self.judge.refused(names)

    def _cancel(self) -> None:
        entity, numbers, names = self._scheduled.pop()
        copies = [self.judge.copies[place, name] for place in TARGETS[entity] for name in names]
        for copy in copies:
            copy.completing += 1

        def then(reply: Reply) -> None:
            for copy in copies:
                if reply.error is None:
                    store = self.world.store_of(entity, numbers[0])
                    self.judge.removed(copy, self.world.cluster.next_grant(store))
                elif not is_unknown(reply.error):
                    assert isinstance(reply.error, Unavailable | MessageNotFound), reply.error
                    copy.completing -= 1

        self.world.ask(CancelScheduled(self.world.number_of(entity), numbers), then)
