"""Filters and actions of rules: which messages a subscription gets, and what changes on the way.

Four kinds of filter: SQL, correlation, true and false.  A filter looks at `Fields`, never at bytes;
an action gives `Changes`, which only the gateway can apply.  A text that is no filter or action is
ArgumentInvalid when the rule is made; a message that a filter cannot deal with is FilterError when
it arrives.  Pure: newid() takes its ids from an argument.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from twinbus.entities.fields import Changes, Fields, NewId, system_name
from twinbus.entities.sql.nodes import SqlNode, SystemProperty, UserProperty
from twinbus.entities.sql.parser import Parser, Statement
from twinbus.entities.sql.values import FilterError, fits_rule, is_unicode, kind_of, to_text
from twinbus.errors import ArgumentInvalid
from twinbus.limits import (
    FILTER_PARAMETERS_MAX,
    FILTER_TEXT_CHARS_MAX,
    MESSAGE_ID_CHARS_MAX,
    PARTITION_KEY_CHARS_MAX,
    SESSION_ID_CHARS_MAX,
)

_TEXT_CHARS_MAX: Final = {
    "messageid": MESSAGE_ID_CHARS_MAX,
    "partitionkey": PARTITION_KEY_CHARS_MAX,
    "replytosessionid": SESSION_ID_CHARS_MAX,
    "sessionid": SESSION_ID_CHARS_MAX,
    "viapartitionkey": PARTITION_KEY_CHARS_MAX,
}

# What a correlation filter can ask of a message besides its application properties.
CORRELATION_NAMES: Final = (
    "correlationid",
    "messageid",
    "to",
    "replyto",
    "label",
    "sessionid",
    "replytosessionid",
    "contenttype",
)


class Filter:
    """Base: a yes or no for every message."""

    __slots__ = ()

    def matches(self, fields: Fields, new_id: NewId) -> bool:
        raise NotImplementedError


class TrueFilter(Filter):
    __slots__ = ()

    def matches(self, fields: Fields, new_id: NewId) -> bool:
        return True


class FalseFilter(Filter):
    __slots__ = ()

    def matches(self, fields: Fields, new_id: NewId) -> bool:
        return False


class SqlFilter(Filter):
    """A condition; made by parse_filter."""

    __slots__ = ("_condition", "text")

    def __init__(self, text: str, condition: SqlNode) -> None:
        self.text = text
        self._condition = condition

    def matches(self, fields: Fields, new_id: NewId) -> bool:
        """True only if the condition is: unknown is not enough.  May raise FilterError."""
        return self._condition.evaluate(fields, new_id) is True


class CorrelationFilter(Filter):
    """Equality of some properties, all of which must hold.

    Values match by value and kind: text exactly, letter by letter; numbers with numbers, whatever
    their width; nothing else is converted.  Names of application properties match in any case.
    `keys` and `values` are what RuleIndex files it under.
    """

    __slots__ = ("keys", "values")

    def __init__(self, system: dict[str, object], user: dict[str, object]) -> None:
        wanted: dict[str, object] = {}
        for name, value in system.items():
            key = system_name(name)
            if key not in CORRELATION_NAMES:
                raise ArgumentInvalid(
                    f"A correlation filter cannot ask for '{name[:64]}'; "
                    f"it can for {', '.join(CORRELATION_NAMES)}."
                )
            if not isinstance(value, str):
                raise ArgumentInvalid(f"The correlation filter's {key} must be text.")
            wanted[SYSTEM_KEY + key] = value
        for name, value in checked_values(user, "property").items():
            if value is None:
                raise ArgumentInvalid(
                    f"The correlation filter's property '{name[:64]}' has no value."
                )
            wanted[USER_KEY + name.lower()] = value
        if not wanted:
            raise ArgumentInvalid("A correlation filter asks for at least one property.")
        for value in wanted.values():
            if not fits_rule(value):
                raise ArgumentInvalid(f"A correlation filter cannot ask for this {kind_of(value)}.")
        self.keys = tuple(sorted(wanted))
        self.values = tuple([distinct(wanted[key]) for key in self.keys])

    def matches(self, fields: Fields, new_id: NewId) -> bool:
        for key, value in zip(self.keys, self.values, strict=True):
            if distinct(field_of(fields, key)) != value:
                return False
        return True


# How the keys of a correlation filter begin, so that both kinds of names live in one list.
SYSTEM_KEY: Final = "s"
USER_KEY: Final = "u"


def field_of(fields: Fields, key: str) -> object:
    """What a message has under a correlation filter's key."""
    if key[0] == SYSTEM_KEY:
        return fields.system.get(key[1:])
    return fields.user.get(key[1:])


def distinct(value: object) -> object:
    """The value in a form whose equality is ours: Python takes True for 1."""
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    return value


_TRUE: Final = (True,)
_FALSE: Final = (False,)


class SqlAction:
    """Statements that change a message; made by parse_action."""

    __slots__ = ("_statements", "text")

    def __init__(self, text: str, statements: list[Statement]) -> None:
        self.text = text
        self._statements = statements

    def apply(self, fields: Fields, new_id: NewId) -> Changes:
        """What becomes of a message; `fields` stays as it is.  May raise FilterError.

        A statement sees what the statements before it did.
        """
        working = fields.copy()
        changes = Changes()
        written: dict[str, str] = {}  # lower-case name → name as first written
        for statement in self._statements:
            target = statement.target
            if isinstance(target, SystemProperty):
                value: object = None
                if statement.value is not None:
                    value = _system_value(target.name, statement.value.evaluate(working, new_id))
                changes.system[target.name] = value
                working.system[target.name] = value
            elif isinstance(target, UserProperty):
                name = written.setdefault(target.lower, target.name)
                if statement.value is None:
                    changes.user.pop(name, None)
                    changes.removed.add(target.lower)
                    working.user.pop(target.lower, None)
                else:
                    value = statement.value.evaluate(working, new_id)
                    value = _converted(value, working.user.get(target.lower))
                    changes.removed.discard(target.lower)
                    changes.user[name] = value
                    working.user[target.lower] = value
        return changes


def _system_value(name: str, value: object) -> object:
    """A value for a system property, which has a type of its own."""
    if value is None:
        if name == "messageid":
            raise FilterError("A message cannot be without its messageid.")
        return None
    if name == "timetolive":
        if not isinstance(value, timedelta):
            raise FilterError(f"timetolive is a duration, not {kind_of(value)}.")
        if value <= timedelta():
            raise FilterError("timetolive is longer than nothing.")
        return value
    text = to_text(value)
    allowed = _TEXT_CHARS_MAX.get(name, FILTER_TEXT_CHARS_MAX)
    if len(text) > allowed:
        raise FilterError(f"{name} has {len(text)} characters; allowed are {allowed}.")
    if name == "messageid" and not text:
        raise FilterError("A message cannot be without its messageid.")
    if name == "contenttype" and not text.isascii():
        raise FilterError("contenttype is ASCII text.")
    return text


def _converted(value: object, existing: object) -> object:
    """An integer that replaces a double or a decimal takes over its type."""
    if isinstance(value, int) and not isinstance(value, bool):
        if isinstance(existing, float):
            return float(value)
        if isinstance(existing, Decimal):
            return Decimal(value)
    return value


# --- reading --------------------------------------------------------------------------------------
def parse_filter(text: str, parameters: dict[str, object]) -> SqlFilter:
    """A SQL filter; ArgumentInvalid says where the text is none."""
    return SqlFilter(text, Parser(text, "filter", _by_name(parameters)).filter())


def parse_action(text: str, parameters: dict[str, object]) -> SqlAction:
    """A SQL action; ArgumentInvalid says where the text is none."""
    return SqlAction(text, Parser(text, "action", _by_name(parameters)).action())


def _by_name(parameters: dict[str, object]) -> dict[str, object]:
    values = checked_values(parameters, "parameter")
    return {name.removeprefix("@").lower(): value for name, value in values.items()}


def checked_values(values: dict[str, object], what: str) -> dict[str, object]:
    """Values by name as a rule may have them; times without a zone are UTC."""
    if len(values) > FILTER_PARAMETERS_MAX:
        raise ArgumentInvalid(
            f"A rule has at most {FILTER_PARAMETERS_MAX} values for each {what}, not {len(values)}."
        )
    checked: dict[str, object] = {}
    for name, value in values.items():
        if not 1 <= len(name) <= FILTER_TEXT_CHARS_MAX or not is_unicode(name):
            raise ArgumentInvalid(f"A {what} of a rule has an unusable name.")
        if not fits_rule(value):
            raise ArgumentInvalid(
                f"The {what} '{name[:64]}' has a value that a rule cannot hold ({kind_of(value)})."
            )
        checked[name] = _in_utc(value, name, what)
    _refuse_twice(checked, what)
    return checked


def _in_utc(value: object, name: str, what: str) -> object:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ArgumentInvalid(f"The {what} '{name[:64]}' is a time beyond all dates.") from None


def _refuse_twice(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        lower = name.removeprefix("@").lower()
        if lower in seen:
            raise ArgumentInvalid(f"The {what} '{name[:64]}' is given twice.")
        seen.add(lower)
