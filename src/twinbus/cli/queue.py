"""`twinbus queue`: create, list, show and delete queues of a running server."""

import argparse
import json
from collections.abc import Callable
from typing import Final

from twinbus.cli.arguments import (
    Commands,
    add_connection_string,
    connection_string,
    duration,
)
from twinbus.client.admin import AdminClient, QueueEntry

# Option, what it is called in the protocol, how its text is read, what it does.
_Setting = tuple[str, str, Callable[[str], object], str]
_SETTINGS: Final[tuple[_Setting, ...]] = (
    ("--lock-duration", "LockDuration", duration, "how long a receiver holds a message (60s)"),
    ("--max-delivery-count", "MaxDeliveryCount", int, "deliveries before dead-lettering (10)"),
    (
        "--default-message-time-to-live",
        "DefaultMessageTimeToLive",
        duration,
        "longest life of a message (no limit)",
    ),
    ("--max-size-in-megabytes", "MaxSizeInMegabytes", int, "room for messages (1024)"),
    ("--user-metadata", "UserMetadata", str, "a note of your own"),
)
_DEAD_LETTERING: Final = "DeadLetteringOnMessageExpiration"
_COLUMNS: Final = (
    ("ACTIVE", "ActiveMessageCount"),
    ("SCHEDULED", "ScheduledMessageCount"),
    ("DEAD-LETTER", "DeadLetterMessageCount"),
    ("BYTES", "SizeInBytes"),
    ("STATUS", "Status"),
)


def add_arguments(commands: Commands) -> None:
    queue = commands.add_parser("queue", help="create, list, show and delete queues")
    actions = queue.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = _action(actions, "create", "create a queue", _create)
    create.add_argument("name", metavar="NAME")
    for option, element, read, purpose in _SETTINGS:
        create.add_argument(option, dest=element, type=read, metavar="VALUE", help=purpose)
    create.add_argument(
        "--dead-lettering-on-message-expiration",
        dest=_DEAD_LETTERING,
        action="store_const",
        const="true",
        help="keep expired messages in the dead-letter queue",
    )
    _action(actions, "list", "list all queues with their message counts", _list)
    for action, purpose, run in (
        ("show", "show the settings and counts of a queue", _show),
        ("delete", "delete a queue and every message in it", _delete),
    ):
        _action(actions, action, purpose, run).add_argument("name", metavar="NAME")


def _action(
    actions: Commands, name: str, purpose: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=purpose)
    add_connection_string(parser)
    parser.add_argument("--json", action="store_true", help="for programs rather than people")
    parser.set_defaults(run=run)
    return parser


def _client(options: argparse.Namespace) -> AdminClient:
    return AdminClient(connection_string(options))


def _create(options: argparse.Namespace) -> int:
    elements = [element for _, element, _, _ in _SETTINGS] + [_DEAD_LETTERING]
    chosen = {element: getattr(options, element) for element in elements}
    properties = {element: str(value) for element, value in chosen.items() if value is not None}
    queue = _client(options).create_queue(options.name, properties)
    if options.json:
        _print_json(_document(queue))
    else:
        print(f"created queue {queue.name}")
    return 0


def _list(options: argparse.Namespace) -> int:
    queues = list(_client(options).list_queues())
    if options.json:
        _print_json([_document(queue) for queue in queues])
        return 0
    titles = ["NAME", *(title for title, _ in _COLUMNS)]
    rows = [titles] + [
        [queue.name, *(queue.properties.get(element, "") for _, element in _COLUMNS)]
        for queue in queues
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0


def _show(options: argparse.Namespace) -> int:
    queue = _client(options).get_queue(options.name)
    if options.json:
        _print_json(_document(queue))
        return 0
    width = max(map(len, queue.properties), default=0)
    print(queue.name)
    for name, value in queue.properties.items():
        print(f"  {name.ljust(width)}  {value}".rstrip())
    return 0


def _delete(options: argparse.Namespace) -> int:
    _client(options).delete_queue(options.name)
    if options.json:
        _print_json({"name": options.name, "deleted": True})
    else:
        print(f"deleted queue {options.name}")
    return 0


def _document(queue: QueueEntry) -> dict[str, object]:
    return {"name": queue.name, "properties": dict(queue.properties)}


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2))
