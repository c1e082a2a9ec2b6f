"""A namespace: named entities and access to them.  The façade that every server module uses.

Names are case-insensitive.  Creating, changing or deleting an entity completes when it is durable;
other requests for the same entity wait until then (entity_locks.py).

Several namespaces share the stores.  All but the first prefix every name, and nobody outside this
module may reach a name by writing the prefix directly.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

from twinbus.clock import Clock
from twinbus.entities.commands import AddRule, ListRules, RemoveRule, ReplaceRule
from twinbus.entities.descriptions import (
    PREFIX_END,
    SUBSCRIPTIONS,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
    validate_name,
    validate_subscription_name,
)
from twinbus.entities.facts import MAIN
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.rule_descriptions import default_rule as default_rule_description
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
)
from twinbus.gateway.access.shared_access import Authorizer
from twinbus.gateway.counting.counters import EntityMeter
from twinbus.gateway.counting.meter import metered_path
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.namespaces.entity_changes import EntityChanges
from twinbus.gateway.namespaces.entity_locks import place_of
from twinbus.gateway.namespaces.tiers import check_partitioning, check_topics, fit_description
from twinbus.gateway.namespaces.views import QueueView, RuleView, SubscriptionView, TopicView
from twinbus.limits import PROFILE_DEFAULT, Limits
from twinbus.links.request import ask

_ALL: Final = 1 << 31  # more rules than a subscription can have
_VIEWS: Final = {"queue": QueueView, "topic": TopicView, "subscription": SubscriptionView}

V = TypeVar("V", bound=QueueView)


class Namespace:
    """One addressable bus: its entities, behind a gateway, and its authorization rules.

    It has many methods because it is all that servers know of entities: they find, list, create,
    update and delete four kinds of them here, and nowhere else.
    """

    def __init__(
        self,
        name: str,
        gateway: Gateway,
        changes: EntityChanges,
        authorizer: Authorizer,
        clock: Clock,
        created_utc_ms: int,
        prefix: str = "",
        limits: Limits = PROFILE_DEFAULT,
        namespace_id: str = "",
    ) -> None:
        """`namespace_id` is its own for ever; empty: it has none."""
        self.name = name
        self.id = namespace_id
        self.gateway = gateway
        self._changes = changes
        self.authorizer = authorizer
        self.created_utc_ms = created_utc_ms
        self.clock = clock
        self.prefix = prefix
        self.limits = limits
        self._is_retired = False

    # -- finding ---------------------------------------------------------------------------------

    def find_entity(self, path: str) -> Entity:
        """The queue, topic or subscription of this path."""
        entity: Entity | None = None
        if PREFIX_END not in path:
            entity = self.gateway.directory.find(self.prefix + path)
        if entity is None:
            raise EntityNotFound(
                f"The messaging entity '{path[:64]}' could not be found in namespace {self.name}."
            )
        return entity

    def find_queue(self, name: str) -> Entity:
        """The queue of this name; topics and subscriptions are none."""
        return self._find("queue", name)

    def find_topic(self, name: str) -> Entity:
        return self._find("topic", name)

    def _find(self, kind: str, name: str) -> Entity:
        entity = self.find_entity(name)
        if entity.kind != kind:
            raise EntityNotFound(f"'{name[:64]}' is a {entity.kind}, not a {kind}.")
        return entity

    def find_subscription(self, topic: str, name: str) -> Entity:
        self.find_topic(topic)  # the more helpful error when that is what is missing
        return self.find_entity(subscription_path(topic, name))

    def path_of(self, entity: Entity) -> str:
        """The name of an entity as users of this namespace know it."""
        return entity.name[len(self.prefix) :]

    def meter_of(self, entity: Entity, subqueue: int = MAIN) -> EntityMeter:
        """What bills the entity, or one of its dead-letter queues."""
        path = metered_path(self.path_of(entity), subqueue)
        return self.gateway.meter.of(self.name, path)

    def entities(self, kind: str) -> list[Entity]:
        """All of one kind in this namespace, in order of their names."""
        found = [each for each in self.gateway.directory.by_id.values() if self._has(each, kind)]
        found.sort(key=_lower_name)
        return found

    def _has(self, entity: Entity, kind: str) -> bool:
        """Is it of this kind and of this namespace?"""
        if entity.kind != kind:
            return False
        if self.prefix:
            return entity.name.startswith(self.prefix)
        return PREFIX_END not in entity.name

    # -- queues and topics -----------------------------------------------------------------------

    async def list_queues(self, skip: int, top: int) -> list[QueueView]:
        """A page of queues, in order of their names."""
        return await self._views(QueueView, self.entities("queue")[skip : skip + top])

    async def create_queue(self, name: str, description: QueueDescription) -> QueueView:
        return await self._view(QueueView, await self._create("queue", name, description))

    async def update_queue(self, name: str, description: QueueDescription) -> QueueView:
        async with self._locked(name):
            queue = await self._update(self.find_queue(name), description)
        return await self._view(QueueView, queue)

    async def list_topics(self, skip: int, top: int) -> list[TopicView]:
        """A page of topics, in order of their names."""
        return await self._views(TopicView, self.entities("topic")[skip : skip + top])

    async def create_topic(self, name: str, description: TopicDescription) -> TopicView:
        return await self._view(TopicView, await self._create("topic", name, description))

    async def update_topic(self, name: str, description: TopicDescription) -> TopicView:
        async with self._locked(name):
            topic = await self._update(self.find_topic(name), description)
        return await self._view(TopicView, topic)

    # -- subscriptions ---------------------------------------------------------------------------

    async def get_subscription(self, topic: str, name: str) -> SubscriptionView:
        return await self._view(SubscriptionView, self.find_subscription(topic, name))

    async def list_subscriptions(self, topic: str, skip: int, top: int) -> list[SubscriptionView]:
        """A page of a topic's subscriptions, in order of their names."""
        found = sorted(self.find_topic(topic).subscriptions.values(), key=_lower_name)
        return await self._views(SubscriptionView, found[skip : skip + top])

    async def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionView:
        """Without a rule of the caller's, `$Default` lets every message in."""
        validate_subscription_name(name)
        async with self._locked(subscription_path(topic, name)):
            self._check_not_retired()
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
            made = await self._changes.create("subscription", self.prefix + path, described, rule)
        return await self._view(SubscriptionView, made)

    async def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionView:
        async with self._locked(subscription_path(topic, name)):
            subscription = self.find_subscription(topic, name)
            subscription = await self._update(subscription, description)
        return await self._view(SubscriptionView, subscription)

    async def delete_subscription(self, topic: str, name: str) -> None:
        async with self._locked(subscription_path(topic, name)):
            await self._changes.delete(self.find_subscription(topic, name))

    # -- rules -----------------------------------------------------------------------------------

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleView:
        for view in await self.list_rules(topic, subscription, 0, _ALL):
            if view.name.lower() == name.lower():
                return view
        # The Node SDK knows what is not there by the first three words.
        raise EntityNotFound(f"The messaging entity 'rule {name[:64]}' could not be found.")

    async def list_rules(
        self, topic: str, subscription: str, skip: int, top: int
    ) -> list[RuleView]:
        """A page of a subscription's rules, in order of their names."""
        entity = self.find_subscription(topic, subscription)
        found = await ask(self.gateway, ListRules(entity.entity_id, skip, top))
        return [RuleView(each) for each in found]

    async def create_rule(
        self, topic: str, subscription: str, description: RuleDescription
    ) -> RuleView:
        async with self._locked(subscription_path(topic, subscription), description.name):
            entity = self.find_subscription(topic, subscription)
            await ask(self.gateway, AddRule(entity.entity_id, description))
            return await self.get_rule(topic, subscription, description.name)

    async def update_rule(
        self, topic: str, subscription: str, description: RuleDescription
    ) -> RuleView:
        """Put a rule in the place of the one with its name, in one step."""
        async with self._locked(subscription_path(topic, subscription), description.name):
            entity = self.find_subscription(topic, subscription)
            await ask(self.gateway, ReplaceRule(entity.entity_id, description))
            return await self.get_rule(topic, subscription, description.name)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        async with self._locked(subscription_path(topic, subscription), name):
            entity = self.find_subscription(topic, subscription)
            await ask(self.gateway, RemoveRule(entity.entity_id, name))

    # -- any kind --------------------------------------------------------------------------------

    async def get_entity(self, name: str) -> QueueView:
        """The view of whatever has this name."""
        entity = self.find_entity(name)
        return await self._view(_VIEWS[entity.kind], entity)

    async def _view(self, kind: type[V], entity: Entity) -> V:
        return (await self._views(kind, [entity]))[0]

    async def _views(self, kind: type[V], entities: list[Entity]) -> list[V]:
        runtimes = await self._changes.runtimes(entities)
        return [
            kind(entity, runtime, self.gateway.availability(entity), self.prefix)
            for entity, runtime in zip(entities, runtimes, strict=True)
        ]

    async def delete_entity(self, name: str) -> None:
        """Whatever has this name goes; a topic with its subscriptions and everything in them."""
        async with self._locked(name):
            await self._changes.delete(self.find_entity(name))

    async def retire(self) -> None:
        """From now on nothing new is made here; come back when nothing is under way any more."""
        self._is_retired = True
        async with self._changes.entity_locks.change((self.prefix,)):
            pass

    def reinstate(self) -> None:
        """It goes on after all."""
        self._is_retired = False

    def _check_not_retired(self) -> None:
        if self._is_retired:
            raise EntityNotFound(f"The namespace {self.name} is being deleted.")

    async def settled(self, path: str) -> None:
        """Wait until nobody makes, changes or deletes the entity of this path, or its topic."""
        await self._changes.entity_locks.settled(place_of(self.prefix, path))

    def _locked(self, path: str, *rule: str) -> AbstractAsyncContextManager[None]:
        """Inside, nobody else changes the entity of this path, or this rule of it."""
        return self._changes.entity_locks.change(place_of(self.prefix, path, *rule))

    async def _create(self, kind: str, name: str, description: QueueDescription) -> Entity:
        validate_name(name)
        if kind == "topic":
            check_topics(self.limits, self.name)
        async with self._locked(name):
            self._check_not_retired()
            self._check_free(name)
            check_partitioning(self.limits, self.name, description)
            self._check_room(description)
            description = fit_description(self.limits, self.name, description)
            self._check_description(name, description)
            now_ms = self.clock.now().utc_ms
            described = description.stamped(now_ms, now_ms)
            return await self._changes.create(kind, self.prefix + name, described)

    async def _update(self, entity: Entity, description: QueueDescription) -> Entity:
        entity.description.check_update(description)
        description = fit_description(self.limits, self.name, description)
        self._check_description(self.path_of(entity), description)
        created_ms = entity.description.created_utc_ms
        described = description.stamped(created_ms, self.clock.now().utc_ms)
        return await self._changes.update(entity, described)

    def _check_free(self, path: str) -> None:
        if self.gateway.directory.find(self.prefix + path) is not None:
            raise EntityAlreadyExists(f"An entity named '{path[:64]}' exists already.")

    def _check_room(self, description: QueueDescription) -> None:
        known = self.gateway.directory.by_id
        most = self.limits.entities_max
        if len(known) < most and not description.enable_partitioning:
            return  # then it does not matter how they are spread over namespaces
        ours = [e for e in known.values() if self._has(e, "queue") or self._has(e, "topic")]
        if len(ours) >= most:
            raise QuotaExceeded(f"A namespace holds at most {most} queues and topics.")
        most = self.limits.partitioned_entities_max
        if description.enable_partitioning and sum(each.is_partitioned for each in ours) >= most:
            raise QuotaExceeded(f"A namespace holds at most {most} partitioned queues and topics.")

    def _check_description(self, path: str, description: QueueDescription) -> None:
        """What a description says about other entities must be true when it is set."""
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


def _lower_name(entity: Entity) -> str:
    return entity.name.lower()
