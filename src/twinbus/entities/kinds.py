"""Which class a kind of entity is made of; the one place that knows."""

from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.facts import Fact
from twinbus.entities.queue import Queue
from twinbus.entities.sessions import SessionQueue
from twinbus.entities.state import Grants


def make_queue(
    kind: str,
    entity_id: int,
    name: str,
    description: QueueDescription,
    facts: list[Fact],
    grants: Grants,
) -> Queue:
    """An empty entity that holds messages."""
    if description.requires_session:
        queue: Queue = SessionQueue(entity_id, name, description, facts, grants)
    else:
        queue = Queue(entity_id, name, description, facts, grants)
    queue.kind = kind
    return queue
