"""`twinbus status`: how a running server and the entities of a namespace stand.

One document, the one that the page in the browser shows (docs/reference/page.md); here it is only
put into tables.
"""

import argparse
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

from twinbus.cli.arguments import Commands, add_connection_string, add_json, connection_string
from twinbus.cli.printing import print_json, print_table
from twinbus.cli.progress import span
from twinbus.client.http import REFUSED, Document, HttpClient, refusal
from twinbus.errors import NotSupported

PAGE_SIZE: Final = 1_000
_KNOWN: Final = (400, 401, 403)  # about this request, rather than that there is no such thing
_WELL: Final = ("up", "")


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("status")
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="only entities whose names begin with this"
    )
    add_connection_string(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    client = HttpClient(connection_string(options))
    document = _ask(client, options.prefix, 0)
    entities: list[Document] = document["entities"]
    while document["is_truncated"] and document["entities"]:
        document = _ask(client, options.prefix, len(entities))
        entities += document["entities"]
    document = {**document, "entities": entities, "entities_skipped": 0}
    if options.json:
        print_json(document)
    else:
        _print(document)
    return 0


def _ask(client: HttpClient, prefix: str, skip: int) -> Document:
    query = urlencode({"entities": prefix, "skip": skip, "top": PAGE_SIZE})
    status, text = client.exchange("GET", f"/$page/state?{query}", None, {})
    try:
        document = json.loads(text)
    except ValueError:
        document = {}
    if status in _KNOWN:
        raise refusal(status, str(document.get("reason", "")))
    if status >= REFUSED or not isinstance(document.get("entities"), list):
        raise NotSupported("the server does not report a status")
    found: Document = document
    return found


def _print(document: Document) -> None:
    server, totals = document["server"], document["totals"]
    print(
        f"{server['product']} {server['version']} ({server['build']}): {server['status']}, up "
        f"{span(server['uptime_s'])}, {server['connections']} connections, "
        f"{server['memory_bytes'] / 2**20:,.0f} MiB"
    )
    print(
        f"namespace {document['namespace']}: {totals['queues']} queues, {totals['topics']} topics, "
        f"{totals['subscriptions']} subscriptions"
    )
    for line in _troubles(document):
        print(line)
    if document["entities"]:
        print()
        _print_entities(document["entities"], len(document["stores"]) > 1)
    if document["backlog"]:
        print()
        rows = [
            [each["queue"], f"{each['active']:,}", f"{each['dead_letter']:,}"]
            for each in document["backlog"]
        ]
        print_table(("BACKLOG QUEUE", "ACTIVE", "DEAD-LETTER"), rows, 1)
    if document["pairs"]:
        print()
        titles = ("PAIRED CLIENT", "PRIMARY", "SECONDARY", "ENTITY", "STATE")
        print_table(titles, list(_pairs(document["pairs"])), len(titles))


def _print_entities(entities: list[Document], has_stores: bool) -> None:
    """With several stores also which of them an entity is in: a transaction stays in one."""
    head = ["ENTITY", "STATUS", "ACTIVE", "DEAD-LETTER", "SCHEDULED", "BYTES", "IN/S", "OUT/S"]
    rows = [_row(entity) for entity in entities]
    if has_stores:
        head.append("STORE")
        for row, entity in zip(rows, entities, strict=True):
            stores = sorted({partition["store"] for partition in entity["partitions"]})
            row.append(", ".join(map(str, stores)))
    print_table(head, rows, 2)


def _troubles(document: Document) -> Iterable[str]:
    """What is not as it should be, and what somebody has made so."""
    for each in document["brokers"]:
        if each["state"] not in _WELL:
            yield f"broker {each['broker']} is {each['state']}: {each['trouble']}"
    for each in document["stores"]:
        if each["health"] not in _WELL:
            yield f"store {each['store']} is {each['health']}: {each['trouble']}"
    for text in document["throttled"]:
        yield f"throttled: {text}"
    for each in document["faults"]:
        yield f"fault {each['id']} in force: {each['kind']}"


def _pairs(reports: Iterable[Document]) -> Iterable[list[str]]:
    """What paired clients have reported: of each, every entity and where its messages go."""
    for report in reports:
        who = [_plain(report.get(name, "")) for name in ("client", "primary", "secondary")]
        for entity in report.get("entities", []):
            yield [*who, *(_plain(entity.get(name, "")) for name in ("name", "state"))]


def _plain(text: object) -> str:
    """Clients say what they like; a terminal must not do what they say."""
    return str(text) if str(text).isprintable() else json.dumps(str(text))


def _row(entity: Document) -> list[str]:
    counts, rates = entity["counts"], entity["rates"]
    is_available = entity["availability"] == "Available"
    return [
        entity["path"],
        entity["status"] if is_available else f"{entity['status']}, {entity['availability']}",
        f"{counts['active']:,}",
        f"{counts['dead_letter']:,}",
        f"{counts['scheduled']:,}",
        f"{entity['size_bytes']:,}",
        *(
            "" if rates[name] is None else f"{rates[name]:,.1f}"
            for name in ("incoming", "outgoing")
        ),
    ]
