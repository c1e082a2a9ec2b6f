"""The one broker of a small server, in the server's own process.

    data directory ─▶ disk ─▶ store ─▶ broker, with its shell on this loop

When its store fails, the server has nothing left to serve and stops (`on_failure`).
"""

import random
import secrets
from collections.abc import Callable
from pathlib import Path

from twinbus.broker.shell import BrokerShell
from twinbus.clock import Clock
from twinbus.entities.commands import dispatch_replies
from twinbus.gateway.faults.acting import FaultEffects, LocalEffects
from twinbus.links.store_link import StoreLink
from twinbus.message.filter_fields import StoredMessageCodec
from twinbus.storage.disk import OsDisk
from twinbus.storage.faulty import DiskFaults, FaultyDisk
from twinbus.storage.store import Store


class LocalBroker:
    """One broker with one store."""

    def __init__(
        self,
        directory: Path,
        segment_size_bytes: int,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        faults = DiskFaults(random.random)
        self._disk = FaultyDisk(OsDisk(directory), faults)
        store = Store.open(self._disk, clock.now(), secrets.randbits(63), segment_size_bytes)
        codec = StoredMessageCodec()
        self._shell = BrokerShell(store, clock, dispatch_replies, on_failure, codec)
        self.links: list[StoreLink] = [self._shell.broker]
        self.effects: FaultEffects = LocalEffects(faults, self._slowed)

    def _slowed(self, is_slow: bool) -> None:
        """A disk that is slow on purpose must not hold up the loop."""
        self._shell.writes_inline = not is_slow

    def when_entity_is_gone(self, call: Callable[[int, int], None]) -> None:
        """Who keeps a list of the entities is told of those that were deleted for being idle."""
        self._shell.broker.entities.on_gone = lambda entity_id: call(0, entity_id)

    def trouble(self) -> str:
        return self._shell.trouble()

    def message_count(self) -> int:
        return self._shell.broker.message_count()

    async def start(self) -> None:
        self._shell.start()

    async def close(self) -> None:
        await self._shell.close()
        self._disk.close()
