"""`twinbus receive`: take messages out of an entity, print them, settle them.

A message is settled after it has been printed, so what is lost on the way to the reader stays in
the entity.  No more is asked for than is wanted; what comes when nobody waits any more is given
back.
"""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from twinbus.cli.arguments import (
    Commands,
    add_connection_string,
    add_option,
    positive_count,
    span_ms,
)
from twinbus.cli.connecting import run_connected
from twinbus.cli.exit_codes import Nonsense
from twinbus.cli.messages.documents import document_of, line_of
from twinbus.cli.printing import print_json_line
from twinbus.client.connection import BusConnection
from twinbus.client.links import Received, Receiver
from twinbus.errors import OperationTimeout, SessionCannotBeLocked

ASKED_AT_ONCE: Final = 100
WAIT_MS_DEFAULT: Final = 3_000
SESSION_WAIT_S_MAX: Final = 600.0
_SETTLEMENTS: Final = ("complete", "abandon", "defer", "dead-letter")
_REASON_DEFAULT: Final = "twinbus receive"


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser("receive")
    parser.add_argument("entity", metavar="ENTITY", help="orders, or topic/Subscriptions/name")
    parser.add_argument(
        "--dead-letter",
        dest="subqueue",
        action="store_const",
        const="/$DeadLetterQueue",
        default="",
        help="from the dead-letter queue",
    )
    _add_amount(parser)
    session = parser.add_mutually_exclusive_group()
    add_option(session, "--session ID", "from this session")
    session.add_argument("--next-session", action="store_true", help="from the next free session")
    parser.add_argument(
        "--settle",
        choices=_SETTLEMENTS,
        default="complete",
        metavar="HOW",
        help="how to settle them: complete (default), abandon, defer or dead-letter",
    )
    add_option(parser, "--reason TEXT", "why they are dead-lettered", default=_REASON_DEFAULT)
    parser.add_argument(
        "--receive-and-delete",
        action="store_true",
        help="delete them on delivery: faster, but a crash here loses them",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--raw", action="store_true", help="print only the bodies, one per line")
    shape.add_argument("--json", action="store_true", help="print JSON: one document per line")
    add_connection_string(parser)
    parser.set_defaults(run=run)


def _add_amount(parser: argparse.ArgumentParser) -> None:
    amount = parser.add_mutually_exclusive_group()
    add_option(amount, "--count N", "maximum number of messages (1)", positive_count, 1)
    amount.add_argument("--all", action="store_true", help="every message there is")
    amount.add_argument("--follow", action="store_true", help="keep receiving until Ctrl-C")
    add_option(
        parser, "--wait TIME", "how long to wait for the next one (3s)", span_ms, WAIT_MS_DEFAULT
    )


def run(options: argparse.Namespace) -> int:
    if options.receive_and_delete and options.settle != "complete":
        raise Nonsense(
            "a message that was received and deleted cannot be settled; "
            "omit --settle or --receive-and-delete"
        )
    return run_connected(options, lambda bus: _Receiving(options).run(bus))


class _Receiving:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._is_endless = options.all or options.follow
        self._wait_s: float | None = None if options.follow else options.wait / 1_000
        self._count = 0
        self._settling: deque[asyncio.Future[None]] = deque()
        self._held: list[Received] = []  # to be abandoned at the end, or they would come again
        self._unread: list[Received] = []  # the one that is being printed: its reader may hang up

    async def run(self, bus: BusConnection) -> int:
        try:
            receiver = await self._open(bus)
        except (OperationTimeout, SessionCannotBeLocked):
            if self._options.session is not None:
                raise
            print("no free session with messages", file=sys.stderr)
            return 0
        try:
            await self._receive(receiver)
        finally:
            await self._give_back(receiver)
        if not self._count:
            print("no message arrived in time", file=sys.stderr)
        return 0

    async def _open(self, bus: BusConnection) -> Receiver:
        options = self._options
        entity = options.entity + options.subqueue
        deletes: bool = options.receive_and_delete
        if options.session is None and not options.next_session:
            return await bus.open_receiver(entity, credit=0, receive_and_delete=deletes)
        return await bus.open_session_receiver(
            entity,
            options.session,
            wait_s=self._wait_s or SESSION_WAIT_S_MAX,
            credit=0,
            receive_and_delete=deletes,
        )

    async def _receive(self, receiver: Receiver) -> None:
        """In rounds: as many as are wanted, and when they are here, as many again."""
        while wanted := self._wanted():
            receiver.ask_for(wanted)
            for _ in range(wanted):
                received = await receiver.receive(self._wait_s)
                if received is None:
                    for late in await receiver.drain():
                        await self._take(receiver, late)
                    return
                await self._take(receiver, received)

    def _wanted(self) -> int:
        return (
            ASKED_AT_ONCE
            if self._is_endless
            else min(ASKED_AT_ONCE, self._options.count - self._count)
        )

    async def _take(self, receiver: Receiver, received: Received) -> None:
        self._unread.append(received)
        self._print(received)
        self._unread.clear()
        self._count += 1
        if received.settled:
            return
        if self._options.settle == "abandon":
            self._held.append(received)
            return
        self._settling.append(self._settlement(receiver)(received))
        while len(self._settling) >= ASKED_AT_ONCE:
            await self._settling.popleft()

    def _settlement(self, receiver: Receiver) -> Callable[[Received], asyncio.Future[None]]:
        how = self._options.settle
        if how == "dead-letter":
            reason = self._options.reason
            return lambda received: receiver.dead_letter(received, reason, "")
        return receiver.defer if how == "defer" else receiver.complete

    def _print(self, received: Received) -> None:
        if self._options.raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(received.body + b"\n")
            sys.stdout.buffer.flush()
        elif self._options.json:
            print_json_line(document_of(received.data))
        else:
            print(line_of(document_of(received.data)), flush=True)

    async def _give_back(self, receiver: Receiver) -> None:
        """Also when it is interrupted: nothing stays locked, nothing that is deleted is lost."""
        late = await receiver.drain()
        for received in late:
            if received.settled:
                self._print(received)  # it is deleted already, so it must not be lost here
        unseen = [each for each in (*self._unread, *late) if not each.settled]
        returned = [receiver.release(each) for each in unseen]
        returned += [receiver.abandon(each) for each in self._held]
        if receiver.error is None:
            await asyncio.gather(*self._settling, *returned)
