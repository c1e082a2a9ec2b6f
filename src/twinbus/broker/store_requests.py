"""Commands about a store: making, changing, removing and listing its entities.

A function may state facts and raise ServiceError, in which case nothing has changed.  Several
entities are made, changed or removed in one frame, so that a crash leaves all of them or none.
Names are those of the store, and whoever asks has checked them.
"""

from collections.abc import Callable
from typing import Final

from twinbus.broker.live_entities import LiveEntities
from twinbus.clock import Now
from twinbus.entities.commands import (
    CreateEntities,
    DeleteEntities,
    GetRuntime,
    Listed,
    ListEntities,
    NewEntity,
    Runtime,
    StoreCommand,
    UpdateEntities,
)
from twinbus.entities.facts import gather
from twinbus.entities.queue import Queue
from twinbus.errors import QuotaExceeded, ServiceError

Decide = Callable[[LiveEntities, StoreCommand, Now], object]


def _create(live: LiveEntities, command: StoreCommand, now: Now) -> list[int]:
    assert isinstance(command, CreateEntities)
    store = live.run.store
    _check_size(live, command.entities)
    mark = len(store.facts)
    made: list[Queue] = []
    try:
        for new in command.entities:
            queue = store.create_entity(new.kind, new.name, new.description)
            made.append(queue)
            if new.rule is not None:
                store.create_rule(queue.entity_id, new.rule)
    except ServiceError:
        store.delete_entities([queue.entity_id for queue in reversed(made)])
        raise
    finally:
        gather(store.facts, mark)
    for queue in made:
        live.note(queue)
    return [queue.entity_id for queue in made]


def _check_size(live: LiveEntities, entities: list[NewEntity]) -> None:
    """Refuse what cannot be written together: each part of an entity comes with its first rule."""
    size = 0
    for new in entities:
        size += len(new.description.to_json().encode())
        if new.rule is not None:
            size += len(new.rule.to_json().encode())
    if size > live.run.store.together_size_max:
        raise QuotaExceeded(
            f"The descriptions take {size} bytes; {live.run.store.together_size_max} can be "
            "written at once."
        )


def _update(live: LiveEntities, command: StoreCommand, now: Now) -> None:
    assert isinstance(command, UpdateEntities)
    store = live.run.store
    queues = [live.run.entity(entity_id) for entity_id in command.entity_ids]
    mark = len(store.facts)
    for queue in queues:
        store.update_entity(queue.entity_id, command.description)
    gather(store.facts, mark)
    for queue in queues:
        live.note(queue)


def _delete(live: LiveEntities, command: StoreCommand, now: Now) -> None:
    assert isinstance(command, DeleteEntities)
    entities = live.run.store.entities
    found = [entities.get(entity_id) for entity_id in dict.fromkeys(command.entity_ids)]
    live.delete([queue for queue in found if queue is not None])


def _list(live: LiveEntities, command: StoreCommand, now: Now) -> list[Listed]:
    return [
        Listed(queue.entity_id, queue.kind, queue.name, queue.description)
        for queue in live.run.store.entities.values()
    ]


def _runtime(live: LiveEntities, command: StoreCommand, now: Now) -> list[Runtime | None]:
    assert isinstance(command, GetRuntime)
    entities = live.run.store.entities
    found: list[Runtime | None] = []
    for entity_id in command.entity_ids:
        queue = entities.get(entity_id)
        found.append(None if queue is None else _runtime_of(live, queue))
    return found


def _runtime_of(live: LiveEntities, queue: Queue) -> Runtime:
    counts = queue.counts()
    runtime = Runtime()
    runtime.active = counts.active
    runtime.deferred = counts.deferred
    runtime.scheduled = counts.scheduled
    runtime.dead_letter = counts.dead_letter
    runtime.transfer_dead_letter = counts.transfer_dead_letter
    runtime.size_bytes = counts.size_bytes
    runtime.accessed_utc_ms = queue.accessed_utc_ms
    runtime.is_busy = live.is_in_use(queue)
    runtime.last_sequence_number = queue.last_sequence_number
    queue.add_runtime(runtime)
    topic = live.run.store.entities.get(queue.topic_id)
    if topic is not None:
        runtime.rule_count = len(topic.rules_of(queue.entity_id))
    return runtime


STORE_REQUESTS: Final[dict[type[StoreCommand], Decide]] = {
    CreateEntities: _create,
    UpdateEntities: _update,
    DeleteEntities: _delete,
    ListEntities: _list,
    GetRuntime: _runtime,
}
