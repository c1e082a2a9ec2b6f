"""The catalog: making, changing and removing entities and rules in a broker's store.

Every change is stated at once and counts from then on; `then` is called when it is durable.  Names
are those of the store, and whoever calls has checked them.
"""

from collections.abc import Callable

from twinbus.broker.broker import Broker
from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import gather
from twinbus.entities.queue import Queue
from twinbus.entities.rules import Rule, RuleDescription
from twinbus.errors import ServiceError

Then = Callable[[], None]


class Catalog:
    """The entities of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def create_entity(
        self, kind: str, name: str, description: QueueDescription, then: Then
    ) -> Queue:
        """A new queue or topic."""
        queue = self._store.create_entity(kind, name, description)
        self._broker.when_durable(then)
        self._broker.note_entity(queue)
        return queue

    def create_subscription(
        self, name: str, description: QueueDescription, rule: RuleDescription, then: Then
    ) -> Queue:
        """A new subscription with its first rule."""
        mark = len(self._store.facts)
        queue = self._store.create_entity("subscription", name, description)
        try:
            self._store.create_rule(queue.entity_id, rule)
        except ServiceError:
            self._store.delete_entity(queue.entity_id)
            raise
        finally:
            gather(self._store.facts, mark)
        self._broker.when_durable(then)
        self._broker.note_entity(queue)
        return queue

    def update_entity(self, queue: Queue, description: QueueDescription, then: Then) -> None:
        self._store.update_entity(queue.entity_id, description)
        self._broker.when_durable(then)
        self._broker.note_entity(queue)

    def delete_entity(self, queue: Queue, then: Then) -> None:
        """The entity goes; a topic with its subscriptions, a subscription with its rules."""
        self._broker.delete_entity(queue)
        self._broker.when_durable(then)

    def create_rule(self, subscription: Queue, description: RuleDescription, then: Then) -> Rule:
        rule = self._store.create_rule(subscription.entity_id, description)
        self._broker.when_durable(then)
        return rule

    def replace_rule(self, rule: Rule, description: RuleDescription, then: Then) -> Rule:
        """Another rule in the place of this one; nobody sees the subscription without either."""
        mark = len(self._store.facts)
        self._store.delete_rule(rule.rule_id)
        made = self._store.create_rule(rule.subscription_id, description)
        gather(self._store.facts, mark)
        self._broker.when_durable(then)
        return made

    def delete_rule(self, rule: Rule, then: Then) -> None:
        self._store.delete_rule(rule.rule_id)
        self._broker.when_durable(then)
