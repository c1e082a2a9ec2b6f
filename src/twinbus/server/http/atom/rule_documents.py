"""Rules as XML: filter and action with their typed values, from a document and back.

A value has its type in `i:type`, with a prefix.  Both SDKs cut the prefix off without resolving
it, the Node SDK by its length, so it is `d6p1` here as in Azure.
"""

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID
from xml.etree.ElementTree import Element

from twinbus.entities.descriptions import format_duration, parse_duration
from twinbus.entities.rule_descriptions import (
    CORRELATION,
    DEFAULT_RULE_NAME,
    FALSE,
    SQL,
    TRUE,
    ActionDescription,
    FilterDescription,
    RuleDescription,
)
from twinbus.errors import ArgumentInvalid
from twinbus.gateway.namespaces.views import RuleView
from twinbus.server.http.atom.feeds import (
    INSTANCE,
    TYPE,
    AtomEntry,
    attribute,
    description,
    element,
    local_name,
    utc_text,
)
from twinbus.server.http.xml_reader import XML_SPACE, boolean

RULE: Final = "RuleDescription"
DEFAULT_RULE: Final = "DefaultRuleDescription"

_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"  # where guid is from
_NIL: Final = f"{{{INSTANCE}}}nil"
_KEY_VALUE: Final = "KeyValueOfstringanyType"
_COMPATIBILITY: Final = "<CompatibilityLevel>20</CompatibilityLevel>"

_FILTER_TYPES: Final = {
    "SqlFilter": SQL,
    "CorrelationFilter": CORRELATION,
    "TrueFilter": TRUE,
    "FalseFilter": FALSE,
}
_TYPES_OF_FILTERS: Final = {kind: name for name, kind in _FILTER_TYPES.items()}
_CONSTANTS: Final = {TRUE: "1=1", FALSE: "1>1"}  # what the SDKs show of these two

# In the order of the service's schema; the name that filters know is the same in lower case.
_CORRELATION_ELEMENTS: Final = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)


# -- reading ---------------------------------------------------------------------------------------


def read_rule(content: Element, name: str) -> RuleDescription:
    """The rule in a document.  `name` is what its address says; "" where it has none."""
    children = _children(content)
    given = _text(children.get("Name"))
    if name and given and given.lower() != name.lower():
        raise ArgumentInvalid(f"The rule is named '{given[:64]}' inside and '{name[:64]}' outside.")
    return RuleDescription(
        name or given or DEFAULT_RULE_NAME,
        _read_filter(children.get("Filter")),
        _read_action(children.get("Action")),
    )


def _read_filter(given: Element | None) -> FilterDescription:
    if given is None:
        return FilterDescription(TRUE)
    children = _children(given)
    name = given.get(TYPE, "SqlFilter").rpartition(":")[2]
    kind = _FILTER_TYPES.get(name)
    if kind is None:
        raise ArgumentInvalid(f"'{name[:64]}' is not a filter; use {', '.join(_FILTER_TYPES)}.")
    if kind == SQL:
        parameters = _read_values(children.get("Parameters"))
        return FilterDescription(SQL, _text(children.get("SqlExpression")), parameters)
    if kind != CORRELATION:
        return FilterDescription(kind)
    system: dict[str, object] = {
        name.lower(): children[name].text or ""
        for name in _CORRELATION_ELEMENTS
        if name in children and not _is_nil(children[name])
    }
    properties = _read_values(children.get("Properties"))
    return FilterDescription(CORRELATION, system=system, properties=properties)


def _read_action(given: Element | None) -> ActionDescription | None:
    if given is None:
        return None
    name = given.get(TYPE, "EmptyRuleAction").rpartition(":")[2]
    if name == "EmptyRuleAction":
        return None
    if name != "SqlRuleAction":
        raise ArgumentInvalid(f"'{name[:64]}' is not an action; use SqlRuleAction.")
    children = _children(given)
    parameters = _read_values(children.get("Parameters"))
    return ActionDescription(_text(children.get("SqlExpression")), parameters)


def _read_values(given: Element | None) -> dict[str, object]:
    values: dict[str, object] = {}
    for pair in () if given is None else given:
        if local_name(pair) != _KEY_VALUE:
            continue
        children = _children(pair)
        key = _text(children.get("Key"))
        if not key or key in values or "Value" not in children:
            raise ArgumentInvalid(f"A {_KEY_VALUE} needs a key of its own and a value.")
        values[key] = _read_value(key, children["Value"])
    return values


def _children(parent: Element) -> dict[str, Element]:
    """The elements inside by name, each at most once."""
    found: dict[str, Element] = {}
    for child in parent:
        name = local_name(child)
        if name in found:
            raise ArgumentInvalid(f"{name[:64]} is given twice.")
        found[name] = child
    return found


def _text(given: Element | None) -> str:
    return "" if given is None else given.text or ""


def _is_nil(given: Element) -> bool:
    return given.get(_NIL, "").strip() in ("true", "1")


# -- values ----------------------------------------------------------------------------------------

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})")
_DOUBLE: Final = re.compile(rf"{_DECIMAL.pattern}([eE][+-]?[0-9]{{1,4}})?")
_FRACTION: Final = re.compile(r"\.([0-9]+)S")
_WHOLE_TYPES: Final = frozenset(
    (
        *("int", "long", "short", "byte", "integer"),
        *("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"),
    )
)
_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_MILLISECOND_US: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIME_SPAN_MS_MAX: Final = 922_337_203_685_477  # .NET's longest


def _read_value(key: str, given: Element) -> object:
    if _is_nil(given):
        return None
    kind = given.get(TYPE, "string").rpartition(":")[2]
    text = given.text or ""
    if kind == "string":
        return text
    text = text.strip(XML_SPACE)
    try:
        return _parse_value(kind, text)
    except (ValueError, OverflowError, binascii.Error):
        raise ArgumentInvalid(
            f"The value of '{key[:64]}' has type {kind[:64]}, which is unknown or does not fit."
        ) from None


def _parse_value(kind: str, text: str) -> object:
    """ValueError or OverflowError where the text is no such value."""
    if kind in _WHOLE_TYPES and _WHOLE.fullmatch(text):
        return int(text)
    if kind in ("double", "float") and _DOUBLE.fullmatch(text):
        return float(text)
    if kind == "decimal" and _DECIMAL.fullmatch(text):
        return Decimal(text)
    if kind == "boolean":
        return boolean("The value", text)
    if kind == "dateTime":
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if kind == "duration":
        return _parse_time_span(text)
    if kind == "guid":
        return UUID(text)
    if kind == "base64Binary":
        return base64.b64decode(text, validate=True)
    raise ValueError


def _parse_time_span(text: str) -> timedelta:
    """A duration to the microsecond; those of settings have milliseconds and no sign."""
    milliseconds = min(parse_duration(text.removeprefix("-")), _TIME_SPAN_MS_MAX)
    span = timedelta(milliseconds=milliseconds)
    fraction = _FRACTION.search(text)
    if fraction is not None:
        microseconds = int(fraction.group(1).ljust(6, "0")[:6])
        span += timedelta(microseconds=microseconds % _MILLISECOND_US)
    return -span if text.startswith("-") else span


def _write_value(value: object) -> tuple[str, str]:
    """A value's type and text."""
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        if _INT32_MIN <= value <= _INT32_MAX:
            return "int", str(value)
        return "long" if value <= _INT64_MAX else "unsignedLong", str(value)
    if isinstance(value, float):
        return "double", repr(value)
    if isinstance(value, Decimal):
        return "decimal", f"{value:f}"
    if isinstance(value, datetime):
        return "dateTime", value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return "duration", _time_span_text(value)
    if isinstance(value, UUID):
        return "guid", str(value)
    if isinstance(value, bytes):
        return "base64Binary", base64.b64encode(value).decode()
    return "string", str(value)


def _time_span_text(span: timedelta) -> str:
    if span < timedelta():
        return f"-{_time_span_text(-span)}"
    milliseconds, rest = divmod(span, _MILLISECOND)
    if not rest:
        return format_duration(milliseconds)
    seconds, microseconds = divmod(span, timedelta(seconds=1))
    return f"PT{seconds}.{microseconds.microseconds:06d}S"


# -- writing ---------------------------------------------------------------------------------------


def rule_entry(view: RuleView, topic: str, subscription: str) -> AtomEntry:
    rule = view.description
    elements = (
        _filter_element(rule.filter),
        _action_element(rule.action),
        element("CreatedAt", utc_text(view.created_utc_ms)),
        element("Name", view.name),
    )
    path = f"{topic}/Subscriptions/{subscription}/Rules/{view.name}"
    content = description(RULE, elements)
    return AtomEntry(path, view.name, view.created_utc_ms, view.created_utc_ms, content)


def _filter_element(chosen: FilterDescription) -> str:
    if chosen.kind == CORRELATION:
        inner = "".join(
            element(name, str(chosen.system[name.lower()]))
            for name in _CORRELATION_ELEMENTS
            if name.lower() in chosen.system
        )
        inner += _values_element("Properties", chosen.properties)
    else:
        expression = _CONSTANTS.get(chosen.kind, chosen.expression)
        inner = element("SqlExpression", expression) + _COMPATIBILITY
        inner += _values_element("Parameters", chosen.parameters)
    return f'<Filter i:type="{_TYPES_OF_FILTERS[chosen.kind]}">{inner}</Filter>'


def _action_element(action: ActionDescription | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    inner = element("SqlExpression", action.expression) + _COMPATIBILITY
    inner += _values_element("Parameters", action.parameters)
    return f'<Action i:type="SqlRuleAction">{inner}</Action>'


def _values_element(name: str, values: dict[str, object]) -> str:
    if not values:
        return ""
    pairs = "".join(_pair_element(key, value) for key, value in values.items())
    return f"<{name}>{pairs}</{name}>"


def _pair_element(key: str, value: object) -> str:
    if value is None:
        kind, text, nil = "string", "", ' i:nil="true"'
    else:
        (kind, text), nil = _write_value(value), ""
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    attributes = f'i:type="d6p1:{kind}"{nil} xmlns:d6p1="{attribute(namespace)}"'
    written = element("Value", text).replace("<Value>", f"<Value {attributes}>", 1)
    return f"<{_KEY_VALUE}>{element('Key', key)}{written}</{_KEY_VALUE}>"
