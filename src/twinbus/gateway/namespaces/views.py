"""What management shows of an entity: its description, its counts, its times.

A view is taken at one moment and does not change afterwards.  Names are as the namespace's users
know them.
"""

from twinbus.entities.commands import Runtime
from twinbus.entities.descriptions import SUBSCRIPTIONS, QueueDescription
from twinbus.entities.rule_descriptions import RuleDescription
from twinbus.entities.state import QueueCounts
from twinbus.gateway.directory.directory import Entity


class QueueView:
    """A queue.  `prefix` is what the stores have in front of the names of this namespace."""

    def __init__(
        self, entity: Entity, runtime: Runtime, availability: str, prefix: str = ""
    ) -> None:
        self.name: str = entity.name[len(prefix) :]
        self.description: QueueDescription = entity.description
        self.counts = QueueCounts(
            runtime.active,
            runtime.deferred,
            runtime.scheduled,
            runtime.dead_letter,
            runtime.size_bytes,
            runtime.transfer_dead_letter,
        )
        self.availability = availability  # what health.py says
        self.created_utc_ms: int = entity.description.created_utc_ms
        self.updated_utc_ms: int = entity.description.updated_utc_ms
        self.accessed_utc_ms: int = runtime.accessed_utc_ms


class TopicView(QueueView):
    """A topic.  Its counts are of what it keeps itself (scheduled messages).

    Its size is that of all its subscriptions too; a body that they share counts for each of them.
    """

    def __init__(
        self, entity: Entity, runtime: Runtime, availability: str, prefix: str = ""
    ) -> None:
        super().__init__(entity, runtime, availability, prefix)
        self.subscription_count: int = len(entity.subscriptions)
        self.sql_filter_count: int = runtime.sql_filter_count
        self.correlation_filter_count: int = runtime.correlation_filter_count


class SubscriptionView(QueueView):
    """A subscription.  `name` is its own, without the topic's."""

    def __init__(
        self, entity: Entity, runtime: Runtime, availability: str, prefix: str = ""
    ) -> None:
        super().__init__(entity, runtime, availability, prefix)
        self.path: str = self.name
        self.topic, _, self.name = self.path.partition(SUBSCRIPTIONS)


class RuleView:
    """A rule of a subscription."""

    def __init__(self, description: RuleDescription) -> None:
        self.name: str = description.name
        self.description: RuleDescription = description
        self.created_utc_ms: int = description.created_utc_ms
