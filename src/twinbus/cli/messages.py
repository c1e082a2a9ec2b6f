"""`twinbus peek`, `purge`, `undefer` and `replay`: messages of a running server, many at once.

What a command finds is narrowed down by the same options everywhere.  Large entities are gone
through in pieces, each of them durable when its answer comes; whoever interrupts keeps what was
done so far.
"""

import argparse
import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Final

from twinbus.amqp.plain import DecodedMessage, decode_message
from twinbus.amqp.types import Described, Int, Timestamp
from twinbus.cli.arguments import Commands, add_connection_string, connection_string
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.errors import ConfigError

PEEK_COUNT_DEFAULT: Final = 10
PIECE: Final = 10_000  # messages in one request that changes them
PAGE: Final = 1_000  # messages in one request that looks at them
_BODY_CHARS_MAX: Final = 60  # of a body in a line for people
_STATES: Final = ("active", "deferred", "scheduled")
_STATE_NUMBERS: Final = dict(enumerate(_STATES))

Run = Callable[[argparse.Namespace, ManagementNode], Coroutine[None, None, None]]


def add_arguments(commands: Commands) -> None:
    """All four; `main` asks for them by any of their names."""
    peek = _command(commands, "peek", "look at messages without receiving them", _peek)
    _add_subqueue(peek)
    purge = _command(commands, "purge", "delete messages that nobody has locked", _purge)
    _add_subqueue(purge)
    undefer = _command(commands, "undefer", "make deferred messages active again", _undefer)
    _add_subqueue(undefer)
    replay = _command(commands, "replay", "put dead letters back into their entity", _replay)
    replay.add_argument(
        "--transfer",
        dest="subqueue",
        action="store_const",
        const="/$Transfer/$DeadLetterQueue",
        default="/$DeadLetterQueue",
        help="those that could not be forwarded",
    )


def _command(commands: Commands, name: str, purpose: str, run: Run) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=purpose)
    parser.add_argument("entity", metavar="ENTITY", help="orders, or topic/Subscriptions/name")
    parser.add_argument(
        "--state",
        dest="states",
        action="append",
        choices=_STATES,
        help="only messages in this state; may be given several times",
    )
    parser.add_argument("--filter", metavar="SQL", help="only what a SQL filter matches")
    parser.add_argument("--session", metavar="ID", help="only messages of this session")
    parser.add_argument(
        "--before", type=_time, metavar="TIME", help="only enqueued before, as 2026-01-31T12:00Z"
    )
    parser.add_argument("--from", dest="start", type=int, metavar="N", help="first sequence number")
    parser.add_argument("--count", type=int, metavar="N", help="so many messages at most")
    add_connection_string(parser)
    parser.add_argument("--json", action="store_true", help="for programs rather than people")
    parser.set_defaults(run=lambda options: _run(options, run))
    return parser


def _add_subqueue(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_mutually_exclusive_group()
    for option, path, purpose in (
        ("--dead-letter", "/$DeadLetterQueue", "in the dead-letter queue"),
        ("--transfer", "/$Transfer/$DeadLetterQueue", "those that could not be forwarded"),
    ):
        parts.add_argument(
            option, dest="subqueue", action="store_const", const=path, default="", help=purpose
        )


def _time(text: str) -> int:
    """UTC milliseconds; a time without a zone is UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)


def _run(options: argparse.Namespace, run: Run) -> int:
    text = connection_string(options)
    try:
        asyncio.run(_connected(options, text, run))
    except OSError as error:
        raise ConfigError(f"cannot reach the server: {str(error) or 'it did not answer'}") from None
    return 0


async def _connected(options: argparse.Namespace, text: str, run: Run) -> None:
    async with await BusConnection.open(text) as connection:
        node = await ManagementNode.open(connection, options.entity + options.subqueue)
        await run(options, node)


def _selection(options: argparse.Namespace) -> dict[object, object]:
    """What the options say, as the operations have it."""
    selection: dict[object, object] = {}
    if options.states:
        selection["states"] = options.states
    if options.filter is not None:
        selection["filter"] = options.filter
    if options.session is not None:
        selection["session-id"] = options.session
    if options.before is not None:
        selection["enqueued-time-utc"] = Timestamp(options.before)
    if options.start is not None:
        selection["from-sequence-number"] = options.start
    return selection


# --- looking --------------------------------------------------------------------------------------


async def _peek(options: argparse.Namespace, node: ManagementNode) -> None:
    selection = _selection(options)
    left = PEEK_COUNT_DEFAULT if options.count is None else options.count
    documents: list[dict[str, object]] = []
    while True:
        body = {**selection, "message-count": Int(min(left, PAGE))}
        answer = await node.request("twinbus:browse", body)
        entries = answer.get("messages")
        page = [_document(entry) for entry in entries] if isinstance(entries, list) else []
        left -= len(page)
        if options.json:
            documents += page
        else:
            for document in page:
                print(_line(document))
        start = answer.get("next-sequence-number")
        if start is None or left <= 0:
            break
        selection["from-sequence-number"] = start
    if options.json:
        print(json.dumps(documents, indent=2))


def _document(entry: object) -> dict[str, object]:
    """A message as JSON has it."""
    assert isinstance(entry, dict)
    encoded = entry.get("message")
    assert isinstance(encoded, bytes)
    message = decode_message(encoded)
    annotations = {str(key): value for key, value in message.annotations.items()}
    properties = message.properties
    state = annotations.get("x-opt-message-state", 0)
    document: dict[str, object] = {
        "sequence_number": _plain(annotations.get("x-opt-sequence-number")),
        "state": _STATE_NUMBERS.get(state, "unknown") if isinstance(state, int) else "unknown",
        "enqueued_time": _moment(annotations.get("x-opt-enqueued-time")),
        "delivery_count": message.delivery_count,
        "message_id": _plain(properties.message_id),
        "session_id": properties.group_id,
        "correlation_id": _plain(properties.correlation_id),
        "subject": properties.subject,
        "content_type": properties.content_type,
        "application_properties": _plain(message.application_properties),
        "dead_letter_source": _plain(annotations.get("x-opt-deadletter-source")),
    }
    document = {name: value for name, value in document.items() if value not in (None, {})}
    return {**document, **_body(message)}


def _body(message: DecodedMessage) -> dict[str, object]:
    body = message.body
    if not isinstance(body, bytes):
        return {"body": _plain(body)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _plain(value: object) -> object:
    """As JSON can have it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _moment(value: object) -> str | None:
    if not isinstance(value, int):
        return None
    try:
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(int(value))  # beyond what has a name


def _line(document: dict[str, object]) -> str:
    """A message in one line that no message can break out of."""
    properties = document.get("application_properties")
    reason = properties.get("DeadLetterReason") if isinstance(properties, dict) else None
    body = str(document.get("body", document.get("body_base64", "")))
    cells = [
        str(document["sequence_number"]),
        str(document["state"]),
        str(document.get("enqueued_time", "")),
        f"deliveries={document['delivery_count']}",
    ]
    names = ("message_id", "session_id", "subject")
    cells += [f"{name}={json.dumps(document[name])}" for name in names if name in document]
    if reason is not None:
        cells.append(f"reason={json.dumps(reason)}")
    cells.append(json.dumps(body[:_BODY_CHARS_MAX] + ("…" if len(body) > _BODY_CHARS_MAX else "")))
    return "  ".join(cells)


# --- changing -------------------------------------------------------------------------------------


async def _purge(options: argparse.Namespace, node: ManagementNode) -> None:
    await _change(options, node, "twinbus:purge", "deleted")


async def _undefer(options: argparse.Namespace, node: ManagementNode) -> None:
    await _change(options, node, "twinbus:undefer", "made active")


async def _replay(options: argparse.Namespace, node: ManagementNode) -> None:
    await _change(options, node, "twinbus:resubmit", "put back")


async def _change(
    options: argparse.Namespace, node: ManagementNode, operation: str, done: str
) -> None:
    selection = _selection(options)
    total = 0
    while True:
        piece = PIECE if options.count is None else min(PIECE, options.count - total)
        answer = await node.request(operation, {**selection, "message-count": Int(piece)})
        count = answer.get("message-count")
        total += count if isinstance(count, int) else 0
        start = answer.get("next-sequence-number")
        if start is None or total == options.count:
            break
        selection["from-sequence-number"] = start
    if options.json:
        print(json.dumps({"entity": options.entity + options.subqueue, "message_count": total}))
    else:
        print(f"{total} message{'' if total == 1 else 's'} {done}")
