"""The `Config.json` of Microsoft's emulator: which namespaces and which entities it declares.

Strict on purpose.  A key that is not known, a value of the wrong kind and a feature that is not
there are refused with file, line and what to do: a setting that was silently ignored would be
found in production.

    { "UserConfig": {
        "Namespaces": [ {
          "Name": "…",
          "Queues": [ { "Name": "…", "Properties": { … } } ],
          "Topics": [ { "Name": "…", "Properties": { … },
            "Subscriptions": [ { "Name": "…", "Properties": { … },
              "Rules": [ { "Name": "…", "Properties": {
                "FilterType": "Correlation" or "Sql", "CorrelationFilter": { … },
                "SqlFilter": { "SqlExpression": "…" }, "Action": { "SqlExpression": "…" } } } ]
            } ] } ] } ],
        "Logging": { "Type": "File" } } }
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from twinbus.config import Declared, SubscriptionConfig, TopicConfig, check_namespace
from twinbus.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    parse_duration,
    validate_path,
    validate_subscription_name,
)
from twinbus.entities.rule_descriptions import (
    SQL,
    ActionDescription,
    FilterDescription,
    RuleDescription,
    validate_rule_name,
)
from twinbus.errors import ConfigError, ServiceError
from twinbus.json_lines import JsonNode, parse

FILE_SIZE_BYTES_MAX: Final = 4_194_304  # ten thousand queues take about half of it

# Property in the file → field of the description.
PROPERTIES: Final = {
    "DeadLetteringOnMessageExpiration": "dead_lettering_on_message_expiration",
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_detection_window_ms",
    "EnablePartitioning": "enable_partitioning",
    "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_messages_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
}
FILTERS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}
CORRELATION_PROPERTIES: Final = (
    "ContentType",
    "CorrelationId",
    "Label",
    "MessageId",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
)

D = TypeVar("D", bound=QueueDescription)
T = TypeVar("T")


@dataclass(frozen=True)
class EmulatorConfig:
    """What a file declares: namespaces by name, which only one that is alone may leave out."""

    namespaces: tuple[tuple[str | None, Declared], ...] = ()


def read_emulator_config(path: Path) -> EmulatorConfig:
    """Read a file, or say in one line what is wrong with it and where."""
    try:
        if path.stat().st_size > FILE_SIZE_BYTES_MAX:
            raise ConfigError(
                f"{path}: larger than {FILE_SIZE_BYTES_MAX} bytes; is it the right one?"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}); check --config") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8"
        ) from error
    return parse_emulator_config(text, str(path))


def parse_emulator_config(text: str, file_name: str) -> EmulatorConfig:
    """The same for text that is at hand; `file_name` is only for complaints."""
    return _Reader(file_name).document(parse(text, file_name))


class _Reader:
    """Walks the parsed file and knows its name for complaints."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name

    def document(self, root: JsonNode) -> EmulatorConfig:
        user_config = self._required(
            self._object(root, "the file", ["UserConfig"]), "UserConfig", root
        )
        members = self._object(user_config, "UserConfig", ["Namespaces", "Logging"])
        if "Logging" in members:  # ours goes to standard error
            self._object(members["Logging"], "Logging", ["Type"])
        node = self._required(members, "Namespaces", user_config)
        found: dict[str, tuple[str | None, Declared]] = {}
        for entry in self._list(node, "Namespaces"):
            name, declared = self._namespace(entry)
            self._add_once(entry, found, "namespace", name or "", (name, declared))
        if not found:
            self._fail(node, "0 namespaces; a server needs at least one, add it")
        if len(found) > 1 and "" in found:
            self._fail(node, "a namespace has no Name; with several, each needs one")
        return EmulatorConfig(tuple(found.values()))

    def _namespace(self, node: JsonNode) -> tuple[str | None, Declared]:
        members = self._object(node, "a namespace", ["Name", "Queues", "Topics"])
        name = None
        if "Name" in members:
            name = self._text(members["Name"], "Name")
            self._checked(members["Name"], "", check_namespace, name)
        taken: dict[str, None] = {}
        queues: list[tuple[str, QueueDescription]] = []
        for entry in self._optional_list(members, "Queues"):
            queues.append(self._queue(entry))
            self._add_once(entry, taken, "queue", queues[-1][0], None)
        topics: list[TopicConfig] = []
        for entry in self._optional_list(members, "Topics"):
            topics.append(self._topic(entry))
            self._add_once(entry, taken, "topic", topics[-1].name, None)
        return name, Declared(tuple(queues), tuple(topics))

    def _queue(self, node: JsonNode) -> tuple[str, QueueDescription]:
        members = self._object(node, "a queue", ["Name", "Properties"])
        name = self._name(members, node, validate_path)
        return name, self._description(members, QueueDescription)

    def _topic(self, node: JsonNode) -> TopicConfig:
        members = self._object(node, "a topic", ["Name", "Properties", "Subscriptions"])
        name = self._name(members, node, validate_path)
        subscriptions: dict[str, SubscriptionConfig] = {}
        for entry in self._optional_list(members, "Subscriptions"):
            found = self._subscription(entry)
            self._add_once(entry, subscriptions, "subscription", found.name, found)
        description = self._description(members, TopicDescription)
        return TopicConfig(name, description, tuple(subscriptions.values()))

    def _subscription(self, node: JsonNode) -> SubscriptionConfig:
        members = self._object(node, "a subscription", ["Name", "Properties", "Rules"])
        name = self._name(members, node, validate_subscription_name)
        rules: dict[str, RuleDescription] = {}
        for entry in self._optional_list(members, "Rules"):
            rule = self._rule(entry)
            self._add_once(entry, rules, "rule", rule.name, rule)
        description = self._description(members, SubscriptionDescription)
        return SubscriptionConfig(name, description, tuple(rules.values()))

    def _rule(self, node: JsonNode) -> RuleDescription:
        members = self._object(node, "a rule", ["Name", "Properties"])
        values: dict[str, object] = {"name": self._name(members, node, validate_rule_name)}
        if "Properties" in members:
            known = ["FilterType", *FILTERS.values(), "Action"]
            properties = self._object(members["Properties"], "Properties", known)
            self._check_filter_type(properties)
            if "CorrelationFilter" in properties:
                values["kind"] = "Correlation"
                values |= self._correlation(properties["CorrelationFilter"])
            if "SqlFilter" in properties:
                values["kind"] = "Sql"
                node = properties["SqlFilter"]
                values["expression"] = self._expression(node, "SqlFilter", _sql_filter)
            if "Action" in properties:
                values["action"] = self._expression(properties["Action"], "Action", _action)
        return self._checked(node, "", RuleDescription.from_mapping, values)

    def _check_filter_type(self, properties: dict[str, JsonNode]) -> None:
        """The type, where it is given, and the filter that is there must agree."""
        given = [key for key in FILTERS.values() if key in properties]
        if len(given) > 1:
            self._fail(properties[given[1]], "a rule can have only one filter; keep one")
        if "FilterType" in properties:
            node = properties["FilterType"]
            wanted = FILTERS.get(self._text(node, "FilterType"))
            if wanted is None:
                self._fail(node, f"FilterType must be one of {', '.join(FILTERS)}")
            if given != [wanted]:
                self._fail(node, f"a filter of this type needs {wanted}; add it")

    def _correlation(self, node: JsonNode) -> dict[str, object]:
        known = [*CORRELATION_PROPERTIES, "Properties"]
        members = self._object(node, "CorrelationFilter", known)
        system = {key: self._text(members[key], key) for key in members if key != "Properties"}
        properties: dict[str, object] = {}
        if "Properties" in members:
            for key, value in self._any_object(members["Properties"], "Properties").items():
                properties[key] = self._plain(key, value)
        return {"system": system, "properties": properties}

    def _expression(self, node: JsonNode, what: str, check: Callable[[str], object]) -> str:
        members = self._object(node, what, ["SqlExpression"])
        found = self._required(members, "SqlExpression", node)
        text = self._text(found, "SqlExpression")
        self._checked(found, "SqlExpression: ", check, text)
        return text

    def _name(
        self, members: dict[str, JsonNode], parent: JsonNode, check: Callable[[str], None]
    ) -> str:
        node = self._required(members, "Name", parent)
        name = self._text(node, "Name")
        self._checked(node, "", check, name)
        return name

    def _description(self, members: dict[str, JsonNode], kind: type[D]) -> D:
        if "Properties" not in members:
            return kind()
        settings = kind.settings()
        known = [key for key, field in PROPERTIES.items() if field in settings]
        values: dict[str, object] = {}
        for key, node in self._object(members["Properties"], "Properties", known).items():
            values[PROPERTIES[key]] = self._property(key, node, kind)
        return self._checked(members["Properties"], "", kind.from_mapping, values)

    def _property(self, key: str, node: JsonNode, kind: type[QueueDescription]) -> object:
        """One property, checked on its own, so that a complaint can name its line."""
        field = PROPERTIES[key]
        value: object
        if field.endswith("_ms"):
            value = self._checked(node, f"{key}: ", parse_duration, self._text(node, key))
        else:
            value = self._plain(key, node)
        if field.startswith("forward") and value == "":
            value = None  # how the emulator's own file says "nowhere"
        self._checked(node, f"{key}: ", kind.from_mapping, {field: value})
        return value

    def _plain(self, key: str, node: JsonNode) -> object:
        if isinstance(node.value, list | dict):
            self._fail(node, f"{key[:64]} has a nested value; write a plain one")
        return node.value

    def _checked(self, node: JsonNode, where: str, check: Callable[..., T], value: object) -> T:
        """What a check gives back, or its complaint with the line of what it is about."""
        try:
            return check(value)
        except (ServiceError, ConfigError) as error:
            self._fail(node, f"{where}{error}")

    def _add_once(
        self, node: JsonNode, found: dict[str, T], what: str, name: str, value: T
    ) -> None:
        if name.lower() in found:
            self._fail(node, f"{what} {name} is declared twice; keep one")
        found[name.lower()] = value

    def _optional_list(self, members: dict[str, JsonNode], key: str) -> list[JsonNode]:
        return self._list(members[key], key) if key in members else []

    def _any_object(self, node: JsonNode, what: str) -> dict[str, JsonNode]:
        if not isinstance(node.value, dict):
            self._fail(node, f"{what} is not an object; write {{ … }}")
        return node.value

    def _object(self, node: JsonNode, what: str, known: Iterable[str]) -> dict[str, JsonNode]:
        members = self._any_object(node, what)
        for key, member in members.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
                self._fail(member, f"unknown key {key[:64]} in {what}; the nearest is {near[0]}")
        return members

    def _list(self, node: JsonNode, what: str) -> list[JsonNode]:
        if not isinstance(node.value, list):
            self._fail(node, f"{what} is not a list; write [ … ]")
        return node.value

    def _text(self, node: JsonNode, what: str) -> str:
        if not isinstance(node.value, str):
            self._fail(node, f'{what} is not text; write it in "quotes"')
        return node.value

    def _required(self, members: dict[str, JsonNode], key: str, parent: JsonNode) -> JsonNode:
        if key not in members:
            self._fail(parent, f"{key} is missing; add it")
        return members[key]

    def _fail(self, node: JsonNode, reason: str) -> NoReturn:
        raise ConfigError(f"{self._file_name}, line {node.line}: {reason}")


def _sql_filter(text: str) -> FilterDescription:
    return FilterDescription(SQL, text)


def _action(text: str) -> ActionDescription:
    return ActionDescription(text)
