"""Rates: how many messages a second went in and out of each entity, over the last seconds.

Computed from the gateway's counters, which are read every two seconds whether or not anyone asks,
so that the first request has an answer too.  Entities that were never used cost one comparison.
"""

import asyncio
from collections import deque
from typing import Final

from twinbus.clock import Clock
from twinbus.gateway.counting.counters import EntityMetrics
from twinbus.gateway.directory.directory import Directory, Entity

INTERVAL_S: Final = 2.0
_SAMPLES: Final = 3  # so the window is four to six seconds
NAMES: Final = ("incoming", "outgoing", "completed", "errors", "throttled")

Counters = tuple[int, ...]  # in the order of NAMES
_NONE: Final[Counters] = (0,) * len(NAMES)


class Rates:
    """Of all entities of one server."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        # When, and what each entity had counted by then; one that is not in it had counted nothing.
        self._samples: deque[tuple[int, dict[int, Counters]]] = deque(maxlen=_SAMPLES)
        self.sample()

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """One look at all counters."""
        found = {
            entity_id: _counters(entity.metrics)
            for entity_id, entity in self._directory.by_id.items()
            if entity.metrics.is_used
        }
        self._samples.append((self._clock.now().mono_ms, found))

    def of(self, entity: Entity) -> dict[str, float]:
        """Each a second.  What a topic puts into a subscription is not counted there."""
        begun_ms, found = self._samples[0]
        elapsed_s = max(1, self._clock.now().mono_ms - begun_ms) / 1_000
        before = found.get(entity.entity_id, _NONE)
        return {
            name: round(max(0, now - then) / elapsed_s, 2)
            for name, now, then in zip(NAMES, _counters(entity.metrics), before, strict=True)
        }


def _counters(metrics: EntityMetrics) -> Counters:
    return (
        metrics.incoming_messages,
        metrics.outgoing_messages,
        metrics.completed,
        metrics.server_errors + metrics.user_errors,
        metrics.throttled_requests,
    )
