"""What management shows of an entity: its description, its counts, its times.

A view is taken at one moment and does not change afterwards.  Names are as the namespace's users
know them.
"""

from twinbus.entities.descriptions import SUBSCRIPTIONS, QueueDescription
from twinbus.entities.queue import Queue, QueueCounts
from twinbus.entities.rules import Rule, RuleDescription
from twinbus.entities.topic import Topic


class QueueView:
    """A queue.  `prefix` is what the store has in front of the names of this namespace."""

    __slots__ = (
        "accessed_utc_ms",
        "counts",
        "created_utc_ms",
        "description",
        "name",
        "updated_utc_ms",
    )

    def __init__(self, queue: Queue, prefix: str = "") -> None:
        self.name: str = queue.name[len(prefix) :]
        self.description: QueueDescription = queue.description
        self.counts: QueueCounts = queue.counts()
        self.created_utc_ms: int = queue.description.created_utc_ms
        self.updated_utc_ms: int = queue.description.updated_utc_ms
        self.accessed_utc_ms: int = queue.accessed_utc_ms


class TopicView(QueueView):
    """A topic.  Its counts are of what it keeps itself (scheduled messages).

    Its size is that of all its subscriptions too; a body that they share counts for each of them.
    """

    __slots__ = ("correlation_filter_count", "sql_filter_count", "subscription_count")

    def __init__(self, topic: Topic, prefix: str = "") -> None:
        super().__init__(topic, prefix)
        self.subscription_count: int = len(topic.subscriptions)
        self.sql_filter_count: int = topic.rules.sql_filter_count
        self.correlation_filter_count: int = topic.rules.correlation_filter_count
        for subscription in topic.subscriptions.values():
            self.counts.size_bytes += subscription.counts().size_bytes


class SubscriptionView(QueueView):
    """A subscription.  `name` is its own, without the topic's."""

    __slots__ = ("path", "topic")

    def __init__(self, subscription: Queue, prefix: str = "") -> None:
        super().__init__(subscription, prefix)
        self.path: str = self.name
        self.topic, _, self.name = self.path.partition(SUBSCRIPTIONS)


class RuleView:
    """A rule of a subscription."""

    __slots__ = ("created_utc_ms", "description", "name")

    def __init__(self, rule: Rule) -> None:
        self.name: str = rule.description.name
        self.description: RuleDescription = rule.description
        self.created_utc_ms: int = rule.description.created_utc_ms
