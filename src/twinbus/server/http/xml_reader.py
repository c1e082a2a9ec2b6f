"""XML from a peer, which is hostile until read: a bounded tree, or ArgumentInvalid.

No document type (so no entities and nothing from elsewhere), bounded depth and number of elements.
How long a document may be is the HTTP shell's to say.  Knows no Atom and no Service Bus.
"""

from typing import Final
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from twinbus.errors import ArgumentInvalid
from twinbus.limits import XML_DEPTH_MAX, XML_ELEMENTS_MAX

XML_SPACE: Final = " \t\r\n"


class _TreeReader:
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
        self._tree.start(_tag(name), {_tag(key): value for key, value in attributes.items()})

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
    """The tree of a document, with names as ElementTree writes them: `{namespace}name`."""
    reader = _TreeReader()
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


# -- values ----------------------------------------------------------------------------------------

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_NUMBER_DIGITS_MAX: Final = 18  # beyond that it is no setting but an attempt at slow arithmetic


def whole_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _NUMBER_DIGITS_MAX:
        raise ArgumentInvalid(f"{name} is '{text[:64]}', which is not a whole number.")
    return int(text)


def boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ArgumentInvalid(f"{name} is '{text[:64]}', which is neither true nor false.")
    return value
