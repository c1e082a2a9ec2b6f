"""The Atom around every description: entries, feeds, and the namespace's own entry.

XML to a peer is escaped, always, so that no name and no text of a user can break it.  Addresses are
where the client says that it reached us; they are only shown back to it.  What a description says
is written elsewhere: entity_documents.py and rule_documents.py.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element

from twinbus.errors import ArgumentInvalid
from twinbus.server.http.exchange import xml_text
from twinbus.server.http.xml_reader import read_xml

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
TYPE: Final = f"{{{INSTANCE}}}type"

_QUOTE: Final = '"'
_PATH_CHARS: Final = "/$"  # `$Default` is a rule's name; the Node SDK takes names from addresses


# -- reading ---------------------------------------------------------------------------------------


def read_content(body: bytes, kinds: Sequence[str]) -> Element:
    """The description inside an entry; it must be of one of these kinds."""
    entry = read_xml(body)
    content = entry.find(f"{{{ATOM}}}content")
    if entry.tag != f"{{{ATOM}}}entry" or content is None:
        raise ArgumentInvalid("The body is not an Atom entry with content.")
    for child in content:
        if local_name(child) in kinds:
            return child
    raise ArgumentInvalid(f"The entry holds no {' and no '.join(kinds)}.")


def local_name(element: Element) -> str:
    """An element's name without Service Bus's namespace; names of other namespaces stay long."""
    return element.tag.removeprefix(f"{{{SERVICE_BUS}}}")


# -- writing ---------------------------------------------------------------------------------------


class AtomEntry(NamedTuple):
    """One resource as an Atom entry: its address, name, times and content."""

    path: str  # from the namespace on, not yet encoded
    title: str
    created_utc_ms: int
    updated_utc_ms: int
    content: str  # XML

    def written(self, base: str) -> str:
        address = f"{base}/{quote(self.path, safe=_PATH_CHARS)}"
        return (
            f'<entry xmlns="{ATOM}">'
            f"{element('id', address)}{element('title', self.title)}"
            f"{element('published', utc_text(self.created_utc_ms))}"
            f"{element('updated', utc_text(self.updated_utc_ms))}"
            f"<author>{element('name', 'twinbus')}</author>{_link('self', address)}"
            f'<content type="application/xml">{self.content}</content></entry>'
        )


def feed(
    path: str, now_utc_ms: int, entries: Sequence[AtomEntry], base: str, next_query: str
) -> str:
    """A page.  The Python SDK takes exactly two links as "there is more", the second as where."""
    address = f"{base}/{quote(path, safe=_PATH_CHARS)}"
    links = _link("self", address)
    if next_query:
        links += _link("next", f"{address}?{next_query}")
    title = path.rpartition("/")[2]
    return (
        f'<feed xmlns="{ATOM}">{element("title", title)}{element("id", address)}'
        f"{element('updated', utc_text(now_utc_ms))}{links}"
        f"{''.join(entry.written(base) for entry in entries)}</feed>"
    )


def namespace_entry(name: str, created_utc_ms: int, profile: str) -> AtomEntry:
    """`profile` is that of its limits; what the cloud has no tier for is its highest."""
    created = utc_text(created_utc_ms)
    tier = profile.title() if profile in ("basic", "standard") else "Premium"
    elements = [element("CreatedTime", created), element("MessagingSKU", tier)]
    if tier == "Premium":
        elements.append(element("MessagingUnits", "1"))  # the Node SDK insists
    elements += [
        element("ModifiedTime", created),
        element("Name", name),
        element("NamespaceType", "Messaging"),
    ]
    content = description("NamespaceInfo", elements)
    return AtomEntry("$namespaceinfo", name, created_utc_ms, created_utc_ms, content)


def description(kind: str, elements: Sequence[str]) -> str:
    """A description of written elements.  The Node SDK insists on the prefix `i`."""
    return f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(elements)}</{kind}>'


def element(name: str, text: str) -> str:
    return f"<{name}>{xml_text(text)}</{name}>"


def attribute(text: str) -> str:
    """Text between the quotes of an attribute."""
    return xml_text(text).replace(_QUOTE, "&quot;")


def _link(relation: str, address: str) -> str:
    return f'<link rel="{relation}" href="{attribute(address)}"/>'


def utc_text(utc_ms: int) -> str:
    moment = datetime.fromtimestamp(utc_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{utc_ms % 1000:03d}Z"
