"""The bus of one server: its stores, however they are run, and the gateway in front of them.

    one store, one broker    LocalBroker, in this process
    anything more            Brokers, in processes of their own, with a catalog beside the stores

The gateway knows every entity before `start` returns.  A store that comes up later, or again, is
compared with the catalog then.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from twinbus.clock import Clock
from twinbus.config import ServerConfig
from twinbus.entities.commands import Listed, ListEntities
from twinbus.entities.partitions import shown_name
from twinbus.errors import ServiceError
from twinbus.gateway.counting.meter_writer import Metering
from twinbus.gateway.directory.directory import Entity
from twinbus.gateway.faults.faults import Fault
from twinbus.gateway.gateway import Gateway
from twinbus.gateway.health.health import HealthSource
from twinbus.gateway.namespaces.auto_delete_rounds import IdleRounds
from twinbus.gateway.namespaces.entity_changes import EntityChanges, NoCatalog
from twinbus.gateway.namespaces.reconcile import restore
from twinbus.gateway.throttling.throttle import Usage
from twinbus.gateway.transfer.journal import Journals
from twinbus.gateway.transfer.relay import Relays
from twinbus.host.brokers.in_process import LocalBroker
from twinbus.host.brokers.processes import Brokers
from twinbus.host.fault_injection import ServerFaults
from twinbus.links.request import ask
from twinbus.links.store_link import DOWN, StoreLink
from twinbus.message.filter_fields import StoredMessageCodec, read_keys
from twinbus.metered import Metered
from twinbus.storage.catalog import CatalogFile
from twinbus.storage.disk import OsDisk
from twinbus.storage.meter_log import MeterLog, read_meter
from twinbus.telemetry.telemetry import Telemetry

log = logging.getLogger("twinbus.server")

TICK_S: Final = 0.25
IDLE_ROUND_S: Final = 5.0


class ServerBus:
    """Stores, gateway, and what keeps the two in step."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        detach: Callable[[Fault], None],
        telemetry: Telemetry,
    ) -> None:
        """`detach`: what is to happen to receivers at an entity that a fault is about."""
        self._clock = clock
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self.usage = Usage()  # of this process
        self._catalog: CatalogFile | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self._listings: list[tuple[int, list[Listed]]] = []  # not looked at for journals yet
        self.runner: LocalBroker | Brokers
        if config.is_in_process:
            (path,) = config.store_paths
            size_bytes = config.segment_size_bytes
            self.runner = LocalBroker(path, size_bytes, clock, on_failure, self.usage)
            broker_count = 0
        else:
            self.runner = Brokers(config, clock, telemetry)
            self.runner.on_listing = self._listed
            broker_count = config.brokers
            self._catalog = CatalogFile(OsDisk(config.data_dir / "catalog"))
        runner = self.runner
        self.health: HealthSource = runner.health
        self.faults = ServerFaults(
            runner.links, broker_count, runner.effects, detach, self._lose_parts, clock
        )
        self.gateway = Gateway(self._traced(self.faults.links, config), clock, runner.links)
        self.metering = _metering(config, self.gateway, clock)
        self.changes = EntityChanges(self.gateway, self._catalog or NoCatalog())
        links, directory = self.gateway.links, self.gateway.directory
        self._relays = Relays(links, directory, clock, StoredMessageCodec())
        if len(links) > 1:
            journals = Journals(links, directory, clock, self.gateway.answer)
            self.gateway.journals = journals
            if isinstance(runner, Brokers):
                runner.health.is_journalled = journals.takes
        self._healths = [DOWN] * len(links)
        self._idle_rounds = IdleRounds(self.gateway, self.changes, self._relays.concerns)
        self._idle_timer: asyncio.TimerHandle | None = None
        self.gateway.down_partitions = self.faults.faults.down_partitions
        runner.when_entity_is_gone(self.changes.forget)

    async def start(self) -> None:
        """Open the stores and learn what is in them."""
        await self.runner.start()
        directory = self.gateway.directory
        if self._catalog is not None:
            await self._restore_again()
        else:
            directory.load([(0, await ask(self.gateway.links[0], ListEntities()))])
        self._relays.load()
        for entity in directory.by_id.values():
            self._telemetry.hide_keys_of(entity)
        directory.on_changed = self._entity_changed
        self._is_started = True
        if self._listings:  # of a store that came up while the others were looked at
            self._run(self._restore_again())
        self._tick()
        self._go_round()

    async def close(self) -> None:
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._relays.close()
        for task in self._tasks:
            task.cancel()
        self.faults.close()
        await self.runner.close()
        if self._catalog is not None:
            self._catalog.close()

    def _traced(self, links: Sequence[StoreLink], config: ServerConfig) -> list[StoreLink]:
        return self._telemetry.traced(
            links, _read_id, config.namespaces[0].name, lambda: self.gateway.directory
        )

    def _lose_parts(self, fault: Fault) -> None:
        self.gateway.lose(fault.covers, fault.error())

    # -- what changes ----------------------------------------------------------------------------

    def _entity_changed(self, entity: Entity) -> None:
        self._telemetry.hide_keys_of(entity)
        self._relays.entity_changed(entity)

    def _listed(self, store: int, listed: list[Listed]) -> None:
        """A store is up; at start all of them are looked at together."""
        self._listings.append((store, listed))
        if self._is_started:
            self._run(self._restore_again())

    async def _restore(self) -> None:
        assert self._catalog is not None
        # A store that comes up meanwhile is not in these, and has a round of its own.
        listings, self._listings = self._listings, []
        try:
            await self._compare(self._catalog)
        except BaseException:
            self._listings = listings + self._listings
            raise
        # Not earlier: what is in a journal for an entity that nobody knows would be dropped.
        if self.gateway.journals is not None:
            for store, listed in listings:
                self.gateway.journals.found(store, listed)

    async def _compare(self, catalog: CatalogFile) -> None:
        for warning in await restore(self.gateway, catalog, self.changes.lock):
            log.warning("%s", warning)

    async def _restore_again(self) -> None:
        try:
            await self._restore()
        except ServiceError as error:  # a store was lost meanwhile: its return is the next time
            log.warning("stores and catalog could not be put right yet: %s", error)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        # Each for itself: what is wrong with one receiver must not keep a journal from being read.
        for step in (self.gateway.tick, self._tick_relays, self._tick_journals):
            try:
                step()
            except Exception:
                log.exception("a turn of %s failed", step.__name__)

    def _tick_relays(self) -> None:
        for store, link in enumerate(self.gateway.links):
            if link.health != self._healths[store]:
                self._healths[store] = link.health
                self._relays.health_changed(store)
        self._relays.tick(self._clock.now())

    def _tick_journals(self) -> None:
        if self.gateway.journals is not None:
            self.gateway.journals.tick(self._clock.now())

    def _go_round(self) -> None:
        self._idle_timer = self._loop.call_later(IDLE_ROUND_S, self._go_round)
        self._run(self._delete_what_is_idle())

    async def _delete_what_is_idle(self) -> None:
        for name in await self._idle_rounds.go(self._clock):
            log.info("%s was idle for too long and has been deleted", shown_name(name))

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _read_id(stored: bytes) -> str | None:
    return read_keys(stored)[0]


def _metering(config: ServerConfig, gateway: Gateway, clock: Clock) -> Metering:
    """The meter's files are beside the stores: there is one meter, however many of those."""
    directory = config.data_dir / "meter"

    def read(from_ms: int, to_ms: int) -> list[Metered]:
        with closing(OsDisk(directory)) as disk:
            return read_meter(disk, from_ms, to_ms)[0]

    target = MeterLog(partial(OsDisk, directory), config.meter_days)
    return Metering(gateway.meter, target, read, clock)
