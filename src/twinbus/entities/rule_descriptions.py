"""What a rule is told to be: its name, its filter, its action; checked, and as text for the log.

Everything is checked when a description is made, expressions included, so nobody behind this module
needs to look again.  Users' mappings are read strictly (an unknown key is an error), our own log
tolerantly (a newer version may have written more).
"""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final
from uuid import UUID

from twinbus.entities.fields import system_name
from twinbus.entities.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    TrueFilter,
    checked_values,
    parse_action,
    parse_filter,
)
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.limits import RULE_NAME_CHARS_MAX

DEFAULT_RULE_NAME: Final = "$Default"

# Kinds of filters.
SQL: Final = "Sql"
CORRELATION: Final = "Correlation"
TRUE: Final = "True"
FALSE: Final = "False"
KINDS: Final = (SQL, CORRELATION, TRUE, FALSE)

_FORBIDDEN_IN_NAMES: Final = frozenset("/\\@?#*")
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def validate_rule_name(name: str) -> None:
    """Refuse what Service Bus refuses.  Names that differ in case only are the same."""
    if not 1 <= len(name) <= RULE_NAME_CHARS_MAX:
        raise ArgumentOutOfRange(
            f"The rule name '{name[:64]}' has {len(name)} characters; "
            f"allowed are 1 to {RULE_NAME_CHARS_MAX}."
        )
    for character in name:
        if character in _FORBIDDEN_IN_NAMES or not character.isprintable():
            raise ArgumentInvalid(
                f"The rule name '{name}' contains {character!a}; / \\ @ ? # * and what cannot be "
                "printed are not allowed."
            )
    if name != name.strip():
        raise ArgumentInvalid(f"The rule name '{name}' begins or ends with a space.")


class FilterDescription:
    """A filter: its kind, and what that kind needs; the rest stays empty.

    SQL: `expression`, `parameters` by name.  Correlation: `system` (names out of
    filters.CORRELATION_NAMES → text) and `properties`, application properties by name.
    """

    __slots__ = ("expression", "kind", "parameters", "properties", "system")

    def __init__(
        self,
        kind: str,
        expression: str = "",
        parameters: dict[str, object] | None = None,
        system: dict[str, object] | None = None,
        properties: dict[str, object] | None = None,
    ) -> None:
        if kind not in KINDS:
            raise ArgumentInvalid(f"'{kind[:64]}' is not a kind of filter: {', '.join(KINDS)}.")
        self.kind = kind
        self.expression = expression
        self.parameters = checked_values(parameters or {}, "parameter")
        self.system: dict[str, object] = {}
        for name, value in (system or {}).items():
            self.system[system_name(name)] = value
        self.properties = checked_values(properties or {}, "property")
        if kind != SQL and (expression or self.parameters):
            raise ArgumentInvalid(f"A filter of kind {kind} has no expression and no parameters.")
        if kind != CORRELATION and (self.system or self.properties):
            raise ArgumentInvalid(f"A filter of kind {kind} has no properties to compare.")
        self.compile()

    def compile(self) -> Filter:
        """The filter that this describes."""
        if self.kind == SQL:
            return parse_filter(self.expression, self.parameters)
        if self.kind == CORRELATION:
            return CorrelationFilter(self.system, self.properties)
        return TrueFilter() if self.kind == TRUE else FalseFilter()


class ActionDescription:
    """An action: SET and REMOVE statements, and parameters by name."""

    __slots__ = ("expression", "parameters")

    def __init__(self, expression: str, parameters: dict[str, object] | None = None) -> None:
        self.expression = expression
        self.parameters = checked_values(parameters or {}, "parameter")
        self.compile()

    def compile(self) -> SqlAction:
        """The action that this describes."""
        return parse_action(self.expression, self.parameters)


class RuleDescription:
    """A rule of a subscription."""

    __slots__ = ("action", "created_utc_ms", "filter", "name")

    def __init__(
        self,
        name: str,
        filter_description: FilterDescription,
        action: ActionDescription | None = None,
        created_utc_ms: int = 0,
    ) -> None:
        validate_rule_name(name)
        self.name = name
        self.filter = filter_description
        self.action = action
        self.created_utc_ms = created_utc_ms

    def stamped(self, created_utc_ms: int) -> "RuleDescription":
        """The same description with the time of its rule."""
        return RuleDescription(self.name, self.filter, self.action, created_utc_ms)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RuleDescription):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """The same text for the same description, always."""
        written: dict[str, object] = {
            "name": self.name,
            "created_utc_ms": self.created_utc_ms,
            "filter": {
                "kind": self.filter.kind,
                "expression": self.filter.expression,
                "parameters": _values_to_json(self.filter.parameters),
                "system": self.filter.system,
                "properties": _values_to_json(self.filter.properties),
            },
            "action": None,
        }
        if self.action is not None:
            written["action"] = {
                "expression": self.action.expression,
                "parameters": _values_to_json(self.action.parameters),
            }
        return json.dumps(written, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "RuleDescription":
        """Read what `to_json` of this or a newer version wrote."""
        values = _mapping(json.loads(text), "rule")
        described = _mapping(values.get("filter"), "filter")
        action = values.get("action")
        return RuleDescription(
            _text(values, "name"),
            FilterDescription(
                _text(described, "kind"),
                _text(described, "expression", ""),
                _values_from_json(described.get("parameters")),
                _mapping(described.get("system"), "system"),
                _values_from_json(described.get("properties")),
            ),
            None if action is None else _action_from_json(_mapping(action, "action")),
            _number(values, "created_utc_ms"),
        )

    @classmethod
    def from_mapping(cls, values: dict[str, object]) -> "RuleDescription":
        """Read what a user wrote.

        Keys: name; kind (left out: Correlation where system or properties are given, Sql where an
        expression is, else True); expression, parameters; system, properties; action,
        action_parameters.  Every key must be one of these.
        """
        for key in values:
            if key not in _USER_KEYS:
                raise ArgumentInvalid(
                    f"'{key[:64]}' is not a property of a rule; "
                    f"properties are {', '.join(sorted(_USER_KEYS))}."
                )
        system = _mapping(values.get("system"), "system")
        properties = _mapping(values.get("properties"), "properties")
        expression = _text(values, "expression", "")
        implied = CORRELATION if system or properties else SQL if expression else TRUE
        action = _text(values, "action", "")
        action_parameters = _mapping(values.get("action_parameters"), "action_parameters")
        if action_parameters and not action:
            raise ArgumentInvalid("A rule has action_parameters but no action.")
        return RuleDescription(
            _text(values, "name"),
            FilterDescription(
                _text(values, "kind", implied),
                expression,
                _mapping(values.get("parameters"), "parameters"),
                system,
                properties,
            ),
            ActionDescription(action, action_parameters) if action else None,
        )


_USER_KEYS: Final = frozenset(
    (
        "action",
        "action_parameters",
        "expression",
        "kind",
        "name",
        "parameters",
        "properties",
        "system",
    )
)


def default_rule() -> RuleDescription:
    """The rule of a subscription that was made without one: every message."""
    return RuleDescription(DEFAULT_RULE_NAME, FilterDescription(TRUE))


# --- reading what has no type yet -----------------------------------------------------------------
def _mapping(value: object, what: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"The {what} of a rule must be a mapping.")
    for key in value:
        if not isinstance(key, str):
            raise ArgumentInvalid(f"The {what} of a rule has a name that is not text.")
    return value


def _text(values: dict[str, object], name: str, default: str | None = None) -> str:
    value = values.get(name, default)
    if not isinstance(value, str):
        raise ArgumentInvalid(f"The {name} of a rule must be text.")
    return value


def _number(values: dict[str, object], name: str) -> int:
    value = values.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentInvalid(f"The {name} of a rule must be a number.")
    return value


def _action_from_json(values: dict[str, object]) -> ActionDescription:
    return ActionDescription(
        _text(values, "expression"), _values_from_json(values.get("parameters"))
    )


# --- values with their types ----------------------------------------------------------------------
# What JSON knows stands for itself; everything else is a mapping of its type to a text or number.
def _values_to_json(values: dict[str, object]) -> dict[str, object]:
    return {name: _value_to_json(value) for name, value in values.items()}


def _value_to_json(value: object) -> object:
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    if isinstance(value, datetime):
        return {"datetime_us": (value - _EPOCH) // _MICROSECOND}
    if isinstance(value, timedelta):
        return {"timespan_us": value // _MICROSECOND}
    return value


def _values_from_json(values: object) -> dict[str, object]:
    return {name: _value_from_json(value) for name, value in _mapping(values, "values").items()}


def _value_from_json(value: object) -> object:
    if not isinstance(value, dict):
        return value
    try:
        for kind, written in value.items():
            if isinstance(written, str):
                if kind == "uuid":
                    return UUID(written)
                if kind == "decimal":
                    return Decimal(written)
                if kind == "binary":
                    return bytes.fromhex(written)
            elif isinstance(written, int):
                if kind == "datetime_us":
                    return _EPOCH + timedelta(microseconds=written)
                if kind == "timespan_us":
                    return timedelta(microseconds=written)
    except (ValueError, OverflowError, InvalidOperation):
        pass
    raise ArgumentInvalid("A value of a rule has a type that this version does not know.")
