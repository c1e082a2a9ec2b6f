"""Atom documents for the tests of entity management: written as the SDKs write them, and read."""

from xml.etree.ElementTree import Element, fromstring

from twinbus.server.http.atom.feeds import ATOM, SERVICE_BUS


def document(inner: str = "", kind: str = "QueueDescription", attributes: str = "") -> bytes:
    """An entry as the Python SDK writes it: Atom prefixed, the description in the default."""
    return (
        f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{SERVICE_BUS}"><ns0:content type="application/xml">'
        f"<{kind} {attributes}>{inner}</{kind}></ns0:content></ns0:entry>"
    ).encode()


def entry_content(body: bytes) -> Element:
    """The description in an entry."""
    content = fromstring(body).find(f"{{{ATOM}}}content")
    assert content is not None
    [description] = content
    return description


def value(description: Element, name: str) -> str | None:
    return description.findtext(f"{{{SERVICE_BUS}}}{name}")


def names_of(description: Element) -> list[str]:
    return [child.tag.partition("}")[2] for child in description]
