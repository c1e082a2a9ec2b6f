"""Commands that are rare, each with the function that decides it; the broker's loop stays short.

A function may state facts and raise ServiceError, in which case nothing has changed.  What it
returns is the reply's result, handed out when everything it stated is durable; or PENDING, where
the reply comes from a walk (bulk.py).
"""

from collections.abc import Callable
from typing import Final

from twinbus.broker.bulk import begin_walk
from twinbus.broker.store_run import StoreRun
from twinbus.clock import Now
from twinbus.entities.commands import (
    AddRule,
    Command,
    ListPartitions,
    ListRules,
    PartitionState,
    RemoveRule,
    ReplaceRule,
)
from twinbus.entities.facts import gather
from twinbus.entities.queue import Queue
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.rules import Rule
from twinbus.entities.selections import (
    Browse,
    DeleteMessages,
    ListNumbers,
    Resubmit,
    SettleRanges,
    Undefer,
)
from twinbus.errors import EntityNotFound, InvalidOperation
from twinbus.storage.entity_index import rule_path
from twinbus.storage.store import Store

Decide = Callable[[StoreRun, Queue, Command, Now], object]


def find_rule(store: Store, subscription: Queue, name: str) -> Rule:
    """A rule of a subscription by its name."""
    rule = store.rules.get(store.names.get(rule_path(subscription.name, name).lower(), 0))
    if rule is None:
        # The Node SDK knows what is not there by the first three words.
        raise EntityNotFound(f"The messaging entity 'rule {name[:64]}' could not be found.")
    return rule


def list_rules(store: Store, subscription: Queue) -> list[Rule]:
    """The rules of a subscription, in order of their names."""
    topic = store.entities.get(subscription.topic_id)
    rules = [] if topic is None else topic.rules_of(subscription.entity_id)
    return sorted(rules, key=_rule_name)


def _rule_name(rule: Rule) -> str:
    return rule.description.name.lower()


def _add_rule(run: StoreRun, queue: Queue, command: Command, now: Now) -> None:
    assert isinstance(command, AddRule)
    _check_subscription(queue)
    queue.accessed_utc_ms = now.utc_ms
    run.store.create_rule(queue.entity_id, command.description.stamped(now.utc_ms))


def _replace_rule(run: StoreRun, queue: Queue, command: Command, now: Now) -> None:
    """Another rule in the place of the one with its name; nobody sees neither of them."""
    assert isinstance(command, ReplaceRule)
    _check_subscription(queue)
    store = run.store
    old = find_rule(store, queue, command.description.name)
    queue.accessed_utc_ms = now.utc_ms
    mark = len(store.facts)
    store.delete_rule(old.rule_id)
    store.create_rule(queue.entity_id, command.description.stamped(old.description.created_utc_ms))
    gather(store.facts, mark)


def _remove_rule(run: StoreRun, queue: Queue, command: Command, now: Now) -> None:
    assert isinstance(command, RemoveRule)
    _check_subscription(queue)
    rule = find_rule(run.store, queue, command.name)
    queue.accessed_utc_ms = now.utc_ms
    run.store.delete_rule(rule.rule_id)


def _list_rules(run: StoreRun, queue: Queue, command: Command, now: Now) -> list[RuleDescription]:
    assert isinstance(command, ListRules)
    _check_subscription(queue)
    queue.accessed_utc_ms = now.utc_ms
    rules = list_rules(run.store, queue)[command.skip : command.skip + command.top]
    return [rule.description for rule in rules]


def _list_partitions(
    run: StoreRun, queue: Queue, command: Command, now: Now
) -> list[PartitionState]:
    assert isinstance(command, ListPartitions)
    queue.check_receivable()
    first, after, count = queue.span(command.subqueue)
    return [PartitionState(max(0, queue.partition), True, first, after, count)]


def _check_subscription(queue: Queue) -> None:
    if queue.topic_id == 0:
        raise InvalidOperation(
            f"'{queue.shown_name}' is a {queue.kind}; only subscriptions have rules."
        )


REQUESTS: Final[dict[type[Command], Decide]] = {
    AddRule: _add_rule,
    ReplaceRule: _replace_rule,
    RemoveRule: _remove_rule,
    ListRules: _list_rules,
    Browse: begin_walk,
    DeleteMessages: begin_walk,
    Undefer: begin_walk,
    Resubmit: begin_walk,
    ListNumbers: begin_walk,
    SettleRanges: begin_walk,
    ListPartitions: _list_partitions,
}
