"""Rules over AMQP: the $management operations add-rule, remove-rule and enumerate-rules.

A rule comes as maps by names (what the SDKs send) or as described lists (what the service answers
with); both are read.  Answers carry the numeric descriptors: the Java and Node SDKs look for
nothing else.  Note that filters have codes of another width than rules and actions.
"""

from typing import Final

from twinbus.amqp.decoding import decode_whole
from twinbus.amqp.types import Described, Int, Timestamp, ULong
from twinbus.entities.commands import AddRule, Command, ListRules, RemoveRule
from twinbus.entities.rule_descriptions import (
    CORRELATION,
    FALSE,
    SQL,
    TRUE,
    ActionDescription,
    FilterDescription,
    RuleDescription,
)
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.message.field_values import to_amqp, to_plain
from twinbus.server.amqp.management.entity import ManagedEntity
from twinbus.server.amqp.management.fields import Body, by_name, required_text, whole

# The Java SDK asks for all rules in one go; beyond this it gets no more, the others ask again.
LISTED_RULES_MAX: Final = 5_000
COMPATIBILITY_LEVEL: Final = Int(20)

RULE_DESCRIPTION: Final = "rule-description"
SQL_FILTER: Final = "sql-filter"
CORRELATION_FILTER: Final = "correlation-filter"
TRUE_FILTER: Final = "true-filter"
FALSE_FILTER: Final = "false-filter"
SQL_RULE_ACTION: Final = "sql-rule-action"
EMPTY_RULE_ACTION: Final = "empty-rule-action"

CODES: Final = {
    RULE_DESCRIPTION: 0x137_0000_0004,
    EMPTY_RULE_ACTION: 0x137_0000_0005,
    SQL_RULE_ACTION: 0x137_0000_0006,
    SQL_FILTER: 0x13_7000_0006,
    TRUE_FILTER: 0x13_7000_0007,
    FALSE_FILTER: 0x13_7000_0008,
    CORRELATION_FILTER: 0x13_7000_0009,
}
_BY_DESCRIPTOR: Final[dict[object, str]] = {
    **{code: name for name, code in CODES.items()},
    **{f"com.microsoft:{name}:list": name for name in CODES},
}
_FILTERS: Final = (SQL_FILTER, CORRELATION_FILTER, TRUE_FILTER, FALSE_FILTER)

# Fields of a correlation filter, in the order of its list, and the names that filters know.
_CORRELATION_FIELDS: Final = {
    "correlation-id": "correlationid",
    "message-id": "messageid",
    "to": "to",
    "reply-to": "replyto",
    "label": "label",
    "session-id": "sessionid",
    "reply-to-session-id": "replytosessionid",
    "content-type": "contenttype",
}
_PROPERTIES: Final = "properties"
_EXPRESSION: Final = "expression"
_PARAMETERS: Final = "parameters"  # ours: no SDK sends them

# The names of the elements of each described list, as far as anybody reads them.
_LISTS: Final[dict[str, tuple[str, ...]]] = {
    SQL_FILTER: (_EXPRESSION,),
    SQL_RULE_ACTION: (_EXPRESSION,),
    CORRELATION_FILTER: (*_CORRELATION_FIELDS, _PROPERTIES),
    TRUE_FILTER: (),
    FALSE_FILTER: (),
    EMPTY_RULE_ACTION: (),
}


# --- reading --------------------------------------------------------------------------------------


def read_add_rule(managed: ManagedEntity, body: Body) -> Command:
    name = required_text(body, "rule-name")
    return AddRule(managed.entity_id, _rule(name, body.get(RULE_DESCRIPTION)))


def read_remove_rule(managed: ManagedEntity, body: Body) -> Command:
    return RemoveRule(managed.entity_id, required_text(body, "rule-name"))


def read_enumerate_rules(managed: ManagedEntity, body: Body) -> Command:
    skip, top = whole(body, "skip"), whole(body, "top")
    if skip < 0 or top < 0:
        raise ArgumentOutOfRange("'skip' and 'top' must not be negative.")
    return ListRules(managed.entity_id, skip, min(top, LISTED_RULES_MAX))


def _rule(name: str, value: object) -> RuleDescription:
    parts = _parts(value)
    filters = [kind for kind in _FILTERS if parts.get(kind) is not None]
    if len(filters) != 1:
        raise ArgumentInvalid(
            f"A rule has exactly one filter ({', '.join(_FILTERS)}), not {len(filters)}."
        )
    kind = filters[0]
    action = None
    described = parts.get(SQL_RULE_ACTION)
    if described is not None:
        fields = _fields(described, SQL_RULE_ACTION)
        action = ActionDescription(required_text(fields, _EXPRESSION), _values(fields, _PARAMETERS))
    return RuleDescription(name, _filter(kind, _fields(parts[kind], kind)), action)


def _parts(value: object) -> Body:
    """Filter and action of a rule by their kinds."""
    if not isinstance(value, Described):
        return by_name(value, f"'{RULE_DESCRIPTION}'")
    if _kind(value) != RULE_DESCRIPTION or not isinstance(value.value, list):
        raise ArgumentInvalid(f"'{RULE_DESCRIPTION}' is described as something else.")
    parts: Body = {}
    for part in value.value[:2]:
        if isinstance(part, Described):
            parts[_kind(part)] = part
    return parts


def _kind(value: Described) -> str:
    descriptor = value.descriptor
    kind = _BY_DESCRIPTOR.get(descriptor) if isinstance(descriptor, int | str) else None
    if kind is None:
        raise ArgumentInvalid("A part of the rule has an unknown descriptor.")
    return kind


def _fields(value: object, kind: str) -> Body:
    if not isinstance(value, Described):
        return by_name(value, f"'{kind}'")
    if _kind(value) != kind or not isinstance(value.value, list):
        raise ArgumentInvalid(f"'{kind}' is described as something else.")
    return dict(zip(_LISTS[kind], value.value, strict=False))


def _filter(kind: str, fields: Body) -> FilterDescription:
    if kind == SQL_FILTER:
        expression = required_text(fields, _EXPRESSION)
        return FilterDescription(SQL, expression, _values(fields, _PARAMETERS))
    if kind == CORRELATION_FILTER:
        system = {
            name: to_plain(fields[field])
            for field, name in _CORRELATION_FIELDS.items()
            if fields.get(field) is not None
        }
        properties = _values(fields, _PROPERTIES)
        return FilterDescription(CORRELATION, system=system, properties=properties)
    return FilterDescription(TRUE if kind == TRUE_FILTER else FALSE)


def _values(fields: Body, key: str) -> dict[str, object]:
    value = fields.get(key)
    if value is None:
        return {}
    return {name: to_plain(each) for name, each in by_name(value, f"'{key}'").items()}


# --- writing --------------------------------------------------------------------------------------


def answer_rules(rules: list[RuleDescription]) -> tuple[int, Body]:
    if not rules:
        return 204, {}
    return 200, {"rules": [{RULE_DESCRIPTION: describe_rule(rule)} for rule in rules]}


def describe_rule(rule: RuleDescription) -> Described:
    """A rule as described lists."""
    action = _described(EMPTY_RULE_ACTION, [])
    if rule.action is not None:
        action = _described(SQL_RULE_ACTION, [rule.action.expression, COMPATIBILITY_LEVEL])
    created = Timestamp(rule.created_utc_ms)
    return _described(RULE_DESCRIPTION, [_describe_filter(rule.filter), action, rule.name, created])


def _describe_filter(described: FilterDescription) -> Described:
    if described.kind == SQL:
        return _described(SQL_FILTER, [described.expression, COMPATIBILITY_LEVEL])
    if described.kind == CORRELATION:
        fields = [described.system.get(name) for name in _CORRELATION_FIELDS.values()]
        properties = {
            name: decode_whole(to_amqp(value)) for name, value in described.properties.items()
        }
        return _described(CORRELATION_FILTER, [*fields, properties])
    return _described(TRUE_FILTER if described.kind == TRUE else FALSE_FILTER, [])


def _described(kind: str, fields: list[object]) -> Described:
    return Described(ULong(CODES[kind]), fields)
