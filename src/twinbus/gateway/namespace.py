"""A namespace: named entities and who may use them.  The façade every server module uses.

Names are case-insensitive.  An address is `queue`, `topic` or `topic/Subscriptions/subscription`,
any of them with `/$DeadLetterQueue` or `/$Transfer/$DeadLetterQueue` behind it, and any of these
with `/$management`; clients may write it as a full URI.  Creating, changing and deleting an entity
completes when it is durable.

Several namespaces share one store.  Those beyond the first have a prefix in front of every name in
the store, and nobody outside this module may reach a name by writing the prefix himself.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from twinbus.broker.auth import Authorizer
from twinbus.broker.broker import Broker
from twinbus.broker.catalog import Catalog
from twinbus.broker.requests import find_rule, list_rules
from twinbus.broker.tiers import check_topics, fit_description
from twinbus.broker.views import QueueView, RuleView, SubscriptionView, TopicView
from twinbus.clock import Clock
from twinbus.entities.descriptions import (
    SUBSCRIPTIONS,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    refuse_unsupported,
    subscription_path,
    validate_name,
    validate_subscription_name,
)
from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from twinbus.entities.queue import Queue
from twinbus.entities.rules import Rule, RuleDescription
from twinbus.entities.rules import default_rule as default_rule_description
from twinbus.entities.topic import Topic
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
)
from twinbus.limits import PROFILE_DEFAULT, Limits

T = TypeVar("T")

MANAGEMENT: Final = "/$management"
PREFIX_END: Final = ":"
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


class Namespace:
    """One addressable bus: its entities, in a broker, and its authorization rules."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        authorizer: Authorizer,
        clock: Clock,
        created_utc_ms: int,
        prefix: str = "",
        limits: Limits = PROFILE_DEFAULT,
    ) -> None:
        self.name = name
        self.broker = broker
        self._catalog = Catalog(broker)
        self.authorizer = authorizer
        self.created_utc_ms = created_utc_ms
        self.clock = clock
        self.prefix = prefix
        self.limits = limits

    # -- finding ---------------------------------------------------------------------------------

    def find_entity(self, path: str) -> Queue:
        """The queue, topic or subscription of this path."""
        store = self.broker.store
        queue: Queue | None = None
        if PREFIX_END not in path:
            queue = store.entities.get(store.names.get((self.prefix + path).lower(), 0))
        if queue is None:
            raise EntityNotFound(
                f"The messaging entity '{path[:64]}' could not be found in namespace {self.name}."
            )
        return queue

    def find_queue(self, name: str) -> Queue:
        """The queue of this name; topics and subscriptions are none."""
        queue = self.find_entity(name)
        if queue.kind != "queue":
            raise EntityNotFound(f"'{name[:64]}' is a {queue.kind}, not a queue.")
        return queue

    def find_topic(self, name: str) -> Topic:
        topic = self.find_entity(name)
        if not isinstance(topic, Topic):
            raise EntityNotFound(f"'{name[:64]}' is a {topic.kind}, not a topic.")
        return topic

    def find_subscription(self, topic: str, name: str) -> Queue:
        self.find_topic(topic)  # the more helpful error when that is what is missing
        return self.find_entity(subscription_path(topic, name))

    def find_rule(self, topic: str, subscription: str, name: str) -> Rule:
        return find_rule(self.broker.store, self.find_subscription(topic, subscription), name)

    def path_of(self, queue: Queue) -> str:
        """The name of an entity as users of this namespace know it."""
        return queue.name[len(self.prefix) :]

    # -- queues ----------------------------------------------------------------------------------

    def get_queue(self, name: str) -> QueueView:
        return QueueView(self.find_queue(name), self.prefix)

    def list_queues(self, skip: int, top: int) -> list[QueueView]:
        """A page of queues, in order of their names."""
        return [QueueView(each, self.prefix) for each in self._page("queue", skip, top)]

    async def create_queue(self, name: str, description: QueueDescription) -> QueueView:
        queue = await self._create("queue", name, description)
        return QueueView(queue, self.prefix)

    async def update_queue(self, name: str, description: QueueDescription) -> QueueView:
        queue = self.find_queue(name)
        await self._update(queue, description)
        return QueueView(queue, self.prefix)

    async def delete_queue(self, name: str) -> None:
        await self._delete(self.find_queue(name))

    # -- topics ----------------------------------------------------------------------------------

    def get_topic(self, name: str) -> TopicView:
        return TopicView(self.find_topic(name), self.prefix)

    def list_topics(self, skip: int, top: int) -> list[TopicView]:
        """A page of topics, in order of their names."""
        page = self._page("topic", skip, top)
        return [TopicView(each, self.prefix) for each in page if isinstance(each, Topic)]

    async def create_topic(self, name: str, description: TopicDescription) -> TopicView:
        await self._create("topic", name, description)
        return self.get_topic(name)

    async def update_topic(self, name: str, description: TopicDescription) -> TopicView:
        topic = self.find_topic(name)
        await self._update(topic, description)
        return TopicView(topic, self.prefix)

    async def delete_topic(self, name: str) -> None:
        """The topic goes with its subscriptions and everything in them."""
        await self._delete(self.find_topic(name))

    # -- subscriptions ---------------------------------------------------------------------------

    def get_subscription(self, topic: str, name: str) -> SubscriptionView:
        return SubscriptionView(self.find_subscription(topic, name), self.prefix)

    def list_subscriptions(self, topic: str, skip: int, top: int) -> list[SubscriptionView]:
        """A page of a topic's subscriptions, in order of their names."""
        found = sorted(self.find_topic(topic).subscriptions.values(), key=_lower_name)
        return [SubscriptionView(each, self.prefix) for each in found[skip : skip + top]]

    async def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionView:
        """Without a rule of the caller's, `$Default` lets every message in."""
        validate_subscription_name(name)
        parent = self.find_topic(topic)
        path = subscription_path(self.path_of(parent), name)
        self._check_free(path)
        most = self.limits.subscriptions_max
        if len(parent.subscriptions) >= most:
            raise QuotaExceeded(f"A topic has at most {most} subscriptions.")
        description = fit_description(self.limits, self.name, description)
        self._check_description(path, description)
        now_ms = self.clock.now().utc_ms
        described = description.stamped(now_ms, now_ms)
        rule = (default_rule or default_rule_description()).stamped(now_ms)
        subscription = await _durably(
            lambda then: self._catalog.create_subscription(
                self.prefix + path, described, rule, then
            )
        )
        return SubscriptionView(subscription, self.prefix)

    async def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionView:
        subscription = self.find_subscription(topic, name)
        await self._update(subscription, description)
        return SubscriptionView(subscription, self.prefix)

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._delete(self.find_subscription(topic, name))

    # -- rules -----------------------------------------------------------------------------------

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleView:
        return RuleView(self.find_rule(topic, subscription, name))

    def list_rules(self, topic: str, subscription: str, skip: int, top: int) -> list[RuleView]:
        """A page of a subscription's rules, in order of their names."""
        found = list_rules(self.broker.store, self.find_subscription(topic, subscription))
        return [RuleView(each) for each in found[skip : skip + top]]

    async def create_rule(
        self, topic: str, subscription: str, description: RuleDescription
    ) -> RuleView:
        queue = self.find_subscription(topic, subscription)
        stamped = description.stamped(self.clock.now().utc_ms)
        rule = await _durably(lambda then: self._catalog.create_rule(queue, stamped, then))
        return RuleView(rule)

    async def update_rule(
        self, topic: str, subscription: str, description: RuleDescription
    ) -> RuleView:
        """Put a rule in the place of the one with its name, in one step."""
        old = self.find_rule(topic, subscription, description.name)
        stamped = description.stamped(old.description.created_utc_ms)
        rule = await _durably(lambda then: self._catalog.replace_rule(old, stamped, then))
        return RuleView(rule)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        rule = self.find_rule(topic, subscription, name)
        await _durably(lambda then: self._catalog.delete_rule(rule, then))

    # -- any kind --------------------------------------------------------------------------------

    def get_entity(self, name: str) -> QueueView:
        """A queue's or a topic's view, for those who have only the name."""
        queue = self.find_entity(name)
        if isinstance(queue, Topic):
            return TopicView(queue, self.prefix)
        if queue.kind == "subscription":
            return SubscriptionView(queue, self.prefix)
        return QueueView(queue, self.prefix)

    async def delete_entity(self, name: str) -> None:
        """Whatever has this name goes."""
        await self._delete(self.find_entity(name))

    def _page(self, kind: str, skip: int, top: int) -> list[Queue]:
        found = [each for each in self.broker.store.entities.values() if self._has(each, kind)]
        found.sort(key=_lower_name)
        return found[skip : skip + top]

    def _has(self, queue: Queue, kind: str) -> bool:
        """Is it of this kind and of this namespace?"""
        if queue.kind != kind:
            return False
        if self.prefix:
            return queue.name.startswith(self.prefix)
        return PREFIX_END not in queue.name

    async def _create(self, kind: str, name: str, description: QueueDescription) -> Queue:
        validate_name(name)
        if kind == "topic":
            check_topics(self.limits, self.name)
        self._check_free(name)
        self._check_room()
        description = fit_description(self.limits, self.name, description)
        self._check_description(name, description)
        now_ms = self.clock.now().utc_ms
        described = description.stamped(now_ms, now_ms)
        full_name = self.prefix + name
        return await _durably(
            lambda then: self._catalog.create_entity(kind, full_name, described, then)
        )

    async def _update(self, queue: Queue, description: QueueDescription) -> None:
        queue.description.check_update(description)
        description = fit_description(self.limits, self.name, description)
        self._check_description(self.path_of(queue), description)
        described = description.stamped(queue.description.created_utc_ms, self.clock.now().utc_ms)
        await _durably(lambda then: self._catalog.update_entity(queue, described, then))

    async def _delete(self, queue: Queue) -> None:
        await _durably(lambda then: self._catalog.delete_entity(queue, then))

    def _check_free(self, path: str) -> None:
        if (self.prefix + path).lower() in self.broker.store.names:
            raise EntityAlreadyExists(f"An entity named '{path[:64]}' exists already.")

    def _check_room(self) -> None:
        entities = self.broker.store.entities
        most = self.limits.entities_max
        if len(entities) < most:
            return  # however they are spread over namespaces
        count = sum(
            self._has(each, "queue") or self._has(each, "topic") for each in entities.values()
        )
        if count >= most:
            raise QuotaExceeded(f"A namespace holds at most {most} queues and topics.")

    def _check_description(self, path: str, description: QueueDescription) -> None:
        """What a description says about other entities must be true when it is set."""
        refuse_unsupported(description)
        if description.forward_to is not None and description.requires_session:
            raise InvalidOperation("An entity that requires sessions cannot forward its messages.")
        for target in (description.forward_to, description.forward_dead_lettered_messages_to):
            if target is None:
                continue
            if target.lower() == path.lower():
                raise ArgumentInvalid(f"'{path[:64]}' cannot forward to itself.")
            if SUBSCRIPTIONS.lower() in target.lower():
                raise ArgumentInvalid("Messages are forwarded to a queue or a topic.")
            self.find_entity(target)


def _lower_name(queue: Queue) -> str:
    return queue.name.lower()


async def _durably(start: Callable[[Callable[[], None]], T]) -> T:
    """Start something and wait until what it stated is durable."""
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not durable.done():
            durable.set_result(None)

    result = start(then)
    await durable
    return result
