"""Addresses: what a link or a request names, as clients write it.

`queue`, `topic` or `topic/Subscriptions/subscription`, any of them with `/$DeadLetterQueue` or
`/$Transfer/$DeadLetterQueue` behind it, and any of these with `/$management`; or a full URI.
"""

from typing import Final
from urllib.parse import urlsplit

from twinbus.entities.facts import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER

MANAGEMENT: Final = "/$management"
_SUBQUEUES: Final = (
    ("/$transfer/$deadletterqueue", TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", DEAD_LETTER),
)


class Address:
    """Where a link goes: entity path, which part of it, and whether to its management node."""

    __slots__ = ("is_management", "name", "path", "subqueue")

    def __init__(self, name: str, subqueue: int, is_management: bool, path: str) -> None:
        self.name = name
        self.subqueue = subqueue
        self.is_management = is_management
        self.path = path  # without /$management; what a token must cover


def parse_address(text: str) -> Address:
    """Read an address as clients write it: `amqps://host:port/path` or just the path."""
    path = _path_of(text) if "://" in text else text
    path = path.strip("/")
    is_management = path.lower().endswith(MANAGEMENT)
    if is_management:
        path = path[: -len(MANAGEMENT)]
    lowered = path.lower()
    for suffix, subqueue in _SUBQUEUES:
        if lowered.endswith(suffix):
            return Address(path[: -len(suffix)], subqueue, is_management, path)
    return Address(path, MAIN, is_management, path)


def _path_of(uri: str) -> str:
    """The path of a URI.  What looks like one and is none is a name, which nothing has."""
    try:
        return urlsplit(uri).path
    except ValueError:
        return uri
