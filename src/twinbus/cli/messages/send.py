"""`twinbus send`: messages from the command line, a file or standard input.

A message counts as sent when the bus has stored it.  They are sent in order, and the first that is
refused ends the command: what came before it is in the entity, and how many that are is told.
"""

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from twinbus.cli.arguments import (
    Commands,
    add_connection_string,
    add_json,
    add_option,
    add_repeated,
    key_value,
    moment,
    positive_count,
    span_ms,
)
from twinbus.cli.connecting import run_connected
from twinbus.cli.exit_codes import Nonsense
from twinbus.cli.messages.documents import Document, encode_document
from twinbus.cli.printing import print_json
from twinbus.cli.progress import Progress, Rate
from twinbus.client.connection import BusConnection
from twinbus.clock import SystemClock
from twinbus.errors import ConfigError, TwinbusError
from twinbus.metered import iso

WINDOW: Final = 500  # messages under way
_STANDARD_INPUT: Final = "-"
_LINE_BYTES_MAX: Final = 256 * 1_048_576  # a message of the largest tier, as JSON
# Option, name in the document, what it is.
_TEXTS: Final = (
    ("--message-id", "message_id", "its id; --count appends a number"),
    ("--session-id", "session_id", "the session it belongs to"),
    ("--partition-key", "partition_key", "messages with the same key stay in one partition"),
    ("--correlation-id", "correlation_id", "id of the message it answers or relates to"),
    ("--subject", "subject", "a short description; also called label"),
    ("--content-type", "content_type", "type of the body: text/plain, application/json"),
    ("--to", "to", "intended receiver; the bus ignores it"),
    ("--reply-to", "reply_to", "where to send an answer"),
)


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("send")
    parser.add_argument("entity", metavar="ENTITY", help="a queue or topic")
    parser.add_argument(
        "body", nargs="?", metavar="BODY", help="the body, as text (default: standard input)"
    )
    add_option(parser, "--file FILE", "read the body, or the messages, from this file", Path)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", action="store_true", help="one message per line")
    form.add_argument(
        "--json-lines",
        action="store_true",
        help="one message per line, a JSON object as `twinbus peek --json` prints it",
    )
    add_option(parser, "--count N", "send it this many times (1)", positive_count, 1)
    add_repeated(
        parser,
        "--property NAME=VALUE",
        "an application property; true, false and numbers keep their type, quotes make "
        'text of them ("7"); may be repeated',
        key_value,
    )
    for option, name, purpose in _TEXTS:
        parser.add_argument(option, dest=name, metavar="TEXT", help=purpose)
    add_option(parser, "--ttl TIME", "time to live: 30s, 5m, 2h (the entity's default)", span_ms)
    add_option(parser, "--at TIME", "schedule it for this time: 2026-11-16T07:00:00Z", moment)
    add_connection_string(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.body is not None:
        if options.file is not None:
            raise Nonsense("both a BODY and --file; omit one of them")
        if options.lines or options.json_lines:
            raise Nonsense("both a BODY and lines; omit BODY, or --lines and --json-lines")
    with _open(options) as stream:
        messages = _messages(options, stream)
        sending = _Sending(options)
        return run_connected(options, lambda bus: sending.run(bus, messages))


# --- what to send ---------------------------------------------------------------------------------


@contextmanager
def _open(options: argparse.Namespace) -> Iterator[BinaryIO]:
    path: Path | None = options.file
    if path is None or str(path) == _STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}); check --file") from None
    with stream:
        yield stream


def _messages(options: argparse.Namespace, stream: BinaryIO) -> Iterator[bytes]:
    """Each message, encoded; read as it is sent, so a long file is never in memory as a whole."""
    common = _common(options)
    if options.lines or options.json_lines:
        for number, line in enumerate(_lines(stream), start=1):
            try:
                document = _read_object(line) if options.json_lines else _read_body(line)
                for _ in range(options.count):
                    yield encode_document({**common, **document})
            except ConfigError as error:
                raise ConfigError(f"line {number}: {error}") from None
        return
    document = _read_body(_whole(stream) if options.body is None else options.body.encode())
    for number in range(1, options.count + 1):
        numbered = {**common, **document}
        if options.count > 1 and "message_id" in common:
            numbered["message_id"] = f"{common['message_id']}-{number}"
        yield encode_document(numbered)


def _common(options: argparse.Namespace) -> Document:
    """What the options say of every message."""
    found = {name: getattr(options, name) for _, name, _ in _TEXTS}
    document = {name: text for name, text in found.items() if text is not None}
    if options.property:
        document["application_properties"] = {
            name: _property(text) for name, text in options.property
        }
    if options.ttl is not None:
        document["time_to_live_ms"] = options.ttl
    if options.at is not None:
        document["scheduled_enqueue_time"] = iso(options.at)
    return document


def _property(text: str) -> object:
    """A number, a truth or a quoted text as JSON has it; anything else is itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _whole(stream: BinaryIO) -> bytes:
    if stream.isatty():
        print("type the body, then Ctrl-D:", file=sys.stderr)
    return stream.read()


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise ConfigError("a line is longer than any message; set --file to a file of lines")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _read_body(body: bytes) -> Document:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415  bodies are mostly text

        return {"body_base64": b64encode(body).decode()}


def _read_object(line: bytes) -> Document:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not JSON ({error}); write one object, such as {_EXAMPLE}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"not a JSON object; write one, such as {_EXAMPLE}")
    return document


_EXAMPLE: Final = '{"body": "hello", "message_id": "1"}'


# --- sending --------------------------------------------------------------------------------------


class _Sending:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._sent = 0
        self._clock = SystemClock()
        self._progress = Progress(sys.stderr)
        self._rate = Rate()
        self._began_ms = self._clock.now().mono_ms
        self._rate.read(0, self._began_ms)

    async def run(self, bus: BusConnection, messages: Iterator[bytes]) -> int:
        sender = await bus.open_sender(self._options.entity)
        under_way: deque[asyncio.Future[None]] = deque()
        try:
            for data in messages:
                if len(under_way) >= WINDOW:
                    await self._confirm(under_way)
                under_way.append(sender.send_encoded(data))
            while under_way:
                await self._confirm(under_way)
        except (TwinbusError, asyncio.CancelledError):
            # What was given to the bus is the bus's: its answers say how many were stored.
            outcomes = await asyncio.gather(*under_way, return_exceptions=True)
            self._sent += sum(outcome is None for outcome in outcomes)
            if self._sent:
                self._progress.say(f"{self._sent:,} messages were sent before this:")
            raise
        self._progress.finish()
        self._tell()
        return 0

    async def _confirm(self, under_way: deque[asyncio.Future[None]]) -> None:
        await under_way.popleft()
        self._sent += 1
        now_ms = self._clock.now().mono_ms
        # Whoever waits for a second or more wants to see something.
        if now_ms - self._began_ms >= 1_000 and self._progress.is_due(now_ms):
            rate = self._rate.read(self._sent, now_ms)
            self._progress.show(f"{rate:,.0f}/s  sent {self._sent:,}", now_ms)

    def _tell(self) -> None:
        entity, count = self._options.entity, self._sent
        if self._options.json:
            print_json({"entity": entity, "message_count": count})
        else:
            print(f"{count:,} message{'' if count == 1 else 's'} sent to {entity}")
