"""What happens to a pair, drawn from a seed, and who carries it out.

    Schedule   strikes and when; the same for the same seed
    Nemesis    carries them out; when it is done, everything is up again

Of the primary only one thing goes wrong at a time; entities, partitions, backlog queues and syphons
fail beside it as they like.  A backlog queue is deleted only when nothing is in it and nothing can
get in: what an owner throws away is lost, and nobody promises otherwise.
"""

import asyncio
import logging
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.crash.pairing_bus import (
    ENTITIES,
    NOWHERE,
    PARTS,
    Bus,
    SyphonProcess,
    backlog_queue,
    until,
)
from twinbus.client.faults import FaultClient
from twinbus.client.http import Unreachable
from twinbus.errors import ServiceError

log = logging.getLogger(__name__)

KILL: Final = "kill the primary"
STOP: Final = "stop the primary"
CUT: Final = "cut the network"
STALL: Final = "stall the network"
MUTE: Final = "mute the network"
RESET: Final = "reset connections"
REFUSE: Final = "refuse sends to"
REFUSE_BACKLOG: Final = "refuse the backlog queue"
DELETE_BACKLOG: Final = "delete the backlog queue"
KILL_SYPHON: Final = "kill syphon"
TAKE_PARTITION: Final = "take away partition"
OF_THE_PRIMARY: Final = (KILL, STOP, CUT, STALL, MUTE, RESET)
_WEIGHTS: Final = {KILL: 2, STOP: 2, CUT: 2, STALL: 1, MUTE: 3, RESET: 2, REFUSE: 4, KILL_SYPHON: 3}
EMPTY_S_MAX: Final = 8.0  # so long a backlog queue may take to be empty before it is let alone
MOMENT_S: Final = 0.3
PARTITION_S: Final = (4.0, 7.0)  # as long as several other strikes
BREATH_S: Final = 1.0  # of the primary between two outages: pings get through, senders come back


@dataclass(frozen=True)
class Strike:
    """One thing that is done."""

    kind: str
    target: int  # entity, partition, backlog queue or syphon
    after_s: float  # since the one before began
    lasts_s: float

    def __str__(self) -> str:
        return f"+{self.after_s:.1f} s {self.kind} {self.target} for {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Schedule:
    """What happens to one pair."""

    seed: int
    syphons: int
    failover_intervals_s: tuple[float, float]  # of the blocking and of the async application
    strikes: tuple[Strike, ...]

    @classmethod
    def draw(cls, seed: int, extra: int, backlog_queues: int) -> "Schedule":
        """Everything fails at least once, and so many strikes more."""
        chance = random.Random(seed)
        kinds = [KILL, MUTE, REFUSE, KILL_SYPHON, REFUSE_BACKLOG, DELETE_BACKLOG]
        kinds += chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=extra)
        chance.shuffle(kinds)
        # Of the backlog queues all but two are left alone: senders that have lost all of them
        # could not send any more.
        queues = iter(chance.sample(range(backlog_queues), 2))
        strikes = [
            Strike(
                kind,
                next(queues) if kind in {REFUSE_BACKLOG, DELETE_BACKLOG} else chance.randrange(4),
                chance.uniform(0.2, 1.2),
                chance.uniform(0.5, 2.5),
            )
            for kind in kinds
        ]
        strikes.insert(_place_of_kill(strikes), _of_partition(seed))
        intervals_s = chance.choice(((0.0, 0.7), (0.7, 0.0)))
        return cls(seed, chance.choice((1, 2)), intervals_s, tuple(strikes))

    def __str__(self) -> str:
        done = "; ".join(map(str, self.strikes))
        settings = f"{self.syphons} syphons, failover after {self.failover_intervals_s} s"
        return f"seed {self.seed}: {settings}: {done}"


def _of_partition(seed: int) -> Strike:
    """Drawn apart, and with no time before the next: the others stay as they would be."""
    chance = random.Random(f"{seed} partition")
    return Strike(TAKE_PARTITION, chance.randrange(16), 0.0, chance.uniform(*PARTITION_S))


def _place_of_kill(strikes: Sequence[Strike]) -> int:
    """Just before the primary dies: it is down before the outage, and when the primary is back."""
    return next(place for place, strike in enumerate(strikes) if strike.kind == KILL)


class Nemesis:
    """Carries out a schedule."""

    def __init__(self, bus: Bus, syphons: Sequence[SyphonProcess]) -> None:
        self._bus = bus
        self._syphons = syphons
        self._primary = asyncio.Lock()
        # A queue that vanishes while a syphon is set up is an error, and told as one.
        self._secondary = asyncio.Lock()
        self._taken: int | None = None  # a partition
        self._of_syphons = [asyncio.Lock() for _ in syphons]
        self.struck: list[str] = []

    async def carry_out(self, *strikes: Strike) -> None:
        async with asyncio.TaskGroup() as under_way:
            for strike in strikes:
                await asyncio.sleep(strike.after_s)
                under_way.create_task(self._strike(strike))

    async def _strike(self, strike: Strike) -> None:
        if strike.kind in OF_THE_PRIMARY:
            async with self._primary:
                log.info("%s", strike)
                await self._hit_primary(strike)
                await asyncio.sleep(BREATH_S)
        elif strike.kind == KILL_SYPHON:
            await self._kill_syphon(strike)
        elif strike.kind == TAKE_PARTITION:
            await self._take_partition(strike)
        elif strike.kind == REFUSE:
            fault = {"kind": "refuse-sends", "entity": ENTITIES[strike.target % len(ENTITIES)]}
            await self._fault(self._bus.primary_faults, {**fault, "duration_s": strike.lasts_s})
            await asyncio.sleep(strike.lasts_s)
        elif strike.kind == REFUSE_BACKLOG:
            fault = {"kind": "refuse-sends", "entity": backlog_queue(strike.target)}
            await self._fault(self._bus.secondary_faults, {**fault, "duration_s": strike.lasts_s})
            await asyncio.sleep(strike.lasts_s)
        else:
            await self._delete_backlog_queue(strike)
        self.struck.append(strike.kind)
        log.info("over: %s", strike)

    async def _hit_primary(self, strike: Strike) -> None:
        bus, network = self._bus, self._bus.network
        if strike.kind == KILL:
            await asyncio.to_thread(bus.primary.kill)
            await asyncio.sleep(strike.lasts_s)
            await asyncio.to_thread(bus.primary.restart)
            await self._keep_partition_down()  # a new process has no faults
        elif strike.kind == STOP:
            os.kill(bus.primary.pid, signal.SIGSTOP)
            await asyncio.sleep(strike.lasts_s)
            os.kill(bus.primary.pid, signal.SIGCONT)
        elif strike.kind == CUT:
            network.target_port = NOWHERE
            network.cut()
            await asyncio.sleep(strike.lasts_s)
            network.target_port = bus.primary.port
        elif strike.kind in {STALL, MUTE}:
            network.stall() if strike.kind == STALL else network.mute()
            await asyncio.sleep(strike.lasts_s)
            if strike.kind == MUTE or strike.target % 2:
                network.cut()  # what was held up never arrives: the answers, in any case
            network.flow()
        else:
            for _ in range(1 + int(4 * strike.lasts_s)):
                network.cut()
                await asyncio.sleep(MOMENT_S)

    async def _take_partition(self, strike: Strike) -> None:
        """Of the partitioned queue, in which half of the messages have no key."""
        async with self._primary:
            log.info("%s", strike)
            self._taken = strike.target
            await self._keep_partition_down()
        await asyncio.sleep(strike.lasts_s)
        self._taken = None
        async with self._primary:
            faults = self._bus.primary_faults
            for fault in await asyncio.to_thread(faults.list):
                if fault["kind"] == "partition-down":
                    await asyncio.to_thread(faults.clear, fault["id"])

    async def _keep_partition_down(self) -> None:
        if self._taken is not None:
            fault = {"kind": "partition-down", "entity": PARTS, "partition": [self._taken]}
            await asyncio.to_thread(self._bus.primary_faults.add, fault)

    async def _kill_syphon(self, strike: Strike) -> None:
        number = strike.target % len(self._syphons)
        async with self._of_syphons[number]:
            await asyncio.to_thread(self._syphons[number].kill)
            await asyncio.sleep(strike.lasts_s)
            async with self._secondary:  # the primary may be down
                await asyncio.to_thread(self._syphons[number].start)

    async def _delete_backlog_queue(self, strike: Strike) -> None:
        """When it is empty and refuses everything; made again later, as an owner would."""
        bus, queue = self._bus, backlog_queue(strike.target)
        fault = await asyncio.to_thread(
            bus.secondary_faults.add, {"kind": "refuse-sends", "entity": queue}
        )
        await asyncio.sleep(MOMENT_S)
        if await until(lambda: bus.backlog_count(strike.target) == 0, EMPTY_S_MAX):
            async with self._secondary:
                await asyncio.to_thread(bus.secondary.admin.delete_queue, queue)
                await asyncio.sleep(strike.lasts_s)
                await asyncio.to_thread(bus.create_backlog_queue, strike.target)
        else:
            log.info("withheld: %s", strike)
        await asyncio.to_thread(bus.secondary_faults.clear, fault["id"])

    async def _fault(self, faults: FaultClient, fault: dict[str, object]) -> None:
        """If there is a server; it may have been killed or stopped just now."""
        with suppress(Unreachable, ServiceError, TimeoutError):
            async with self._primary:
                await asyncio.to_thread(faults.add, fault)
