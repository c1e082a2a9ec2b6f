"""Queues, topics and subscriptions as XML: from a document to settings, and from a view back.

Elements are in the order of the service's schema.  An element newer than a request's api-version
is neither shown nor accepted, and an update keeps settings that its client cannot know.  Unknown
elements are skipped: keeping them would show settings that have no effect.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from twinbus.entities.descriptions import (
    QueueDescription,
    SharedAccessRule,
    SubscriptionDescription,
    TopicDescription,
    format_duration,
    parse_duration,
)
from twinbus.entities.partitions import PARTITION_COUNT
from twinbus.entities.state import QueueCounts
from twinbus.errors import ArgumentInvalid, NotSupported
from twinbus.gateway.namespaces.views import QueueView, SubscriptionView, TopicView
from twinbus.limits import PARTITION_SIZE_MEGABYTES_MAX
from twinbus.server.http.atom.authorization_documents import (
    read_authorization_rules,
    write_authorization_rules,
)
from twinbus.server.http.atom.feeds import AtomEntry, description, element, local_name, utc_text
from twinbus.server.http.xml_reader import XML_SPACE, boolean, whole_number

COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

QUEUE: Final = "QueueDescription"
TOPIC: Final = "TopicDescription"
SUBSCRIPTION: Final = "SubscriptionDescription"


# How a setting is written.
_DURATION: Final = "duration"
_NUMBER: Final = "number"
_BOOLEAN: Final = "boolean"
_TEXT: Final = "text"
_ENTITY: Final = "entity"  # as a URI outside, as a name inside

# The settings: element → attribute of the description, and how it is written.
SETTINGS: Final = {
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxSizeInMegabytes": ("max_size_megabytes", _NUMBER),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOLEAN),
    "RequiresSession": ("requires_session", _BOOLEAN),
    "DefaultMessageTimeToLive": ("default_time_to_live_ms", _DURATION),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _BOOLEAN),
    "DeadLetteringOnFilterEvaluationExceptions": (
        "dead_lettering_on_filter_evaluation_exceptions",
        _BOOLEAN,
    ),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _NUMBER),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOLEAN),
    "FilteringMessagesBeforePublishing": ("filtering_messages_before_publishing", _BOOLEAN),
    "Status": ("status", _TEXT),
    "ForwardTo": ("forward_to", _ENTITY),
    "UserMetadata": ("user_metadata", _TEXT),
    "SupportOrdering": ("support_ordering", _BOOLEAN),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _DURATION),
    "EnablePartitioning": ("enable_partitioning", _BOOLEAN),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", _ENTITY),
    "EnableExpress": ("enable_express", _BOOLEAN),
    "MaxMessageSizeInKilobytes": ("max_message_size_kilobytes", _NUMBER),
}
# Settings of the service that are always off here; asking for them is refused, not forgotten.
_ALWAYS_FALSE: Final = ("IsAnonymousAccessible", "EnableSubscriptionPartitioning")

# The api-version with which an element came.
_SINCE: Final = {
    "EnablePartitioning": "2013-10",
    "MaxMessageSizeInKilobytes": "2021-05",
    "SqlFilterCount": "2024-05",
    "CorrelationFilterCount": "2024-05",
}

# In the order of the service's schema.
_QUEUE_ELEMENTS: Final = """
    LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
    DefaultMessageTimeToLive DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow
    MaxDeliveryCount EnableBatchedOperations SizeInBytes MessageCount IsAnonymousAccessible
    AuthorizationRules Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata
    SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
    ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes
"""
_TOPIC_ELEMENTS: Final = """
    DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection
    DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes
    FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status CreatedAt
    UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails SubscriptionCount
    SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning
    EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress
    MaxMessageSizeInKilobytes
"""
_SUBSCRIPTION_ELEMENTS: Final = """
    LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
    DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount
    EnableBatchedOperations Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata
    CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle EntityAvailabilityStatus
"""
_ELEMENTS: Final = {
    QUEUE: tuple(_QUEUE_ELEMENTS.split()),
    TOPIC: tuple(_TOPIC_ELEMENTS.split()),
    SUBSCRIPTION: tuple(_SUBSCRIPTION_ELEMENTS.split()),
}


# -- reading ---------------------------------------------------------------------------------------


class DescriptionReader:
    """Reads the settings of one entity, given api-version, time and its current settings."""

    def __init__(self, version: str, now_utc_ms: int, current: QueueDescription | None) -> None:
        self._version = version
        self._now_utc_ms = now_utc_ms
        self._current = current  # None when the entity is being created

    def queue(self, content: Element) -> QueueDescription:
        return QueueDescription.from_mapping(self._values(content))

    def topic(self, content: Element) -> TopicDescription:
        return TopicDescription.from_mapping(self._values(content))

    def subscription(self, content: Element) -> SubscriptionDescription:
        return SubscriptionDescription.from_mapping(self._values(content))

    def _values(self, content: Element) -> dict[str, object]:
        """What the document says by attribute; what it leaves out gets its default."""
        known = _ELEMENTS[local_name(content)]
        values = self._kept(known)
        given: set[str] = set()
        for child in content:
            name = local_name(child)
            if name not in known:
                continue
            if name in given:
                raise ArgumentInvalid(f"{name} is given twice.")
            given.add(name)
            if name == "AuthorizationRules":
                values["authorization_rules"] = self._authorization_rules(child)
            else:
                self._take(name, child.text or "", values)
        self._take_size_of_all(values)
        return values

    def _take_size_of_all(self, values: dict[str, object]) -> None:
        """A client that changes what it was shown brings the size of all partitions along."""
        current = self._current
        size = values.get("max_size_megabytes")
        if current is None or not current.enable_partitioning or not isinstance(size, int):
            return
        is_whole = size > PARTITION_SIZE_MEGABYTES_MAX or size == _whole_size_megabytes(current)
        if is_whole and size % PARTITION_COUNT == 0:
            values["max_size_megabytes"] = size // PARTITION_COUNT

    def _kept(self, known: Sequence[str]) -> dict[str, object]:
        """What an update leaves as it is unless it says otherwise."""
        values: dict[str, object] = {}
        if self._current is None:
            return values
        for name, since in _SINCE.items():
            if name in known and name in SETTINGS and self._version < since:
                attribute = SETTINGS[name][0]
                values[attribute] = getattr(self._current, attribute)
        if "AuthorizationRules" in known:
            # Nobody loses access by an update that does not speak of it.
            values["authorization_rules"] = self._current.authorization_rules
        return values

    def _take(self, name: str, text: str, values: dict[str, object]) -> None:
        bare = text.strip(XML_SPACE)
        if not bare:
            return
        if name in _ALWAYS_FALSE:
            if boolean(name, bare):
                raise NotSupported(f"{name} is not supported; leave it unset.")
        elif name in SETTINGS:
            if self._version < _SINCE.get(name, ""):
                raise ArgumentInvalid(f"{name} needs api-version {_SINCE[name]} or later.")
            attribute, kind = SETTINGS[name]
            values[attribute] = text if kind == _TEXT else _read_setting(name, bare, kind)

    def _authorization_rules(self, child: Element) -> tuple[SharedAccessRule, ...]:
        existing = () if self._current is None else self._current.authorization_rules
        return read_authorization_rules(child, existing, self._now_utc_ms)


def _read_setting(name: str, text: str, kind: str) -> object:
    if kind == _DURATION:
        return parse_duration(text)
    if kind == _NUMBER:
        return whole_number(name, text)
    if kind == _BOOLEAN:
        return boolean(name, text)
    try:
        path = urlsplit(text).path if "://" in text else text
        return unquote(path, errors="strict").strip("/")
    except ValueError:
        raise ArgumentInvalid(f"{name} is not a valid URI.") from None


# -- writing ---------------------------------------------------------------------------------------


def entity_entry(view: QueueView, base: str, version: str) -> AtomEntry:
    kind, path, texts = QUEUE, view.name, _texts(view, base)
    if isinstance(view, TopicView):
        kind = TOPIC
        texts["SubscriptionCount"] = str(view.subscription_count)
        texts["SqlFilterCount"] = str(view.sql_filter_count)
        texts["CorrelationFilterCount"] = str(view.correlation_filter_count)
    elif isinstance(view, SubscriptionView):
        kind, path = SUBSCRIPTION, view.path
    written = {
        "AuthorizationRules": write_authorization_rules(view.description.authorization_rules),
        "CountDetails": _count_details(view.counts),
    }
    elements = [
        written[name] if name in written else element(name, texts[name])
        for name in _ELEMENTS[kind]
        if (name in written or name in texts) and version >= _SINCE.get(name, "")
    ]
    content = description(kind, elements)
    return AtomEntry(path, view.name, view.created_utc_ms, view.updated_utc_ms, content)


def _texts(view: QueueView, base: str) -> dict[str, str]:
    """Everything a description may say, by element, not yet escaped."""
    texts = {
        "SizeInBytes": str(view.counts.size_bytes),
        "MessageCount": str(view.counts.message_count),
        "CreatedAt": utc_text(view.created_utc_ms),
        "UpdatedAt": utc_text(view.updated_utc_ms),
        "AccessedAt": utc_text(view.accessed_utc_ms),
        "EntityAvailabilityStatus": view.availability,
    }
    texts.update(dict.fromkeys(_ALWAYS_FALSE, "false"))
    for name, (attribute, kind) in SETTINGS.items():
        value: object = getattr(view.description, attribute)
        if value is not None:
            texts[name] = _write_setting(value, kind, base)
    if view.description.enable_partitioning:
        texts["MaxSizeInMegabytes"] = str(_whole_size_megabytes(view.description))
    return texts


def _whole_size_megabytes(description: QueueDescription) -> int:
    """The service takes the size of a partition, and shows that of all of them together."""
    return description.max_size_megabytes * PARTITION_COUNT


def _write_setting(value: object, kind: str, base: str) -> str:
    if kind == _DURATION:
        assert isinstance(value, int)
        return format_duration(value)
    if kind == _BOOLEAN:
        return "true" if value else "false"
    if kind == _ENTITY:
        return f"sb{base.removeprefix('https')}/{value}"
    return str(value)


def _count_details(counts: QueueCounts) -> str:
    numbers = (
        ("ActiveMessageCount", counts.active),
        ("DeadLetterMessageCount", counts.dead_letter),
        ("ScheduledMessageCount", counts.scheduled),
        ("TransferMessageCount", counts.transfer),
        ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
    )
    inner = "".join(f"<d:{name}>{number}</d:{name}>" for name, number in numbers)
    return f'<CountDetails xmlns:d="{COUNTS}">{inner}</CountDetails>'
