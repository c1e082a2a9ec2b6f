"""Atom documents about queues and the namespace: from XML to a description, and back.

XML from a peer is hostile until read: no document type (so no entities), bounded depth and number
of elements, each setting at most once.  XML to a peer is escaped and its elements stand in the
order of the service's schema.  Nothing here knows HTTP, rights or the broker.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from twinbus.entities.descriptions import QueueDescription, format_duration, parse_duration
from twinbus.entities.queue import QueueCounts
from twinbus.errors import ArgumentInvalid, NotSupported
from twinbus.limits import XML_DEPTH_MAX, XML_ELEMENTS_MAX
from twinbus.server.http import xml_text

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

_QUOTE: Final = '"'
_XML_SPACE: Final = " \t\r\n"


class QueueView(Protocol):
    """What the namespace shows of a queue."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> QueueDescription: ...
    @property
    def counts(self) -> QueueCounts: ...
    @property
    def created_utc_ms(self) -> int: ...
    @property
    def updated_utc_ms(self) -> int: ...
    @property
    def accessed_utc_ms(self) -> int: ...


# -- reading ---------------------------------------------------------------------------------------


class _XmlReader:
    """Builds a tree from expat's events and stops where a document goes too far."""

    def __init__(self) -> None:
        self._tree = TreeBuilder()
        self._depth = 0
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > XML_DEPTH_MAX:
            raise ArgumentInvalid(f"The XML is nested deeper than {XML_DEPTH_MAX}.")
        if self._count > XML_ELEMENTS_MAX:
            raise ArgumentInvalid(f"The XML has more than {XML_ELEMENTS_MAX} elements.")
        self._tree.start(_tag(name), attributes)

    def end(self, name: str) -> None:
        self._depth -= 1
        self._tree.end(_tag(name))

    def text(self, data: str) -> None:
        self._tree.data(data)

    def refuse_doctype(self, *_: object) -> None:
        # Entities, external subsets and their bombs all begin here.
        raise ArgumentInvalid("XML with a document type is refused.")

    def root(self) -> Element:
        return self._tree.close()


def read_xml(data: bytes) -> Element:
    """The tree of a document, or ArgumentInvalid."""
    reader = _XmlReader()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.refuse_doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError):  # the last two: encodings Python lacks
        raise ArgumentInvalid("The body is not well-formed XML.") from None
    return reader.root()


def _tag(name: str) -> str:
    """From expat's `namespace}name` to ElementTree's `{namespace}name`."""
    return f"{{{name}" if "}" in name else name


def read_queue_description(body: bytes) -> QueueDescription:
    """The settings in an entry.  What is unknown, or the server's to say, is skipped."""
    entry = read_xml(body)
    content = entry.find(f"{{{ATOM}}}content")
    if entry.tag != f"{{{ATOM}}}entry" or content is None:
        raise ArgumentInvalid("The body is not an Atom entry with content.")
    if content.find(f"{{{SERVICE_BUS}}}TopicDescription") is not None:
        raise NotSupported("Topics, subscriptions and rules are not supported yet.")
    description = content.find(f"{{{SERVICE_BUS}}}QueueDescription")
    if description is None:
        raise ArgumentInvalid("The entry holds no QueueDescription.")
    values: dict[str, object] = {}
    for element in description:
        name = element.tag.removeprefix(f"{{{SERVICE_BUS}}}")
        text = element.text or ""
        if name == "AuthorizationRules" and len(element):
            raise NotSupported("Authorization rules of an entity are not supported yet.")
        if name not in _SETTINGS or not text.strip(_XML_SPACE):
            continue
        attribute, kind = _SETTINGS[name]
        if attribute in values:
            raise ArgumentInvalid(f"{name} is given twice.")
        values[attribute] = _read_setting(name, text, kind)
    return QueueDescription.from_mapping(values)


# How a setting is written.
_DURATION: Final = "duration"
_NUMBER: Final = "number"
_BOOLEAN: Final = "boolean"
_TEXT: Final = "text"
_ENTITY: Final = "entity"  # as a URI outside, as a name inside

# The settings of a queue: element → attribute of QueueDescription, and how it is written.
_SETTINGS: Final = {
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxSizeInMegabytes": ("max_size_megabytes", _NUMBER),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOLEAN),
    "RequiresSession": ("requires_session", _BOOLEAN),
    "DefaultMessageTimeToLive": ("default_time_to_live_ms", _DURATION),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", _BOOLEAN),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _NUMBER),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOLEAN),
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

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_NUMBER_DIGITS_MAX: Final = 18


def _read_setting(name: str, text: str, kind: str) -> object:
    if kind == _TEXT:
        return text
    text = text.strip(_XML_SPACE)
    if kind == _DURATION:
        return parse_duration(text)
    if kind == _NUMBER:
        return whole_number(name, text)
    if kind == _BOOLEAN:
        value = _BOOLEANS.get(text.lower())
        if value is None:
            raise ArgumentInvalid(f"{name} is '{text[:64]}', which is neither true nor false.")
        return value
    try:
        path = urlsplit(text).path if "://" in text else text
        return unquote(path, errors="strict").strip("/")
    except ValueError:
        raise ArgumentInvalid(f"{name} is not a valid URI.") from None


def whole_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _NUMBER_DIGITS_MAX:
        raise ArgumentInvalid(f"{name} is '{text[:64]}', which is no whole number.")
    return int(text)


# -- writing ---------------------------------------------------------------------------------------


def _write_setting(value: object, kind: str, base: str) -> str:
    if kind == _DURATION:
        assert isinstance(value, int)
        return format_duration(value)
    if kind == _BOOLEAN:
        return "true" if value else "false"
    if kind == _ENTITY:
        return f"sb{base.removeprefix('https')}/{value}"
    return str(value)


def _queue_settings(view: QueueView, base: str) -> dict[str, str]:
    """Everything a QueueDescription says, by element, already written."""
    written = {
        "SizeInBytes": str(view.counts.size_bytes),
        "MessageCount": str(view.counts.message_count),
        "IsAnonymousAccessible": "false",
        "AuthorizationRules": "",
        "CreatedAt": utc_text(view.created_utc_ms),
        "UpdatedAt": utc_text(view.updated_utc_ms),
        "AccessedAt": utc_text(view.accessed_utc_ms),
        "EntityAvailabilityStatus": "Available",
    }
    for name, (attribute, kind) in _SETTINGS.items():
        value: object = getattr(view.description, attribute)
        if value is not None:
            written[name] = _write_setting(value, kind, base)
    return written


# In the order of the service's schema.
_QUEUE_ELEMENTS: Final = (
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "ForwardTo",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "UserMetadata",
    "SupportOrdering",
    "CountDetails",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "ForwardDeadLetteredMessagesTo",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
)


def queue_entry(view: QueueView, base: str) -> str:
    settings = _queue_settings(view, base)
    elements = [
        _element(name, settings[name]) if name in settings else _count_details(view.counts)
        for name in _QUEUE_ELEMENTS
        if name in settings or name == "CountDetails"
    ]
    description = f'<QueueDescription xmlns="{SERVICE_BUS}">{"".join(elements)}</QueueDescription>'
    address = f"{base}/{quote(view.name)}"
    created, updated = utc_text(view.created_utc_ms), utc_text(view.updated_utc_ms)
    return _entry(address, view.name, created, updated, description)


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


def namespace_entry(name: str, created_utc_ms: int, base: str) -> str:
    created = utc_text(created_utc_ms)
    elements = [
        _element("CreatedTime", created),
        _element("MessagingSKU", "Standard"),
        _element("ModifiedTime", created),
        _element("Name", name),
        _element("NamespaceType", "Messaging"),
    ]
    content = f'<NamespaceInfo xmlns="{SERVICE_BUS}">{"".join(elements)}</NamespaceInfo>'
    address = f"{base}/$namespaceinfo"
    return _entry(address, name, created, created, content)


def _entry(address: str, title: str, published: str, updated: str, content: str) -> str:
    return (
        f'<entry xmlns="{ATOM}">'
        f"{_element('id', address)}{_element('title', title)}"
        f"{_element('published', published)}{_element('updated', updated)}"
        f"<author>{_element('name', 'twinbus')}</author>{_link('self', address)}"
        f'<content type="application/xml">{content}</content></entry>'
    )


def feed(address: str, now: str, views: Sequence[QueueView], base: str, next_query: str) -> str:
    """A page.  The Python SDK takes exactly two links as "there is more", the second as where."""
    links = _link("self", address)
    if next_query:
        links += _link("next", f"{address}?{next_query}")
    entries = "".join(queue_entry(view, base) for view in views)
    title = address.rpartition("/")[2]
    return (
        f'<feed xmlns="{ATOM}">{_element("title", title)}{_element("id", address)}'
        f"{_element('updated', now)}{links}{entries}</feed>"
    )


def _element(name: str, text: str) -> str:
    return f"<{name}>{xml_text(text)}</{name}>"


def _link(relation: str, address: str) -> str:
    return f'<link rel="{relation}" href="{xml_text(address).replace(_QUOTE, "&quot;")}"/>'


def utc_text(utc_ms: int) -> str:
    moment = datetime.fromtimestamp(utc_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{utc_ms % 1000:03d}Z"
