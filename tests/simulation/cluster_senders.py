"""Senders of a simulated cluster: they try again as the SDKs do, and cancel what they scheduled."""

from functools import partial
from typing import Final

from tests.simulation.cluster_clients import Client, World, is_unknown
from tests.unit.broker.stored_messages import stored
from twinbus.amqp.encoding import encode_string, encode_symbol
from twinbus.entities.commands import CancelScheduled, Reply, Send
from twinbus.entities.message import NewMessage, ProducerKey
from twinbus.entities.partitions import NUMBERED_RUN, hash_key
from twinbus.errors import MessageNotFound, QuotaExceeded, Unavailable
from twinbus.message.stored import STORED_HEAD_BYTES, encode_stored

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
    "pd": ["pd"],
}
DISTINCT: Final = "pd"  # it detects duplicates: whoever tries again sends the same message
PARTITION_KEY: Final = "x-opt-partition-key"
SENDABLE: Final = (
    "pq",
    "pq",
    "pq",
    "ps",
    "ps",
    "pt",
    "pt",
    "q0",
    "q1",
    "s0",
    "f0",
    "fp",
    "pd",
    "pd",
)
TRIES_MAX: Final = 4


def body_with(text: bytes, key: str | None, session_id: str | None) -> bytes:
    """A message as the gateway stores it; a partition key is read from there by a relay."""
    if key is None or session_id is not None:
        return stored(text, session_id=session_id)
    annotations = encode_symbol(PARTITION_KEY) + encode_string(key)
    whole = stored(text)
    bare = whole[STORED_HEAD_BYTES:]
    return encode_stored(True, 4, -1, 2, annotations, b"", bare)


class Sending:
    """Messages on their way, for the first time or again."""

    def __init__(self, entity: str, key: str | None, count: int, is_scheduled: bool) -> None:
        self.entity = entity
        self.key = key
        self.count = count
        self.is_scheduled = is_scheduled
        self.trial = 0
        self.names: list[int] = []
        self.producer = ""  # who has numbered them, if anybody has
        self.number = 0  # the first of theirs

    @property
    def is_same(self) -> bool:
        """Does whoever tries again send the same messages?  Then they must come once all the same.

        Others send new ones, since the first may have come.
        """
        return self.entity == DISTINCT or self.producer != ""


class Sender(Client):
    """Sends to everything there is, with keys of its own."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self._name = name
        self._open = 0
        self._scheduled: list[tuple[str, list[int], list[int]]] = []
        self._numbers: dict[str, int] = {}  # the last of each producer

    def act(self) -> None:
        if self._scheduled and self.rng.random() < 0.1:
            self._cancel()
        elif self._open < 4:
            entity = self.rng.choice(SENDABLE)
            key = f"{self._name}{self.rng.randrange(4)}"
            if entity in ("f0", "fp"):
                key = f"{entity}{key}"  # what takes another way has an order of its own
            if entity == DISTINCT or (entity not in ("ps", "s0") and self.rng.random() < 0.4):
                key = ""
            count = self.rng.choice((1, 1, 1, 1, 2, 5))
            is_scheduled = entity != DISTINCT and self.rng.random() < 0.08
            for _ in range(self.rng.choice((1, 1, 1, 3))):  # without waiting for the answers
                sending = Sending(entity, key or None, count, is_scheduled)
                if not is_scheduled and self.rng.random() < 0.4:
                    self._number(sending)
                self._send(sending)

    def _number(self, sending: Sending) -> None:
        """Give messages numbers as a pair does: each partition of keys has its own."""
        producer = f"{self._name} of {sending.entity}"
        if sending.key is not None:
            producer += f"~{hash_key(sending.key)}"
        first = self._numbers.get(producer, NUMBERED_RUN - 20) + 1
        if first // NUMBERED_RUN != (first + sending.count - 1) // NUMBERED_RUN:
            first += sending.count  # those of one batch stay within a run
        self._numbers[producer] = first + sending.count - 1
        sending.producer, sending.number = producer, first

    def _send(self, sending: Sending) -> None:
        sending.trial += 1
        if sending.trial == 1 or not sending.is_same:
            sending.names = [self._begin(sending) for _ in range(sending.count)]
        else:
            self.judge.sending_again(sending.names)
        self._open += 1
        command = Send(self.world.number_of(sending.entity), self._messages(sending))
        self.world.ask(command, partial(self._answered, sending, sending.names))

    def _begin(self, sending: Sending) -> int:
        entity, key, is_retry = sending.entity, sending.key, sending.trial > 1
        return self.judge.sending(entity, TARGETS[entity], key, is_retry, sending.is_scheduled)

    def _messages(self, sending: Sending) -> list[NewMessage]:
        due_ms = 0
        if sending.is_scheduled:
            due_ms = self.world.loop.clock.now().utc_ms + self.rng.choice((10, 2_000, 15_000))
        has_sessions = sending.entity in ("ps", "s0")
        session_id = sending.key if has_sessions else None
        messages: list[NewMessage] = []
        for place, name in enumerate(sending.names):
            text = b"%d:" % name + bytes(self.rng.choice((0, 100)))
            body = body_with(text, sending.key, session_id)
            message = NewMessage(body, scheduled_ms=due_ms, message_id=f"{name}")
            message.session_id = session_id
            message.partition_key = None if has_sessions else sending.key
            if sending.producer:
                message.producer_key = ProducerKey(sending.producer, sending.number + place)
            messages.append(message)
        return messages

    def _answered(self, sending: Sending, names: list[int], reply: Reply) -> None:
        self._open -= 1
        error = reply.error
        if error is None:
            numbers = reply.result
            assert isinstance(numbers, list)
            self.judge.sent(names, numbers)
            if sending.is_scheduled:
                self._scheduled.append((sending.entity, numbers, names))
            if sending.producer and self.rng.random() < 0.2:  # the client never heard of it
                self._try_again_later(sending)
            return
        if not is_unknown(error):
            assert isinstance(error, Unavailable | QuotaExceeded), f"a send was refused: {error!r}"
            if not sending.is_same:  # of those, a part may have been taken, now or before
                self.judge.refused(names)
        self._try_again_later(sending)

    def _try_again_later(self, sending: Sending) -> None:
        if sending.trial < TRIES_MAX:
            pause_ms = self.rng.choice((0, 800, 3_000))
            self.world.loop.after(pause_ms, partial(self._try_again, sending))

    def _try_again(self, sending: Sending) -> None:
        # When somebody sets the clock, ids of before may be forgotten.
        is_safe = sending.entity != DISTINCT or self.judge.utc_is_steady
        if is_safe and self.world.cluster.is_ready and not self.world.is_over:
            self._send(sending)

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
