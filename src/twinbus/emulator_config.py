"""The `Config.json` of Microsoft's emulator: which namespace and which queues it declares.

Strict on purpose.  A key that is not known, a value of the wrong kind and a feature that is not
there yet are refused with file, line and what to do: a setting that was silently ignored would be
found in production.

    { "UserConfig": {
        "Namespaces": [ { "Name": "…", "Queues": [ { "Name": "…", "Properties": { … } } ] } ],
        "Logging": { "Type": "File" } } }
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from twinbus.entities.descriptions import (
    QueueDescription,
    parse_duration,
    refuse_unsupported,
    validate_name,
)
from twinbus.errors import ConfigError, ServiceError
from twinbus.json_lines import Node, parse

FILE_SIZE_BYTES_MAX: Final = 4_194_304  # ten thousand queues take about half of it
LATER: Final = "comes with a later version; take it out for now"

# Property in the file → field of the description.
QUEUE_PROPERTIES: Final = {
    "DeadLetteringOnMessageExpiration": "dead_lettering_on_message_expiration",
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_detection_window_ms",
    "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_messages_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
}


@dataclass(frozen=True)
class EmulatorConfig:
    """What a file declares."""

    namespace: str | None = None
    queues: tuple[tuple[str, QueueDescription], ...] = ()


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
            f"{path}: not UTF-8 text at byte {error.start}; save it as such"
        ) from error
    return parse_emulator_config(text, str(path))


def parse_emulator_config(text: str, file_name: str) -> EmulatorConfig:
    """The same for text that is at hand; `file_name` is only for complaints."""
    return _Reader(file_name).document(parse(text, file_name))


class _Reader:
    """Walks the parsed file and knows its name for complaints."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name

    def document(self, root: Node) -> EmulatorConfig:
        user_config = self._required(
            self._object(root, "the file", ["UserConfig"]), "UserConfig", root
        )
        members = self._object(user_config, "UserConfig", ["Namespaces", "Logging"])
        if "Logging" in members:  # ours goes to standard error
            self._object(members["Logging"], "Logging", ["Type"])
        node = self._required(members, "Namespaces", user_config)
        namespaces = self._list(node, "Namespaces")
        if len(namespaces) != 1:
            self._fail(node, f"{len(namespaces)} namespaces; a server has one, keep one")
        return self._namespace(namespaces[0])

    def _namespace(self, node: Node) -> EmulatorConfig:
        members = self._object(node, "a namespace", ["Name", "Queues", "Topics"])
        if "Topics" in members and self._list(members["Topics"], "Topics"):
            self._fail(members["Topics"], f"Topics: {LATER}")
        queues: dict[str, tuple[str, QueueDescription]] = {}
        for queue in self._list(members["Queues"], "Queues") if "Queues" in members else []:
            name, description = self._queue(queue)
            if name.lower() in queues:
                self._fail(queue, f"queue {name} is declared twice; keep one")
            queues[name.lower()] = (name, description)
        namespace = self._text(members["Name"], "Name") if "Name" in members else None
        return EmulatorConfig(namespace, tuple(queues.values()))

    def _queue(self, node: Node) -> tuple[str, QueueDescription]:
        members = self._object(node, "a queue", ["Name", "Properties"])
        name_node = self._required(members, "Name", node)
        name = self._text(name_node, "Name")
        try:
            validate_name(name)
        except ServiceError as error:
            self._fail(name_node, str(error))
        if "Properties" not in members:
            return name, QueueDescription()
        properties = self._object(members["Properties"], "Properties", QUEUE_PROPERTIES)
        values: dict[str, object] = {}
        for key, value in properties.items():
            values[QUEUE_PROPERTIES[key]] = self._property(key, value)
        return name, QueueDescription.from_mapping(values)

    def _property(self, key: str, node: Node) -> object:
        """One property, checked on its own, so that a complaint can name its line."""
        field = QUEUE_PROPERTIES[key]
        value: object = node.value
        if field.endswith("_ms"):
            try:
                value = parse_duration(self._text(node, key))
            except ServiceError as error:
                self._fail(node, f"{key}: {error}")
        elif field.startswith("forward") and value == "":
            value = None  # how the emulator's own file says "nowhere"
        elif isinstance(value, list | dict):
            self._fail(node, f"{key} has a nested value; write a plain one")
        try:
            description = QueueDescription.from_mapping({field: value})
        except ServiceError as error:
            self._fail(node, f"{key}: {error}")
        try:
            refuse_unsupported(description)
        except ServiceError:
            self._fail(node, f"{key}: {LATER}")
        return value

    def _object(self, node: Node, what: str, known: Iterable[str]) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            self._fail(node, f"{what} is not an object; write {{ … }}")
        for key, member in node.value.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
                self._fail(member, f"unknown key {key[:64]} in {what}; the nearest is {near[0]}")
        return node.value

    def _list(self, node: Node, what: str) -> list[Node]:
        if not isinstance(node.value, list):
            self._fail(node, f"{what} is not a list; write [ … ]")
        return node.value

    def _text(self, node: Node, what: str) -> str:
        if not isinstance(node.value, str):
            self._fail(node, f'{what} is not text; write it in "quotes"')
        return node.value

    def _required(self, members: dict[str, Node], key: str, parent: Node) -> Node:
        if key not in members:
            self._fail(parent, f"{key} is missing; add it")
        return members[key]

    def _fail(self, node: Node, reason: str) -> NoReturn:
        raise ConfigError(f"{self._file_name}, line {node.line}: {reason}")
