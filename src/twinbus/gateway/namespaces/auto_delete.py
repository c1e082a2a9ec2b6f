"""Partitioned entities that are deleted when they have been idle for a while.

The rules are those of a broker for plain entities (broker/auto_delete.py), over all partitions:
using one partition uses the entity, and using a subscription uses its topic.  A partition that does
not answer may be in use, so nothing is deleted while a store is down.  Idle time is measured on the
monotonic clock, starting when this gateway first looked.

Only keeps the time; auto_delete_rounds.py deletes.
"""

from collections.abc import Sequence

from twinbus.clock import Now
from twinbus.entities.commands import Runtime
from twinbus.entities.message import NEVER_MS
from twinbus.gateway.directory.directory import Directory, Entity, Part


class _Watch:
    """How long an entity has been idle, as far as we know."""

    __slots__ = ("since_ms", "traces")

    def __init__(self) -> None:
        self.traces: list[int] = []  # of its use, as they were when we looked last
        self.since_ms = 0  # monotonic


class IdleEntities:
    """The partitioned entities that are deleted when idle."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watch] = {}

    def watched(self, directory: Directory) -> list[Entity]:
        """The entities to ask about; all others are forgotten."""
        entities = [entity for entity in directory.by_id.values() if _has_an_end(entity)]
        self._watched = {
            entity.entity_id: self._watched.get(entity.entity_id) or _Watch() for entity in entities
        }
        return entities

    def is_over(
        self, entity: Entity, runtimes: Sequence[Runtime | None], is_relayed: bool, now: Now
    ) -> bool:
        """Has nobody used it for as long as it allows?

        `runtimes` are those of `parts_of(entity)`, in that order, None where a part did not answer.
        `is_relayed` says that a relay carries messages from or to it.
        """
        watch = self._watched[entity.entity_id]
        # Compared part by part and not by the latest: where UTC was set back, use is use too.
        traces = [0 if each is None else each.accessed_utc_ms for each in runtimes]
        traces.append(entity.description.updated_utc_ms)
        if is_relayed or any(map(_is_busy, runtimes)) or traces != watch.traces:
            watch.traces = traces
            watch.since_ms = now.mono_ms
        return now.mono_ms - watch.since_ms >= entity.description.auto_delete_on_idle_ms


def parts_of(entity: Entity) -> list[Part]:
    """The parts whose use is the entity's: its own, and a topic's subscriptions'."""
    parts = list(entity.parts)
    for subscription in entity.subscriptions.values():
        parts += subscription.parts
    return parts


def _has_an_end(entity: Entity) -> bool:
    return entity.is_partitioned and entity.description.auto_delete_on_idle_ms != NEVER_MS


def _is_busy(runtime: Runtime | None) -> bool:
    """Is it in use even if nothing happens to it?"""
    return runtime is None or runtime.is_busy or runtime.scheduled > 0
