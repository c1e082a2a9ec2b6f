"""Settling by sequence number on a bus that only settles what was received.

What is wanted has been peeked before.  Deferred messages are fetched by their numbers.  Active ones
come as the bus chooses, the lowest numbers first: wanted ones are settled, others are kept until
the end, else they would come again at once, and then released.  Messages of sessions come through
receivers of their sessions.  Whatever somebody else has locked does not come, and is left.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from twinbus.amqp.types import Array, UByte
from twinbus.client.connection import BusConnection
from twinbus.client.links import Received, Receiver
from twinbus.client.requests import ManagementNode
from twinbus.errors import (
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    OperationTimeout,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.pipeline.bus.line import NamespaceConnection, named
from twinbus.pipeline.bus.peeked import Peeked, read_peeked

_IDLE_S: Final = 2.0  # nothing for so long: the rest is locked by others
_SESSION_WAIT_S: Final = 2.0
_CREDIT: Final = 500
_KEPT_MAX: Final = 5_000  # unwanted ones in hand, while others cannot have them
_DEFERRED_COUNT: Final = 100  # fetched at once
_DELETE: Final = UByte(0)
_LOCK: Final = UByte(1)
# Somebody else has it, or has had it: nothing of ours to settle.
_GONE: Final = (MessageLockLost, MessageNotFound, SessionLockLost)
_NO_SESSION: Final = (SessionCannotBeLocked, OperationTimeout)


class Settling:
    """One call of `settle`.  What is done leaves `_wanted`, so it may be begun again."""

    def __init__(
        self, line: NamespaceConnection, path: str, reason: str | None, description: str | None
    ) -> None:
        self._line = line
        self._path = path
        self._reason = reason
        self._description = description or ""
        self._wanted: dict[str | None, set[int]] = defaultdict(set)  # by session id
        self._deferred: dict[str | None, set[int]] = defaultdict(set)
        self._count = 0

    def add(self, chunk: Sequence[Peeked]) -> None:
        """These are to go."""
        for peeked in chunk:
            numbers = self._deferred if peeked.is_deferred else self._wanted
            numbers[peeked.session_id].add(peeked.number)

    def settle(self) -> int:
        """How many are settled."""
        if self._wanted or self._deferred:
            self._line.run(self._work)
        return self._count

    async def _work(self, connection: BusConnection) -> None:
        try:
            receiver = await connection.open_receiver(self._path, credit=0)
        except InvalidOperation:  # it wants sessions
            for session_id in sorted(self._wanted.keys() | self._deferred.keys(), key=str):
                await self._settle_session(connection, session_id)
            return
        except ServiceError as error:
            raise named(error, self._path) from None
        for deferred in self._deferred.values():
            await self._settle_deferred(connection, deferred, None)
        # Session ids are only labels where sessions are not required.
        await self._settle_active(receiver, list(self._wanted.values()))

    async def _settle_session(self, connection: BusConnection, session_id: str | None) -> None:
        if session_id is None:
            return  # cannot be in a session entity
        try:
            receiver = await connection.open_session_receiver(
                self._path, session_id, wait_s=_SESSION_WAIT_S, credit=0
            )
        except _NO_SESSION:
            return
        await self._settle_deferred(connection, self._deferred[session_id], session_id)
        await self._settle_active(receiver, [self._wanted[session_id]])

    # --- active messages --------------------------------------------------------------------------

    async def _settle_active(self, receiver: Receiver, wanted: list[set[int]]) -> None:
        missing = set().union(*wanted)
        kept: list[Received] = []
        settled: list[tuple[int, Received]] = []
        receiver.set_credit(_CREDIT if missing else 0)
        while missing and len(kept) < _KEPT_MAX:
            received = await receiver.receive(_IDLE_S)
            if received is None:
                break
            number = read_peeked(received.data).number
            if number not in missing:
                kept.append(received)
                receiver.set_credit(_CREDIT + len(kept))
                continue
            missing.discard(number)
            settled.append((number, received))
            if len(settled) == _CREDIT or not missing:
                await self._settle_received(receiver, settled, wanted)
                settled = []
        await self._settle_received(receiver, settled, wanted)
        await _give_back(receiver, kept)

    async def _settle_received(
        self, receiver: Receiver, received: list[tuple[int, Received]], wanted: list[set[int]]
    ) -> None:
        outcomes = [
            receiver.complete(each)
            if self._reason is None
            else receiver.dead_letter(each, self._reason, self._description)
            for _, each in received
        ]
        for (number, _), outcome in zip(received, outcomes, strict=True):
            try:
                await outcome
                self._count += 1
            except _GONE:
                pass
            for numbers in wanted:
                numbers.discard(number)

    # --- deferred messages ------------------------------------------------------------------------

    async def _settle_deferred(
        self, connection: BusConnection, deferred: set[int], session_id: str | None
    ) -> None:
        if not deferred:
            return
        node = await self._line.node(connection, self._path)
        while deferred:
            numbers = sorted(deferred)[:_DEFERRED_COUNT]
            self._count += await self._fetch_deferred(node, numbers, session_id)
            deferred.difference_update(numbers)

    async def _fetch_deferred(
        self, node: ManagementNode, numbers: list[int], session_id: str | None
    ) -> int:
        """Settle these; if one of them is gone, each by itself."""
        session: dict[object, object] = {} if session_id is None else {"session-id": session_id}
        body = session | {
            "sequence-numbers": Array(list(numbers)),
            "receiver-settle-mode": _DELETE if self._reason is None else _LOCK,
        }
        try:
            answer = await node.request("com.microsoft:receive-by-sequence-number", body)
            entries = answer.get("messages")
            found = (
                [each for each in entries if isinstance(each, dict)]
                if isinstance(entries, list)
                else []
            )
            if found and self._reason is not None:
                tokens = [each.get("lock-token") for each in found]
                suspended = session | {
                    "disposition-status": "suspended",
                    "lock-tokens": Array(tokens),
                    "deadletter-reason": self._reason,
                    "deadletter-description": self._description,
                }
                await node.request("com.microsoft:update-disposition", suspended)
        except _GONE:
            if len(numbers) == 1:
                return 0
            return sum([await self._fetch_deferred(node, [each], session_id) for each in numbers])
        return len(found)


async def _give_back(receiver: Receiver, kept: list[Received]) -> None:
    """Release what was not wanted, also what is still on its way, and detach."""
    receiver.set_credit(0)
    while True:
        received = await receiver.receive(0.05)
        if received is None:
            break
        kept.append(received)
    for outcome in [receiver.release(each) for each in kept]:
        try:
            await outcome
        except ServiceError:
            pass  # its lock has run out: others can have it already
    receiver.close()
