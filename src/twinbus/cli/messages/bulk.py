"""`twinbus peek`, `purge`, `undefer` and `replay`: messages of a running server, many at once.

What a command finds is narrowed down by the same options everywhere.  Large entities are gone
through in pieces, each of them durable when its answer comes; whoever interrupts keeps what was
done so far.
"""

import argparse
import sys
from collections.abc import Callable, Coroutine
from typing import Final

from twinbus.amqp.types import Int, Timestamp
from twinbus.cli.arguments import Commands, add_connection_string, add_json, moment, positive_count
from twinbus.cli.connecting import run_connected
from twinbus.cli.messages.documents import document_of, line_of
from twinbus.cli.printing import print_json, print_json_line
from twinbus.cli.progress import Progress
from twinbus.client.connection import BusConnection
from twinbus.client.requests import ManagementNode
from twinbus.clock import SystemClock

PEEK_COUNT_DEFAULT: Final = 10
PIECE: Final = 10_000  # messages in one request that changes them
PAGE: Final = 1_000  # messages in one request that looks at them
_STATES: Final = ("active", "deferred", "scheduled")

Run = Callable[[argparse.Namespace, ManagementNode], Coroutine[None, None, None]]


def add_arguments(commands: Commands) -> None:
    """All four; `main` asks for them by any of their names."""
    peek = _command(commands, "peek", _peek, f"maximum number of messages ({PEEK_COUNT_DEFAULT})")
    add_json(peek, "one document per line, as `twinbus send --json-lines` reads them")
    _add_subqueue(peek)
    for name, run in (("purge", _purge), ("undefer", _undefer)):
        parser = _command(commands, name, run, "maximum number of messages (all)")
        add_json(parser)
        _add_subqueue(parser)
    replay = _command(commands, "replay", _replay, "maximum number of messages (all)")
    add_json(replay)
    replay.add_argument(
        "--transfer",
        dest="subqueue",
        action="store_const",
        const="/$Transfer/$DeadLetterQueue",
        default="/$DeadLetterQueue",
        help="messages that could not be forwarded",
    )


def _command(commands: Commands, name: str, run: Run, amount: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name)
    parser.add_argument("entity", metavar="ENTITY", help="orders, or topic/Subscriptions/name")
    parser.add_argument(
        "--state",
        dest="states",
        action="append",
        choices=_STATES,
        help="only messages in this state; may be repeated",
    )
    parser.add_argument("--filter", metavar="SQL", help="only messages that match this SQL filter")
    parser.add_argument("--session", metavar="ID", help="only messages of this session")
    parser.add_argument(
        "--before", type=moment, metavar="TIME", help="only enqueued before this: 2026-01-31T12:00Z"
    )
    parser.add_argument("--from", dest="start", type=int, metavar="N", help="first sequence number")
    parser.add_argument("--count", type=positive_count, metavar="N", help=amount)
    add_connection_string(parser)
    parser.set_defaults(run=lambda options: _run(options, run))
    return parser


def _add_subqueue(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_mutually_exclusive_group()
    for option, path, purpose in (
        ("--dead-letter", "/$DeadLetterQueue", "messages in the dead-letter queue"),
        ("--transfer", "/$Transfer/$DeadLetterQueue", "messages that could not be forwarded"),
    ):
        parts.add_argument(
            option, dest="subqueue", action="store_const", const=path, default="", help=purpose
        )


def _run(options: argparse.Namespace, run: Run) -> int:
    async def work(bus: BusConnection) -> int:
        await run(options, await ManagementNode.open(bus, options.entity + options.subqueue))
        return 0

    return run_connected(options, work)


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
    while True:
        body = {**selection, "message-count": Int(min(left, PAGE))}
        messages, answer = await node.request_messages("twinbus:browse", body)
        for message in messages:
            document = document_of(message)
            print_json_line(document) if options.json else print(line_of(document))
        left -= len(messages)
        start = answer.get("next-sequence-number")
        if start is None or left <= 0:
            return
        selection["from-sequence-number"] = start


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
    progress, clock = Progress(sys.stderr), SystemClock()
    began_ms = clock.now().mono_ms
    while True:
        piece = PIECE if options.count is None else min(PIECE, options.count - total)
        answer = await node.request(operation, {**selection, "message-count": Int(piece)})
        count = answer.get("message-count")
        total += count if isinstance(count, int) else 0
        start = answer.get("next-sequence-number")
        if start is None or total == options.count:
            break
        selection["from-sequence-number"] = start
        now_ms = clock.now().mono_ms
        # Whoever waits for a second or more wants to see something.
        if now_ms - began_ms >= 1_000 and progress.is_due(now_ms):
            progress.show(f"{total:,} messages {done} so far", now_ms)
    progress.finish()
    if options.json:
        print_json({"entity": options.entity + options.subqueue, "message_count": total})
    else:
        print(f"{total} message{'' if total == 1 else 's'} {done}")
