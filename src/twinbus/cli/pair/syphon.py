"""`twinbus pair syphon` and `drain`: the syphon of `twinbus.pairing.aio` in the foreground.

Neither makes a pair: no queue is created, nothing is sent but what was in the backlog.  Ctrl-C and
SIGTERM end both in an orderly way; what was in hand then is free again when its lock ends.
"""

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from azure.servicebus.aio import ServiceBusClient

from twinbus.cli.exit_codes import INTERRUPTED, NO
from twinbus.cli.pair.backlog import Backlog, BacklogQueue, sdk_options
from twinbus.cli.progress import Progress, Rate, bar, span
from twinbus.clock import SystemClock
from twinbus.errors import TwinbusError
from twinbus.pairing.aio._steady import Closing
from twinbus.pairing.aio._syphon import RunningSyphon
from twinbus.pairing.events import StrangersLeft, SyphonProgress, SyphonResting
from twinbus.pairing.options import RestoredTimeToLive
from twinbus.pairing.primary import Primary, strangers_told
from twinbus.pairing.syphon import Syphon

LOOK_S: Final = 0.2
COUNT_S: Final = 2.0  # between two looks at the counts of the backlog queues


@dataclass(frozen=True)
class PairFlowSettings:
    """What the flow has to know of a pair."""

    restored_time_to_live: RestoredTimeToLive
    identity: Primary


@dataclass(frozen=True)
class Outcome:
    """How far it has come; the last line of the output."""

    moved: int
    dead_lettered: int
    left: int


def run(options: argparse.Namespace) -> int:
    return asyncio.run(_Run(options).run())


class _Run:
    """One run of either command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._is_drain = options.action == "drain"
        self._backlog = Backlog(options)
        self._clock = SystemClock()
        time_to_live: Literal["original", "remaining"] = options.restored_time_to_live
        settings = PairFlowSettings(time_to_live, self._backlog.primary)
        self._syphon = Syphon(settings, self._seconds, self._utc_now)
        self._progress = Progress(sys.stderr)
        self._rate = Rate()
        # As the secondary counts them, a moment ago; it dead-letters messages by itself, too.
        self._left = 0
        self._dead_letters = 0
        self._dead_letters_before = 0
        self._stop = asyncio.Event()
        self._moved_s = 0.0  # when something was last moved or dead-lettered

    async def run(self) -> int:
        queues = await asyncio.to_thread(self._backlog.queues)
        self._take_counts(queues)
        self._dead_letters_before = self._dead_letters
        self._moved_s = self._seconds()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        self._progress.say(f"{self._left:,} waiting in {len(queues)} backlog queues")
        closing = Closing()
        # Once more for a hiccup, since what is not sent now waits until its lock ends; but a
        # destination that is down must not keep the others waiting.
        keywords = {**sdk_options(), "retry_total": 1}
        options = self._options
        async with (
            ServiceBusClient.from_connection_string(options.primary, **keywords) as primary,
            ServiceBusClient.from_connection_string(options.secondary, **keywords) as secondary,
        ):
            running = RunningSyphon(self._syphon, primary, secondary, closing, self._tell)
            running.start([queue.name for queue in queues], until_empty=self._is_drain)
            counting = asyncio.create_task(self._count())
            try:
                await self._watch(running)
            finally:
                counting.cancel()
                await running.stop()
                await closing.wait()
        return await self._end()

    async def _watch(self, running: RunningSyphon) -> None:
        while running.is_running and not self._stop.is_set() and not self._is_stalled():
            now_ms = self._clock.now().mono_ms
            if self._progress.is_due(now_ms) and not self._options.json:
                self._progress.show(self._line(now_ms), now_ms)
            try:
                await asyncio.wait_for(self._stop.wait(), LOOK_S)
            except TimeoutError:
                continue

    def _is_stalled(self) -> bool:
        """Whatever is left is for destinations that do not take it, or locked by somebody else."""
        if not self._is_drain:
            return False
        patience_s: int = self._options.patience
        return self._seconds() - self._moved_s > patience_s

    async def _count(self) -> None:
        """Keep the number of messages that are left up to date; senders may still add some."""
        while True:
            await asyncio.sleep(COUNT_S)
            try:
                self._take_counts(await asyncio.to_thread(self._backlog.queues))
            except TwinbusError:
                continue  # the syphon meets the same, and says so

    def _take_counts(self, queues: list[BacklogQueue]) -> None:
        self._left = sum(queue.active for queue in queues)
        self._dead_letters = sum(queue.dead_letter for queue in queues)

    async def _end(self) -> int:
        self._tell()
        try:
            self._take_counts(await asyncio.to_thread(self._backlog.queues))
        except TwinbusError as error:
            self._progress.say(f"cannot tell what is left: {error}")
        outcome = self._outcome()
        self._progress.finish()
        if self._options.json:
            print(json.dumps(asdict(outcome)))
        else:
            print(
                f"moved {outcome.moved}, dead-lettered {outcome.dead_lettered}, left {outcome.left}"
            )
        if not self._is_drain:
            return 0
        if self._stop.is_set():
            return INTERRUPTED
        return NO if outcome.dead_lettered or outcome.left else 0

    def _outcome(self) -> Outcome:
        syphon = self._syphon
        return Outcome(
            moved=sum(syphon.moved.values()),
            dead_lettered=max(
                sum(syphon.dead_lettered.values()), self._dead_letters - self._dead_letters_before
            ),
            left=self._left,
        )

    def _line(self, now_ms: int) -> str:
        outcome = self._outcome()
        rate = self._rate.read(outcome.moved, now_ms)
        words = [
            f"{rate:,.0f}/s",
            f"moved {outcome.moved:,}",
            f"left {outcome.left:,}",
            f"dead-lettered {outcome.dead_lettered:,}",
            f"held {sum(self._syphon.held.values()):,}",
        ]
        if self._is_drain:
            done = outcome.moved + outcome.dead_lettered
            words.insert(0, bar(done, done + outcome.left))
            if rate and outcome.left:
                words.append(f"{span(outcome.left / rate)} to go")
        return "  ".join(words)

    def _tell(self) -> None:
        """What the syphon has met since the last time."""
        for event in self._syphon.take_events():
            if isinstance(event, SyphonProgress):
                self._moved_s = self._seconds()
                if self._options.json and not self._is_drain:
                    print(json.dumps(asdict(event)), flush=True)
            elif isinstance(event, SyphonResting):
                reason = " ".join(str(event.error).split())
                self._progress.say(f"{event.path} rests for {event.rest_s:g} s: {reason}")
            elif isinstance(event, StrangersLeft):
                told = strangers_told(event.queue, event.primary, event.count)
                self._progress.say(told)

    def _seconds(self) -> float:
        return self._clock.now().mono_ms / 1_000

    def _utc_now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now().utc_ms / 1_000, UTC)
