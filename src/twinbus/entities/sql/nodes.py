"""A SQL filter or action, taken apart: nodes that evaluate themselves.

A node gives a value for a message; None is unknown.  Conditions give True, False or None.  Chains
(AND, OR, + -, * / %) are one node with many operands, so that depth, and with it recursion, comes
from brackets alone.  Conditions are evaluated from left to right and only until the result is sure,
so that `x <> 0 AND 10 / x > 2` never divides by zero.
"""

from typing import Final

from twinbus.entities.fields import SYSTEM_NAMES, Fields, NewId, system_name
from twinbus.entities.sql.like import Pattern
from twinbus.entities.sql.values import EQUAL, FilterError, calculate, compare, kind_of, signed

_SHOWN_CHARS_MAX: Final = 32


class SqlNode:
    """Base."""

    __slots__ = ()

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        raise NotImplementedError


class Condition(SqlNode):
    """Base of what is true, false or unknown."""

    __slots__ = ()


# --- values ---------------------------------------------------------------------------------------
class Constant(SqlNode):
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return self.value


class Property(SqlNode):
    """Base of what names a property."""

    __slots__ = ()

    def exists(self, fields: Fields, new_id: NewId) -> bool:
        raise NotImplementedError


class UserProperty(Property):
    """An application property; one that the message lacks is unknown."""

    __slots__ = ("lower", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lower = name.lower()

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return fields.user.get(self.lower)

    def exists(self, fields: Fields, new_id: NewId) -> bool:
        return self.lower in fields.user


class SystemProperty(Property):
    """A property of every message; one that Service Bus does not know is an error."""

    __slots__ = ("_known", "name")

    def __init__(self, name: str) -> None:
        self.name = system_name(name)
        self._known = self.name in SYSTEM_NAMES

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        if not self._known:
            raise FilterError(f"There is no system property '{self.name[:_SHOWN_CHARS_MAX]}'.")
        return fields.system.get(self.name)

    def exists(self, fields: Fields, new_id: NewId) -> bool:
        return self.evaluate(fields, new_id) is not None


class NamedProperty(Property):
    """property(name): an application property whose name is computed."""

    __slots__ = ("_name",)

    def __init__(self, name: SqlNode) -> None:
        self._name = name

    def _lower(self, fields: Fields, new_id: NewId) -> str | None:
        name = self._name.evaluate(fields, new_id)
        if name is None:
            return None
        if not isinstance(name, str):
            raise FilterError(f"The name in property() is {kind_of(name)}, not text.")
        return name.lower()

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        lower = self._lower(fields, new_id)
        return None if lower is None else fields.user.get(lower)

    def exists(self, fields: Fields, new_id: NewId) -> bool:
        lower = self._lower(fields, new_id)
        return lower is not None and lower in fields.user


class NewIdCall(SqlNode):
    __slots__ = ()

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return new_id()


class Sign(SqlNode):
    """A + or - in front."""

    __slots__ = ("_negative", "_operand")

    def __init__(self, operand: SqlNode, negative: bool) -> None:
        self._operand = operand
        self._negative = negative

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return signed(self._operand.evaluate(fields, new_id), self._negative)


class Chain(SqlNode):
    """Operands with operators of one precedence between them, from left to right."""

    __slots__ = ("_operands", "_operators")

    def __init__(self, operands: list[SqlNode], operators: list[int]) -> None:
        self._operands = operands
        self._operators = operators

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        operands = self._operands
        value = operands[0].evaluate(fields, new_id)
        for place, operator in enumerate(self._operators, start=1):
            value = calculate(operator, value, operands[place].evaluate(fields, new_id))
        return value


# --- conditions -----------------------------------------------------------------------------------
class Compare(Condition):
    __slots__ = ("_left", "_operator", "_right")

    def __init__(self, operator: int, left: SqlNode, right: SqlNode) -> None:
        self._operator = operator
        self._left = left
        self._right = right

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        left = self._left.evaluate(fields, new_id)
        return compare(self._operator, left, self._right.evaluate(fields, new_id))


class In(Condition):
    """The same as `left = a OR left = b …`."""

    __slots__ = ("_choices", "_left")

    def __init__(self, left: SqlNode, choices: list[SqlNode]) -> None:
        self._left = left
        self._choices = choices

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        left = self._left.evaluate(fields, new_id)
        result: bool | None = False
        for choice in self._choices:
            same = compare(EQUAL, left, choice.evaluate(fields, new_id))
            if same:
                return True
            if same is None:
                result = None
        return result


class Like(Condition):
    """`pattern` and `escape` are taken apart once where both are constants."""

    __slots__ = ("_escape", "_left", "_pattern", "_ready")

    def __init__(self, left: SqlNode, pattern: SqlNode, escape: SqlNode | None) -> None:
        self._left = left
        self._pattern = pattern
        self._escape = escape
        self._ready: Pattern | None = None
        if isinstance(pattern, Constant) and (escape is None or isinstance(escape, Constant)):
            character = escape.value if isinstance(escape, Constant) else None
            if pattern.value is not None and (escape is None or character is not None):
                self._ready = _pattern(pattern.value, character)

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        left = self._left.evaluate(fields, new_id)
        ready = self._ready
        if ready is None:
            pattern = self._pattern.evaluate(fields, new_id)
            escape = None if self._escape is None else self._escape.evaluate(fields, new_id)
            if pattern is None or (self._escape is not None and escape is None):
                return None
            ready = _pattern(pattern, escape)
        # As in comparisons, what is no text neither fits nor fails to fit.
        return ready.matches(left) if isinstance(left, str) else None


def _pattern(pattern: object, escape: object) -> Pattern:
    if not isinstance(pattern, str):
        raise FilterError(f"The pattern of LIKE is {kind_of(pattern)}, not text.")
    if escape is None or isinstance(escape, str):
        return Pattern(pattern, escape)
    raise FilterError(f"The ESCAPE of LIKE is {kind_of(escape)}, not text.")


class IsNull(Condition):
    """Never unknown: neither is a property that the message lacks."""

    __slots__ = ("_negated", "_property")

    def __init__(self, named: Property, negated: bool) -> None:
        self._property = named
        self._negated = negated

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return (self._property.evaluate(fields, new_id) is None) != self._negated


class Exists(Condition):
    __slots__ = ("_property",)

    def __init__(self, named: Property) -> None:
        self._property = named

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        return self._property.exists(fields, new_id)


class Not(Condition):
    __slots__ = ("_operand",)

    def __init__(self, operand: SqlNode) -> None:
        self._operand = operand

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        value = self._operand.evaluate(fields, new_id)
        return None if value is None else not value


class Junction(Condition):
    """Several conditions joined by AND, which one that is false decides, or by OR (true)."""

    __slots__ = ("_deciding", "_operands")

    def __init__(self, operands: list[SqlNode], deciding: bool) -> None:
        self._operands = operands
        self._deciding = deciding

    def evaluate(self, fields: Fields, new_id: NewId) -> object:
        result: bool | None = not self._deciding
        for operand in self._operands:
            value = operand.evaluate(fields, new_id)
            if value is self._deciding:
                return value
            if value is None:
                result = None
        return result
