"""Rules as the management protocol writes them: a filter, and perhaps an action.

Values of a correlation filter's properties are text; the SDKs can write other types.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
RULE_ELEMENT: Final = "RuleDescription"
_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
_TYPE: Final = f"{{{_INSTANCE}}}type"
_KEY_VALUE: Final = "KeyValueOfstringanyType"
# The type's prefix must be declared where it is used, and ElementTree declares only what it sees.
_STRING: Final = {_TYPE: "d6p1:string", "xmlns:d6p1": "http://www.w3.org/2001/XMLSchema"}

# What a correlation filter may ask for besides application properties, in the schema's order.
CORRELATION_NAMES: Final = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)


@dataclass(frozen=True)
class RuleSettings:
    """The settings of a rule: one filter (none matches all messages), and an action."""

    sql: str = ""
    correlation: Mapping[str, str] = field(default_factory=dict)  # by CORRELATION_NAMES
    properties: Mapping[str, str] = field(default_factory=dict)  # application properties
    is_false: bool = False
    action: str = ""


def rule_description(name: str, rule: RuleSettings) -> ET.Element:
    """The element that creates this rule."""
    description = ET.Element(_tag(RULE_ELEMENT))
    description.append(_filter(rule))
    if rule.action:
        action = ET.SubElement(description, _tag("Action"), {_TYPE: "SqlRuleAction"})
        ET.SubElement(action, _tag("SqlExpression")).text = rule.action
    else:
        ET.SubElement(description, _tag("Action"), {_TYPE: "EmptyRuleAction"})
    ET.SubElement(description, _tag("Name")).text = name
    return description


def _filter(rule: RuleSettings) -> ET.Element:
    kind, expression = "TrueFilter", "1=1"
    if rule.sql:
        kind, expression = "SqlFilter", rule.sql
    elif rule.correlation or rule.properties:
        kind, expression = "CorrelationFilter", ""
    elif rule.is_false:
        kind, expression = "FalseFilter", "1>1"
    element = ET.Element(_tag("Filter"), {_TYPE: kind})
    if expression:
        ET.SubElement(element, _tag("SqlExpression")).text = expression
    for name in CORRELATION_NAMES:
        if name in rule.correlation:
            ET.SubElement(element, _tag(name)).text = rule.correlation[name]
    if rule.properties:
        properties = ET.SubElement(element, _tag("Properties"))
        for name, value in rule.properties.items():
            pair = ET.SubElement(properties, _tag(_KEY_VALUE))
            ET.SubElement(pair, _tag("Key")).text = name
            ET.SubElement(pair, _tag("Value"), _STRING).text = value
    return element


def rule_properties(description: ET.Element) -> dict[str, str]:
    """The properties of a rule's element, by name: `Filter`, `Expression`, `Label`, …, `Action`."""
    found: dict[str, str] = {}
    chosen = description.find(_tag("Filter"))
    if chosen is not None:
        found["Filter"] = chosen.get(_TYPE, "").rpartition(":")[2]
        found["Expression"] = chosen.findtext(_tag("SqlExpression")) or ""
        for name in CORRELATION_NAMES:
            text = chosen.findtext(_tag(name))
            if text is not None:
                found[name] = text
        for pair in chosen.iter(_tag(_KEY_VALUE)):
            key = pair.findtext(_tag("Key")) or ""
            found[f"Properties.{key}"] = pair.findtext(_tag("Value")) or ""
    found["Action"] = description.findtext(f"{_tag('Action')}/{_tag('SqlExpression')}") or ""
    found["CreatedAt"] = description.findtext(_tag("CreatedAt")) or ""
    return {name: text for name, text in found.items() if text}


def _tag(name: str) -> str:
    return f"{{{SERVICE_BUS}}}{name}"
