"""The primaries of simulated pairs, and the SDK's calls on their way there.

A call makes several tries, as the SDK does.  Each of them may be late, may never arrive, and its
answer may be lost; then nobody knows what became of it.  Messages travel encoded: what arrives is
what the server's own code reads.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.simulation.cluster_clients import World
from tests.simulation.cluster_processes import Loop
from tests.unit.broker.stored_messages import content
from twinbus.entities.commands import Reply, Send
from twinbus.entities.message import NEVER_MS, NewMessage
from twinbus.errors import (
    EntityNotFound,
    OperationTimeout,
    PartitionRefused,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.partitions.sends import deal
from twinbus.message.incoming import new_message
from twinbus.message.message_id import MessageIds
from twinbus.pairing.batch import raw_of
from twinbus.pairing.errors import PartitionRefusedError
from twinbus.pairing.stamps import DATA

Then: TypeAlias = Callable[[Exception | None], None]
TRIES: Final = (1, 2, 3, 4)  # of one call
LATE_MS: Final = (300, 1_500, 4_000)
BODY_BYTES: Final = 260  # longer than 255, so that `content` finds it


class Primary(Protocol):
    """A namespace that takes deliveries."""

    def deliver(self, entity: str, data: list[bytes], then: Then) -> None: ...


class Network:
    """Between clients and a primary."""

    def __init__(self, loop: Loop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.loss = 0.0  # chance that something is lost or late
        self.is_cut = False
        self.under_way = 0  # tries that may still arrive
        self.calls = 0  # that have not ended
        self.retries = 0
        self.refusals = {True: 0, False: 0}  # of partitions: certain ones, and others


def encoded_messages(outgoing: Any) -> list[bytes]:
    """What the SDK writes, of whatever its senders take."""
    if isinstance(outgoing, ServiceBusMessageBatch):
        return [bytes(each) for each in outgoing._message[DATA]]
    messages = outgoing if isinstance(outgoing, list) else [outgoing]
    sendable = map(PyamqpTransport.to_outgoing_amqp_message, map(raw_of, messages))
    return [bytes(encode_payload(bytearray(), each)) for each in sendable]


class Call:
    """One call of the SDK's sender, with its tries."""

    def __init__(
        self,
        network: Network,
        primary: Primary,
        entity: str,
        data: list[bytes],
        timeout_s: float,
        then: Then,
    ) -> None:
        self._network = network
        self._primary = primary
        self._entity = entity
        self._data = data
        self._end_ms = network.loop.now_ms + round(1000 * timeout_s)
        self._then = then
        self._tries_left = network.rng.choice(TRIES)
        self._number = 0  # of the try that is waited for; 0: none
        self._may_have_arrived = False
        network.calls += 1
        self._try(1)

    @property
    def is_certain(self) -> bool:
        """Whether no try so far can have arrived."""
        return not self._may_have_arrived

    def _try(self, number: int) -> None:
        network, rng = self._network, self._network.rng
        self._number = number
        self._tries_left -= 1
        left_ms = max(1, self._end_ms - network.loop.now_ms)
        is_lost = rng.random() < network.loss
        if is_lost:
            wait_ms = min(left_ms, rng.choice((1, 20, 60, 500, left_ms)))
            error = rng.choice((OperationTimeoutError, ServiceBusConnectionError))()
        else:
            wait_ms, error = left_ms, OperationTimeoutError()
        if not is_lost or rng.random() < 0.7:
            late = is_lost and rng.random() < 0.3
            delay_ms = rng.choice(LATE_MS) if late else rng.choice((0, 0, 1, 3))
            network.under_way += 1
            network.loop.after(delay_ms, partial(self._arrive, number, is_lost))
        network.loop.after(wait_ms, partial(self._failed, number, error))

    def _arrive(self, number: int, is_lost: bool) -> None:
        self._network.under_way -= 1
        if self._network.is_cut:
            self._failed(number, ServiceBusConnectionError())
        else:
            answered = partial(self._answered, 0 if is_lost else number)
            self._primary.deliver(self._entity, self._data, answered)

    def _answered(self, number: int, error: Exception | None) -> None:
        if number != self._number or not number:
            return  # nobody waits for it any more
        if isinstance(error, PartitionRefused):
            self._network.refusals[self.is_certain] += 1
            self._end(PartitionRefusedError(str(error), is_certain=self.is_certain))
        elif error is None or isinstance(error, ServiceBusServerBusyError):
            self._end(error)
        else:
            self._failed(number, error)

    def _failed(self, number: int, error: Exception) -> None:
        """The SDK tries again, where that may help."""
        if number != self._number:
            return
        self._may_have_arrived = True
        loop = self._network.loop
        pause_ms = self._network.rng.choice((1, 30, 100, 500))
        is_in_time = loop.now_ms + pause_ms < self._end_ms
        if self._tries_left and is_in_time and getattr(error, "_retryable", False):
            self._number = 0
            self._network.retries += 1
            loop.after(pause_ms, partial(self._try, number + 1))
        else:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._number = 0
        self._network.calls -= 1
        self._then(error)


def sdk_error(error: ServiceError) -> Exception:
    """What the SDK makes of an answer; a refused partition is left to the call."""
    match error:
        case PartitionRefused():
            return error
        case ServerBusy():
            return ServiceBusServerBusyError()
        case QuotaExceeded():
            return ServiceBusQuotaExceededError(message=str(error))
        case OperationTimeout():
            return OperationTimeoutError()
        case EntityNotFound():
            return MessagingEntityNotFoundError(message=str(error))
        case _:
            is_retryable = error.retryable
            return ServiceBusError(
                str(error), condition=error.amqp_condition, retryable=is_retryable
            )


class ClusterPrimary:
    """The simulated cluster behind links: what comes in one read goes on as `SendingLink` does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ids = MessageIds(world.rng.getrandbits(64))
        self._read: dict[str, list[tuple[list[bytes], Then]]] = {}

    def deliver(self, entity: str, data: list[bytes], then: Then) -> None:
        if not self._world.cluster.is_ready:
            then(ServiceBusConnectionError())
            return
        if entity not in self._read:
            self._read[entity] = []
            self._world.loop.after(
                self._world.rng.choice((0, 0, 1, 5)), partial(self._flush, entity)
            )
        self._read[entity].append((data, then))

    def _flush(self, name: str) -> None:
        read = self._read.pop(name)
        if not self._world.cluster.is_ready:
            for _, then in read:
                then(ServiceBusConnectionError())
            return
        gateway = self._world.life.gateway
        entity = gateway.directory.find(name)
        if entity is None:
            for _, then in read:
                then(MessagingEntityNotFoundError(message=name))
            return
        deliveries = [[self._message(each, entity.needs_keys) for each in data] for data, _ in read]
        thens = [then for _, then in read]
        dealt = [(-1, list(range(len(read))))]
        if entity.is_partitioned:
            dealt = deal(gateway.links, entity, deliveries)
        for partition, indices in dealt:
            self._submit(
                name,
                partition,
                [deliveries[index] for index in indices],
                [thens[index] for index in indices],
            )

    def _message(self, data: bytes, needs_keys: bool) -> NewMessage:
        return new_message(data, self._ids, NEVER_MS, needs_keys)

    def _submit(
        self, name: str, partition: int, deliveries: list[list[NewMessage]], thens: list[Then]
    ) -> None:
        send = Send(self._world.number_of(name), [each for part in deliveries for each in part])
        send.partition = partition

        def answered(reply: Reply) -> None:
            error = reply.error
            is_common = isinstance(error, EntityNotFound | Unavailable | ServerBusy)
            if error is None or len(thens) == 1 or is_common:
                for then in thens:
                    then(None if error is None else sdk_error(error))
            else:
                for delivery, then in zip(deliveries, thens, strict=True):
                    self._submit(name, -1, [delivery], [then])

        self._world.ask(send, answered)


class Recorder:
    """The primary of another pair: it takes what comes, once, and is down at times."""

    def __init__(self, rng: random.Random) -> None:
        self.is_down = False
        self.arrived: list[bytes] = []
        self._ids = MessageIds(rng.getrandbits(64))
        self._keys: set[tuple[str, int]] = set()

    def deliver(self, entity: str, data: list[bytes], then: Then) -> None:
        if self.is_down:
            then(ServiceBusConnectionError())
            return
        for each in data:
            new = new_message(each, self._ids, NEVER_MS)
            key = new.producer_key
            assert key is not None
            if not key.is_ping and (key.producer, key.number) not in self._keys:
                self._keys.add((key.producer, key.number))
                self.arrived.append(name_in(new.body))
        then(None)


def body_of(name: str) -> bytes:
    """The body of the message of this name."""
    return f"{name}:".encode().ljust(BODY_BYTES)


def name_in(stored_message: bytes) -> bytes:
    return content(stored_message).partition(b":")[0]
