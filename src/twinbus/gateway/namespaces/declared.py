"""Entities of the configuration: created if missing, otherwise updated.

Messages stay.  A subscription that lists rules has exactly those afterwards; without a list it
keeps its own.  Nothing is written if nothing differs, so starting twice is the same as starting
once.
"""

from dataclasses import replace
from typing import TypeVar

from twinbus.config import Declared, SubscriptionConfig
from twinbus.entities.descriptions import QueueDescription, subscription_path
from twinbus.errors import EntityNotFound
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.tiers import fit_description
from twinbus.limits import PAGE_COUNT_MAX

D = TypeVar("D", bound=QueueDescription)


async def declare(namespace: Namespace, declared: Declared) -> None:
    """Make sure of everything.

    Twice over: an entity may forward to one that is declared after it, so first all are made
    without forwarding, then they get their settings.
    """
    for name, description in declared.queues:
        if not _exists(namespace, name):
            await namespace.create_queue(name, _without_forwarding(description))
    for topic in declared.topics:
        if not _exists(namespace, topic.name):
            await namespace.create_topic(topic.name, topic.description)
        for subscription in topic.subscriptions:
            if not _exists(namespace, subscription_path(topic.name, subscription.name)):
                await namespace.create_subscription(
                    topic.name,
                    subscription.name,
                    _without_forwarding(subscription.description),
                    subscription.rules[0] if subscription.rules else None,
                )
    await _update(namespace, declared)


async def _update(namespace: Namespace, declared: Declared) -> None:
    for name, description in declared.queues:
        before = namespace.find_queue(name).description
        wanted = _wanted(namespace, description, before)
        if wanted != before:
            await namespace.update_queue(name, wanted)
    for topic in declared.topics:
        before = namespace.find_topic(topic.name).description
        wanted_topic = _wanted(namespace, topic.description, before)
        if wanted_topic != before:
            await namespace.update_topic(topic.name, wanted_topic)
        for subscription in topic.subscriptions:
            path = subscription_path(topic.name, subscription.name)
            before = namespace.find_entity(path).description
            wanted_subscription = _wanted(namespace, subscription.description, before)
            if wanted_subscription != before:
                await namespace.update_subscription(
                    topic.name, subscription.name, wanted_subscription
                )
            if subscription.rules:
                await _declare_rules(namespace, topic.name, subscription)


async def _declare_rules(
    namespace: Namespace, topic: str, subscription: SubscriptionConfig
) -> None:
    name = subscription.name
    views = await namespace.list_rules(topic, name, 0, PAGE_COUNT_MAX)
    existing = {view.name.lower(): view.description for view in views}
    for rule in subscription.rules:
        before = existing.pop(rule.name.lower(), None)
        if before is None:
            await namespace.create_rule(topic, name, rule)
        elif rule.stamped(before.created_utc_ms) != before:
            await namespace.update_rule(topic, name, rule)
    for extra in existing.values():
        await namespace.delete_rule(topic, name, extra.name)


def _exists(namespace: Namespace, path: str) -> bool:
    try:
        namespace.find_entity(path)
    except EntityNotFound:
        return False
    return True


def _without_forwarding(description: D) -> D:
    return replace(description, forward_to=None, forward_dead_lettered_messages_to=None)


def _wanted(namespace: Namespace, declared: D, before: QueueDescription) -> D:
    """What the entity should be: as declared, with what no file declares left as it is."""
    fitted = fit_description(namespace.limits, namespace.name, declared)
    stamped = fitted.stamped(before.created_utc_ms, before.updated_utc_ms)
    return replace(stamped, authorization_rules=before.authorization_rules)
