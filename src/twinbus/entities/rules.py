"""Rules: which subscriptions of a topic get a message, and in how many copies.

A subscription gets one copy if any of its rules without an action matches, and one more for every
matching rule with an action.  RuleIndex answers for all subscriptions of a topic at once:

    true filters          counted by subscription when they are added; nothing to do per message
    correlation filters   filed by the set of properties they ask for: one look into a dictionary
                          for every such set, however many filters share it
    SQL filters           evaluated one by one

Never decides what becomes of a message whose filter failed: it reports, the topic decides.
"""

from twinbus.entities.fields import Changes, Fields, NewId
from twinbus.entities.filters import CorrelationFilter, SqlFilter, TrueFilter, distinct, field_of
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.sql.values import FilterError
from twinbus.errors import QuotaExceeded
from twinbus.limits import CORRELATION_FILTERS_MAX, SQL_FILTERS_MAX


class Rule:
    """A rule at work."""

    __slots__ = ("action", "description", "filter", "rule_id", "subscription_id")

    def __init__(self, rule_id: int, subscription_id: int, description: RuleDescription) -> None:
        self.rule_id = rule_id
        self.subscription_id = subscription_id
        self.description = description
        self.filter = description.filter.compile()
        self.action = None if description.action is None else description.action.compile()


class Match:
    """One copy for a subscription, or why there is none.

    `changes` is None for the message as it is.  With an `error` this is no copy: a filter or an
    action of the subscription failed.  Never changed once made, so equal ones are shared.
    """

    __slots__ = ("changes", "error", "rule_id", "subscription_id")

    def __init__(
        self,
        subscription_id: int,
        rule_id: int = 0,
        changes: Changes | None = None,
        error: FilterError | None = None,
    ) -> None:
        self.subscription_id = subscription_id
        self.rule_id = rule_id  # of the action, or of what failed; 0 = rules without action
        self.changes = changes
        self.error = error


class _Group:
    """Correlation filters that ask for the same properties, by the values they want."""

    __slots__ = ("_keys", "_single", "rules")

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._single = keys[0] if len(keys) == 1 else ""
        self.rules: dict[tuple[object, ...], dict[int, Rule]] = {}

    def find(self, fields: Fields) -> dict[int, Rule] | None:
        if self._single:
            value = field_of(fields, self._single)
            return None if value is None else self.rules.get((distinct(value),))
        values: list[object] = []
        for key in self._keys:
            value = field_of(fields, key)
            if value is None:
                return None
            values.append(distinct(value))
        return self.rules.get(tuple(values))


class RuleIndex:
    """All rules of all subscriptions of one topic."""

    __slots__ = (
        "_acting",
        "_always",
        "_by_subscription",
        "_groups",
        "_plain",
        "_ready",
        "_rules",
        "_sql",
        "correlation_filter_count",
        "needs_fields",
        "sql_filter_count",
    )

    def __init__(self) -> None:
        self.needs_fields = False  # does any rule have to look at a message?
        self.sql_filter_count = 0
        self.correlation_filter_count = 0
        self._rules: dict[int, Rule] = {}
        self._by_subscription: dict[int, dict[int, Rule]] = {}
        self._sql: dict[int, Rule] = {}
        self._acting: dict[int, Rule] = {}  # true filters with an action
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._always: dict[int, int] = {}  # subscription → its true filters without action
        self._plain: dict[int, Match] = {}  # subscription → its copy without changes
        self._ready: list[Match] | None = None  # the answer as long as only _always counts

    def rules_of(self, subscription_id: int) -> list[Rule]:
        """The rules of one subscription, in the order of their ids."""
        return sorted(self._by_subscription.get(subscription_id, {}).values(), key=_rule_id)

    @property
    def rule_count(self) -> int:
        return len(self._rules)

    def add(self, rule: Rule) -> None:
        """File a rule; one with the same id gives way.  QuotaExceeded when there are too many."""
        replaced = self._rules.get(rule.rule_id)
        if replaced is not None:
            self.remove(rule.rule_id)
        try:
            self._file(rule)
        except QuotaExceeded:
            if replaced is not None:
                self.add(replaced)
            raise
        self._rules[rule.rule_id] = rule
        self._by_subscription.setdefault(rule.subscription_id, {})[rule.rule_id] = rule
        self._changed()

    def _file(self, rule: Rule) -> None:
        chosen = rule.filter
        if isinstance(chosen, SqlFilter):
            if self.sql_filter_count >= SQL_FILTERS_MAX:
                raise QuotaExceeded(
                    f"The topic has {SQL_FILTERS_MAX} SQL filters, the most it may."
                )
            self.sql_filter_count += 1
            self._sql[rule.rule_id] = rule
        elif isinstance(chosen, CorrelationFilter):
            if self.correlation_filter_count >= CORRELATION_FILTERS_MAX:
                raise QuotaExceeded(
                    f"The topic has {CORRELATION_FILTERS_MAX} correlation filters, the most it may."
                )
            self.correlation_filter_count += 1
            group = self._groups.get(chosen.keys)
            if group is None:
                group = _Group(chosen.keys)
                self._groups[chosen.keys] = group
            group.rules.setdefault(chosen.values, {})[rule.rule_id] = rule
        elif isinstance(chosen, TrueFilter):
            if rule.action is None:
                subscription_id = rule.subscription_id
                self._always[subscription_id] = self._always.get(subscription_id, 0) + 1
            else:
                self._acting[rule.rule_id] = rule

    def remove(self, rule_id: int) -> None:
        """Forget a rule, if it is there."""
        rule = self._rules.pop(rule_id, None)
        if rule is None:
            return
        siblings = self._by_subscription[rule.subscription_id]
        del siblings[rule_id]
        if not siblings:
            del self._by_subscription[rule.subscription_id]
        chosen = rule.filter
        if isinstance(chosen, SqlFilter):
            self.sql_filter_count -= 1
            del self._sql[rule_id]
        elif isinstance(chosen, CorrelationFilter):
            self.correlation_filter_count -= 1
            self._unfile(rule_id, chosen)
        elif isinstance(chosen, TrueFilter):
            if rule.action is not None:
                del self._acting[rule_id]
            elif self._always[rule.subscription_id] > 1:
                self._always[rule.subscription_id] -= 1
            else:
                del self._always[rule.subscription_id]
        self._changed()

    def remove_subscription(self, subscription_id: int) -> None:
        """Forget all rules of a subscription."""
        for rule in self.rules_of(subscription_id):
            self.remove(rule.rule_id)

    def _unfile(self, rule_id: int, chosen: CorrelationFilter) -> None:
        group = self._groups[chosen.keys]
        alike = group.rules[chosen.values]
        del alike[rule_id]
        if not alike:
            del group.rules[chosen.values]
            if not group.rules:
                del self._groups[chosen.keys]

    def _changed(self) -> None:
        self.needs_fields = bool(self._sql or self._groups or self._acting)
        self._ready = None
        self._plain = {}

    def match(self, fields: Fields | None, new_id: NewId) -> list[Match]:
        """What every subscription gets, by the order of their ids; not to be changed by the caller.

        For one subscription the copy without changes comes first, then those with changes in the
        order of the rules' ids, then at most one error, the first.  `fields` may be None while
        needs_fields is False.
        """
        if not self.needs_fields:
            if self._ready is None:
                self._ready = self._copies(self._always)
            return self._ready
        assert fields is not None
        matched = dict(self._always)
        special: list[Match] = []
        for group in self._groups.values():
            found = group.find(fields)
            if found is not None:
                for rule in found.values():
                    if rule.action is None:
                        matched[rule.subscription_id] = 1
                    else:
                        special.append(_acted(rule, fields, new_id))
        for rule in self._sql.values():
            try:
                fits = rule.filter.matches(fields, new_id)
            except FilterError as error:
                special.append(Match(rule.subscription_id, rule.rule_id, None, error))
                continue
            if fits:
                if rule.action is None:
                    matched[rule.subscription_id] = 1
                else:
                    special.append(_acted(rule, fields, new_id))
        special += [_acted(rule, fields, new_id) for rule in self._acting.values()]
        copies = self._copies(matched)
        return _merged(copies, special) if special else copies

    def _copies(self, subscriptions: dict[int, int]) -> list[Match]:
        copies: list[Match] = []
        plain = self._plain
        for subscription_id in sorted(subscriptions):
            match = plain.get(subscription_id)
            if match is None:
                match = Match(subscription_id)
                plain[subscription_id] = match
            copies.append(match)
        return copies


def _acted(rule: Rule, fields: Fields, new_id: NewId) -> Match:
    """The copy that a rule with an action makes."""
    assert rule.action is not None
    try:
        changes = rule.action.apply(fields, new_id)
    except FilterError as error:
        return Match(rule.subscription_id, rule.rule_id, None, error)
    return Match(rule.subscription_id, rule.rule_id, changes)


def _merged(copies: list[Match], special: list[Match]) -> list[Match]:
    """All in order; of a subscription's errors only the first."""
    merged: list[Match] = []
    failed: set[int] = set()
    for match in sorted(copies + special, key=_order):
        if match.error is not None:
            if match.subscription_id in failed:
                continue
            failed.add(match.subscription_id)
        merged.append(match)
    return merged


def _order(match: Match) -> tuple[int, bool, int]:
    return match.subscription_id, match.error is not None, match.rule_id


def _rule_id(rule: Rule) -> int:
    return rule.rule_id
