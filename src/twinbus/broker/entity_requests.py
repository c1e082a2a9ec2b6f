"""Commands on which a queue cannot decide alone: they need bodies, rules or many turns.

All others go straight to `Queue.apply`, and so does what is the queue's part of these.  A function
may state facts and raise ServiceError, in which case nothing has changed.  What it returns is the
reply's result, handed out when everything it stated is durable; or PENDING, where the reply comes
from a walk (bulk.py).
"""

from collections.abc import Callable
from typing import Final, cast

from twinbus.broker.bulk import begin_walk
from twinbus.broker.store_run import StoreRun
from twinbus.clock import Now
from twinbus.entities.commands import (
    PEEK_LOCK,
    AddRule,
    Command,
    Delivered,
    ListRules,
    Peek,
    ReceiveDeferred,
    RemoveRule,
    ReplaceRule,
)
from twinbus.entities.facts import gather
from twinbus.entities.message import Message
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
from twinbus.limits import PEEK_RESPONSE_BYTES_MAX
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
    run.store.create_rule(queue.entity_id, command.description.stamped(now.utc_ms))


def _replace_rule(run: StoreRun, queue: Queue, command: Command, now: Now) -> None:
    """Another rule in the place of the one with its name; nobody sees neither of them."""
    assert isinstance(command, ReplaceRule)
    _check_subscription(queue)
    store = run.store
    old = find_rule(store, queue, command.description.name)
    mark = len(store.facts)
    store.delete_rule(old.rule_id)
    store.create_rule(queue.entity_id, command.description.stamped(old.description.created_utc_ms))
    gather(store.facts, mark)


def _remove_rule(run: StoreRun, queue: Queue, command: Command, now: Now) -> None:
    assert isinstance(command, RemoveRule)
    _check_subscription(queue)
    rule = find_rule(run.store, queue, command.name)
    run.store.delete_rule(rule.rule_id)


def _list_rules(run: StoreRun, queue: Queue, command: Command, now: Now) -> list[RuleDescription]:
    assert isinstance(command, ListRules)
    _check_subscription(queue)
    rules = list_rules(run.store, queue)[command.skip : command.skip + command.top]
    return [rule.description for rule in rules]


def _check_subscription(queue: Queue) -> None:
    if queue.topic_id == 0:
        raise InvalidOperation(
            f"'{queue.shown_name}' is a {queue.kind}; only subscriptions have rules."
        )


def _peek(run: StoreRun, queue: Queue, command: Command, now: Now) -> list[Delivered]:
    assert isinstance(command, Peek)
    if command.count == 0:
        return []  # the SDK asks for none at times
    found = cast(list[Message], queue.apply(command, now))
    return _delivered(run.store, _within(found, PEEK_RESPONSE_BYTES_MAX), 0)


def _receive_deferred(run: StoreRun, queue: Queue, command: Command, now: Now) -> list[Delivered]:
    assert isinstance(command, ReceiveDeferred)
    found = cast(list[Message], queue.apply(command, now))
    is_locked = command.receive_mode == PEEK_LOCK
    until = now.utc_ms + queue.description.lock_duration_ms if is_locked else 0
    return _delivered(run.store, found, until)


def _delivered(store: Store, messages: list[Message], until: int) -> list[Delivered]:
    bodies = store.read_bodies(messages)
    return [Delivered(m, b, until) for m, b in zip(messages, bodies, strict=True)]


def _within(messages: list[Message], size_max: int) -> list[Message]:
    """As many of the first messages as fit, but always one."""
    size = 0
    for index, message in enumerate(messages):
        size += message.length
        if size > size_max and index:
            return messages[:index]
    return messages


REQUESTS: Final[dict[type[Command], Decide]] = {
    Peek: _peek,
    ReceiveDeferred: _receive_deferred,
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
}
