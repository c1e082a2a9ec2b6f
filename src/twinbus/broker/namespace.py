"""A namespace: named entities and who may use them.  The façade every server module uses.

Names are case-insensitive.  An address is `queue`, `queue/$DeadLetterQueue`, or one of these with
`/$management` behind it; clients may write it as a full URI.  Creating, changing and deleting an
entity completes when it is durable.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from twinbus.broker.auth import Authorizer
from twinbus.broker.broker import Broker
from twinbus.clock import Clock
from twinbus.entities.descriptions import QueueDescription, refuse_unsupported, validate_name
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.queue import Queue, QueueCounts
from twinbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from twinbus.limits import ENTITIES_MAX

T = TypeVar("T")

MANAGEMENT: Final = "/$management"
_SUBQUEUES: Final = (
    ("/$transfer/$deadletterqueue", TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", DEAD_LETTER),
)


class Address:
    """Where a link goes: entity path, which part of it, and whether to its management node."""

    __slots__ = ("is_management", "name", "path", "subqueue")

    def __init__(self, name: str, subqueue: int, is_management: bool, path: str) -> None:
        self.name = name
        self.subqueue = subqueue
        self.is_management = is_management
        self.path = path  # without /$management; what a token must cover


def parse_address(text: str) -> Address:
    """Read an address as clients write it: `amqps://host:port/path` or just the path."""
    path = urlsplit(text).path if "://" in text else text
    path = path.strip("/")
    is_management = path.lower().endswith(MANAGEMENT)
    if is_management:
        path = path[: -len(MANAGEMENT)]
    lowered = path.lower()
    for suffix, subqueue in _SUBQUEUES:
        if lowered.endswith(suffix):
            return Address(path[: -len(suffix)], subqueue, is_management, path)
    return Address(path, MAIN, is_management, path)


class QueueView:
    """What management shows of a queue."""

    __slots__ = (
        "accessed_utc_ms",
        "counts",
        "created_utc_ms",
        "description",
        "name",
        "updated_utc_ms",
    )

    def __init__(self, queue: Queue) -> None:
        self.name: str = queue.name
        self.description: QueueDescription = queue.description
        self.counts: QueueCounts = queue.counts()
        self.created_utc_ms: int = queue.description.created_utc_ms
        self.updated_utc_ms: int = queue.description.updated_utc_ms
        self.accessed_utc_ms: int = queue.accessed_utc_ms


class Namespace:
    """One addressable bus: its entities, in a broker, and its authorization rules."""

    def __init__(
        self, name: str, broker: Broker, authorizer: Authorizer, clock: Clock, created_utc_ms: int
    ) -> None:
        self.name = name
        self.broker = broker
        self.authorizer = authorizer
        self.created_utc_ms = created_utc_ms
        self.clock = clock

    def find_queue(self, name: str) -> Queue:
        entity_id = self.broker.store.names.get(name.lower())
        if entity_id is None:
            raise EntityNotFound(
                f"The messaging entity '{name[:64]}' could not be found in namespace {self.name}."
            )
        return self.broker.store.entities[entity_id]

    def get_queue(self, name: str) -> QueueView:
        return QueueView(self.find_queue(name))

    def list_queues(self, skip: int, top: int) -> list[QueueView]:
        store = self.broker.store
        names = sorted(store.names)[skip : skip + top]
        return [QueueView(store.entities[store.names[name]]) for name in names]

    async def create_queue(self, name: str, description: QueueDescription) -> QueueView:
        validate_name(name)
        refuse_unsupported(description)
        store = self.broker.store
        if name.lower() in store.names:
            raise EntityAlreadyExists(f"A queue named '{name}' exists already.")
        if len(store.names) >= ENTITIES_MAX:
            raise QuotaExceeded(f"A namespace holds at most {ENTITIES_MAX} entities.")
        now_ms = self.clock.now().utc_ms
        described = description.stamped(now_ms, now_ms)
        queue = await _durably(lambda then: self.broker.create_queue(name, described, then))
        return QueueView(queue)

    async def update_queue(self, name: str, description: QueueDescription) -> QueueView:
        queue = self.find_queue(name)
        refuse_unsupported(description)
        queue.description.check_update(description)
        described = description.stamped(queue.description.created_utc_ms, self.clock.now().utc_ms)
        await _durably(lambda then: self.broker.update_queue(queue, described, then))
        return QueueView(queue)

    async def delete_queue(self, name: str) -> None:
        queue = self.find_queue(name)
        await _durably(lambda then: self.broker.delete_queue(queue, then))


async def _durably(start: Callable[[Callable[[], None]], T]) -> T:
    """Start something and wait until what it stated is durable."""
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not durable.done():
            durable.set_result(None)

    result = start(then)
    await durable
    return result
