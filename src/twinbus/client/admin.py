"""Entity administration over HTTP: create, show, list and delete queues.

The Atom protocol of Azure Service Bus's management endpoint, just the part the command line and the
tests need, on the standard library.  Settings are named as in that protocol (`LockDuration`) and
travel as text; what they mean is the server's to say.
"""

import http.client
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    ServiceError,
    TwinbusError,
    Unauthorized,
)

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
API_VERSION: Final = "api-version=2021-05"
REQUEST_DURATION_S_MAX: Final = 30
TOKEN_LIFETIME_S: Final = 300
PAGE_SIZE: Final = 100  # what the official SDK asks for

# The order of the protocol's schema; the cloud's service refuses any other.
QUEUE_ELEMENTS: Final = (
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "Status",
    "ForwardTo",
    "UserMetadata",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "ForwardDeadLetteredMessagesTo",
)

_REFUSALS: Final[Mapping[int, type[ServiceError]]] = {
    400: ArgumentInvalid,
    401: Unauthorized,
    404: EntityNotFound,
    409: EntityAlreadyExists,
}


class Unreachable(TwinbusError):
    """Nobody answers at the endpoint."""


@dataclass(frozen=True)
class QueueEntry:
    """A queue as the server describes it: settings and counts by their protocol names."""

    name: str
    properties: Mapping[str, str]


class AdminClient:
    """Administers the entities of one namespace; one connection per request."""

    def __init__(self, connection_string: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = ConnectionString.parse(connection_string)
        self._tls = tls

    def create_queue(self, name: str, properties: Mapping[str, str] | None = None) -> QueueEntry:
        body = _entry_xml(properties or {})
        return _parse_entry(ET.fromstring(self._request("PUT", _path(name), body)), name)

    def get_queue(self, name: str) -> QueueEntry:
        path = f"{_path(name)}?enrich=false&{API_VERSION}"
        return _parse_entry(ET.fromstring(self._request("GET", path)), name)

    def delete_queue(self, name: str) -> None:
        self._request("DELETE", _path(name))

    def list_queues(self) -> Iterator[QueueEntry]:
        skip = 0
        while True:
            path = f"/$Resources/queues?$skip={skip}&$top={PAGE_SIZE}&{API_VERSION}"
            entries = ET.fromstring(self._request("GET", path)).findall(f"{{{ATOM}}}entry")
            for entry in entries:
                yield _parse_entry(entry, "")
            if len(entries) < PAGE_SIZE:
                return
            skip += PAGE_SIZE

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        target = self._target
        connection: http.client.HTTPConnection
        if target.development_emulator and self._tls is None:
            connection = http.client.HTTPConnection(
                target.host, target.port, timeout=REQUEST_DURATION_S_MAX
            )
        else:
            tls = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                target.host, target.port, timeout=REQUEST_DURATION_S_MAX, context=tls
            )
        headers = {"Authorization": self._token(), "Content-Type": "application/atom+xml"}
        if "?" not in path:
            path += "?" + API_VERSION
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            reason = f"no bus answers at {target.authority} ({error}); is `twinbus serve` running?"
            raise Unreachable(reason) from error
        finally:
            connection.close()
        if status >= 400:
            raise _REFUSALS.get(status, ServiceError)(_detail(text) or f"HTTP status {status}")
        return text

    def _token(self) -> str:
        """A shared access signature for the whole namespace."""
        target = self._target
        expires_s = SystemClock().now().utc_ms // 1_000 + TOKEN_LIFETIME_S
        uri = f"https://{target.authority}"
        return make_sas_token(uri, target.key_name, target.key, expires_s)


def _path(name: str) -> str:
    return "/" + quote(name, safe="")


def _entry_xml(properties: Mapping[str, str]) -> bytes:
    unknown = sorted(set(properties) - set(QUEUE_ELEMENTS))
    if unknown:
        raise ArgumentInvalid(f"a queue has no setting {unknown[0]}")
    entry = ET.Element(f"{{{ATOM}}}entry")
    content = ET.SubElement(entry, f"{{{ATOM}}}content", {"type": "application/xml"})
    description = ET.SubElement(content, f"{{{SERVICE_BUS}}}QueueDescription")
    for element in QUEUE_ELEMENTS:
        if element in properties:
            ET.SubElement(description, f"{{{SERVICE_BUS}}}{element}").text = properties[element]
    text: bytes = ET.tostring(entry, encoding="utf-8")
    return text


def _parse_entry(entry: ET.Element, name: str) -> QueueEntry:
    description = entry.find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}QueueDescription")
    if description is None:  # how the cloud's service says "not there"
        raise EntityNotFound(f"there is no queue {name}")
    title = entry.findtext(f"{{{ATOM}}}title")
    properties = {
        leaf.tag.partition("}")[2]: leaf.text or "" for leaf in description.iter() if len(leaf) == 0
    }
    return QueueEntry(title or name, properties)


def _detail(text: bytes) -> str:
    """The reason inside an error answer, without the tracking noise behind it."""
    try:
        detail = ET.fromstring(text).findtext("Detail") or ""
    except ET.ParseError:
        return ""
    return detail.partition(" TrackingId")[0].strip()
