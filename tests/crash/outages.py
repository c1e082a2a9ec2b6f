"""Outages on purpose, under load: a schedule drawn from a seed, who carries it out, and a judge.

    Cluster     a real `twinbus serve` with broker processes and several stores
    Schedule    what is done to it and when; the same for the same seed
    Nemesis     does it, and keeps a Timeline of which stores have a reason to fail
    weather     load, the storm, everything taken out, the verdict (outage_judge.py)

A strike is withheld while it would leave no store that is well: that messages without a key can
always be sent is promised only while there is somebody to take them.
"""

import asyncio
import json
import logging
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.crash.outage_judge import Outage, Timeline, judge
from tests.crash.outage_load import LOCK_DURATION_MS, Lane, OutageLoad, now_ms
from twinbus.client.faults import FaultClient
from twinbus.client.http import HttpClient, Unreachable
from twinbus.entities.partitions import hash_key
from twinbus.errors import ServiceError
from twinbus.gateway.directory.placement import stores_of_partitions
from twinbus.testing.checkers import History
from twinbus.testing.server import ServerProcess

log = logging.getLogger(__name__)

ORDERS: Final = "orders"  # partitioned
VISITS: Final = "visits"  # partitioned, with sessions
POLL_S: Final = 0.1
WITHHELD_S_MAX: Final = 1.5  # so long a strike waits for somebody who can be spared
STALE_MS: Final = 5_000  # room on a disk is asked for every other second; throttling follows that
WELL_S_MAX: Final = 90.0  # a bus that is not well again by then never will be
DRAIN_S_MAX: Final = 60.0
LOG_TAIL_LINES: Final = 80

KILL: Final = "kill broker"
HANG: Final = "hang broker"
PAUSE: Final = "pause broker"
SLOW: Final = "slow-store"
FAIL: Final = "fail-store"
FULL: Final = "full-store"
DROP: Final = "drop-connections"
RESTART: Final = "kill server"
BROKER_KINDS: Final = (KILL, HANG, PAUSE)
STORE_KINDS: Final = (SLOW, FAIL, FULL)
_WEIGHTS: Final = {KILL: 4, HANG: 3, PAUSE: 2, SLOW: 3, FAIL: 3, FULL: 2, DROP: 1, RESTART: 1}


# --- schedules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strike:
    """One thing that is done to the bus."""

    kind: str
    target: int  # a broker or a store; or the next that can be spared
    after_s: float  # since the one before
    lasts_s: float = 0.0
    delay_ms: int = 0

    def __str__(self) -> str:
        return f"+{self.after_s:.1f} s {self.kind} {self.target} for {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Schedule:
    """What happens to one bus."""

    seed: int
    brokers: int
    stores: int
    strikes: tuple[Strike, ...]

    @classmethod
    def draw(cls, seed: int, duration_s: float) -> "Schedule":
        chance = random.Random(seed)
        brokers = chance.choice((2, 2, 3))
        stores = brokers + chance.choice((0, 1))
        strikes: list[Strike] = []
        left_s = duration_s
        while left_s > 0:
            kind = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            targets = brokers if kind in BROKER_KINDS else stores
            strike = Strike(
                kind,
                chance.randrange(targets),
                chance.uniform(0.1, 1.2),
                chance.uniform(0.2, 1.0) if kind == PAUSE else chance.uniform(0.5, 2.5),
                chance.choice((50, 300, 1_500)),
            )
            strikes.append(strike)
            left_s -= strike.after_s
        return cls(seed, brokers, stores, tuple(strikes))

    def __str__(self) -> str:
        done = "; ".join(map(str, self.strikes))
        return f"seed {self.seed}: {self.brokers} brokers, {self.stores} stores: {done}"


# --- the bus --------------------------------------------------------------------------------------


class Cluster:
    """A server with broker processes and several stores."""

    def __init__(self, directory: Path, brokers: int, stores: int, **options: Any) -> None:
        self.brokers = brokers
        self.stores = stores
        directory.mkdir(exist_ok=True)
        arguments = ["--brokers", str(brokers), "--log-level", "info"]
        for store in range(stores):
            arguments += ["--store", str(directory / f"disk-{store}")]
        self.server = ServerProcess(directory / "data", arguments=arguments, **options)

    def start(self) -> None:
        self.server.start()
        plain: dict[str, str | int] = {
            "lock_duration": f"PT{LOCK_DURATION_MS // 1_000}S",
            "max_delivery_count": 1_000_000,  # running out of deliveries is not what is tested
        }
        for store in range(self.stores):
            self.server.create_queue(f"plain-{store}", **plain)  # each store gets one
        self.server.create_queue(ORDERS, enable_partitioning=True, **plain)
        self.server.create_queue(VISITS, enable_partitioning=True, requires_session=True, **plain)

    def lanes(self) -> list[Lane]:
        """Traffic of every kind."""
        stores = {name: stores_of_partitions(name, [0] * self.stores) for name in (ORDERS, VISITS)}
        lanes = [Lane(f"unkeyed-{number}", ORDERS) for number in range(4)]
        for number in range(5):
            key = f"customer {number}"
            store = stores[ORDERS][hash_key(key)]
            lanes.append(Lane(f"keyed-{number}", ORDERS, key, store=store))
            key = f"visit {number}"
            store = stores[VISITS][hash_key(key)]
            lanes.append(Lane(f"session-{number}", VISITS, key, is_session=True, store=store))
        plain = [
            Lane(f"plain-{store}", f"plain-{store}", store=store) for store in range(self.stores)
        ]
        return lanes + plain

    def health(self) -> dict[str, Any]:
        http = HttpClient(self.server.connection_string)
        _, text = http.exchange("GET", "/health", None, {})
        document: dict[str, Any] = json.loads(text)
        return document

    def message_count(self) -> int:
        """In all queues, and dead-lettered ones too; sessions' and waiting in journals as well."""
        queues = [ORDERS, VISITS, *(f"plain-{store}" for store in range(self.stores))]
        admin = self.server.admin
        return sum(int(admin.get_queue(queue).properties["MessageCount"]) for queue in queues)

    async def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until the health fulfils it; a server that is not there does not."""
        try:
            async with asyncio.timeout(WELL_S_MAX):
                while True:
                    with suppress(Unreachable, ServiceError):
                        if condition(await asyncio.to_thread(self.health)):
                            return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"never came: {what}; {self.health()}") from None

    async def until_well(self) -> None:
        await self.until(is_well, "a bus that is well")

    def signal_broker(self, pid: int, number: int) -> None:
        """To a broker of this server, and to nobody who has been given its number since."""
        with suppress(ProcessLookupError, FileNotFoundError):
            status = Path(f"/proc/{pid}/stat").read_text()
            parent = int(status.rpartition(")")[2].split()[1])
            if self.server.running and parent == self.server.pid:
                os.kill(pid, number)


def is_well(health: dict[str, Any]) -> bool:
    stores, brokers = health["stores"], health["brokers"]
    return all(store["health"] == "up" and not store["is_journalled"] for store in stores) and all(
        broker["state"] == "up" for broker in brokers
    )


# --- who does it ----------------------------------------------------------------------------------


class Nemesis:
    """Carries out a schedule."""

    def __init__(self, cluster: Cluster, timeline: Timeline) -> None:
        self._cluster = cluster
        self._timeline = timeline
        self._restarting = asyncio.Lock()
        self.struck: list[str] = []

    async def carry_out(self, *strikes: Strike) -> None:
        """Everything, one after the other or at the same time; over when all is well again."""
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as under_way:
                for strike in strikes:
                    await asyncio.sleep(strike.after_s)
                    if (outage := await self._begin(strike)) is not None:
                        under_way.create_task(self._strike(strike, outage))
            await self._cluster.until_well()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Note whose sends are journalled."""
        while True:
            with suppress(Unreachable, ServiceError):
                health = await asyncio.to_thread(self._cluster.health)
                seen_ms = now_ms()
                self._timeline.journalled += [
                    (seen_ms, each["store"]) for each in health["stores"] if each["is_journalled"]
                ]
            await asyncio.sleep(POLL_S)

    async def _begin(self, strike: Strike) -> Outage | None:
        """Choose whom it hits: the one it names or the next that can be spared, if there is one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WITHHELD_S_MAX
        while True:
            with suppress(Unreachable, ServiceError):
                outage = self._choose(strike, await asyncio.to_thread(self._cluster.health))
                if outage is not None:
                    self.struck.append(strike.kind)
                    return self._timeline.begin(outage)
            if loop.time() > deadline:
                log.info("withheld: %s", strike)
                return None
            await asyncio.sleep(POLL_S)

    def _choose(self, strike: Strike, health: dict[str, Any]) -> Outage | None:
        text = str(strike)
        if strike.kind in {DROP, RESTART}:
            return Outage(text, set(), now_ms(), is_whole=True)
        is_broker = strike.kind in BROKER_KINDS
        count = self._cluster.brokers if is_broker else self._cluster.stores
        for turn in range(count):
            target = (strike.target + turn) % count
            hit = _stores_of(health["stores"], target) if is_broker else {target}
            outage = Outage(text, hit, now_ms(), broker=target if is_broker else None)
            # A broker without stores would not be missed.  One that is opening a store is given a
            # minute to be heard of again, which is too long for a test.
            is_worth_it = hit and (
                not is_broker or all(health["stores"][store]["health"] == "up" for store in hit)
            )
            if is_worth_it and self._is_bearable(outage, health):
                return outage
        return None

    def _is_bearable(self, outage: Outage, health: dict[str, Any]) -> bool:
        """Is there still a store that is well, at a broker that is?"""
        struck = {each.broker for each in self._timeline.open}
        if outage.broker is not None:
            # One that is being hit already could be helped up by who hit it first.
            if outage.broker in struck or health["brokers"][outage.broker]["state"] != "up":
                return False
            struck.add(outage.broker)
        sick = outage.stores.union(*(each.stores for each in self._timeline.open))
        return any(
            each["store"] not in sick and each["broker"] not in struck and each["health"] == "up"
            for each in health["stores"]
        )

    async def _strike(self, strike: Strike, outage: Outage) -> None:
        log.info("%d: %s, stores %s", outage.began_ms, strike, sorted(outage.stores))
        if strike.kind in BROKER_KINDS:
            await self._hit_broker(strike, outage)
        elif strike.kind == RESTART:
            await self._restart()
        elif strike.kind == DROP:
            await self._fault({"kind": DROP})
        else:
            await self._hit_store(strike, *outage.stores)
        await self._cluster.until(lambda health: _is_over(health, outage), f"the end of {strike}")
        self._timeline.end(outage, STALE_MS if strike.kind == FULL else 0)

    async def _hit_broker(self, strike: Strike, outage: Outage) -> None:
        assert outage.broker is not None
        broker = outage.broker
        pid = 0

        def found(health: dict[str, Any]) -> bool:
            nonlocal pid
            pid = health["brokers"][broker]["pid"]
            outage.stores |= _stores_of(health["stores"], broker)
            return bool(pid > 0)

        await self._cluster.until(found, f"broker {broker}")
        self._cluster.signal_broker(pid, signal.SIGKILL if strike.kind == KILL else signal.SIGSTOP)
        if strike.kind == PAUSE:
            await asyncio.sleep(strike.lasts_s)
            self._cluster.signal_broker(pid, signal.SIGCONT)
            return

        def is_replaced(health: dict[str, Any]) -> bool:
            # What was on its way to it when it was hit is hit with it.
            is_same = health["brokers"][broker]["pid"] == pid
            if is_same:
                outage.stores |= _stores_of(health["stores"], broker)
            return not is_same and health["brokers"][broker]["state"] == "up"

        await self._cluster.until(is_replaced, f"a new broker {broker}")

    async def _hit_store(self, strike: Strike, store: int) -> None:
        fault: dict[str, object] = {"kind": strike.kind, "store": store}
        if strike.kind == SLOW:
            fault["delay_ms"] = strike.delay_ms
        fault["duration_s"] = strike.lasts_s
        await self._fault(fault)
        await asyncio.sleep(strike.lasts_s)

    async def _fault(self, fault: dict[str, object]) -> None:
        """If there is a server; it may have been killed just now."""
        with suppress(Unreachable, ServiceError):
            await asyncio.to_thread(FaultClient(self._cluster.server.connection_string).add, fault)

    async def _restart(self) -> None:
        async with self._restarting:
            await asyncio.to_thread(self._cluster.server.kill)
            await asyncio.to_thread(self._cluster.server.restart)


def _stores_of(stores: list[dict[str, Any]], broker: int) -> set[int]:
    return {each["store"] for each in stores if each["broker"] == broker}


def _is_over(health: dict[str, Any], outage: Outage) -> bool:
    """The stores that were hit are back, and what was full is known not to be any more."""
    stores = [
        each for each in health["stores"] if outage.is_whole or each["store"] in outage.stores
    ]
    return all(each["health"] == "up" for each in stores) and not health["throttled"]


# --- a storm from beginning to end ----------------------------------------------------------------


async def weather(
    cluster: Cluster,
    title: str,
    storm: Callable[[Timeline], Awaitable[None]],
    clients: type[OutageLoad] = OutageLoad,
    **options: Any,
) -> OutageLoad:
    """Load, the storm, everything taken out, the verdict."""
    timeline = Timeline()
    text = cluster.server.connection_string
    load = clients(text, cluster.lanes(), History(), timeline.life_at, **options)
    load.start()
    try:
        log.info("the storm begins")
        await storm(timeline)
        log.info("the storm is over")
        load.raise_failures()
        await load.finish_sending()
        log.info("everything is sent")
        load.drain()
        left = await _drained(cluster, load)
        log.info("everything is received")
        await load.stop()
        broken = judge(load, timeline)
        if left:
            broken["left over"] = [f"{left} messages"]
        assert broken == {}, told(title, broken, timeline, cluster)
    except (AssertionError, BaseExceptionGroup, TimeoutError) as error:
        log.error("%s failed: %r\n%s", title, error, log_tail(cluster))
        raise
    finally:
        await load.stop()
    return load


async def _drained(cluster: Cluster, load: OutageLoad) -> int:
    """Wait until nothing is left; how much is, if that takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_S_MAX
    while left := await asyncio.to_thread(cluster.message_count):
        load.raise_failures()
        if loop.time() > deadline:
            break
        await asyncio.sleep(POLL_S)
    return left


def told(title: str, broken: dict[str, list[str]], timeline: Timeline, cluster: Cluster) -> str:
    """What a person needs to find out why."""
    lines = [title]
    for name, keys in broken.items():
        lines.append(f"{name}: {len(keys)}")
        lines += [f"    {key}" for key in keys[:10]]
    lines += [
        f"{each.began_ms}..{each.ended_ms} stores {sorted(each.stores)}: {each.text}"
        for each in timeline.outages
    ]
    return "\n".join([*lines, log_tail(cluster)])


def log_tail(cluster: Cluster) -> str:
    return "\n".join(cluster.server.log.splitlines()[-LOG_TAIL_LINES:])
