"""Entity administration over HTTP: create, show, list, update and delete entities and rules.

The part of the Atom protocol of Azure Service Bus's management endpoint that the command line and
the tests need, on the standard library.  Settings have the protocol's names (`LockDuration`) and
travel as text; the server interprets them.
"""

import ssl
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from twinbus.client.http import REFUSED, HttpClient, refusal
from twinbus.client.rules import (
    RULE_ELEMENT,
    SERVICE_BUS,
    RuleSettings,
    rule_description,
    rule_properties,
)
from twinbus.errors import ArgumentInvalid, EntityNotFound

ATOM: Final = "http://www.w3.org/2005/Atom"
API_VERSION: Final = "api-version=2021-05"
PAGE_SIZE: Final = 100  # what the official SDK asks for


@dataclass(frozen=True)
class Kind:
    """A kind of entity: its name, its XML element, and its settings.

    The settings are in the order of the protocol's schema; Azure refuses any other order.
    """

    word: str
    element: str
    settings: tuple[str, ...]


_QUEUE_SETTINGS: Final = """
    LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
    DefaultMessageTimeToLive DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow
    MaxDeliveryCount EnableBatchedOperations Status ForwardTo UserMetadata AutoDeleteOnIdle
    EnablePartitioning ForwardDeadLetteredMessagesTo
"""
_TOPIC_SETTINGS: Final = """
    DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection
    DuplicateDetectionHistoryTimeWindow EnableBatchedOperations Status UserMetadata
    AutoDeleteOnIdle EnablePartitioning
"""
_SUBSCRIPTION_SETTINGS: Final = """
    LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
    DeadLetteringOnFilterEvaluationExceptions MaxDeliveryCount EnableBatchedOperations Status
    ForwardTo UserMetadata ForwardDeadLetteredMessagesTo AutoDeleteOnIdle
"""
QUEUE: Final = Kind("queue", "QueueDescription", tuple(_QUEUE_SETTINGS.split()))
TOPIC: Final = Kind("topic", "TopicDescription", tuple(_TOPIC_SETTINGS.split()))
SUBSCRIPTION: Final = Kind(
    "subscription", "SubscriptionDescription", tuple(_SUBSCRIPTION_SETTINGS.split())
)
RULE: Final = Kind("rule", RULE_ELEMENT, ())
# What a description says of an entity that is no setting of it.
_READ_ONLY: Final = """
    SizeInBytes MessageCount CreatedAt UpdatedAt AccessedAt CountDetails SubscriptionCount
    SqlFilterCount CorrelationFilterCount EntityAvailabilityStatus
"""


@dataclass(frozen=True)
class Entry:
    """An entity as the server describes it: settings and counts by their protocol names."""

    name: str
    properties: Mapping[str, str]


class AdminClient:
    """Administers the entities of one namespace; one connection per request."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._http = HttpClient(connection_string, tls)

    def create_queue(self, name: str, properties: Mapping[str, str] | None = None) -> Entry:
        return self.create(QUEUE, (name,), properties or {})

    def get_queue(self, name: str) -> Entry:
        return self.get(QUEUE, (name,))

    def delete_queue(self, name: str) -> None:
        self.delete((name,))

    def list_queues(self) -> Iterator[Entry]:
        return self.list(QUEUE)

    # Names are those on the way down to an entity: (topic, subscription, rule) for a rule.

    def create(self, kind: Kind, names: Sequence[str], properties: Mapping[str, str]) -> Entry:
        body = _entry_xml(_description(kind, properties))
        found = self._request("PUT", _path(names), body)
        return _parse_entry(ET.fromstring(found), kind, names[-1])

    def get(self, kind: Kind, names: Sequence[str]) -> Entry:
        return _parse_entry(self._read(names), kind, names[-1])

    def update(self, kind: Kind, names: Sequence[str], properties: Mapping[str, str]) -> Entry:
        """Change these settings and leave the others; one that is empty is taken away.

        As the official SDK does it: what is there is read, changed and written back whole, because
        the service takes a setting that is missing for its default.
        """
        description = _description_in(self._read(names), kind, names[-1])
        _change(description, kind, properties)
        body = _entry_xml(description)
        found = self._request("PUT", _path(names), body, {"If-Match": "*"})
        return _parse_entry(ET.fromstring(found), kind, names[-1])

    def _read(self, names: Sequence[str]) -> ET.Element:
        return ET.fromstring(self._request("GET", f"{_path(names)}?enrich=false&{API_VERSION}"))

    def delete(self, names: Sequence[str]) -> None:
        self._request("DELETE", _path(names))

    def list(self, kind: Kind, names: Sequence[str] = ()) -> Iterator[Entry]:
        """All queues or topics, or everything below the entity with these names."""
        collection = f"{_path(names)}{_BELOW[len(names)]}" if names else f"/$Resources/{kind.word}s"
        skip = 0
        while True:
            path = f"{collection}?$skip={skip}&$top={PAGE_SIZE}&{API_VERSION}"
            entries = ET.fromstring(self._request("GET", path)).findall(f"{{{ATOM}}}entry")
            for entry in entries:
                yield _parse_entry(entry, kind, "")
            if len(entries) < PAGE_SIZE:
                return
            skip += PAGE_SIZE

    def create_rule(self, names: Sequence[str], rule: RuleSettings) -> Entry:
        body = _entry_xml(rule_description(names[-1], rule))
        found = self._request("PUT", _path(names), body)
        return _parse_entry(ET.fromstring(found), RULE, names[-1])

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> bytes:
        headers = {"Content-Type": "application/atom+xml", **(more_headers or {})}
        if "?" not in path:
            path += "?" + API_VERSION
        status, text = self._http.exchange(method, path, body, headers)
        if status >= REFUSED:
            raise refusal(status, _detail(text))
        return text


_BELOW: Final = ("", "/Subscriptions", "/Rules")


def _path(names: Sequence[str]) -> str:
    """`/topic/Subscriptions/subscription/Rules/rule`, as far as there are names."""
    pieces = [f"{below}/{quote(name, safe='')}" for below, name in zip(_BELOW, names, strict=False)]
    return "".join(pieces)


def _check_known(kind: Kind, properties: Mapping[str, str]) -> None:
    unknown = sorted(set(properties) - set(kind.settings))
    if unknown:
        raise ArgumentInvalid(f"a {kind.word} has no setting {unknown[0]}")


def _description(kind: Kind, properties: Mapping[str, str]) -> ET.Element:
    _check_known(kind, properties)
    description = ET.Element(f"{{{SERVICE_BUS}}}{kind.element}")
    for setting in kind.settings:
        if setting in properties:
            ET.SubElement(description, f"{{{SERVICE_BUS}}}{setting}").text = properties[setting]
    return description


def _change(description: ET.Element, kind: Kind, properties: Mapping[str, str]) -> None:
    """Change settings in a description that was read, and leave the order of its elements."""
    _check_known(kind, properties)
    for child in list(description):
        if child.tag.partition("}")[2] in _READ_ONLY.split():
            description.remove(child)
    place = 0  # behind the settings that come before
    for setting in kind.settings:
        tag = f"{{{SERVICE_BUS}}}{setting}"
        found = description.find(tag)
        if setting in properties:
            if found is None:
                found = ET.Element(tag)
                description.insert(place, found)
            found.text = properties[setting]
            if not found.text:
                description.remove(found)
                continue
        if found is not None:
            place = list(description).index(found) + 1


def _entry_xml(description: ET.Element) -> bytes:
    entry = ET.Element(f"{{{ATOM}}}entry")
    content = ET.SubElement(entry, f"{{{ATOM}}}content", {"type": "application/xml"})
    content.append(description)
    text: bytes = ET.tostring(entry, encoding="utf-8")
    return text


def _description_in(entry: ET.Element, kind: Kind, name: str) -> ET.Element:
    description = entry.find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}{kind.element}")
    if description is None:  # how the cloud's service says "not there"
        raise EntityNotFound(f"there is no {kind.word} {name}")
    return description


def _parse_entry(entry: ET.Element, kind: Kind, name: str) -> Entry:
    description = _description_in(entry, kind, name)
    title = entry.findtext(f"{{{ATOM}}}title")
    if kind is RULE:
        return Entry(title or name, rule_properties(description))
    properties = {
        leaf.tag.partition("}")[2]: leaf.text or "" for leaf in description.iter() if len(leaf) == 0
    }
    return Entry(title or name, properties)


def _detail(text: bytes) -> str:
    """The reason inside an error answer, without the tracking noise behind it."""
    try:
        detail = ET.fromstring(text).findtext("Detail") or ""
    except ET.ParseError:
        return ""
    return detail.partition(" TrackingId")[0].strip()
