"""`twinbus fault`: make something go wrong on a running server, see what does, and end it."""

import argparse
from typing import Final

from twinbus.cli.arguments import (
    Commands,
    add_connection_string,
    add_json,
    connection_string,
    span_ms,
)
from twinbus.cli.exit_codes import Nonsense
from twinbus.cli.printing import print_json, print_table
from twinbus.client.faults import FaultClient
from twinbus.client.http import Document
from twinbus.gateway.faults.kinds import KINDS

_COLUMNS: Final = ("ID", "KIND", "SCOPE", "PROBABILITY", "DELAY", "REMAINING", "ACTED")
_SCOPE: Final = ("namespace", "entity", "partition", "store", "broker")


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("fault")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_add(actions)
    listing = actions.add_parser("list", help="show the faults in force")
    _add_common(listing)
    listing.set_defaults(run=_list)
    clear = actions.add_parser("clear", help="clear one fault, or all")
    clear.add_argument("id", nargs="?", metavar="ID", help="its id, from `twinbus fault list`")
    clear.add_argument("--all", action="store_true", help="every fault in force")
    _add_common(clear)
    clear.set_defaults(run=_clear)


def _add_add(actions: Commands) -> None:
    add = actions.add_parser(
        "add",
        help="add a fault; it takes effect at once",
        description="A fault lasts until it is cleared, its duration ends or the server restarts.",
        epilog="kinds:\n"
        + "\n".join(f"  {kind.name:<20}{kind.sentence}" for kind in KINDS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.add_argument("kind", choices=KINDS, metavar="KIND", help="what goes wrong; see below")
    add.add_argument("--namespace", metavar="NAME", help="default: that of the connection string")
    add.add_argument("--entity", metavar="NAME", help="only this queue, topic or subscription")
    add.add_argument(
        "--partition",
        type=int,
        action="append",
        metavar="N",
        help="only this partition of the entity, 0 to 15; may be repeated",
    )
    add.add_argument("--store", type=int, metavar="N", help="only this store, from 0 (all)")
    add.add_argument("--broker", type=int, metavar="N", help="this broker process, from 0")
    add.add_argument(
        "--duration", type=span_ms, metavar="TIME", help="30s, 5m, 2h (default: until cleared)"
    )
    add.add_argument("--probability", type=float, metavar="P", help="how often it acts, 0 to 1 (1)")
    add.add_argument("--delay", type=span_ms, metavar="TIME", help="length of the delay: 500ms, 2s")
    _add_common(add)
    add.set_defaults(run=_add)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_connection_string(parser)
    add_json(parser)


def _client(options: argparse.Namespace) -> FaultClient:
    return FaultClient(connection_string(options))


def _add(options: argparse.Namespace) -> int:
    wanted = {
        "kind": options.kind,
        "namespace": options.namespace,
        "entity": options.entity,
        "partition": options.partition,
        "store": options.store,
        "broker": options.broker,
        "duration_s": None if options.duration is None else options.duration / 1_000,
        "probability": options.probability,
        "delay_ms": options.delay,
    }
    fault = _client(options).add({key: value for key, value in wanted.items() if value is not None})
    if options.json:
        print_json(fault)
    elif KINDS[options.kind].is_once:
        print(f"{fault['kind']}: done, {fault['acted']} hit")
    else:
        print(f"fault {fault['id']}: {fault['kind']} {_scope(fault)}, {_remaining(fault)}")
    return 0


def _list(options: argparse.Namespace) -> int:
    faults = _client(options).list()
    if options.json:
        print_json(faults)
        return 0
    print_table(_COLUMNS, [_row(fault) for fault in faults], len(_COLUMNS))
    return 0


def _row(fault: Document) -> list[str]:
    delay_ms = fault.get("delay_ms")
    return [
        str(fault["id"]),
        str(fault["kind"]),
        _scope(fault),
        str(fault.get("probability", "")),
        "" if delay_ms is None else f"{delay_ms}ms",
        _remaining(fault),
        str(fault["acted"]),
    ]


def _scope(fault: Document) -> str:
    """`namespace=twinbus entity=orders partition=3,5`, or `everywhere`."""
    pieces: list[str] = []
    for key in _SCOPE:
        value = fault.get(key)
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if value is not None:
            pieces.append(f"{key}={value}")
    return " ".join(pieces) or "everywhere"


def _remaining(fault: Document) -> str:
    remaining_s = fault.get("remaining_s")
    return "until cleared" if remaining_s is None else f"{remaining_s:.0f}s left"


def _clear(options: argparse.Namespace) -> int:
    if options.all == (options.id is not None):
        raise Nonsense("one fault or all of them; pass its ID or --all")
    client = _client(options)
    if options.all:
        client.clear_all()
    else:
        client.clear(options.id)
    if options.json:
        print_json({"id": options.id, "cleared": True})
    else:
        print("cleared all faults" if options.all else f"cleared fault {options.id}")
    return 0
