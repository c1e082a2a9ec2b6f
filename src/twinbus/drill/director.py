"""The drill itself: the scenes, one after the other, and what is measured meanwhile.

The main thread plays the scenes.  A thread beside it looks at everything twice a second, for the
timeline and the screen.  Whatever happens, `Drill` ends every process that it has started.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from twinbus.clock import monotonic_s
from twinbus.drill.application import Application
from twinbus.drill.clerks import ARRIVED, SENT, Clerk, PlainClerk, SparkClerk
from twinbus.drill.events import BAD, GOOD, PLAIN, Told, words_of
from twinbus.drill.judging import Verdict
from twinbus.drill.ledger import Ledger
from twinbus.drill.lost_partition import LostPartition
from twinbus.drill.plan import (
    ENTITIES,
    FAILOVER_INTERVAL_S,
    FAULTS,
    MENDED,
    STILL_S,
    STILL_S_MAX,
    WELL_WHOLE,
    Act,
    Fault,
    Scene,
    scenes,
)
from twinbus.drill.spread import Spread
from twinbus.drill.stage import DrillFailed, Stage
from twinbus.drill.timeline import Sample, Timeline
from twinbus.drill.waiting import Standstill, Waiting
from twinbus.launch import ServerProcess
from twinbus.pairing.events import EntityFailedOver, EntityStatus, Event

SAMPLE_S: Final = 0.5
HOME_S_MAX: Final = 60.0  # until every entity is back on the primary
ARRIVE_S_MAX: Final = 60.0  # until the last message has been received
LAST_LOOK_S: Final = 1.5


@dataclass(frozen=True)
class DrillSettings:
    """What was asked for."""

    duration_s: float
    rate: float
    faults: Sequence[Fault]
    with_spark: bool


@dataclass(frozen=True)
class EntityRow:
    """One entity on the screen."""

    name: str
    kind: str
    state: str
    sent: int
    to_backlog: int
    arrived: int


@dataclass(frozen=True)
class Snapshot:
    """Everything that a person is shown, at one moment."""

    time_s: float
    act: Act
    words: str
    primary: str
    secondary: str
    authorities: tuple[str, str]
    entities: list[EntityRow]
    backlog: int
    sent_rate: float
    arrived_rate: float
    sent_rates: list[float]
    depths: list[float]
    clerk: str
    told: list[Told] = field(default_factory=list)


class Screen(Protocol):
    """Who shows it; see screen.py."""

    def tell(self, told: Told) -> None:
        """Something has happened."""

    def look(self, snapshot: Snapshot) -> None:
        """Twice a second."""


class Drill:
    """One rehearsal; `play` it once."""

    def __init__(
        self, settings: DrillSettings, folder: Path, waiting: Waiting, screen: Screen
    ) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.ledger = Ledger()
        self.told: list[Told] = []
        self._waiting = waiting
        self._screen = screen
        self._folder = folder
        self._stage = Stage(folder)
        self._partition = LostPartition()
        self._clerk: Clerk = SparkClerk(folder) if settings.with_spark else PlainClerk(folder)
        self._application: Application | None = None
        self._act = Act.STAGE
        self._words = ""
        self._said_pings: set[str] = set()
        self._start_s = monotonic_s()
        self._outages_s: list[float] = []
        self._failover_s: float | None = None
        self._failed_s = 0.0
        self._drain_s = 0.0
        self._is_over = threading.Event()
        self._is_measured = False
        self._sampler = threading.Thread(target=self._sample_all, name="sampler", daemon=True)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        self._opened.callback(self._stage.close)
        self._opened.callback(self._clerk.close)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_sampling()
        self._opened.close()

    def play(self) -> Verdict:
        self._set_the_stage()
        for scene in scenes(self.settings.duration_s, self.settings.faults):
            if scene.act is Act.WELL:
                self._all_is_well(scene)
            elif scene.act is Act.FAILS:
                self._fails(scene)
            else:
                self._returns(scene)
        self._let_everything_arrive()
        return self._judge()

    # --- the scenes -------------------------------------------------------------------------------

    def _set_the_stage(self) -> None:
        self._begin(Act.STAGE, "two namespaces, each a twinbus serve of its own")
        self._clerk.start()
        self._stage.start()
        self._waiting.pause(0)  # whoever has pressed Ctrl-C meanwhile has waited long enough
        self._tell("the primary has 2 brokers; a partitioned queue, a queue, sessions, a topic")
        texts = (self._stage.primary.connection_string, self._stage.secondary.connection_string)
        self._application = Application(*texts, self.ledger, self.settings.rate)
        self._opened.callback(self._application.close)
        self._stage.shorten_backlog_locks()
        self._application.on_event(self._take)
        self._tell(
            f"paired; a drill is short, so failover after {FAILOVER_INTERVAL_S:.0f} s instead of 60"
        )
        self._application.start()
        self._is_measured = True

    def _all_is_well(self, scene: Scene) -> None:
        self._begin(scene.act, f"{self.settings.rate:g} messages a second, and they arrive")
        self._pause(scene.duration_s * WELL_WHOLE)
        self._partition.take(self._stage.primary.connection_string)
        self._tell(f"{self._partition.name} is down; messages without a key evade it", BAD)
        self._pause(scene.duration_s * (1 - WELL_WHOLE))

    def _fails(self, scene: Scene) -> None:
        self._begin(scene.act, FAULTS[scene.fault])
        self._failed_s = monotonic_s()
        self._stage.fail(scene.fault)
        self._pause(scene.duration_s)
        self._outages_s.append(monotonic_s() - self._failed_s)

    def _returns(self, scene: Scene) -> None:
        self._begin(scene.act, MENDED[scene.fault])
        began_s = monotonic_s()
        self._stage.mend(scene.fault, self._waiting)
        text = self._stage.primary.connection_string
        self._partition.take(text)
        up_s = monotonic_s() - began_s
        self._tell(f"the primary is up, after {up_s:.1f} s, but for {self._partition.name}", GOOD)
        application = self._playing()
        if not self._waiting.until(lambda: application.is_home, HOME_S_MAX):
            raise DrillFailed("the pair did not go back to the primary, which is up")
        self._tell("every entity sends to the primary again; now the backlog comes home", GOOD)
        drain_s = monotonic_s()
        with self._partition.back_when(self._stands_still(), text, self._tell_of_partition):
            self._clerk.drain(self._stage, self._waiting)
        self._drain_s += monotonic_s() - drain_s
        self._tell(f"the backlog is empty, after {monotonic_s() - drain_s:.1f} s", GOOD)
        self._pause(scene.duration_s - (monotonic_s() - began_s))

    def _stands_still(self) -> Callable[[], bool]:
        """Whether the backlog has come home, but for what belongs to the partition."""
        backlog = Standstill(STILL_S, STILL_S_MAX)

        def look() -> bool:
            counts = self._stage.backlog()
            return counts is not None and backlog.look(counts[0], monotonic_s())

        return look

    def _tell_of_partition(self) -> None:
        counts = self._stage.backlog()
        waited = "" if counts is None else f"; the backlog has waited for it with {counts[0]:,}"
        self._tell(f"{self._partition.name} is back{waited}", GOOD)

    def _let_everything_arrive(self) -> None:
        application = self._playing()
        self._begin(Act.BILL, "the application stops sending, and receives what is left")
        application.stop_sending()
        self._waiting.until(lambda: not application.is_sending, HOME_S_MAX)
        self._waiting.until(lambda: self.ledger.is_complete, ARRIVE_S_MAX)
        # A message that would be there twice comes last: everybody looks once more.
        self._waiting.pause(LAST_LOOK_S)

    def _judge(self) -> Verdict:
        application = self._playing()
        counts = self._stage.backlog()
        if counts is None:
            raise DrillFailed("the secondary does not say what is left in the backlog")
        left, dead = counts
        through = application.through_backlog
        self._is_measured = False
        application.close()
        self._stage.stop()
        self._tell("both namespaces have stopped; the ledgers and the meters are complete")
        self._write_ledgers()
        self._words = "what was accepted against what arrived"
        places, latency = self._clerk.reconcile(self.ledger, self._waiting)
        self._words = "what was metered, priced"
        bill = self._clerk.price(self._stage, self._waiting)
        return Verdict(
            sent=self.ledger.sent_count(),
            places=places,
            through_backlog=through,
            left_in_backlog=left,
            dead_lettered=dead,
            redelivered=self.ledger.redelivered,
            raised=self.ledger.raised,
            outages_s=tuple(self._outages_s),
            failover_s=self._failover_s,
            drain_s=self._drain_s,
            by=self._clerk.by,
            bill=bill,
            latency_ms=latency,
            spread=self._spread(),
        )

    def _spread(self) -> Spread:
        lost = self._partition
        numbers = self.ledger.sequence_numbers(lost.entity)
        return Spread.of(lost.entity, numbers, lost.number, lost.down_s)

    def _pause(self, seconds: float) -> None:
        """Wait, unless whoever is to judge later has failed already."""
        end_s = monotonic_s() + seconds
        while (left_s := end_s - monotonic_s()) > 0:
            self._clerk.check()
            self._waiting.pause(min(left_s, SAMPLE_S))

    def _write_ledgers(self) -> None:
        for name, lines in (
            (SENT, self.ledger.sent_lines()),
            (ARRIVED, self.ledger.arrived_lines()),
        ):
            with (self._folder / name).open("w") as file:
                file.writelines(lines)

    def _playing(self) -> Application:
        assert self._application is not None
        return self._application

    # --- what is told -----------------------------------------------------------------------------

    def _now_s(self) -> float:
        return monotonic_s() - self._start_s

    def _begin(self, act: Act, words: str) -> None:
        self._act, self._words = act, words
        self.timeline.mark(self._now_s(), act)
        self._tell(f"Act {act.number}. {act.value}: {words}", "act")

    def _tell(self, text: str, tone: str = PLAIN) -> None:
        told = Told(self._now_s(), text, tone)
        self.told.append(told)
        self._screen.tell(told)

    def _take(self, event: Event) -> None:
        """An event of the pair."""
        if isinstance(event, EntityFailedOver) and self._failover_s is None:
            self._failover_s = monotonic_s() - self._failed_s
        words = words_of(event, self._said_pings)
        if words is not None:
            self._tell(*words)

    # --- what is measured -------------------------------------------------------------------------

    def _sample_all(self) -> None:
        while True:
            if self._is_measured:
                self.timeline.add(self._sample())
            self._screen.look(self.snapshot())
            if self._is_over.wait(SAMPLE_S):
                return

    def _end_sampling(self) -> None:
        self._is_over.set()
        self._sampler.join()

    def _sample(self) -> Sample:
        counts = self._stage.backlog()
        states = {name: each.state.value for name, each in self._statuses().items()}
        return Sample(
            self._now_s(),
            self.ledger.sent_count(),
            self.ledger.arrived_count(),
            None if counts is None else counts[0],
            states,
        )

    def _statuses(self) -> dict[str, EntityStatus]:
        return {} if self._application is None else self._application.status().entities

    def snapshot(self) -> Snapshot:
        """For the screen."""
        statuses = self._statuses()
        depths = self.timeline.depths()[1]
        servers = (self._stage.primary, self._stage.secondary)
        rows = []
        for entity in ENTITIES:
            status = statuses.get(entity.name)
            rows.append(
                EntityRow(
                    entity.name,
                    entity.kind,
                    "" if status is None else status.state.value,
                    self.ledger.sent_count(entity.name),
                    0 if status is None else status.sent_to_backlog,
                    self.ledger.arrived_count(entity.name),
                )
            )
        return Snapshot(
            time_s=self._now_s(),
            act=self._act,
            words=self._words,
            primary=self._stage.primary_state,
            secondary=self._stage.secondary_state,
            authorities=(_authority(servers[0]), _authority(servers[1])),
            entities=rows,
            backlog=int(depths[-1]) if depths else 0,
            sent_rate=self.timeline.rate_now("sent") if self._is_measured else 0.0,
            arrived_rate=self.timeline.rate_now("arrived") if self._is_measured else 0.0,
            sent_rates=self.timeline.rates()[1],
            depths=depths,
            clerk=self._clerk.state,
            told=list(self.told),
        )


def _authority(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.port}" if server.port else ""
