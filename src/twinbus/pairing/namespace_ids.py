"""Which namespace a sender of the SDK is connected to: the id that a twinbus tells (P-19).

A twinbus tells it in the properties of the link, so it costs nothing to learn, and whoever has no
key learns nothing.  Azure tells none.  The SDK keeps these properties where it reads the size of a
batch from; should it keep them elsewhere one day, nobody has an id, and the marks decide.
"""

from collections.abc import Collection
from typing import Any, Final

from twinbus.message import wire_names
from twinbus.pairing.errors import OtherNamespaceError
from twinbus.pairing.value_types import text_of

ANY: Final[frozenset[str]] = frozenset()  # what is sent does not say where it belongs
# The SDK reads symbols as bytes.
_NAMES: Final = (wire_names.NAMESPACE_ID.encode(), wire_names.NAMESPACE_ID)
_CHARS_MAX: Final = 128


def id_told_to(link: Any) -> str | None:
    """By the peer of an open link; None: it tells none."""
    handler = getattr(getattr(link, "_handler", None), "_link", None)
    properties = getattr(handler, "remote_properties", None)
    if not isinstance(properties, dict):
        return None
    for name in _NAMES:
        told = text_of(properties.get(name))
        if told and len(told) <= _CHARS_MAX:
            return told
    return None


def check(told: str | None, meant_for: Collection[str]) -> None:
    """Raise unless the namespace is the only one that something is meant for."""
    if told is not None and any(each != told for each in meant_for):
        raise OtherNamespaceError(told)
