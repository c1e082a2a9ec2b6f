"""All entities that a store knows, and how they are linked.

Every entity has a number that is never reused, and a child has a higher number than its parent: a
subscription than its topic, a rule than its subscription.  So in the log and in snapshots, children
always come after their parents.  Names tell which entity is the parent:

    topic/Subscriptions/subscription/Rules/rule

Facts are replayed on the entity they are about.  If it was deleted later, facts about it do
nothing.
"""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.descriptions import DESCRIPTIONS, SUBSCRIPTIONS, QueueDescription
from twinbus.entities.facts import (
    MAIN,
    EntityCreated,
    EntityDeleted,
    Fact,
    FannedOut,
    LastNumber,
    Together,
)
from twinbus.entities.kinds import make_queue
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.rules import Rule
from twinbus.entities.state import Grants
from twinbus.entities.topic import Topic
from twinbus.errors import EntityNotFound
from twinbus.storage.records import Counters, IdsKept

RULE: Final = "rule"
RULES: Final = "/Rules/"


def rule_path(subscription: str, rule: str) -> str:
    """Under which name a subscription's rule is kept."""
    return f"{subscription}{RULES}{rule}"


class EntityIndex:
    """All entities of a store, by number and by name, and the counters they share."""

    __slots__ = ("by_id", "facts", "grants", "names", "next_id", "rule_names", "rules")

    def __init__(self) -> None:
        self.by_id: dict[int, Queue] = {}  # whatever holds messages
        self.rules: dict[int, Rule] = {}
        self.rule_names: dict[int, str] = {}  # whole names of rules
        self.names: dict[str, int] = {}  # lower-cased; rules included
        self.facts: list[Fact] = []
        self.grants = Grants()
        self.next_id = 1

    # -- in --------------------------------------------------------------------------------------

    def put(self, kind: str, entity_id: int, name: str, description: QueueDescription) -> Queue:
        """A new queue, topic or subscription, or a new description of a known one."""
        queue = self.by_id.get(entity_id)
        if queue is not None:
            queue.update(description)
        elif kind == "topic":
            queue = Topic(entity_id, name, description, self.facts, self.grants)
        else:
            topic = self._topic_of(name) if kind == "subscription" else None
            queue = make_queue(kind, entity_id, name, description, self.facts, self.grants)
            if topic is not None:
                queue.topic_id = topic.entity_id
                topic.subscriptions[entity_id] = queue
        self.by_id[entity_id] = queue
        self._name(name, entity_id)
        return queue

    def put_rule(
        self, rule_id: int, subscription_id: int, name: str, description: RuleDescription
    ) -> Rule:
        """A new rule, or a new description of a known one."""
        subscription = self.by_id.get(subscription_id)
        topic = self.by_id.get(0 if subscription is None else subscription.topic_id)
        if not isinstance(topic, Topic):
            raise EntityNotFound(f"There is no subscription for the rule '{name[:64]}'.")
        rule = Rule(rule_id, subscription_id, description)
        topic.rules.add(rule)
        self.rules[rule_id] = rule
        self.rule_names[rule_id] = name
        self._name(name, rule_id)
        return rule

    def _topic_of(self, name: str) -> Topic:
        topic = self.by_id.get(self.names.get(_topic_in(name), 0))
        if not isinstance(topic, Topic):
            raise EntityNotFound(f"There is no topic for the subscription '{name[:64]}'.")
        return topic

    def _name(self, name: str, entity_id: int) -> None:
        self.names[name.lower()] = entity_id
        self.next_id = max(self.next_id, entity_id + 1)

    # -- out -------------------------------------------------------------------------------------

    def drop_family(self, entity_id: int) -> list[int]:
        """The entity is gone, and who belongs to it; returns them all, itself at last."""
        gone = self._family(entity_id)
        for each in gone:
            self._drop(each)
        return gone

    def _family(self, entity_id: int) -> list[int]:
        if entity_id in self.rules:
            return [entity_id]
        queue = self.by_id.get(entity_id)
        if queue is None:
            return []
        found: list[int] = []
        if isinstance(queue, Topic):
            for subscription_id in queue.subscriptions:
                found += self._family(subscription_id)
        topic = self.by_id.get(queue.topic_id)
        if isinstance(topic, Topic):
            found += [rule.rule_id for rule in topic.rules.rules_of(entity_id)]
        found.append(entity_id)
        return found

    def _drop(self, entity_id: int) -> None:
        """The entity is gone.  Its name may belong to a newer one by now."""
        rule = self.rules.pop(entity_id, None)
        if rule is not None:
            name = self.rule_names.pop(entity_id)
            subscription = self.by_id.get(rule.subscription_id)
            topic = self.by_id.get(0 if subscription is None else subscription.topic_id)
            if isinstance(topic, Topic):
                topic.rules.remove(entity_id)
        else:
            queue = self.by_id.pop(entity_id, None)
            if queue is None:
                return
            name = queue.name
            topic = self.by_id.get(queue.topic_id)
            if isinstance(topic, Topic):
                topic.rules.remove_subscription(entity_id)
                del topic.subscriptions[entity_id]
        if self.names.get(name.lower()) == entity_id:
            del self.names[name.lower()]

    # -- replay ----------------------------------------------------------------------------------

    def replay(self, fact: Fact, now: Now) -> None:
        """Let a fact happen again."""
        if isinstance(fact, EntityCreated):
            self._replay_created(fact)
        elif isinstance(fact, EntityDeleted):
            self.drop_family(fact.entity_id)
        elif isinstance(fact, FannedOut):
            self._replay_fanned_out(fact, now)
        elif isinstance(fact, Counters):
            self.grants.next = max(self.grants.next, fact.next_grant)
            self.next_id = max(self.next_id, fact.next_entity_id)
        elif isinstance(fact, Together):
            for each in fact.facts:
                self.replay(each, now)
        else:
            queue = self.by_id.get(fact.entity_id)
            if queue is None:
                return
            if isinstance(fact, LastNumber):
                _reach(queue, fact.sequence_number)
            elif isinstance(fact, IdsKept):
                if queue.history is not None:
                    queue.history.restore_entries(fact.entries)
            else:
                queue.replay(fact, now)

    def _replay_created(self, fact: EntityCreated) -> None:
        if fact.kind == RULE:
            subscription_id = self.names.get(_subscription_in(fact.name), 0)
            known = self.rules.get(fact.entity_id)
            if known is not None:
                subscription_id = known.subscription_id
            described = RuleDescription.from_json(fact.description)
            self.put_rule(fact.entity_id, subscription_id, fact.name, described)
        elif fact.kind in DESCRIPTIONS:
            description = DESCRIPTIONS[fact.kind].from_json(fact.description)
            self.put(fact.kind, fact.entity_id, fact.name, description)
        else:
            raise ValueError(
                f"an entity of kind {fact.kind[:64]!r}, which this twinbus does not know"
            )

    def _replay_fanned_out(self, fact: FannedOut, now: Now) -> None:
        topic = self.by_id.get(fact.entity_id)
        if topic is not None:
            _reach(topic, fact.sequence_number)
        for subscription_id, message in zip(fact.subscription_ids, fact.messages, strict=True):
            subscription = self.by_id.get(subscription_id)
            if subscription is not None:
                subscription.restore(message, MAIN, now)


def _reach(queue: Queue, number: int) -> None:
    queue.last_sequence_number = max(queue.last_sequence_number, number)


def _topic_in(name: str) -> str:
    """The lower-cased name of the topic that a subscription's name begins with."""
    return name.lower().partition(SUBSCRIPTIONS.lower())[0]


def _subscription_in(name: str) -> str:
    """The lower-cased name of the subscription that a rule's name begins with."""
    return name.lower().rpartition(RULES.lower())[0]
