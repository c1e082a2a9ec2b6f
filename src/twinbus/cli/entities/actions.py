"""What the commands about entities have in common: actions, settings, tables.

`twinbus queue`, `topic`, `subscription` and `rule` all create, list, show and delete, and all but a
rule can be updated; they differ in how many names lead to an entity, in its settings and in the
columns of its list.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Final

from twinbus.cli.arguments import (
    Commands,
    add_connection_string,
    add_json,
    connection_string,
    duration,
)
from twinbus.cli.exit_codes import Nonsense
from twinbus.cli.printing import print_json, print_table
from twinbus.client.admin import AdminClient, Entry, Kind
from twinbus.errors import ConfigError

_STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


def _status(text: str) -> str:
    for status in _STATUSES:
        if text.lower() == status.lower():
            return status
    raise argparse.ArgumentTypeError(f"'{text[:64]}' is not a status; write {', '.join(_STATUSES)}")


# What `create` and `update` can set, where the kind of entity has it: how its text is read, and
# what it does.
# None: it is a switch, off unless it is named.
_SETTINGS: Final[dict[str, tuple[Callable[[str], object] | None, str]]] = {
    "LockDuration": (duration, "how long a receiver holds a message (60s)"),
    "MaxDeliveryCount": (int, "deliveries before dead-lettering (10)"),
    "DefaultMessageTimeToLive": (duration, "maximum time to live of a message (no limit)"),
    "DeadLetteringOnMessageExpiration": (None, "keep expired messages in the dead-letter queue"),
    "MaxSizeInMegabytes": (int, "space for messages, in each partition if partitioned (1024)"),
    "EnablePartitioning": (None, "spread it over 16 partitions in several stores"),
    "RequiresSession": (None, "deliver by session"),
    "RequiresDuplicateDetection": (None, "drop messages with an id it has seen before"),
    "DuplicateDetectionHistoryTimeWindow": (duration, "how long message ids are remembered (10m)"),
    "ForwardTo": (str, "a queue or topic that gets every message (none)"),
    "ForwardDeadLetteredMessagesTo": (str, "a queue or topic that gets the dead letters (none)"),
    "AutoDeleteOnIdle": (duration, "delete it after it was unused for this long (never)"),
    "UserMetadata": (str, "a note of your own"),
    "Status": (_status, "Active, Disabled, SendDisabled or ReceiveDisabled (Active)"),
}

# Decided when an entity is created: where its messages are, and what is known of each, hang on it.
_FIXED: Final = ("EnablePartitioning", "RequiresSession", "RequiresDuplicateDetection")

_FIXED_HELP: Final = "cannot be changed: refused unless it is set already"

# Of the arguments that lead to an entity.
_NAME_HELP: Final = {
    "name": "its name",
    "topic": "the topic it belongs to",
    "subscription": "the subscription it belongs to",
}

Columns = Sequence[tuple[str, str]]


class EntityCommand:
    """`create`, `list`, `show`, `update` and `delete` for one kind of entity."""

    def __init__(self, kind: Kind, names: Sequence[str], columns: Columns) -> None:
        self._kind = kind
        self._names = names  # of the arguments that lead to an entity, its own name last
        self._columns = columns
        self._settings = [name for name in _SETTINGS if name in kind.settings]

    def add_actions(self, commands: Commands) -> None:
        word = self._kind.word
        parser = commands.add_parser(word)
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        create = self._add_action(actions, "create", f"create a {word}", self.create)
        self.add_settings(create)
        self._add_action(actions, "list", f"list all {word}s", self._list, self._names[:-1])
        self._add_action(actions, "show", f"show the settings of a {word}", self._show)
        if self._settings:
            purpose = f"change some settings of a {word}"
            self.add_changes(self._add_action(actions, "update", purpose, self._update))
        self._add_action(actions, "delete", f"delete a {word}", self._delete)

    def _add_action(
        self,
        actions: Commands,
        action: str,
        purpose: str,
        run: Callable[[argparse.Namespace], int],
        names: Sequence[str] | None = None,
    ) -> argparse.ArgumentParser:
        parser = actions.add_parser(action, help=purpose, description=purpose)
        add_connection_string(parser)
        add_json(parser)
        for name in self._names if names is None else names:
            parser.add_argument(name, metavar=name.upper(), help=_NAME_HELP[name])
        parser.set_defaults(run=run)
        return parser

    def add_settings(self, parser: argparse.ArgumentParser) -> None:
        for name in self._settings:
            read, purpose = _SETTINGS[name]
            if read is None:
                _add_switch(parser, _option(name), name, "true", purpose)
            else:
                parser.add_argument(
                    _option(name), dest=name, type=read, metavar="VALUE", help=purpose
                )

    def add_changes(self, parser: argparse.ArgumentParser) -> None:
        """The same settings; a switch can be turned off, and nothing has a default."""
        for name in self._settings:
            read, purpose = _SETTINGS[name]
            purpose = purpose.partition(" (")[0]
            if name in _FIXED:
                _add_switch(parser, _option(name), name, "true", _FIXED_HELP)
            elif read is None:
                _add_switch(parser, _option(name), name, "true", purpose)
                off = _option(name).replace("--", "--no-", 1)
                _add_switch(parser, off, name, "false", "the opposite")
            else:
                if read is str:
                    purpose += "; '' for none"
                parser.add_argument(
                    _option(name), dest=name, type=read, metavar="VALUE", help=purpose
                )

    def names_of(self, options: argparse.Namespace) -> list[str]:
        return [getattr(options, name) for name in self._names if hasattr(options, name)]

    def _chosen(self, options: argparse.Namespace) -> dict[str, str]:
        chosen = {name: getattr(options, name) for name in self._settings}
        return {name: str(value) for name, value in chosen.items() if value is not None}

    def create(self, options: argparse.Namespace) -> int:
        names, properties = self.names_of(options), self._chosen(options)
        self.done(options, "created", client(options).create(self._kind, names, properties))
        return 0

    def done(self, options: argparse.Namespace, what: str, entry: Entry) -> None:
        if options.json:
            print_json(_document(entry))
        else:
            print(f"{what} {self._kind.word} {entry.name}")

    def _update(self, options: argparse.Namespace) -> int:
        names, properties = self.names_of(options), self._chosen(options)
        if not properties:
            raise Nonsense(f"nothing to change; name a setting, such as {_option('UserMetadata')}")
        admin = client(options)
        fixed = [name for name in _FIXED if name in properties]
        if fixed:
            self._check_fixed(admin.get(self._kind, names), fixed)
        self.done(options, "updated", admin.update(self._kind, names, properties))
        return 0

    def _check_fixed(self, entry: Entry, asked: Sequence[str]) -> None:
        """What is so already may be named: it changes nothing."""
        for name in asked:
            if entry.properties.get(name) != "true":
                word = self._kind.word
                raise ConfigError(
                    f"{name} of {word} {entry.name} can be set only at creation (nothing was "
                    f"changed); delete the {word} and create it again with {_option(name)}"
                )

    def _list(self, options: argparse.Namespace) -> int:
        entries = list(client(options).list(self._kind, self.names_of(options)))
        if options.json:
            print_json([_document(entry) for entry in entries])
            return 0
        titles = ["NAME", *(title for title, _ in self._columns)]
        rows = [
            [entry.name, *(entry.properties.get(element, "") for _, element in self._columns)]
            for entry in entries
        ]
        print_table(titles, rows, len(titles))
        return 0

    def _show(self, options: argparse.Namespace) -> int:
        entry = client(options).get(self._kind, self.names_of(options))
        if options.json:
            print_json(_document(entry))
            return 0
        width = max(map(len, entry.properties), default=0)
        print(entry.name)
        for name, value in entry.properties.items():
            print(f"  {name.ljust(width)}  {value}".rstrip())
        return 0

    def _delete(self, options: argparse.Namespace) -> int:
        names = self.names_of(options)
        client(options).delete(names)
        if options.json:
            print_json({"name": names[-1], "deleted": True})
        else:
            print(f"deleted {self._kind.word} {names[-1]}")
        return 0


def _option(name: str) -> str:
    """`--lock-duration` of LockDuration."""
    return "-" + re.sub("(?=[A-Z])", "-", name).lower()


def _add_switch(
    parser: argparse.ArgumentParser, option: str, name: str, value: str, purpose: str
) -> None:
    parser.add_argument(option, dest=name, action="store_const", const=value, help=purpose)


def client(options: argparse.Namespace) -> AdminClient:
    return AdminClient(connection_string(options))


def _document(entry: Entry) -> dict[str, object]:
    return {"name": entry.name, "properties": dict(entry.properties)}
